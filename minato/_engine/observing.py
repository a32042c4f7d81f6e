"""What samples cost, as the workers saw it: read from the board into the loader's profile, from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable

from .._queues.posting import PostingBoard
from .._scheduler.profile import Profile
from .._scheduler.threshold import ThresholdRule
from .totals import Totals

__all__ = ["Profile", "SampleTimes", "make_profile"]

PERIOD_S = 0.02  # seconds between looks; a worker keeps the times of its last 64 runs, of about 10 ms each


def make_profile(slow_timeout: str | float | None, slow_fallback: str | float | None, warmup_samples: int) -> Profile:
    """An empty profile with the user's rule for what is slow."""
    return Profile(ThresholdRule(slow_timeout, slow_fallback, warmup_samples))


class SampleTimes:
    """Reads the times of one engine's workers. A run of several samples counts as one of their mean: they are cheap."""

    def __init__(
        self, board: PostingBoard, profile: Profile, totals: Totals, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._board = board
        self._profile = profile
        self._totals = totals
        self._clock = clock
        self._read = [0] * board.control.records
        self._next = 0.0

    def look(self) -> None:
        """Read what is new, unless that was done just now, and tell the workers the threshold."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + PERIOD_S
        for worker, since in enumerate(self._read):
            runs, self._read[worker] = self._board.read_times(worker, since)
            for samples, nanoseconds in runs:
                self._count(samples, nanoseconds * 1e-9)
        self._board.set_threshold(self._profile.made.threshold)

    def _count(self, samples: int, seconds: float) -> None:
        slow = self._profile.made.observe(seconds / max(1, samples))
        if slow:
            self._totals.samples_slow += samples
        else:
            self._totals.samples_fast += samples
