"""Page-locking, with a fake runtime: there is no accelerator here."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from minato._device.pinning import Pinner, SlotPinner, make_pinner, make_slot_pinner
from minato._queues.arena import Arena
from minato._queues.leases import Slots

PAGE = mmap.PAGESIZE


class FakeRuntime:
    """Notes what is registered; refuses on request."""

    def __init__(self, works: bool = True) -> None:
        self.works = works
        self.registered: dict[int, int] = {}
        self.calls = 0

    def register(self, address: int, nbytes: int) -> bool:
        self.calls += 1
        assert address not in self.registered
        if self.works:
            self.registered[address] = nbytes
        return self.works

    def unregister(self, address: int) -> None:
        del self.registered[address]


def test_a_slot_is_registered_once_and_only_as_far_as_it_is_used() -> None:
    runtime = FakeRuntime()
    pinner = SlotPinner(runtime)
    memory = np.zeros(100 * PAGE, np.uint8)
    for _ in range(3):
        pinner.cover(memory, 5 * PAGE + 1)
    assert runtime.registered == {memory.ctypes.data: 6 * PAGE}
    assert runtime.calls == 1


def test_a_larger_batch_extends_the_registration() -> None:
    runtime = FakeRuntime()
    pinner = SlotPinner(runtime)
    memory = np.zeros(100 * PAGE, np.uint8)
    pinner.cover(memory, PAGE)
    pinner.cover(memory, 9 * PAGE)
    pinner.cover(memory, 2 * PAGE)
    assert runtime.registered == {memory.ctypes.data: 9 * PAGE}
    assert runtime.calls == 2


def test_release_undoes_all_registrations() -> None:
    runtime = FakeRuntime()
    pinner = SlotPinner(runtime)
    slots = [np.zeros(4 * PAGE, np.uint8) for _ in range(3)]
    for memory in slots:
        pinner.cover(memory, PAGE)
    assert len(runtime.registered) == 3
    pinner.release()
    assert runtime.registered == {}


def test_a_runtime_that_refuses_is_asked_once_only() -> None:
    runtime = FakeRuntime(works=False)
    pinner = SlotPinner(runtime)
    for _ in range(3):
        pinner.cover(np.zeros(4 * PAGE, np.uint8), PAGE)
    pinner.release()
    assert runtime.calls == 1


def test_slots_are_covered_before_they_are_lent() -> None:
    runtime = FakeRuntime()
    arena = Arena.create()
    slots = Slots(arena, 2, SlotPinner(runtime).cover)
    lent = slots.lend(slots.take(), 3 * PAGE)
    assert runtime.registered == {lent.ctypes.data: 3 * PAGE}
    del lent
    arena.close()


def test_without_accelerator_pinning_warns_and_does_nothing() -> None:
    batch = {"x": torch.zeros(3)}
    with pytest.warns(UserWarning, match="no accelerator is found"):
        pinner = make_pinner(True, "")
    assert pinner.pin(batch) is batch
    assert make_pinner(False, "").pin(batch) is batch
    assert make_slot_pinner(True) is None


def test_an_active_pinner_passes_batches_through_its_function() -> None:
    assert Pinner(lambda batch: ["pinned", batch]).pin(1) == ["pinned", 1]
