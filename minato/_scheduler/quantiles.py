"""Quantiles of plain lists, and a window that slides over a stream of numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ascending numbers lie, interpolated between neighbours; numpy's default."""
    place = share * (len(ordered) - 1)
    below = int(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    low, high = ordered[below], ordered[below + 1]
    return min(high, low + (place - below) * (high - low))  # rounding must not lead beyond a neighbour


def evenly_spaced(ordered: Sequence[float], count: int) -> list[float]:
    """At most `count` numbers with nearly the quantiles of all."""
    if len(ordered) <= count:
        return list(ordered)
    return [quantile(ordered, place / (count - 1)) for place in range(count)]


class SlidingWindow:
    """The last numbers of a stream. Adding is cheap; the sorted view is made when it is asked for, once per change."""

    def __init__(self, size: int, start: Iterable[float] = ()) -> None:
        self._values: deque[float] = deque(start, maxlen=size)
        self._ordered: list[float] | None = None

    def add(self, value: float) -> None:
        self._values.append(value)
        self._ordered = None

    def extend(self, values: Iterable[float]) -> None:
        self._values.extend(values)
        self._ordered = None

    def __len__(self) -> int:
        return len(self._values)

    @property
    def ordered(self) -> list[float]:
        """The numbers in the window, ascending."""
        if self._ordered is None:
            self._ordered = sorted(self._values)
        return self._ordered

    @property
    def mean(self) -> float:
        return sum(self._values) / len(self._values) if self._values else 0.0
