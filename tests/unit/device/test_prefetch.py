"""Copying ahead, with a device on which copies are done when the test says so."""

from __future__ import annotations

import gc
import os
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from minato._device.prefetch import DevicePrefetcher
from minato._errors import LoaderClosed
from tests.support.devices import DeviceTensor, FakeRuntime

CUDA = torch.device("cuda:0")


class Source:
    """Batches 0, 1, 2, ... of which some are ready; an error may stand in the place of one."""

    def __init__(self, batches: list[Any], ready: int = 1000) -> None:
        self.batches = list(batches)
        self.ready = ready
        self.taken = 0

    def fetch(self) -> Any:
        if self.taken == len(self.batches):
            raise StopIteration
        batch = self.batches[self.taken]
        self.batches[self.taken] = None  # the prefetcher alone holds it from now on
        self.taken += 1
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def is_ready(self) -> bool:
        return self.taken < self.ready


def tensors(count: int) -> list[Any]:
    return [torch.full((4,), number) for number in range(count)]


def make(source: Source, runtime: FakeRuntime, depth: int = 2, devices: tuple[torch.device, ...] = (CUDA,)) -> Any:
    return DevicePrefetcher(source.fetch, source.is_ready, devices, depth, runtime)


def drain(prefetcher: DevicePrefetcher) -> Iterator[Any]:
    while True:
        try:
            yield prefetcher.next_batch()
        except StopIteration:
            return


def number(tensor: DeviceTensor) -> int:
    return int(tensor.content[0])


def test_all_batches_come_in_order_and_the_end_comes_once() -> None:
    runtime = FakeRuntime(at_once=True)
    prefetcher = make(Source(tensors(7)), runtime)
    assert [number(batch) for batch in drain(prefetcher)] == list(range(7))
    for _ in range(2):
        with pytest.raises(StopIteration):
            prefetcher.next_batch()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_as_many_copies_are_under_way_as_asked_for(depth: int) -> None:
    runtime, source = FakeRuntime(), Source(tensors(20))
    prefetcher = make(source, runtime, depth)
    for handed_out in range(1, 5):
        prefetcher.next_batch()
        assert len(runtime.begun) == source.taken == handed_out + depth
        assert prefetcher.waiting == depth


def test_what_is_not_ready_is_not_waited_for_while_there_is_something_to_return() -> None:
    runtime, source = FakeRuntime(), Source(tensors(5), ready=1)
    prefetcher = make(source, runtime)
    prefetcher.next_batch()
    assert source.taken == 1
    prefetcher.next_batch()  # nothing on the way: now it waits, and takes one
    assert source.taken == 2
    source.ready = 5
    prefetcher.next_batch()
    assert source.taken == 5


def test_the_users_stream_waits_for_the_copy_and_the_host_does_not() -> None:
    runtime = FakeRuntime()
    prefetcher = make(Source(tensors(3)), runtime)
    batch = prefetcher.next_batch()
    (user,) = runtime.users.values()
    assert [event.point for event in user.waited_for] == [1]  # the first of three copies
    assert user.waited_for[0].stream is runtime.side[0]
    assert not user.waited_for[0].query()
    assert batch.used_by == [user]
    assert all(tensor.stream is runtime.side[0] for tensor in runtime.begun)
    assert runtime.begun[1].used_by == []  # not handed out yet


def test_the_stream_that_is_current_when_the_batch_is_asked_for_counts() -> None:
    runtime = FakeRuntime(at_once=True)
    prefetcher = make(Source(tensors(4)), runtime)
    first = prefetcher.next_batch()
    before = runtime.users.pop(CUDA)
    second = prefetcher.next_batch()
    assert first.used_by == [before]
    assert second.used_by == [runtime.users[CUDA]] != [before]


def test_host_memory_is_held_until_its_copy_is_done_also_after_the_batch_was_handed_out() -> None:
    runtime = FakeRuntime()
    prefetcher = make(Source(tensors(8)), runtime, depth=1)
    batches = [prefetcher.next_batch() for _ in range(4)]
    assert len(runtime.begun) == runtime.held == 5
    runtime.side[0].work(until=3)  # would fail if the memory had been let go
    prefetcher.next_batch()
    assert [host() is None for host in runtime.host] == [True, True, True, False, False, False]
    assert [number(batch) for batch in batches[:3]] == [0, 1, 2]
    runtime.side[0].work()
    assert number(batches[3]) == 3


def test_memory_is_let_go_before_the_loader_is_asked_for_more() -> None:
    runtime = FakeRuntime()
    source = Source(tensors(6))
    held: list[int] = []
    fetch = source.fetch
    prefetcher = DevicePrefetcher(lambda: (held.append(runtime.held), fetch())[1], source.is_ready, [CUDA], 1, runtime)
    prefetcher.next_batch()
    runtime.side[0].work()
    prefetcher.next_batch()
    assert held == [0, 1, 0]


