"""A second request for a read that takes unusually long: whichever answers first is used.

The second request is made once a read has taken longer than a percentile of recent reads, and never for more than a
small share of all reads: a server that has become slow as a whole must not get twice the work.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass

_WINDOW = 512  # recent reads the percentile is taken over
_FEWEST = 32  # reads before there is a percentile worth the name
_REFRESH = 16  # reads between two looks at the window: sorting it takes 50 µs
_BEYOND_MEDIAN = 1.5  # least multiple of the median; where all reads take alike, a percentile flags noise
_BURST = 10.0  # second requests saved up at most, so that a quiet hour does not pay for a storm


@dataclass(frozen=True, slots=True)
class HedgePolicy:
    """When a second request is made, and how many of them."""

    percentile: float = 95.0
    cap: float = 0.03
    """Second requests per request, at most."""

    def __post_init__(self) -> None:
        if not 50 <= self.percentile < 100:
            raise ValueError(f"hedge: a percentile from p50 to below p100 was needed, found p{self.percentile:g}")
        if not 0 < self.cap <= 0.5:
            raise ValueError(f"hedge: cap is a share of requests, above 0 and at most 0.5, found {self.cap}")


def parse_hedge(value: object) -> HedgePolicy | None:
    """The argument `hedge=`: None or False, True, "p95", or a HedgePolicy."""
    if value is None or value is False:
        return None
    if value is True:
        return HedgePolicy()
    if isinstance(value, HedgePolicy):
        return value
    found = re.fullmatch(r"p(\d+(?:\.\d+)?)", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'hedge must be None, True, "pNN" or a HedgePolicy, found {value!r}')
    return HedgePolicy(percentile=float(found[1]))


class Hedger:
    """Follows the reads of one process. Pure but for its lock: times go in, decisions come out."""

    def __init__(self, policy: HedgePolicy) -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._since_look = 0
        self._patience_s: float | None = None
        self._allowance = 0.0
        self.requests = 0
        self.hedges = 0

    def patience_s(self) -> float | None:
        """A read begins: after how many seconds a second request may be asked for, or None for never."""
        with self._lock:
            self.requests += 1
            self._allowance = min(_BURST, self._allowance + self._policy.cap)
            return self._patience_s

    def may_hedge(self) -> bool:
        """A read has lasted longer than its patience: whether it may have a second request. Counts it if so."""
        with self._lock:
            if self._allowance < 1:
                return False
            self._allowance -= 1
            self.hedges += 1
            return True

    def observe(self, seconds: float) -> None:
        """A read succeeded within `seconds` of its first request."""
        with self._lock:
            self._seconds.append(seconds)
            self._since_look += 1
            if len(self._seconds) < _FEWEST or (self._patience_s is not None and self._since_look < _REFRESH):
                return
            self._since_look = 0
            ordered = sorted(self._seconds)
            at = min(len(ordered) - 1, int(len(ordered) * self._policy.percentile / 100))
            self._patience_s = max(ordered[at], _BEYOND_MEDIAN * ordered[len(ordered) // 2])
