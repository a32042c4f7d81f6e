"""The loop of a worker on a board that says what it was asked for: how many samples a worker takes at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minato._plan import Collate, Order, Source, WorkerPlan
from minato._records import Place, Run
from minato._workers import map_loop
from minato._workers.lanes import Untraced
from minato._workers.map_loop import MapLoop
from minato._workers.thread_randomness import Unmanaged

CHEAP_S, SLOW_S = 1e-5, 0.06


class Samples:
    """Negative keys are slow. Time passes only here."""

    def __init__(self) -> None:
        self.now = 0.0

    def __getitem__(self, key: int) -> int:
        self.now += SLOW_S if key < 0 else CHEAP_S
        return key


class Board:
    """Gives out the runs it is told to, and keeps the numbers of samples that were wished for."""

    threshold_s: float | None = None
    are_unsent = False

    def __init__(self) -> None:
        self.current = [0]
        self.noted: list[int] = []
        self.wishes: list[int] = []
        self.coming: list[Run] = []

    def pull(self, want: int, whole_from: int = 0, with_rows: bool = False) -> Run:
        del whole_from, with_rows
        self.wishes.append(want)
        return self.coming.pop(0)

    def tell(self) -> None:
        pass

    def claim(self, epoch: int, count: int) -> Place:
        return Place(0, 0, count)

    def commit(self, place: Place, positions: range) -> bool:
        return False

    def note_time(self, samples: int, seconds: float) -> bool:
        return False

    def note_cost(self, key: int, seconds: float) -> None:
        self.noted.append(key)


class Context(Untraced):
    def __init__(self, board: Board) -> None:
        self.board = board
        self.worker = 0
        self.dataset = Samples()
        self.guard = None
        self.caught = Exception
        self.plan = WorkerPlan(
            Source.MAP, Order.SAMPLES_OVERTAKE, Collate.ROWS, list, 1, None, None, False, short_batch_last=True
        )

    def sync_dataset(self) -> None:
        pass

    def randomness(self) -> Unmanaged:
        return Unmanaged()


def run_of(*keys: int, is_early: bool = False) -> Run:
    return Run(0, 0, 0, 0, 0, list(keys), is_early=is_early)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> tuple[MapLoop, Board]:
    """A worker that has seen nothing yet."""
    board = Board()
    context = Context(board)
    monkeypatch.setattr(map_loop, "time", SimpleNamespace(perf_counter=lambda: context.dataset.now))
    writer: Any = SimpleNamespace(write=lambda place, samples: None, row_bytes=8)
    return MapLoop(context, writer), board  # type: ignore[arg-type]


@pytest.fixture
def working(fresh: tuple[MapLoop, Board]) -> tuple[MapLoop, Board]:
    """A worker that has seen enough cheap samples to take many at once."""
    loop, board = fresh
    work_through(loop, board, *(run_of(*range(1, count + 1)) for count in (1, 4, 16, 64, 64)))
    return loop, board


def work_through(loop: MapLoop, board: Board, *runs: Run) -> None:
    board.coming = list(runs)
    while board.coming:
        loop._work()


def wish_after(run: Run, loop: MapLoop, board: Board) -> tuple[int, int]:
    """What was wished for before a run, and after it."""
    work_through(loop, board, run, run_of(1))
    return board.wishes[-2], board.wishes[-1]


def test_a_sample_known_to_be_slow_does_not_shorten_the_runs_after_it(working: tuple[MapLoop, Board]) -> None:
    before, after = wish_after(run_of(-1, is_early=True), *working)
    assert before == after > 1


def test_a_sample_found_to_be_slow_shortens_them(working: tuple[MapLoop, Board]) -> None:
    before, after = wish_after(run_of(-1), *working)
    assert after < before


def test_the_first_sample_of_a_worker_is_not_known_as_slow_afterwards(fresh: tuple[MapLoop, Board]) -> None:
    loop, board = fresh
    board.threshold_s = SLOW_S / 2
    work_through(loop, board, run_of(-1), run_of(1), run_of(-2), run_of(-1, is_early=True))
    assert board.noted == [-2, -1]
