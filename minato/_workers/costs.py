"""A worker's notes of what single samples cost, where they are slow: so that they can be begun early the next time."""

from __future__ import annotations

import time
from collections.abc import Callable

from .._fetchers.sequential import Word
from .._queues.taking import TakingBoard
from .._records import Run

MOST_TIMED = 32  # samples of a run that are timed one by one: in longer runs they are too cheap to bear it


class CostNotes:
    """Watches the samples of one worker's runs."""

    def __init__(self, board: TakingBoard, clock: Callable[[], float] = time.perf_counter) -> None:
        self._board = board
        self._marks = _Marks(board.current, clock)

    def watch(self, run: Run) -> Word:
        """What is told which sample of the run is being made."""
        self._marks.clear()  # also for a run that is not timed: a threshold may come before it is done
        count = len(run.keys)
        if count == 1 or count > MOST_TIMED or self._board.threshold_s is None:
            return self._board.current
        return self._marks

    def note(self, run: Run, seconds: float) -> None:
        """The run is done, and took that long."""
        threshold_s = self._board.threshold_s
        if threshold_s is None:
            return
        if len(run.keys) == 1:
            self._note_one(run.keys[0], seconds, threshold_s, run.is_early)
        elif len(run.keys) <= MOST_TIMED and seconds > threshold_s:
            for number, took in self._marks.durations():
                self._note_one(run.keys[number], took, threshold_s, False)

    def _note_one(self, key: object, seconds: float, threshold_s: float, is_early: bool) -> None:
        if type(key) is int and (seconds > threshold_s or is_early):
            self._board.note_cost(key, seconds)


class _Marks:
    """Passes on which sample is being made, and remembers since when."""

    def __init__(self, word: Word, clock: Callable[[], float]) -> None:
        self._word = word
        self._clock = clock
        self._marks: list[tuple[int, float]] = []

    def clear(self) -> None:
        self._marks.clear()

    def __setitem__(self, place: int, number: int) -> None:
        self._word[place] = number
        self._marks.append((number, self._clock()))

    def durations(self) -> list[tuple[int, float]]:
        """Numbers of samples and seconds until the next one, or the end of the part they were made in."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [(number, after - since) for (number, since), (_, after) in pairs if number >= 0]
