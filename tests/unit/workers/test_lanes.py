"""Lanes of a worker: who may take work, who is alone; and the locks that threads share."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from minato import DataLoader
from minato._errors import LoaderClosed
from minato._queues.control import ControlBlock, PoolLock
from minato._queues.fields import Header
from minato._queues.threads_lock import ThreadsLock
from minato._records import Run
from minato._sample_random import SampleSource
from minato._scheduler.window import Window
from minato._workers.async_randomness import AsyncRandomness, Started
from minato._workers.generators import PythonGenerator
from minato._workers.lanes import LaneBoard, Turns
from minato._workers.thread_randomness import SeedingGuard, Turnstile
from minato._workers.threaded_loop import ThreadedLoop, _LaneBoard
from tests.faults.data import Rows, row


class FakeBoard:
    def __init__(self, fetches: int) -> None:
        self.control = ControlBlock(-1, 1, 1)
        words = [0] * 64
        words[Header.FETCHES] = fetches
        self.control.words = words  # type: ignore[assignment]


def turns(fetches: int = 4) -> Turns:
    return Turns(FakeBoard(fetches))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lanes", "posted", "expected"), [(64, 320, 2), (64, 128, 2), (64, 127, 1), (64, 1, 1), (4, 320, 8), (4, 3, 8)]
)
def test_lanes_take_several_of_a_batch_only_while_there_are_as_many_for_all(
    lanes: int, posted: int, expected: int
) -> None:
    """Of a batch of 32; few lanes share it out among themselves, as workers do."""
    board = LaneBoard.__new__(LaneBoard)
    words = [0] * 64
    words[Header.ACTIVE] = lanes
    board._words = words  # type: ignore[assignment]
    assert board._share(32, posted) == expected


def test_lanes_beyond_the_number_of_fetches_rest() -> None:
    assert [turns(2).may_begin(lane) for lane in range(4)] == [True, True, False, False]


def test_a_lane_that_is_to_be_alone_waits_for_the_others_and_they_for_it() -> None:
    order = turns()
    order.begin(0)
    order.begin(1)
    order.isolate(1)
    assert not order.is_alone(1)
    assert not order.may_begin(2)
    assert order.end(0)
    assert order.is_alone(1)
    assert order.end(1)
    assert order.may_begin(2)


def test_a_lane_goes_on_without_a_turn_until_another_is_to_be_alone() -> None:
    order = turns(2)
    assert not order.may_go_on(0), "it is not working yet"
    order.begin(0)
    order.begin(1)
    assert order.may_go_on(0)
    order.isolate(1)
    assert not order.may_go_on(0) and not order.may_go_on(1)
    order.end(0)
    order.end(1)
    order.begin(2)
    assert not order.may_go_on(2), "it is beyond the number of fetches"


def test_two_lanes_that_are_to_be_alone_take_turns() -> None:
    order = turns()
    for lane in (2, 3):
        order.begin(lane)
        order.isolate(lane)
    assert (order.is_alone(2), order.is_alone(3)) == (True, False)
    order.end(2)
    assert order.is_alone(3)


def lane_board(lane: int, order: Turns, changed: threading.Condition) -> _LaneBoard:
    board = _LaneBoard.__new__(_LaneBoard)
    board._lane, board._turns, board._changed = lane, order, changed
    board._words, board._retire = order._words, len(order._words) - 1
    return board


@pytest.mark.parametrize("lanes", [2, 3, 5])
def test_lanes_that_take_tickets_to_be_fetched_alone_at_once_all_come_to_fetch_them(
    lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that goes on asks nobody, so that several may have such a ticket before the first of them waits."""
    taken, fetching, fetched = threading.Barrier(lanes), [], []
    order, changed = turns(lanes), threading.Condition()
    boards = [lane_board(lane, order, changed) for lane in range(lanes)]
    left = set(boards)

    def pull(board: _LaneBoard, *_: object) -> Run | None:
        if board not in left:
            return None
        left.discard(board)
        taken.wait()
        return Run(0, board._lane, 0, 0, board._lane, [board._lane], None, 0, alone=True)

    def work(board: _LaneBoard) -> None:
        while board.pull(1) is not None:
            fetching.append(board._lane)
            time.sleep(0.01)
            assert fetching == [board._lane]
            fetching.clear()
            fetched.append(board._lane)

    monkeypatch.setattr(LaneBoard, "pull", pull)
    threads = [threading.Thread(target=work, args=(board,), daemon=True) for board in boards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(fetched) == list(range(lanes))


def test_a_lane_that_leaves_lets_another_be_alone() -> None:
    """A worker that is dismissed: its lanes end one by one, and what one of them has in hand is still to be made."""
    order, changed = turns(), threading.Condition()
    order.begin(0)
    order.begin(1)
    order.isolate(1)
    loop = ThreadedLoop.__new__(ThreadedLoop)
    loop._changed, loop._running, loop._error = changed, 2, None
    loop._context = SimpleNamespace(wake_self=lambda: None)  # type: ignore[assignment]
    lane = SimpleNamespace(board=lane_board(0, order, changed), trace=None)
    lane.board._me = 0
    loop._work(lane, SimpleNamespace(run=lambda: None))  # type: ignore[arg-type]
    assert order.is_alone(1)


def test_the_lock_excludes_threads_and_other_processes() -> None:
    fd = os.memfd_create("lock")
    lock, count = ThreadsLock(fd), [0]

    def add() -> None:
        for _ in range(300):
            with lock:
                before = count[0]
                time.sleep(0)
                count[0] = before + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [1200]
    with lock:
        pid = os.fork()
        if pid == 0:
            import fcntl

            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            except OSError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    kept = lock.keep()
    with kept:
        assert type(kept) is PoolLock
    os.close(fd)


def test_a_turnstile_lets_in_only_while_the_consumer_waits() -> None:
    turnstile, passed = Turnstile(is_open=False), []

    def enter() -> None:
        with turnstile.passed():
            passed.append(1)

    thread = threading.Thread(target=enter)
    thread.start()
    time.sleep(0.02)
    assert not passed
    with turnstile.opened():
        thread.join()
    assert passed
    turnstile.end()
    with pytest.raises(LoaderClosed), turnstile.passed():
        pass


def test_a_guarded_block_goes_on_where_the_samples_last_one_ended_and_leaves_no_trace() -> None:
    import random

    generator = PythonGenerator()
    guard = SeedingGuard(generators=[generator])
    before = random.getstate()
    whole, parts = SampleSource(lambda _: 5, lambda: 0), SampleSource(lambda _: 5, lambda: 0)
    with guard(whole):
        expected = [random.random(), random.random()]
    with guard(parts), guard(parts):  # twice is as good as once
        got = [random.random()]
    with guard(parts):
        got.append(random.random())
    assert got == expected
    assert random.getstate() == before


def test_a_quiet_generator_is_watched_and_a_sample_that_draws_after_all_is_fetched_again() -> None:
    import asyncio
    import random

    randomness, begun = AsyncRandomness([PythonGenerator()]), []

    async def sample(draws: bool) -> float:
        begun.append(draws)
        await asyncio.sleep(0)
        return random.random() if draws else 0.0

    async def fetch(draws: bool, seed: int) -> float:
        number: float = await randomness.fetch(lambda: sample(draws), seed)
        return number

    async def main() -> list[float]:
        for seed in range(40):
            await fetch(False, seed)
        assert randomness.watched and not randomness.seeded
        begun.clear()
        return [await fetch(True, 1), *await asyncio.gather(*(fetch(True, seed) for seed in (1, 2, 1)))]

    state = random.getstate()
    first, again, other, last = asyncio.run(main())
    random.setstate(state)
    assert first == again == last != other
    assert len(begun) == 5  # the first of them twice


def test_samples_that_wait_for_nothing_come_at_once_and_one_that_waits_is_gone_on_with() -> None:
    import asyncio
    import random

    randomness, begun, current = AsyncRandomness([PythonGenerator()]), [], [0]

    async def sample(key: str) -> object:
        begun.append(key)
        if key == "fails":
            raise ValueError(key)
        if key == "waits":
            await asyncio.sleep(0)
        return random.random() if key == "draws" else key

    def at_once(*keys: str) -> tuple[list[object], Started | None]:
        return randomness.fetch_at_once(sample, keys, lambda error, key: (type(error), key), current)

    async def main() -> None:
        assert at_once("a", "b") == ([], None), "generators are on trial, and seeded for every sample"
        for seed in range(40):
            await randomness.fetch(lambda: sample("a"), seed)
        begun.clear()
        samples, started = at_once("a", "fails", "waits", "b")
        assert samples == ["a", (ValueError, "fails")]
        assert current == [2]
        assert await randomness.fetch(lambda: sample("waits"), 1, started) == "waits"
        assert begun == ["a", "fails", "waits"]
        state = random.getstate()
        assert at_once("a", "draws", "waits") == ([], None), "the numbers drawn were not the sample's own"
        assert random.getstate() == state
        assert at_once("a") == ([], None)

    asyncio.run(main())


def test_the_window_is_as_deep_as_all_fetches_need() -> None:
    window = Window(4, 10**6, first=9, depth=16.0)
    assert window.size == 9
    window.observe(100, rows=8)
    assert window.size == 4 + 4 * 16 // 8
    window.observe(10**5, rows=8)
    assert window.size == 10  # the budget comes first


class Counting(Rows):
    """Keeps the most samples that were under way in its process at once."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.now, self.most, self.lock = 0, 0, None

    def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.005)
        most, self.now = self.most, self.now - 1
        return row(most)


def test_a_policy_may_change_how_many_samples_are_fetched_at_once() -> None:
    loader = DataLoader(Counting(400), 4, num_workers=1, fetcher="threaded", num_fetch_workers=6, in_order=True)
    iterator = iter(loader)
    engine = iterator._engine  # type: ignore[attr-defined]
    engine._pool.set_fetches(1)
    engine._pool.set_fetches(99)
    assert engine._board.fetches == 6
    seen = [int(next(iterator)[0, 0]) for _ in range(20)]
    assert max(seen) > 1
    engine._pool.set_fetches(1)
    for _ in iterator:
        pass
