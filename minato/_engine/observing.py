"""What samples cost, as the workers saw it: read from the board into the loader's profile, from time to time."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .._queues.posting import PostingBoard
from .._records import QueueMoment
from .._scheduler.early import make_hint
from .._scheduler.history import ThinnedHistory
from .._scheduler.profile import CostProfile, Profile
from .._scheduler.replay import Recorder
from .._scheduler.threshold import ThresholdRule
from .foresight import Foresight
from .totals import Totals

__all__ = ["KeptProfile", "SampleTimes", "make_profile", "queue_lengths"]

PERIOD_S = 0.05  # seconds between looks; a worker keeps the times of its last 64 runs, of about 10 ms each


Rule = tuple[str | float | None, str | float | None, int]
"""From when on a sample counts as slow: the threshold, its fallback, and samples before there is one."""


def make_profile(rule: Rule, path: str | None = None, slow_hint: Any = None, length: int | None = None) -> KeptProfile:
    """A profile with the user's rule for what is slow, and what he knows of slow samples. `path`: the file to begin
    with, if it is there, and to keep it in. `length`: of the dataset."""
    asked = ThresholdRule(*rule)
    profile = KeptProfile(Profile(asked, length=length, hint=make_hint(slow_hint)), path, asked)
    profile.load()
    return profile


class KeptProfile:
    """A loader's profile, and the file it is kept in, if the user wants that."""

    def __init__(self, profile: Profile, path: str | None, rule: ThresholdRule) -> None:
        self.profile = profile
        self.recorder = Recorder(rule)
        self.queues = QueueWatch()
        self._path = path
        self._saved = 0
        """Samples seen when it was last saved."""

    def load(self) -> None:
        """Begin with what is in the file; if there is no file, with nothing."""
        if self._path is not None and os.path.exists(self._path):
            self.profile.load(self._path)

    def save(self) -> None:
        """Write the file, if there is one to be written and something was seen since."""
        seen = self.profile.made.samples + self.profile.cached.samples
        if self._path is None or seen == self._saved:
            return
        self._saved = seen
        try:
            self.profile.save(self._path)
        except OSError as error:  # training goes on without it
            warnings.warn(
                f"the profile could not be saved ({error}); give profile= a path that can be written, or leave it None",
                RuntimeWarning,
                stacklevel=3,
            )


def queue_lengths(board: PostingBoard, batches: Sequence[int], prepared: int = 0) -> dict[str, Any]:
    """Fields of `LoaderStats` about samples that are on their way in `batches`, those posted and not delivered.
    `prepared`: batches that were made ready for the user besides."""
    fast, slow = board.count_waiting(batches)
    ready = board.count_ready(batches) + prepared
    return {
        "queue_fast": fast,
        "queue_slow": slow,
        "queue_temp": board.control.count_parked(),
        "queue_batch": ready,
        "batches_ready": ready,
        "workers_slow": board.count_slow_workers(),
    }


class SampleTimes:
    """Reads the times of one engine's workers. A run of several samples counts as one of their mean: they are cheap."""

    def __init__(
        self,
        board: PostingBoard,
        kept: KeptProfile,
        totals: Totals,
        foresight: Foresight | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._foresight = foresight
        self._queues = kept.queues
        self._profile = kept.profile
        self._recorder = kept.recorder
        self._totals = totals
        self._clock = clock
        self._read = [0] * board.control.records_here
        self._parks = [0] * board.control.records_here
        self._next = 0.0
        board.set_threshold(kept.profile.made.threshold)  # it may be known from the start

    @property
    def is_due(self) -> bool:
        """Whether `look` would read anything."""
        return self._clock() >= self._next

    def look(self, out: Sequence[int]) -> None:
        """Read what is new, unless that was done just now, and tell the workers the threshold. `out`: batches posted
        and not delivered."""
        now = self._clock()
        if now >= self._next:
            self._next = now + PERIOD_S
            self.look_at_once(out)

    def look_at_once(self, out: Sequence[int]) -> None:
        """The same, whenever the last time was."""
        runs, self._read = self._board.read_times(self._read)
        if runs:
            self._count([run for run in runs if run[0] >= 0], self._profile.made)
            self._count([(-samples, took) for samples, took in runs if samples < 0], self._profile.cached)
        self._count_parks()
        threshold = self._profile.made.threshold
        self._board.set_threshold(threshold)
        if self._foresight is not None:
            self._foresight.look()
        self._queues.look(self._board, out, self._totals, threshold)

    def _count_parks(self) -> None:
        before, self._parks = self._parks, self._board.count_parks()
        if self._parks != before:
            for then, now in zip(before, self._parks, strict=True):
                self._totals.samples_parked += now - then if now >= then else now  # a new worker counts anew

    def _count(self, runs: Sequence[tuple[int, int]], kind: CostProfile) -> None:
        """(samples, nanoseconds) of runs of one kind."""
        if not runs:
            return
        counts = [max(1, samples) for samples, _ in runs]
        costs = [nanoseconds * 1e-9 / samples for (_, nanoseconds), samples in zip(runs, counts, strict=True)]
        slow = kind.observe_runs(costs, counts)
        self._recorder.costs(costs, counts, kind is self._profile.cached)
        self._totals.samples_slow += slow
        self._totals.samples_fast += sum(counts) - slow


class QueueWatch:
    """Keeps the lengths of the queues over time, of a whole loader's life."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._history: ThinnedHistory[QueueMoment] = ThinnedHistory()

    def look(self, board: PostingBoard, out: Sequence[int], totals: Totals, threshold: float | None) -> None:
        """Note how long the queues are, unless that was done just now. `out`: batches posted and not delivered."""
        now = self._clock() - self._began
        if not self._history.is_due(now):
            return
        moment = QueueMoment(
            time_s=now,
            workers=board.active,
            batches_ready=board.count_ready(out),
            batches_in_flight=len(out),
            samples_parked=sum(len(board.parked(worker)) for worker in range(board.control.records_here)),
            wait_seconds=totals.wait_seconds,
            slow_threshold=threshold,
        )
        self._history.add(now, moment)
        totals.history = self._history.moments
