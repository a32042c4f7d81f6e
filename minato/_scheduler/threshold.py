"""From when on a sample counts as slow.

The rule, on the costs in the window:

    fewer than `warmup_samples`                    none yet
    hardly any sample takes twice the median       none: a percentile of a constant cost flags noise
    otherwise                                      the percentile (P75), but at least twice the median
    more samples flagged than that explains        the fallback (P90) in its place, until the share is back to normal

Twice the median as the lower limit makes the flagged samples those that are slow: with one slow sample in a hundred,
P75 alone would flag a quarter of all. Where a quarter of the samples is slow, P75 is what counts, as published.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .quantiles import quantile

SLOW_FROM = 2.0  # times the median: less is no tail
TAIL = 0.003  # share of samples beyond that from which on there is a tail; it ends when there are none left
LEAST_TAIL = 2  # samples: one alone may be a hiccup of the machine
RUNAWAY = 1.5  # times the share that a percentile flags by construction
JUDGED = 256  # samples whose flags make the flagged share
LEAST_JUDGED = 32


class Reason(enum.Enum):
    """Why the threshold is what it is."""

    OFF = "off"
    """Classification was not asked for."""
    GIVEN = "given"
    """A number of seconds was given."""
    WARMING_UP = "warming up"
    NO_TAIL = "no tail"
    PERCENTILE = "percentile"
    LEAST = "twice the median"
    """The percentile lies below."""
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """What the user asked for. Percentiles are "pNN", numbers are seconds."""

    slow_timeout: str | float | None = "p75"
    slow_fallback: str | float | None = "p90"
    warmup_samples: int = 64


def share_of(percentile: str) -> float:
    """0.75 for "p75"."""
    return float(percentile.removeprefix("p")) / 100


class Threshold:
    """Decides the threshold as samples come, and remembers which of the last ones were flagged."""

    def __init__(self, rule: ThresholdRule) -> None:
        self._rule = rule
        self._flags: deque[bool] = deque(maxlen=JUDGED)
        self._flagged = 0
        self._has_tail = False
        self._falling_back = False
        given = rule.slow_timeout
        self.seconds: float | None = None if given is None or isinstance(given, str) else float(given)
        """The threshold in force; None: no sample counts as slow."""
        self.reason = Reason.OFF if given is None else Reason.WARMING_UP if isinstance(given, str) else Reason.GIVEN

    @property
    def flagged_share(self) -> float:
        """Of the last samples, how many took longer than the threshold in force at their time."""
        return self._flagged / len(self._flags) if self._flags else 0.0

    def judge(self, cost: float) -> bool:
        """Whether a sample is slow."""
        limit = self.seconds
        slow = limit is not None and cost > limit
        flags = self._flags
        if len(flags) == JUDGED:
            self._flagged -= flags[0]
        flags.append(slow)
        self._flagged += slow
        return slow

    def judge_all(self, costs: Sequence[float]) -> list[bool]:
        """Whether each of several samples is slow."""
        limit = self.seconds
        judged = [False] * len(costs) if limit is None else [cost > limit for cost in costs]
        self._flags.extend(judged)
        self._flagged = sum(self._flags)
        return judged

    def reconsider(self, ordered: Sequence[float]) -> None:
        """Decide anew, from the costs in the window (ascending)."""
        wanted = self._rule.slow_timeout
        if not isinstance(wanted, str) or len(ordered) < self._rule.warmup_samples:
            return
        least = SLOW_FROM * quantile(ordered, 0.5)
        if not self._look_for_tail(ordered, least):
            self._falling_back = False
            self._set(None, Reason.NO_TAIL)
            return
        if self._fall_back(wanted):
            fallback = self._rule.slow_fallback
            assert fallback is not None
            seconds = quantile(ordered, share_of(fallback)) if isinstance(fallback, str) else float(fallback)
            self._set(max(least, seconds), Reason.FALLBACK)
            return
        seconds = quantile(ordered, share_of(wanted))
        self._set(max(least, seconds), Reason.PERCENTILE if seconds >= least else Reason.LEAST)

    def _look_for_tail(self, ordered: Sequence[float], least: float) -> bool:
        beyond = len(ordered) - bisect_right(ordered, least)
        self._has_tail = beyond >= (1 if self._has_tail else max(LEAST_TAIL, TAIL * len(ordered)))
        return self._has_tail

    def _fall_back(self, wanted: str) -> bool:
        fallback = self._rule.slow_fallback
        if fallback is None:
            return False
        if len(self._flags) >= LEAST_JUDGED:
            usual = share_of(fallback if self._falling_back and isinstance(fallback, str) else wanted)
            self._falling_back = self.flagged_share > RUNAWAY * (1 - usual)
        return self._falling_back

    def _set(self, seconds: float | None, reason: Reason) -> None:
        self.seconds, self.reason = seconds, reason
