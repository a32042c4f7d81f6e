"""Workers that fetch many samples at once: killed, stuck, dismissed or abandoned with all of them in flight."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time

import pytest
import torch

import minato
from minato import DataLoader
from minato.errors import LoaderClosed, SampleTimeout, WorkerDied

from .data import Rows, die, row
from .test_scaling import Scripted
from .tools import assert_gone, caught_warnings, until

FETCHERS = ["threaded", "asyncio"]
FOR_EVER_S = 600
TIMEOUT_S = 1.5


@pytest.fixture(params=FETCHERS)
def fetcher(request):
    return request.param


class Slow(Rows):
    """A sample takes up to `seconds`; it may be awaited too."""

    def __init__(self, length, seconds=0.01):
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds * (index % 5) / 4)
        return row(index)

    async def __getitem_async__(self, index):
        await asyncio.sleep(self.seconds * (index % 5) / 4)
        return row(index)


class Deadly(Slow):
    """Some samples kill their worker, whenever they are asked for."""

    def __init__(self, length, deadly, way):
        super().__init__(length)
        self.deadly, self.way = deadly, way

    def __getitem__(self, index):
        if index in self.deadly:
            time.sleep(0.02)
            die(self.way)
        return super().__getitem__(index)

    async def __getitem_async__(self, index):
        if index in self.deadly:
            await asyncio.sleep(0.02)
            die(self.way)
        return await super().__getitem_async__(index)


class Hanging(Slow):
    """Some samples never come back."""

    def __init__(self, length, stuck):
        super().__init__(length)
        self.stuck = stuck

    def __getitem__(self, index):
        if index in self.stuck:
            time.sleep(FOR_EVER_S)  # here it hangs
        return super().__getitem__(index)

    async def __getitem_async__(self, index):
        if index in self.stuck:
            await asyncio.sleep(FOR_EVER_S)
        return await super().__getitem_async__(index)


def numbers(batches):
    return [number for batch in batches for number in batch[:, 0].tolist()]


@pytest.mark.parametrize("collate", [None, torch.stack], ids=["default-collate", "custom-collate"])
def test_kills_with_many_samples_in_flight_lose_none(fetcher, in_order, collate):
    draw = random.Random(f"{fetcher}{in_order}{collate}")
    length = 300
    with caught_warnings():
        loader = DataLoader(
            Slow(length),
            5,
            num_workers=2,
            fetcher=fetcher,
            in_order=in_order,
            collate_fn=collate,
            max_worker_restarts=99,
        )
        iterator, got = iter(loader), []
        for number, batch in enumerate(iterator):
            got += numbers([batch])
            if number % 6 == 0:
                time.sleep(draw.random() * 0.02)
                os.kill(draw.choice(list(iterator.worker_pids.values())), signal.SIGKILL)
    assert (got if in_order else sorted(got)) == list(range(length))
    assert loader.stats().worker_restarts >= 1  # one may be killed twice before its death is seen


@pytest.mark.parametrize("way", ["SIGKILL", "os._exit"])
def test_a_sample_that_kills_is_found_among_many_and_left_out(fetcher, in_order, way):
    loader = DataLoader(
        Deadly(60, [23], way),
        4,
        num_workers=2,
        fetcher=fetcher,
        num_fetch_workers=5,
        in_order=in_order,
        on_error="skip",
    )
    with caught_warnings():
        got = numbers(loader)
    assert sorted(got) == [number for number in range(60) if number != 23]
    assert loader.stats().skipped == (23,)


def test_samples_that_kill_are_left_out_while_workers_come_and_go(fetcher, in_order):
    """A sample that is suspected is fetched with nothing beside it, even by a worker told to leave meanwhile."""
    deadly = [23, 24, 90]
    loader = DataLoader(
        Deadly(120, deadly, "SIGKILL"),
        4,
        num_workers=2,
        fetcher=fetcher,
        num_fetch_workers=5,
        in_order=in_order,
        on_error="skip",
        adaptive=Scripted((1, 3, 2)),
        max_workers=3,
        max_worker_restarts=50,
    )
    with caught_warnings():
        got = numbers(loader)
    assert sorted(got) == [number for number in range(120) if number not in deadly]
    assert sorted(loader.stats().skipped) == deadly
    assert loader.stats().decisions


def test_a_sample_that_kills_is_named(fetcher):
    loader = DataLoader(Deadly(60, [23], "os._exit"), 4, num_workers=2, fetcher=fetcher, num_fetch_workers=5)
    with caught_warnings(), pytest.raises(WorkerDied, match=r"while fetching sample index 23\b"):
        list(loader)


def test_a_sample_that_hangs_is_named_with_the_stack_of_its_thread(fetcher):
    loader = DataLoader(
        Hanging(40, [17]), 4, num_workers=2, fetcher=fetcher, num_fetch_workers=5, in_order=True, timeout=TIMEOUT_S
    )
    with caught_warnings(), pytest.raises(SampleTimeout, match=r"sample index 17\b") as caught:
        list(loader)
    if fetcher == "threaded":
        assert "in __getitem__" in caught.value.__notes__[0]
        assert "test_fetchers.py" in str(caught.value)


def test_samples_that_hang_are_left_out_and_no_other(fetcher, in_order):
    loader = DataLoader(
        Hanging(40, [17]),
        4,
        num_workers=2,
        fetcher=fetcher,
        num_fetch_workers=5,
        in_order=in_order,
        timeout=TIMEOUT_S,
        on_error="skip",
    )
    with caught_warnings():
        got = numbers(loader)
    assert sorted(got) == [number for number in range(40) if number != 17]


def test_an_abandoned_iterator_ends_though_samples_never_do(fetcher):
    loader = DataLoader(
        Hanging(400, range(20, 400)), 4, num_workers=2, fetcher=fetcher, num_fetch_workers=8, in_order=True
    )
    iterator = iter(loader)
    next(iterator)
    pids = list(iterator.worker_pids.values())
    began = time.monotonic()
    del iterator
    assert_gone(pids, within_s=5)
    assert time.monotonic() - began < 5


def test_dismissed_workers_finish_what_is_in_flight(fetcher, in_order):
    loader = DataLoader(
        Slow(500),
        4,
        num_workers=3,
        fetcher=fetcher,
        num_fetch_workers=6,
        in_order=in_order,
        adaptive=Scripted((1, 3, 2)),
        max_workers=3,
    )
    got = numbers(loader)
    assert (got if in_order else sorted(got)) == list(range(500))
    assert loader.stats().decisions
    assert loader.stats().worker_restarts == 0


def test_an_abandoned_epoch_of_persistent_workers_leaves_nothing_in_the_next(fetcher, in_order):
    loader = DataLoader(Slow(200), 4, num_workers=2, fetcher=fetcher, in_order=in_order, persistent_workers=True)
    for _ in range(3):
        next(iter(loader))
    got = numbers(loader)
    loader.close()
    assert (got if in_order else sorted(got)) == list(range(200))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [3, 11])
def test_an_interrupted_epoch_is_resumed(fetcher, workers, stop):
    def make():
        return DataLoader(
            Slow(60), 4, shuffle=True, num_workers=workers, fetcher=fetcher, generator=torch.Generator().manual_seed(5)
        )

    loader, before = make(), []
    iterator = iter(loader)
    for _ in range(stop):
        before += numbers([next(iterator)])
    state = loader.state_dict()
    del iterator
    resumed = make()
    resumed.load_state_dict(state)
    assert sorted(before + numbers(resumed)) == list(range(60))


class Fetching(Rows):
    """A sample is not done before `wanted` have been begun, by all workers together; it gives up after a while."""

    def __init__(self, length, marks, wanted):
        super().__init__(length)
        self.marks, self.wanted = marks, wanted

    def __getitem__(self, index):
        self.marks.once(f"begun-{index}")
        deadline = time.monotonic() + 20
        while len(self.marks.named("begun-")) < self.wanted and time.monotonic() < deadline:
            time.sleep(0.005)
        return row(index)

    async def __getitem_async__(self, index):
        self.marks.once(f"begun-{index}")
        deadline = time.monotonic() + 20
        while len(self.marks.named("begun-")) < self.wanted and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        return row(index)


@pytest.mark.parametrize("size", [2, 8, None])
def test_the_concurrency_asked_for_is_reached_however_small_batches_are(fetcher, size, marks):
    dataset = Fetching(64, marks, 2 * 10)
    loader = DataLoader(dataset, size, num_workers=2, fetcher=fetcher, num_fetch_workers=10)
    began = time.monotonic()
    next(iter(loader))
    assert time.monotonic() - began < 20  # nobody waited in vain
    assert len(marks.named("begun-")) >= 20


def test_a_start_error_of_a_fetch_thread_is_raised():
    class Uncopyable(Rows):
        def __deepcopy__(self, memo):
            raise TypeError("no copies of me")

    loader = DataLoader(Uncopyable(8), 2, num_workers=1, fetcher="threaded", thread_copies=True)
    with pytest.raises(TypeError, match="no copies of me") as caught:
        list(loader)
    assert "thread_copies" in "".join(caught.value.__notes__)


def test_random_numbers_survive_kills(in_order):
    loader = DataLoader(
        Drawing(80), 4, num_workers=2, fetcher="threaded", in_order=in_order, generator=torch.Generator().manual_seed(3)
    )
    with caught_warnings():
        iterator, got = iter(loader), []
        for number, batch in enumerate(iterator):
            got += batch.tolist()
            if number == 4:
                os.kill(next(iter(iterator.worker_pids.values())), signal.SIGKILL)
    sequential = DataLoader(Drawing(80), 4, generator=torch.Generator().manual_seed(3))
    assert sorted(got) == sorted(pair for batch in sequential for pair in batch.tolist())


class Drawing(Slow):
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor([float(index), minato.get_sample_rng().python.random()], dtype=torch.float64)


def fetching_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minato-fetch")]


@pytest.mark.parametrize("how", ["garbage", "closed", "error"])
def test_threads_without_workers_end_with_the_iterator(fetcher, how):
    """Each when the sample that it is at is done: a thread cannot be interrupted."""
    loader = DataLoader(Slow(100, seconds=0.05), 2, fetcher=fetcher, num_fetch_workers=4)
    iterator = iter(loader)
    next(iterator)
    assert fetching_threads()
    if how == "closed":
        loader.close()
        with pytest.raises(LoaderClosed):
            list(iterator)
    elif how == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in iterator:
                raise ZeroDivisionError
    del iterator
    until(lambda: not fetching_threads(), "threads to end")


class Bulky(Rows):
    """Every eighth sample has 17 MiB, the others 64 bytes; it may be awaited too."""

    def __getitem__(self, index):
        return torch.full((17 << 20 if index % 8 == 0 else 64,), index % 251, dtype=torch.uint8)

    async def __getitem_async__(self, index):
        await asyncio.sleep(0)
        return self[index]


def test_samples_arrive_whole_while_memory_of_large_ones_is_kept_and_given_back(fetcher):
    """Each large one has the worker's malloc set anew, each small one after it brings it nearer to what it was."""
    loader = DataLoader(Bulky(96), None, num_workers=1, fetcher=fetcher, num_fetch_workers=4, in_order=False)
    seen = []
    for sample in loader:
        assert sample.min() == sample.max()
        seen.append((int(sample[0]), len(sample)))
    assert sorted(seen) == sorted((index, 17 << 20 if index % 8 == 0 else 64) for index in range(96))
