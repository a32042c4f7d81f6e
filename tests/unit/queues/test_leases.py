"""Slots: one that something still refers to is never handed out."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minato._queues.arena import Arena, Stretch
from minato._queues.leases import Slots

SIZE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create()
    yield made
    made.close()


@pytest.fixture
def slots(arena: Arena) -> Slots:
    return Slots(arena, most_lent=4)


HOLDERS = {
    "the array": lambda m: m,
    "a slice": lambda m: m[10:20],
    "a slice of a slice": lambda m: m[8:80][8:16][1:3],
    "a view of another dtype": lambda m: m[:64].view(np.int64).reshape(2, 4)[1],
    "a reversed view": lambda m: m[::-1],
    "a memoryview": lambda m: memoryview(m)[5:],
    "a tensor": torch.from_numpy,
    "a tensor over the buffer": lambda m: torch.frombuffer(m, dtype=torch.float32, count=8, offset=64),
    "a view of a tensor": lambda m: torch.frombuffer(m, dtype=torch.int64, count=8).view(2, 4)[1, 2:],
    "an array over a tensor": lambda m: torch.frombuffer(m, dtype=torch.uint8).numpy()[3:7][1:],
    "a detached tensor": lambda m: torch.frombuffer(m, dtype=torch.float32).requires_grad_().detach(),
    "a storage": lambda m: torch.frombuffer(m, dtype=torch.uint8).untyped_storage(),
    "DLPack": lambda m: torch.from_dlpack(torch.from_numpy(m[4:12])),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_slot_is_free_only_when_the_last_reference_is_gone(slots: Slots, holder: Any) -> None:
    slot = slots.take()
    held = holder(slots.lend(slot, SIZE))
    assert (slots.lent, slots.out) == (1, set())
    fresh = slots.take()
    assert fresh != slot
    slots.put_back(fresh)
    del held
    assert slots.lent == 0
    assert {slots.take(), slots.take()} == {slot, fresh}
    assert slots.count == 2


def test_a_reference_cycle_holds_its_slot_until_it_is_collected(slots: Slots) -> None:
    cycle: list[Any] = [slots.lend(slots.take(), SIZE)]
    cycle.append(cycle)
    del cycle
    assert slots.take() == 1
    gc.collect()
    assert slots.lent == 0


@settings(max_examples=80)
@given(st.data())
def test_accounting_agrees_with_the_model(data: st.DataObject) -> None:
    """Any course of taking, lending, letting go and putting back: one holder per slot, and none is lost."""
    arena = Arena.create()
    most = data.draw(st.integers(0, 3))
    slots = Slots(arena, most)
    taken: dict[int, int] = {}
    lent: list[tuple[int, Any, int]] = []
    try:
        for stamp in range(data.draw(st.integers(1, 30))):
            action = data.draw(st.sampled_from(["take", "lend", "drop", "put back"]))
            if action == "take":
                slot = slots.take()
                assert slot not in taken and slot not in [s for s, _, _ in lent]
                arena.view(Stretch.SLOT, slot, 8)[:8] = stamp
                taken[slot] = stamp
            elif action == "lend" and taken and slots.may_lend():
                slot = data.draw(st.sampled_from(sorted(taken)))
                lent.append((slot, torch.frombuffer(slots.lend(slot, 8)[:8], dtype=torch.uint8), taken.pop(slot)))
            elif action == "put back" and taken:
                slot = data.draw(st.sampled_from(sorted(taken)))
                del taken[slot]
                slots.put_back(slot)
            elif action == "drop" and lent:
                lent.pop(data.draw(st.integers(0, len(lent) - 1)))
            assert slots.out == set(taken)
            assert slots.lent == len(lent) <= most
            assert slots.may_lend() == (len(lent) < most)
            assert all((tensor == stamp).all() for _, tensor, stamp in lent)
        for slot in taken:
            slots.put_back(slot)
        lent.clear()
        assert slots.lent == 0
        everything = sorted(slots.take() for _ in range(slots.count))
        assert everything == list(range(slots.count))
    finally:
        lent.clear()
        arena.close()


def test_the_slot_that_came_back_last_is_taken_first(slots: Slots) -> None:
    taken = [slots.take() for _ in range(3)]
    for slot in taken:
        slots.put_back(slot)
    assert [slots.take() for _ in range(3)] == taken[::-1]


def test_a_slot_without_memory_that_was_not_used_is_taken_last(slots: Slots) -> None:
    cold, used = slots.take(), slots.take()
    slots.put_back(used)
    slots.put_back_unused(cold)
    assert [slots.take(), slots.take()] == [used, cold]


def test_a_slot_is_warm_from_its_first_batch_on(slots: Slots) -> None:
    slot = slots.take()
    assert not slots.is_warm(slot) and slots.take_warm() is None
    memory = slots.lend(slot, SIZE)
    assert slots.is_warm(slot) and slots.take_warm() is None, "the user has it"
    del memory
    assert slots.take_warm() == slot
    assert slots.out == {slot}


def test_a_batch_may_be_dropped_by_another_thread(slots: Slots) -> None:
    box = [slots.lend(slots.take(), SIZE)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert slots.take() == 0
