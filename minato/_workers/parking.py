"""Samples made in stages, and slow ones put aside between two of them.

A worker that finds a sample past the threshold between two stages may put it aside (parking_rules.py says when) with
what it has become so far, and take a fast one. It goes on with it later, in the same process, at the next stage. No
stage runs twice. Random numbers of a parked sample are its own: the generators' states are put aside with it.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._queues.stage_notes import StageNotes
from .._queues.taking import TakingBoard
from .._records import Run
from .._sample_random import SampleSource
from .generators import Generator, all_generators
from .parking_rules import Outlook, ParkingRule, may_park, should_resume
from .stages import Begin, SampleRun


class Outcome(enum.Enum):
    """What became of a sample by one step."""

    GOES_ON = "goes on"
    PARKED = "parked"
    DONE = "done"


@dataclass(slots=True)
class Begun:
    """A sample on its way through the stages."""

    run: Run
    """Its ticket."""
    sample: SampleRun
    source: SampleSource
    """What its own random generators are made from."""
    seconds: float = 0.0
    """Work so far; time spent parked does not count."""
    entry: int = -1
    """Where the board keeps its ticket while it is parked."""
    generators: tuple[Any, ...] = ()
    """States of the random generators while it is parked."""
    stages: list[tuple[str, float]] = field(default_factory=list)
    """Those done so far, with the seconds each took."""
    to_the_end: bool = False
    """It has waited once, and does not do so again."""


class Parking:
    """Makes single samples stage by stage, for one worker, and keeps its temp queue."""

    def __init__(
        self,
        board: TakingBoard,
        begin: Begin,
        rule: ParkingRule,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        generators: Sequence[Generator] | None = None,
    ) -> None:
        """`most`: samples that all workers together may have put aside."""
        self._board = board
        self._begin = begin
        self._rule = rule
        self._most = most
        self._clock = clock
        self._generators = all_generators() if generators is None else generators
        self._notes = StageNotes(board.control, board.worker)
        self._parked: deque[Begun] = deque()

    @property
    def parked(self) -> int:
        """Samples put aside by this worker."""
        return len(self._parked)

    def begin(self, run: Run, seed: int) -> Begun:
        """Begin the single sample of a run, under its own seed."""
        for salt, generator in enumerate(self._generators):
            generator.seed(seed ^ salt)
        return Begun(run, self._begin(run.keys[0]), SampleSource(lambda _: seed, lambda: 0))

    def advance(self, begun: Begun) -> Outcome:
        """Do the sample's next stage, or put it aside. Raises what the user's code raises."""
        board, threshold = self._board, self._board.threshold_s
        if threshold is not None and begun.seconds > threshold:
            board.mark_slow(True)
            if not begun.to_the_end and self._may_park(begun.run) and self._park(begun):
                board.mark_slow(False)
                return Outcome.PARKED
        stage, started, done = begun.sample.stage, self._clock(), True
        try:
            done = begun.sample.advance()
        finally:
            took = self._clock() - started
            begun.seconds += took
            begun.stages.append((stage, took))
            if done:
                board.mark_slow(False)
                self._notes.note(begun.stages)
        return Outcome.DONE if done else Outcome.GOES_ON

    def is_due(self) -> bool:
        """Whether the sample that was parked first is to be gone on with now, before anything else is taken."""
        if not self._parked:
            return False
        run = self._parked[0].run
        return self._board.is_void(run.epoch) or should_resume(self._rule, run.batch, run.epoch, self._outlook())

    def resume(self) -> Begun | None:
        """Take up the sample that was parked first. None: nobody waits for it any more."""
        begun = self._parked.popleft()
        if not self._board.unpark(begun.entry):
            with contextlib.suppress(Exception):  # of the user's `finally`, for a sample that nobody sees
                begun.sample.close()
            return None
        self._board.mark_slow(True)
        for generator, state in zip(self._generators, begun.generators, strict=True):
            generator.restore(state)
        begun.generators, begun.to_the_end = (), True
        return begun

    def _may_park(self, run: Run) -> bool:
        return not self._board.dismissed and may_park(self._rule, run.batch, run.epoch, self._outlook())

    def _park(self, begun: Begun) -> bool:
        entry = self._board.park(self._most)
        if entry is None:
            return False
        begun.entry = entry
        begun.generators = tuple(generator.save() for generator in self._generators)
        self._parked.append(begun)
        return True

    def _outlook(self) -> Outlook:
        board = self._board
        batch, epoch = board.first_open
        return Outlook(board.count_slow_workers(), board.active, batch, epoch, board.newest, board.posted_before)
