"""Thinning keeps sums, and keeps what stands out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato.trace.thinning import coverage, edges, extremes, levels, longest, merged, quantiles

SPANS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 200)), max_size=40)


def arrays(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in spans], dtype=np.int64)
    return starts, starts + np.array([length for _, length in spans], dtype=np.int64)


@given(SPANS, st.integers(1, 50))
def test_joined_spans_are_few_and_cover_all(spans: list[tuple[int, int]], most: int) -> None:
    starts, ends = arrays(spans)
    found = merged(starts, ends, most)
    assert len(found.starts) <= most
    assert found.counts.sum() == len(spans)
    for start, end in zip(starts, ends, strict=True):
        assert any(a <= start and end <= b for a, b in zip(found.starts, found.ends, strict=True))
    assert np.all(np.diff(found.starts) >= 0)


def test_spans_are_joined_over_the_smallest_gaps() -> None:
    starts, ends = arrays([(0, 10), (11, 9), (100, 10), (115, 5)])
    found = merged(starts, ends, 2)
    assert (found.starts.tolist(), found.ends.tolist(), found.counts.tolist()) == ([0, 100], [20, 120], [2, 2])


@given(SPANS, st.integers(0, 300), st.integers(1, 900), st.integers(1, 20))
def test_coverage_is_exact(spans: list[tuple[int, int]], begin: int, length: int, parts: int) -> None:
    starts, ends = arrays(spans)
    bounds = edges(begin, begin + length, parts)
    slow = [
        sum(max(0, min(e, b) - max(s, a)) for s, e in zip(starts.tolist(), ends.tolist(), strict=True))
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    assert coverage(starts, ends, bounds).tolist() == pytest.approx(slow)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9)), min_size=1, max_size=30, unique_by=lambda x: x[0]))
def test_levels_are_those_of_the_step_function(noted: list[tuple[int, int]]) -> None:
    bounds, until = edges(0, 600, 12), 550
    times, values = (np.array(column) for column in zip(*noted, strict=True))
    found = levels(times, values.astype(float), bounds, until)
    known = dict(sorted(noted))

    def at(moment: int) -> float:
        before = [time for time in known if time <= moment]
        return known[max(before)] if before and moment < until else 0.0

    for number in range(12):
        moments = [at(moment) for moment in range(int(bounds[number]), int(bounds[number + 1]))]
        assert found.mean[number] == pytest.approx(sum(moments) / len(moments))
        assert found.low[number] == min(moments)
        assert found.high[number] == max(moments)


@given(st.lists(st.floats(0, 1e6), max_size=300), st.integers(2, 40))
def test_the_highest_and_the_lowest_stay(values: list[float], most: int) -> None:
    each = np.array(values)
    places = extremes(each, most)
    assert len(places) <= max(len(values) if len(values) <= most else 0, most + 2)
    assert np.all(np.diff(places) > 0)
    if values:
        assert each[places].max() == each.max()
        assert each[places].min() == each.min()
        assert quantiles(each, 10)[0] == each.min()
        assert quantiles(each, 10)[-1] == each.max()
    else:
        assert quantiles(each) == []


@given(SPANS, st.integers(0, 50))
def test_the_longest_spans_stay(spans: list[tuple[int, int]], most: int) -> None:
    starts, ends = arrays(spans)
    lengths = ends - starts
    places = longest(starts, ends, most)
    assert sorted(lengths[places])[::-1] == sorted(lengths)[::-1][:most]
    assert np.all(np.diff(starts[places]) >= 0)
