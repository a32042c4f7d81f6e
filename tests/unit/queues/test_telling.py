"""When the main process is told of what a worker has handed in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.posting import PostingBoard
from minato._queues.taking import TakingBoard
from minato._records import Place, Run

BATCHES = 2


class Worker:
    """A worker with batches of one ticket each; counts what it has told."""

    def __init__(self) -> None:
        self.told = 0
        self.control, self.arena = ControlBlock.create(8, 1), Arena.create()
        self.posting = PostingBoard(self.control, self.arena)
        for batch in range(BATCHES):
            self.posting.publish(
                epoch=0, seed=1, position=batch, keys=[batch], rows=1, slot=batch, flags=0, first=batch == 0
            )
        self.posting.set_active(1)
        self.board = TakingBoard(self.control, self.arena, 0, self._tell)

    def _tell(self) -> None:
        self.told += 1

    def make_one(self) -> None:
        run = self.board.pull(1)
        assert isinstance(run, Run)
        self.board.bind_slot(run.batch)
        self.board.commit(Place(run.batch, 0, 1), range(run.position, run.position + 1))

    @property
    def ready(self) -> list[int]:
        return [batch for batch in range(BATCHES) if self.posting.is_sound(batch)]


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.control.close()
    worker.arena.close()


def test_a_batch_is_told_of_when_it_is_committed(worker: Worker) -> None:
    worker.make_one()
    assert (worker.ready, worker.told) == ([0], 1)
    worker.make_one()
    assert (worker.ready, worker.told) == ([0, 1], 2)


def test_who_tells_late_does_so_with_the_next_pull_also_where_that_finds_nothing(worker: Worker) -> None:
    worker.board.tells_late = True
    worker.make_one()
    assert (worker.ready, worker.told) == ([0], 0)
    worker.make_one()
    assert (worker.ready, worker.told) == ([0, 1], 1)
    assert worker.board.pull(1) is None
    assert worker.told == 2


@pytest.mark.parametrize("times", [1, 3])
def test_what_is_due_is_told_once(worker: Worker, times: int) -> None:
    worker.board.tells_late = True
    worker.make_one()
    for _ in range(times):
        worker.board.tell()
    assert worker.told == 1