def test_memory_is_let_go_while_the_last_batches_are_handed_out() -> None:
    runtime = FakeRuntime()
    prefetcher = make(Source(tensors(4)), runtime, depth=3)
    prefetcher.next_batch()
    prefetcher.next_batch()  # finds the end
    runtime.side[0].work()
    prefetcher.next_batch()
    assert runtime.held == 0


def test_any_structure_is_copied_and_the_rest_is_kept() -> None:
    runtime = FakeRuntime(at_once=True)
    batch = {"x": torch.zeros(2), "more": [(torch.ones(1), "name")], "array": (array := object())}
    found = make(Source([batch]), runtime).next_batch()
    assert found["x"].content.tolist() == [0, 0]
    assert found["more"][0][0].content.tolist() == [1]
    assert (found["more"][0][1], found["array"]) == ("name", array)
    assert type(found["more"][0]) is tuple


def test_a_tensor_that_is_there_twice_is_copied_once() -> None:
    runtime = FakeRuntime(at_once=True)
    shared = torch.zeros(3)
    found = make(Source([[shared, shared]]), runtime).next_batch()
    assert found[0] is found[1]
    assert len(runtime.begun) == 1


class Movable:
    """Knows how to go to a device, and nothing of streams."""

    def __init__(self) -> None:
        self.went_to: list[Any] = []

    def to(self, device: Any) -> Any:
        self.went_to.append(device)
        return ("moved", self, device)


class StreamAware(torch.nn.Identity):
    """Has tensors inside that it can mark, as graph batches do."""

    def record_stream(self, stream: Any) -> None: ...

    def clone(self) -> str:
        return "content"


def test_objects_that_can_only_be_moved_are_moved_when_they_are_handed_out() -> None:
    runtime = FakeRuntime(at_once=True)
    movables = [Movable(), Movable(), Movable()]
    prefetcher = make(Source([{"m": movable, "x": torch.zeros(1)} for movable in movables]), runtime)
    found = prefetcher.next_batch()
    assert found["m"] == ("moved", movables[0], CUDA)
    assert isinstance(found["x"], DeviceTensor)
    assert [movable.went_to for movable in movables] == [[CUDA], [], []]


def test_objects_that_know_streams_are_copied_ahead() -> None:
    runtime = FakeRuntime(at_once=True)
    found = make(Source([[StreamAware()]]), runtime).next_batch()
    assert found[0].content == "content"


@pytest.mark.parametrize("odd", [torch.eye(2).to_sparse(), torch.zeros(2, device="meta")], ids=["sparse", "elsewhere"])
def test_tensors_that_cannot_go_on_another_stream_are_moved_when_they_are_handed_out(odd: torch.Tensor) -> None:
    runtime = FakeRuntime(at_once=True)
    meta = torch.device("meta", 0)
    found = make(Source([[odd, torch.zeros(1)]]), runtime, devices=(meta,)).next_batch()
    assert isinstance(found[0], torch.Tensor)
    assert found[0].device.type == "meta"
    assert [found[1]] == runtime.begun


def test_an_error_of_the_loader_comes_after_the_batches_before_it_and_iteration_goes_on() -> None:
    runtime = FakeRuntime(at_once=True)
    batches = tensors(5)
    batches[2] = ValueError("bad sample")
    prefetcher = make(Source(batches), runtime, depth=4)
    assert [number(prefetcher.next_batch()) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="bad sample"):
        prefetcher.next_batch()
    assert [number(batch) for batch in drain(prefetcher)] == [3, 4]


def test_nothing_is_taken_beyond_an_error_that_nobody_has_seen() -> None:
    source = Source([torch.zeros(1), ValueError("bad"), torch.zeros(1)])
    prefetcher = make(source, FakeRuntime(at_once=True), depth=4)
    prefetcher.next_batch()
    assert source.taken == 2


def test_an_error_while_copying_comes_in_its_turn_and_its_memory_is_held_while_it_is_read() -> None:
    runtime = FakeRuntime()
    runtime.fail_at = 3
    prefetcher = make(Source([[tensor, tensor.clone()] for tensor in tensors(3)]), runtime)
    first = prefetcher.next_batch()
    assert runtime.held == 3  # two of the first batch, and the half of the second that is under way
    with pytest.raises(RuntimeError, match="out of device memory"):
        prefetcher.next_batch()
    runtime.side[0].work()
    last = prefetcher.next_batch()
    runtime.side[0].work()
    assert [number(tensor) for tensor in (*first, *last)] == [0, 0, 2, 2]


def test_interrupts_are_not_kept_for_later() -> None:
    source = Source([torch.zeros(1), KeyboardInterrupt(), torch.ones(1)])
    prefetcher = make(source, FakeRuntime(at_once=True))
    with pytest.raises(KeyboardInterrupt):
        prefetcher.next_batch()
    assert [number(batch) for batch in drain(prefetcher)] == [0, 1]


