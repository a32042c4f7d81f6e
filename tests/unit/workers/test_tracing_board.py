"""The board of a traced worker: spans find their batch when the batch is known, and parked work is told in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minato import StagedDataset
from minato._instrument import NONE, Flag, Kind, TraceSpec, activate
from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.posting import PostingBoard
from minato._records import Place, Run
from minato._workers.stages import find_stages
from minato._workers.tracing import WorkerTrace
from minato.trace import Event, chrome, read_run
from minato.trace.chrome_check import check


def load(index: int) -> int:
    return index


def first(x: int) -> int:
    return x


def second(x: int) -> int:
    return x


class Worker:
    """A traced worker with batches 0 and 1, of two tickets each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.control, self.arena = ControlBlock.create(8, 1), Arena.create()
        posting = PostingBoard(self.control, self.arena)
        for batch in range(2):
            keys = [10 + 2 * batch, 11 + 2 * batch]
            posting.publish(
                epoch=0, seed=1, position=2 * batch, keys=keys, rows=2, slot=batch, flags=0, first=batch == 0
            )
        posting.set_active(1)
        self.trace = WorkerTrace(TraceSpec(str(path), "s", 0, 0, "op", 1 << 20, 1 << 30), 0)
        self.board = self.trace.board(self.control, self.arena, 0, lambda: None)
        data = StagedDataset(load, [first, second], 100)
        self.view = self.trace.dataset(data, 1)
        begin = find_stages(data, self.trace.sample_run)
        assert begin is not None
        self.begin: Callable[[Any], Any] = begin

    def pull(self, want: int) -> Run:
        run = self.board.pull(want)
        assert isinstance(run, Run)
        return run

    def commit(self, batch: int, row: int, count: int, position: int) -> None:
        self.board.bind_slot(batch)
        self.board.commit(Place(batch, row, count), range(position, position + count))

    def events(self, *kinds: Kind) -> list[Event]:
        self.trace.stop()
        (process,) = read_run(self.path).processes
        assert check(list(chrome.events(read_run(self.path), 0))) == []
        return list(process.events(*kinds))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    yield made
    made.trace.stop()
    activate(None)
    made.control.close()
    made.arena.close()


def test_samples_of_a_run_may_go_to_two_batches(worker: Worker) -> None:
    """The spans of each sample belong to the batch that its row is in."""
    run = worker.pull(2)
    assert [worker.view[key] for key in run.keys] == [10, 11]
    worker.board.claim(0, 1)
    worker.commit(0, 0, 1, 0)
    worker.commit(1, 0, 1, 1)
    found = worker.events(Kind.RUN, Kind.SAMPLE, Kind.OP, Kind.LOADER)
    assert {(e.kind, e.index, e.batch) for e in found if e.kind is not Kind.RUN} == {
        (kind, index, index - 10) for kind in (Kind.SAMPLE, Kind.OP, Kind.LOADER) for index in (10, 11)
    }
    runs = [event for event in found if event.kind is Kind.RUN]
    assert [(event.batch, event.count) for event in runs] == [(0, 1), (1, 1)]
    assert runs[0].start_ns < runs[1].start_ns < runs[0].end_ns <= runs[1].end_ns


def test_a_parked_sample_is_told_in_parts(worker: Worker) -> None:
    """Its work before it was parked and after, both for the batch it lands in; the time in between is another's."""
    worker.pull(1)
    slow = worker.begin(10)
    slow.advance()
    slow.advance()
    entry = worker.board.park(4)
    assert entry is not None
    worker.pull(1)
    fast = worker.begin(11)
    while not fast.advance():
        pass
    worker.commit(0, 0, 1, 1)
    assert worker.board.unpark(entry)
    while not slow.advance():
        pass
    worker.commit(1, 0, 1, 0)
    found = worker.events(Kind.RUN, Kind.SAMPLE, Kind.OP, Kind.PARKED, Kind.RESUMED)
    runs = [(event.batch, event.count) for event in found if event.kind is Kind.RUN]
    assert runs == [(1, 0), (0, 1), (1, 1)]
    ops = [(event.name, event.index, event.batch) for event in found if event.kind is Kind.OP]
    ops = [op for op in ops if op[0] != "(rest)"]  # there when this process was kept from the CPU
    assert ops == [("first", 10, 1), ("first", 11, 0), ("second", 11, 0), ("second", 10, 1)]
    assert {(e.index, e.batch, e.flags) for e in found if e.kind is Kind.SAMPLE} == {
        (10, 1, Flag.PARKED),
        (11, 0, Flag(0)),
    }
    assert [(e.kind, e.index) for e in found if e.kind in (Kind.PARKED, Kind.RESUMED)] == [
        (Kind.PARKED, 10),
        (Kind.RESUMED, 10),
    ]


def test_what_nobody_waits_for_belongs_to_no_batch(worker: Worker) -> None:
    """Spans of samples that were dropped are kept."""
    run = worker.pull(2)
    assert worker.view[run.keys[0]] == 10
    worker.board.drop()
    worker.pull(1)
    assert {event.batch for event in worker.events(Kind.SAMPLE)} == {NONE}
