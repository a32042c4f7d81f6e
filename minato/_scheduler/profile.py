"""What samples cost: totals, stages and sizes over a sliding window, and the threshold that follows from them.

Samples that came from a cache cost something else than those that were made, so the two have windows and thresholds of
their own. Memory is bounded by the windows; a sample costs an append or two, and every so often a sort of one window.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import mul
from pathlib import Path
from typing import Any

from .._records import StageTime
from .early import LearnedCosts, SlowHint
from .quantiles import SlidingWindow, evenly_spaced, quantile
from .threshold import Reason, Threshold, ThresholdRule

WINDOW = 1024  # samples
STAGE_WINDOW = 256  # samples, per stage
MOST_STAGES = 64  # a pipeline with more is one whose names change; the first ones are kept
RECONSIDER_EVERY = 64  # samples: a sort of the window costs as much as a hundred appends
_SOONEST = 8  # samples: while few are seen, one more changes much, and sorting them costs little
MEAN_OVER = 4096  # samples: those beyond count half, and so on
_FORMAT = 1
_SAVED_TOTALS = 256  # numbers per window in a saved profile
_SAVED_OTHERS = 32


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """What is known about the cost of samples. Seconds and bytes; zeros where nothing was seen yet."""

    samples: int
    """Samples seen, those of a loaded profile not counted."""
    slow: int
    """How many of them took longer than the threshold of their time."""
    flagged_share: float
    """The same as a share, of the last samples."""
    threshold: float | None
    """Seconds from which on a sample counts as slow; None: none does."""
    reason: Reason
    median: float
    p75: float
    p90: float
    p95: float
    p99: float
    mean: float
    mean_bytes: float
    stages: tuple[StageTime, ...]


class CostProfile:
    """The cost of one kind of sample."""

    def __init__(self, rule: ThresholdRule, window: int = WINDOW) -> None:
        self._threshold = Threshold(rule)
        self._totals = SlidingWindow(max(window, rule.warmup_samples))
        self._bytes = SlidingWindow(STAGE_WINDOW)
        self._stages: dict[str, SlidingWindow] = {}
        self._warmup = rule.warmup_samples
        self._until_reconsidered = rule.warmup_samples
        self._samples = 0
        self._slow = 0
        self._work_s = 0.0
        self._work_samples = 0
        """Lately: seconds of work, and samples that were made in them."""

    @property
    def samples(self) -> int:
        """Samples seen, those of a loaded profile not counted."""
        return self._samples

    @property
    def mean_cost(self) -> float:
        """Seconds that a sample took lately, on average."""
        return self._work_s / self._work_samples if self._work_samples else self._totals.mean

    @property
    def threshold(self) -> float | None:
        """Seconds from which on a sample counts as slow; None: none does."""
        return self._threshold.seconds

    def observe(
        self, total_s: float, nbytes: int = 0, stages: Iterable[tuple[str, float]] = (), samples: int = 1
    ) -> bool:
        """A sample took that long; whether it counts as slow. `stages`: its load and its transforms, with seconds.
        `samples`: how many were made together and took that long each, on average; they count as one."""
        if not 0 <= total_s < math.inf:
            raise ValueError(f"a sample's cost must be a number of seconds from 0 on, got {total_s!r}")
        self._samples += 1
        slow = self._threshold.judge(total_s)
        self._slow += slow
        self._totals.add(total_s)
        self._note_work(total_s * samples, samples)
        if nbytes:
            self._bytes.add(nbytes)
        for name, seconds in stages:
            self._stage(name).add(seconds)
        self._until_reconsidered -= 1
        if self._until_reconsidered <= 0:
            self._reconsider()
        return slow

    def observe_runs(self, costs: Sequence[float], counts: Sequence[int]) -> int:
        """The same for many runs at once, in a fraction of the time: what a sample of each cost on average, and how
        many samples it had. Returns how many samples count as slow."""
        slow = first = 0
        while first < len(costs):  # the threshold is reconsidered after as many runs as if they came one by one
            last = first + self._until_reconsidered
            part, samples = costs[first:last], counts[first:last]
            if not 0 <= min(part) <= max(part) < math.inf:
                raise ValueError(f"a sample's cost must be a number of seconds from 0 on, got {min(part)!r}")
            judged = self._threshold.judge_all(part)
            slow += sum(compress(samples, judged))
            self._samples += len(part)
            self._slow += sum(judged)
            self._totals.extend(part)
            self._note_work(sum(map(mul, part, samples)), sum(samples))
            self._until_reconsidered -= len(part)
            if self._until_reconsidered <= 0:
                self._reconsider()
            first = last
        return slow

    def note_stage(self, name: str, seconds: float) -> None:
        """A stage of some sample took that long."""
        self._stage(name).add(seconds)

    def note_bytes(self, nbytes: float) -> None:
        """Samples of that size were delivered."""
        self._bytes.add(nbytes)

    def _reconsider(self) -> None:
        """Choose the threshold anew, and when to do it the next time."""
        self._until_reconsidered = min(RECONSIDER_EVERY, max(_SOONEST, len(self._totals) // 4))
        self._threshold.reconsider(self._totals.ordered)

    def _note_work(self, seconds: float, samples: int) -> None:
        if self._work_samples > MEAN_OVER:
            self._work_s, self._work_samples = self._work_s / 2, self._work_samples // 2
        self._work_s += seconds
        self._work_samples += samples

    def _stage(self, name: str) -> SlidingWindow:
        window = self._stages.get(name)
        if window is None:
            window = SlidingWindow(STAGE_WINDOW)
            if len(self._stages) < MOST_STAGES:
                self._stages[name] = window
        return window

    def summary(self) -> ProfileSummary:
        """All of it, at this moment."""
        ordered: Sequence[float] = self._totals.ordered or (0.0,)
        return ProfileSummary(
            samples=self._samples,
            slow=self._slow,
            flagged_share=self._threshold.flagged_share,
            threshold=self._threshold.seconds,
            reason=self._threshold.reason,
            median=quantile(ordered, 0.5),
            p75=quantile(ordered, 0.75),
            p90=quantile(ordered, 0.9),
            p95=quantile(ordered, 0.95),
            p99=quantile(ordered, 0.99),
            mean=self._totals.mean,
            mean_bytes=self._bytes.mean,
            stages=tuple(_summary_of(name, window) for name, window in self._stages.items() if len(window)),
        )

    def to_plain(self) -> dict[str, Any]:
        """The windows, thinned out, as numbers and strings."""
        return {
            "totals": evenly_spaced(self._totals.ordered, _SAVED_TOTALS),
            "bytes": evenly_spaced(self._bytes.ordered, _SAVED_OTHERS),
            "stages": {name: evenly_spaced(window.ordered, _SAVED_OTHERS) for name, window in self._stages.items()},
        }

    def learn(self, plain: Mapping[str, Any]) -> None:
        """Begin with what `to_plain` gave: the threshold is there at once, and new samples push the old ones out."""
        totals = _numbers(plain["totals"])
        for total in totals:
            self._totals.add(total)
        for nbytes in _numbers(plain["bytes"]):
            self._bytes.add(nbytes)
        for name, seconds in plain["stages"].items():
            for one in _numbers(seconds):
                self._stage(str(name)).add(one)
        if len(totals) >= self._warmup:
            self._reconsider()


def _summary_of(name: str, window: SlidingWindow) -> StageTime:
    ordered = window.ordered
    return StageTime(name, quantile(ordered, 0.5), quantile(ordered, 0.75), quantile(ordered, 0.95), window.mean)


def _numbers(values: Any) -> list[float]:
    numbers = [float(value) for value in values]
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError("numbers must be finite and not negative")
    return numbers


class Profile:
    """The cost of a loader's samples: those that were made, and those that came from a cache."""

    def __init__(
        self, rule: ThresholdRule, window: int = WINDOW, length: int | None = None, hint: SlowHint | None = None
    ) -> None:
        """`length`: of the dataset, if it is known: costs of single samples go with it. `hint`: what the user knows of
        them."""
        self.made = CostProfile(rule, window)
        self.cached = CostProfile(rule, window)
        self.costs = LearnedCosts()
        """Of samples known to be slow, by index."""
        self.hint = hint
        self._length = length

    def of(self, from_cache: bool) -> CostProfile:
        """The profile for one of the two."""
        return self.cached if from_cache else self.made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small JSON file. Readers see the old file or the new one, never half of it."""
        content = {
            "format": _FORMAT,
            "made": self.made.to_plain(),
            "cached": self.cached.to_plain(),
            "costs": {"length": self._length, **self.costs.to_plain()},
        }
        target = Path(path)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(content), encoding="utf-8")
            os.replace(fresh, target)
        finally:
            fresh.unlink(missing_ok=True)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Begin with a saved profile. ValueError if the file is not one. Costs of single samples are left aside if they
        are those of a dataset of another length."""
        text = Path(path).read_text(encoding="utf-8")
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}, needed {_FORMAT}")
            made, cached = content["made"], content["cached"]
            trial = Profile(ThresholdRule())  # nothing is learned from a file of which a part is broken
            trial.made.learn(made)
            trial.cached.learn(cached)
            costs = content["costs"]
            keys, seconds = [int(key) for key in costs["keys"]], _numbers(costs["seconds"])
            trial.costs.replace(keys, seconds)
            length = costs["length"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"{os.fspath(path)!r} is not a saved profile ({found}): profile= needs a file that another loader was "
                "given as profile=, or a path at which there is none yet"
            ) from error
        self.made.learn(made)
        self.cached.learn(cached)
        if length == self._length:
            self.costs.replace(keys, seconds)
