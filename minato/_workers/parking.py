"""Samples in stages, and slow ones put aside between two stages.

A worker that finds itself past the threshold between two transforms, while too many others hold slow samples already,
puts the sample aside with what it has become so far and the number of the next transform, and takes a fast one. It
goes on with it in the same process when there is room, or when there is nothing else to do. No transform runs twice.
Random numbers of a parked sample are its own: the generators are put aside with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._queues.taking import TakingBoard
from .._records import Run
from .generators import Generator, all_generators

LEAST_FAST = 1  # workers that are not to be held by slow samples


@dataclass(slots=True)
class Begun:
    """A sample on its way through the stages."""

    run: Run
    value: Any
    stage: int
    """The next transform to apply."""
    seconds: float
    """Work so far; time spent parked does not count."""
    entry: int = -1
    """Where the board keeps its ticket while it is parked."""
    generators: tuple[Any, ...] = ()
    """States of the random generators while it is parked."""


class Parking:
    """Fetches single samples stage by stage, for one worker."""

    def __init__(
        self,
        board: TakingBoard,
        load: Callable[[Any], Any],
        transforms: Sequence[Callable[[Any], Any]],
        clock: Callable[[], float] = time.perf_counter,
        generators: Sequence[Generator] | None = None,
    ) -> None:
        self._board = board
        self._load = load
        self._transforms = transforms
        self._clock = clock
        self._generators = all_generators() if generators is None else generators
        self._parked: deque[Begun] = deque()

    @property
    def parked(self) -> int:
        """Samples put aside."""
        return len(self._parked)

    def begin(self, run: Run, seed: int) -> Begun | None:
        """Fetch the run's sample. None: it was parked. Raises what the user's code raises."""
        for salt, generator in enumerate(self._generators):
            generator.seed(seed ^ salt)
        began = self._clock()
        sample = Begun(run, self._load(run.keys[0]), 0, 0.0)
        return self._go_on(sample, began)

    def resume(self) -> Begun | None:
        """Go on with the sample that was parked first. None: nobody waits for it any more, or it was parked again."""
        sample = self._parked.popleft()
        if not self._board.unpark(sample.entry):
            return None
        for generator, state in zip(self._generators, sample.generators, strict=True):
            generator.restore(state)
        return self._go_on(sample, self._clock())

    def has_room(self) -> bool:
        """Whether a parked sample may be gone on with now, though there is other work."""
        return bool(self._parked) and self._board.slow_holders < self._board.active - LEAST_FAST

    def _go_on(self, sample: Begun, began: float) -> Begun | None:
        before = sample.seconds
        try:
            while sample.stage < len(self._transforms):
                sample.seconds = before + self._clock() - began
                if self._is_past_threshold(sample) and self._must_park() and self._park(sample):
                    return None
                sample.value = self._transforms[sample.stage](sample.value)
                sample.stage += 1
            sample.seconds = before + self._clock() - began
            return sample
        finally:
            self._board.mark_slow(False)

    def _is_past_threshold(self, sample: Begun) -> bool:
        threshold = self._board.threshold_s
        slow = threshold is not None and sample.seconds > threshold
        if slow:
            self._board.mark_slow(True)
        return slow

    def _must_park(self) -> bool:
        """Whether too many workers hold slow samples, this one included, and there is other work to do."""
        return self._board.slow_holders > self._board.active - LEAST_FAST and self._board.has_open_tickets

    def _park(self, sample: Begun) -> bool:
        entry = self._board.park()
        if entry is None:
            return False
        sample.entry = entry
        sample.generators = tuple(generator.save() for generator in self._generators)
        self._parked.append(sample)
        return True
