"""A worker's notes of slow samples are of the samples of the run at hand."""

from __future__ import annotations

from typing import Any

from minato._records import Run
from minato._workers.costs import CostNotes


class Board:
    """As much of the board as notes need."""

    def __init__(self) -> None:
        self.threshold_s: float | None = 0.5
        self.current: dict[int, int] = {}
        self.noted: list[tuple[int, float]] = []

    def note_cost(self, key: int, seconds: float) -> None:
        self.noted.append((key, seconds))


def run_of(*keys: object) -> Run:
    return Run(batch=0, first=0, epoch=0, seed=0, position=0, keys=list(keys))


def make(notes: CostNotes, run: Run) -> None:
    """What a worker tells while it makes a run: the number of each sample, then -1."""
    word: Any = notes.watch(run)
    for number in [*range(len(run.keys)), -1]:
        word[0] = number


def test_a_threshold_that_comes_while_a_run_is_made_notes_nothing_of_the_run_before() -> None:
    """That run may have been longer, and its samples were others."""
    board = Board()
    times = iter(range(100))
    notes = CostNotes(board, lambda: float(next(times)))  # type: ignore[arg-type]
    make(notes, run_of(10, 11, 12, 13))
    board.threshold_s = None
    short = run_of(20, 21)
    make(notes, short)
    board.threshold_s = 0.5
    notes.note(short, 9.0)
    assert board.noted == []


def test_slow_samples_of_a_run_that_was_timed_are_noted() -> None:
    board = Board()
    times = iter([0.0, 0.1, 2.0, 2.1])
    notes = CostNotes(board, lambda: next(times))  # type: ignore[arg-type]
    run = run_of(10, 11, 12)
    make(notes, run)
    notes.note(run, 2.1)
    assert board.noted == [(11, 1.9)]
