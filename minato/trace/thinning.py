"""Millions of events to what a picture can show. Pure functions of arrays; times in nanoseconds, as integers.

`coverage` and `levels` lose nothing of the sums: what falls into a stretch of time is all there. `merged`, `longest`
and `extremes` keep what stands out: the largest gaps, the longest spans, the highest and lowest points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of a lane, each standing for `counts` recorded ones."""

    starts: Times
    ends: Times
    counts: Times


def merged(starts: Times, ends: Times, most: int) -> Spans:
    """At most `most` spans: neighbours are joined over the smallest gaps until there are so few."""
    if not len(starts):
        return Spans(starts, ends, np.empty(0, np.int64))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    gaps = starts[1:] - ends[:-1]
    if len(gaps) < most:
        cuts = np.arange(len(gaps))
    else:
        kept = max(0, most - 1)
        cuts = np.sort(np.argpartition(gaps, len(gaps) - kept)[len(gaps) - kept :]) if kept else np.empty(0, np.int64)
    firsts = np.concatenate([[0], cuts + 1])
    lasts = np.concatenate([cuts, [len(starts) - 1]])
    return Spans(starts[firsts], ends[lasts], lasts - firsts + 1)


def longest(starts: Times, ends: Times, most: int) -> npt.NDArray[np.intp]:
    """Places of the `most` longest spans, in order of their start."""
    if len(starts) > most:
        chosen = np.argpartition(ends - starts, len(starts) - most)[len(starts) - most :] if most else np.empty(0, int)
    else:
        chosen = np.arange(len(starts))
    return chosen[np.argsort(starts[chosen], kind="stable")]


def edges(start_ns: int, end_ns: int, parts: int) -> Times:
    """Bounds of `parts` equal stretches of time."""
    return np.linspace(start_ns, max(end_ns, start_ns + parts), parts + 1).astype(np.int64)


def coverage(starts: Times, ends: Times, bounds: Times) -> Floats:
    """Nanoseconds of spans that fall between each two bounds; spans that overlap count each for itself."""
    return np.diff(_covered_until(starts, bounds) - _covered_until(ends, bounds))


def _covered_until(times: Times, bounds: Times) -> Floats:
    """For each bound b the sum of (b - t) over all times t before it."""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, bounds)
    sums = np.concatenate([[0.0], np.cumsum((ordered - bounds[0]).astype(np.float64))])
    result: Floats = before * (bounds - bounds[0]).astype(np.float64) - sums[before]
    return result


@dataclass(frozen=True, slots=True)
class Levels:
    """A quantity over stretches of time."""

    mean: Floats
    low: Floats
    high: Floats


def levels(times: Times, values: Floats, bounds: Times, until: int) -> Levels:
    """A quantity that keeps each value until the next is noted, the last until `until`; 0 before and after."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order].astype(np.float64)
    times, values = np.append(times, max(until, int(times[-1]))), np.append(values, 0.0)
    integral = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
    at = np.clip(np.searchsorted(times, bounds, side="right") - 1, -1, len(times) - 1)
    known = at >= 0
    place = np.maximum(at, 0)
    so_far = np.where(known, integral[place] + values[place] * (bounds - times[place]), 0.0)
    mean: Floats = np.diff(so_far) / np.maximum(1, np.diff(bounds))
    current = np.where(known, values[place], 0.0)[:-1]
    low, high = current.copy(), current.copy()
    inside = np.searchsorted(bounds, times, side="right") - 1
    chosen = (inside >= 0) & (inside < len(mean))
    np.minimum.at(low, inside[chosen], values[chosen])
    np.maximum.at(high, inside[chosen], values[chosen])
    return Levels(mean, low, high)


def extremes(values: Floats, most: int) -> npt.NDArray[np.intp]:
    """Places of at most `most` values, in order: of each stretch of places the smallest and the largest."""
    if len(values) <= most:
        return np.arange(len(values))
    stretch = -(-len(values) // max(1, most // 2))
    chosen: list[int] = []
    for first in range(0, len(values), stretch):
        part = values[first : first + stretch]
        chosen += sorted({first + int(np.argmin(part)), first + int(np.argmax(part))})
    return np.array(chosen)


def quantiles(values: Floats, parts: int = 200) -> list[float]:
    """Values at equally many steps from the smallest to the largest; empty for none."""
    return [float(value) for value in np.quantile(values, np.linspace(0, 1, parts + 1))] if len(values) else []