def test_a_batch_is_not_lost_when_its_copy_is_interrupted() -> None:
    runtime = FakeRuntime(at_once=True)
    prefetcher = make(Source(tensors(4)), runtime, depth=1)
    first = prefetcher.next_batch()
    copy = runtime.copy

    def interrupted(value: Any, device: torch.device) -> DeviceTensor:
        runtime.copy = copy  # type: ignore[method-assign]
        raise KeyboardInterrupt

    runtime.copy = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        prefetcher.next_batch()
    assert [number(batch) for batch in (first, *drain(prefetcher))] == [0, 1, 2, 3]


def test_of_a_closed_loader_nothing_is_handed_out() -> None:
    runtime = FakeRuntime()
    source = Source([*tensors(2), LoaderClosed("closed"), *tensors(1)], ready=2)
    prefetcher = make(source, runtime, depth=1)
    prefetcher.next_batch()
    source.ready = 3
    with pytest.raises(LoaderClosed):
        prefetcher.next_batch()
    assert runtime.held == 0
    assert prefetcher.waiting == 0


def test_a_close_by_another_thread_in_between_is_said_so() -> None:
    source = Source(tensors(4))
    prefetcher = make(source, FakeRuntime(), depth=1)
    prefetcher.next_batch()
    source.ready = 0
    prefetcher._is_ready = lambda: bool(prefetcher._lanes[0].queue.clear())  # as if just then
    with pytest.raises(LoaderClosed, match="closed while"):
        prefetcher.next_batch()


def test_several_devices_get_the_batches_in_turn_each_with_its_own_stream_and_queue() -> None:
    runtime = FakeRuntime(at_once=True)
    devices = (torch.device("cuda:0"), torch.device("cuda:1"))
    prefetcher = make(Source(tensors(7)), runtime, 2, devices)
    first = prefetcher.next_batch()
    assert len(runtime.begun) == 1 + 2 * 2
    batches = [first, *drain(prefetcher)]
    assert [number(batch) for batch in batches] == list(range(7))
    assert [batch.device.index for batch in batches] == [0, 1, 0, 1, 0, 1, 0]
    assert [stream.device for stream in runtime.side] == list(devices)
    assert all(batch.stream is runtime.side[batch.device.index] for batch in batches)
    assert all(batch.used_by == [runtime.users[batch.device]] for batch in batches)


def end_by_release(prefetcher: DevicePrefetcher) -> None:
    prefetcher.release()
    prefetcher.release()


def end_by_restart(prefetcher: DevicePrefetcher) -> None:
    prefetcher.restart()


@pytest.mark.parametrize("end", [end_by_release, end_by_restart])
def test_an_end_drops_everything_once_the_copies_are_done(end: Callable[[DevicePrefetcher], None]) -> None:
    runtime = FakeRuntime()
    prefetcher = make(Source(tensors(9)), runtime)
    prefetcher.next_batch()
    waiting = [weakref.ref(tensor) for tensor in runtime.begun]
    runtime.begun.clear()
    end(prefetcher)  # waits for the copies: the fake fails one whose memory is gone
    assert runtime.side[0].done == 3
    assert runtime.held == 0
    runtime.side[0].given.clear()
    gc.collect()
    assert [ref() for ref in waiting] == [None] * 3


def test_an_abandoned_prefetcher_waits_for_its_copies() -> None:
    runtime = FakeRuntime()
    prefetcher = make(Source(tensors(9)), runtime)
    prefetcher.next_batch()
    del prefetcher
    assert runtime.side[0].done == 3
    assert runtime.held == 0


def test_after_an_error_nothing_waits_for_the_garbage_collector() -> None:
    def fetch() -> Any:
        raise ValueError("bad")

    prefetcher = DevicePrefetcher(fetch, lambda: True, [CUDA], 2, FakeRuntime())
    gc.disable()
    try:
        try:
            prefetcher.next_batch()
        except ValueError as error:
            assert "fetch" in [entry.name for entry in traceback.extract_tb(error.__traceback__)]
        alive = weakref.ref(prefetcher)
        del prefetcher
        assert alive() is None
    finally:
        gc.enable()


def test_a_restart_begins_with_the_first_device() -> None:
    runtime = FakeRuntime(at_once=True)
    devices = (torch.device("cuda:0"), torch.device("cuda:1"))
    source = Source(tensors(3))
    prefetcher = make(source, runtime, 1, devices)
    prefetcher.next_batch()
    source.batches, source.taken = tensors(2), 0
    prefetcher.restart()
    batches = list(drain(prefetcher))
    assert [(number(batch), batch.device.index) for batch in batches] == [(0, 0), (1, 1)]


def test_a_forked_copy_leaves_the_device_alone() -> None:
    runtime = FakeRuntime()
    prefetcher = make(Source(tensors(3)), runtime)
    prefetcher.next_batch()
    child = os.fork()
    if child == 0:
        prefetcher.release()
        os._exit(runtime.side[0].done)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    prefetcher.release()
    assert runtime.side[0].done == 3
