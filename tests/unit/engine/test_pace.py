"""Nobody is woken in haste where half of the window is ready, and everybody where the consumer is about to wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from minato._engine.pace import Pace
from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.fields import Batch, Phase, State, Worker
from minato._queues.posting import PostingBoard
from minato._queues.taking import TakingBoard
from minato._records import Run
from minato._scheduler.window import Window
from minato._workers.pool import WorkerPool

WORKERS, WINDOW, TICKETS = 4, 8, 3


class Pool:
    def __init__(self) -> None:
        self.woken: list[int] = []

    def wake(self, workers: list[int]) -> None:
        self.woken += workers


class Bench:
    """Four sleeping workers and a window of eight batches of three tickets."""

    def __init__(self, are_owned: bool = False) -> None:
        self.control, self.arena = ControlBlock.create(16, WORKERS), Arena.create()
        self.board, self.pool = PostingBoard(self.control, self.arena), Pool()
        self.workers = [TakingBoard(self.control, self.arena, number) for number in range(WORKERS)]
        window = Window(WINDOW, 1 << 30, WINDOW)
        self.pace = Pace(self.board, cast(WorkerPool, self.pool), window, are_owned)
        self.out: list[int] = []
        for worker in self.workers:
            assert worker.pull(1) is None

    def post(self, count: int = 1) -> int:
        for _ in range(count):
            number = self.board.publish(
                epoch=0, seed=1, position=0, keys=[1, 2, 3], rows=3, slot=0, flags=0, first=not self.out
            )
            self.out.append(number)
        return count * TICKETS

    def make_ready(self, count: int) -> None:
        """The tickets of the first batches are taken, and their samples made."""
        for batch in self.out[:count]:
            at = self.control.batch(batch)
            self.control.words[at + Batch.STATE] = State.READY
            self.control.words[at + Batch.PULLED] = TICKETS

    def go_to_work(self, worker: int) -> None:
        self.control.words[self.control.worker(worker) + Worker.PHASE] = Phase.FETCHING

    def close(self) -> None:
        self.control.close()
        self.arena.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_with_little_ready_as_many_are_woken_as_find_something_to_do(bench: Bench) -> None:
    bench.pace.wake_for_posted(bench.post(), bench.out)
    assert bench.pool.woken == [0, 1, 2]


def test_with_half_of_the_window_ready_nobody_is_woken_who_is_not_needed(bench: Bench) -> None:
    bench.post(7)
    bench.make_ready(6)
    bench.go_to_work(2)
    bench.pace.wake_for_posted(bench.post(), bench.out)
    assert bench.pool.woken == []


def test_with_everybody_asleep_one_is_woken(bench: Bench) -> None:
    bench.post(7)
    bench.make_ready(6)
    bench.pace.wake_for_posted(bench.post(), bench.out)
    assert bench.pool.woken == [0]


def test_who_was_not_woken_before_is_when_less_is_ready(bench: Bench) -> None:
    bench.post(7)
    bench.make_ready(6)
    bench.go_to_work(2)
    bench.pace.wake_for_posted(bench.post(), bench.out)
    del bench.out[:5]  # delivered
    bench.pace.wake_for_posted(0, bench.out)
    assert bench.pool.woken == [0, 1, 3]


def test_a_batch_in_front_that_is_not_ready_means_haste(bench: Bench) -> None:
    bench.post(8)
    bench.make_ready(7)
    bench.control.words[bench.control.batch(0) + Batch.STATE] = State.OPEN
    bench.pace.wake_for_posted(TICKETS, bench.out)
    assert bench.pool.woken == [0, 1, 2]


def test_before_the_consumer_waits_all_are_woken_if_something_is_open(bench: Bench) -> None:
    bench.pace.begin_to_wait()
    assert bench.pool.woken == []
    bench.post()
    bench.pace.begin_to_wait()
    assert bench.pool.woken == [0, 1, 2, 3]


def test_nothing_that_is_taken_wakes_anybody(bench: Bench) -> None:
    bench.post()
    while isinstance(bench.workers[0].pull(1), Run):
        pass
    bench.pace.wake_for_posted(0, bench.out)
    bench.pace.begin_to_wait()
    assert bench.pool.woken == []


def test_posting_waits_only_while_nearly_all_is_posted_and_half_is_ready(bench: Bench) -> None:
    bench.post(7)
    assert not bench.pace.may_post_later(bench.out)
    bench.make_ready(5)
    assert bench.pace.may_post_later(bench.out)
    assert not bench.pace.may_post_later(bench.out[1:])


def test_where_batches_have_owners_there_is_always_haste() -> None:
    bench = Bench(are_owned=True)
    bench.post(8)
    bench.make_ready(7)
    assert not bench.pace.may_post_later(bench.out)
    bench.pace.wake_for_posted(TICKETS, bench.out)
    assert bench.pool.woken == [0, 1, 2]
    bench.close()
