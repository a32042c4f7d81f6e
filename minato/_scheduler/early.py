"""Which samples to begin before their turn, and how long before.

A sample is known to be slow because it was in an earlier epoch, or because the user says so. While workers do the
others in their order, one batch takes them

    batch size * mean cost / workers

seconds. A sample that costs `c` is done in time for its own batch if it is begun `c` divided by that many batches
before its turn; begun earlier, it would only keep a worker from the batch that is wanted next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from .._records import EarlyStart
from .threshold import Threshold, ThresholdRule

MOST_COSTS = 1 << 16  # samples that are remembered: 10 MB at most
WORTH_BEGINNING = 0.25  # of the time that a batch takes: a sample that costs less holds nobody up in its own turn
WORTH_S = 5e-3  # seconds; less is what any sample takes whose worker was put aside for a moment by the system
_UNKNOWN = math.inf
"""A sample that is slow, nobody knows how slow."""


class SlowHint(Protocol):
    """What the user knows about the cost of samples."""

    def ratio(self, key: Any) -> float | None:
        """What the sample of a key costs, as a multiple of the mean; infinite: slow, nobody knows how much; None: not
        known to be slow."""
        ...


class HintFunction:
    """A function that says of an index whether its sample is slow. It is asked once per sample and epoch."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def ratio(self, key: Any) -> float | None:
        return _UNKNOWN if self._function(key) else None


class HintTable:
    """One value for each sample: whether it is slow, or what it costs, in any unit. Keeps the slow ones."""

    def __init__(self, values: Sequence[Any]) -> None:
        if all(type(value) is bool for value in values):
            self._slow = {index: _UNKNOWN for index, value in enumerate(values) if value}
            return
        costs = [float(value) for value in values]
        if not all(0 <= cost < math.inf for cost in costs):
            raise ValueError("costs must be finite and not negative")
        threshold = Threshold(ThresholdRule(warmup_samples=1))
        threshold.reconsider(sorted(costs) or (0.0,))
        limit, mean = threshold.seconds, math.fsum(costs) / max(1, len(costs))
        self._slow = {i: cost / mean for i, cost in enumerate(costs) if limit is not None and cost > limit}

    def ratio(self, key: Any) -> float | None:
        return self._slow.get(key) if type(key) is int else None


def make_hint(given: Any) -> SlowHint | None:
    """What `slow_hint` says; None: nothing."""
    if given is None:
        return None
    if callable(given):
        return HintFunction(given)
    return HintTable(given.tolist() if hasattr(given, "tolist") else list(given))


class LearnedCosts:
    """What single samples cost that were slow when they were last made. Seconds, by index.

    Memory is bounded: when there are too many, the cheaper half is forgotten.
    """

    def __init__(self, most: int = MOST_COSTS) -> None:
        self._most = most
        self._seconds: dict[int, float] = {}
        self._at_most = 0.0

    def __len__(self) -> int:
        return len(self._seconds)

    def get(self, key: Any) -> float | None:
        return self._seconds.get(key) if type(key) is int else None

    @property
    def at_most(self) -> float:
        """What the dearest known sample costs, in seconds."""
        return self._at_most

    def known(self, keys: Sequence[Any]) -> Iterator[tuple[int, float]]:
        """Places and costs of the keys that are known."""
        seconds = self._seconds
        if self._knows_none_of(keys):
            return iter(())
        return ((place, seconds[key]) for place, key in enumerate(keys) if type(key) is int and key in seconds)

    def _knows_none_of(self, keys: Sequence[Any]) -> bool:
        """Whether a look at all keys at once, which takes a sixth of the time, finds none that is known."""
        try:
            return self._seconds.keys().isdisjoint(keys)
        except TypeError:  # a key that has no hash
            return False

    def learn(self, key: int, seconds: float, threshold: float | None) -> None:
        """The sample took that long; it is forgotten if that is not slow (any more)."""
        before = self._seconds.pop(key, 0.0)
        if threshold is not None and seconds > threshold:
            self._seconds[key] = seconds
            self._at_most = max(self._at_most, seconds)
        if before and before == self._at_most:  # seldom: the dearest of all was made again
            self._at_most = max(self._seconds.values(), default=0.0)
        if len(self._seconds) > self._most:
            dearest = sorted(self._seconds.items(), key=lambda item: item[1])[-(self._most // 2) :]
            self._seconds = dict(dearest)

    @property
    def mean(self) -> float:
        return math.fsum(self._seconds.values()) / len(self._seconds) if self._seconds else 0.0

    def to_plain(self) -> dict[str, Any]:
        return {"keys": list(self._seconds), "seconds": [round(one, 6) for one in self._seconds.values()]}

    def replace(self, keys: Iterable[int], seconds: Iterable[float]) -> None:
        """Begin with what was learned elsewhere."""
        self._seconds = dict(list(zip(keys, seconds, strict=True))[: self._most])
        self._at_most = max(self._seconds.values(), default=0.0)


class EarlyStarts:
    """Chooses the samples of a batch that are begun before their turn."""

    def __init__(self, costs: LearnedCosts, mean_cost: Callable[[], float], hint: SlowHint | None = None) -> None:
        """`mean_cost`: of all samples lately, in seconds."""
        self._costs = costs
        self._mean_cost = mean_cost
        self.hint = hint

    def may_choose(self, tickets: int, workers: int) -> bool:
        """Whether there can be such samples in a batch of so many tickets: without a look at them."""
        if self.hint is not None:
            return True
        return len(self._costs) > 0 and self._costs.at_most >= self._worth_s(tickets, workers)

    def _worth_s(self, tickets: int, workers: int) -> float:
        """Seconds that a sample has to cost to be worth beginning early."""
        return max(WORTH_S, WORTH_BEGINNING * self._mean_cost() * tickets / workers)

    def choose(self, keys: Sequence[Any], workers: int, window: int) -> EarlyStart | None:
        """For a batch with these keys; None: there are none. `window`: batches in flight. Raises what the user's
        function raises."""
        if not self.may_choose(len(keys), workers):
            return None
        mean, worth_s = self._mean_cost(), self._worth_s(len(keys), workers)
        slow = sorted(self._slow_ones(keys, mean, worth_s), key=lambda one: -one[1])
        if not slow or len(slow) == len(keys) > 1:  # if all are slow, none is to be preferred
            return None
        ratio = slow[0][1] if slow[0][1] < _UNKNOWN else self._usual_ratio(mean)
        lead = window // 2 if ratio is None else min(window, math.ceil(ratio * workers / len(keys)))
        return EarlyStart([place for place, _ in slow], lead)

    def _slow_ones(self, keys: Sequence[Any], mean: float, worth_s: float) -> Iterator[tuple[int, float]]:
        """Places, and costs as multiples of the mean. What is known goes before what is hinted at."""
        known = dict(self._costs.known(keys))
        for place, seconds in known.items():
            if seconds >= worth_s:
                yield place, seconds / mean if mean > 0 else _UNKNOWN
        if self.hint is not None:
            for place, key in enumerate(keys):
                if place not in known and (ratio := self.hint.ratio(key)) is not None:
                    yield place, ratio

    def _usual_ratio(self, mean: float) -> float | None:
        """What a slow sample usually costs, as a multiple of the mean."""
        return self._costs.mean / mean if mean > 0 and len(self._costs) else None
