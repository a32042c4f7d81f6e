"""How many samples a worker takes at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._fetchers.chunking import GROWTH, MOST_BYTES, MOST_IN_LANE, ChunkSizer


def after(*runs: tuple[int, float], target_s: float = 2e-3, sample_bytes: int = 0) -> int:
    sizer = ChunkSizer(target_s)
    for count, seconds in runs:
        sizer.observe(count, seconds)
    sizer.observe_bytes(sample_bytes)
    return sizer.size()


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], 1),
        ([(1, 1e-3)], 2),
        ([(1, 2e-3)], 1),
        ([(1, 5.0)], 1),
        ([(1, 1e-6)], GROWTH),
        ([(1, 1e-6), (4, 4e-6)], GROWTH * 4),
        ([(1, 0.0)], GROWTH),
        ([(100, 100 * 1e-5)], 250),
        ([(4, 4 * 0.7e-3)], 2),
    ],
    ids=["unknown", "half", "whole", "dear", "cheap", "still cheap", "nothing", "known well", "a few"],
)
def test_a_run_aims_at_the_target_and_a_quarter_more(runs: list[tuple[int, float]], expected: int) -> None:
    assert after(*runs) == expected


def test_a_larger_target_gives_longer_runs() -> None:
    run = (200, 200 * 1e-5)
    assert after(run, target_s=4e-3) == 2 * after(run, target_s=2e-3)


def test_a_slow_sample_makes_the_next_runs_short() -> None:
    """One sample of a second among samples of ten microseconds: those behind the next such one should be few."""
    assert after((64, 64e-5), (64, 1.0)) == 1


def test_a_slow_sample_is_forgotten_in_time() -> None:
    sizer = ChunkSizer()
    sizer.observe(1, 1.0)
    sizes = []
    for _ in range(200):
        size = sizer.size()
        sizes.append(size)
        sizer.observe(size, size * 1e-5)
    assert sizes[0] == 1
    assert sizes[-1] >= 100


def test_one_slow_sample_in_a_hundred_is_remembered_and_one_long_ago_is_not() -> None:
    sizer = ChunkSizer()
    sizer.observe(1, 0.5)
    assert sizer.is_even, "the first sample is slow everywhere: nothing is warm yet"
    for _ in range(20):
        sizer.observe(5, 0.01)
    sizer.observe(5, 0.3)
    assert sizer.is_even, "one alone may have been a busy system"
    for _ in range(20):
        sizer.observe(5, 0.01)
    sizer.observe(5, 0.3)
    for _ in range(100):
        sizer.observe(5, 0.01)
        assert not sizer.is_even
    for _ in range(1000):
        sizer.observe(5, 0.01)
    assert sizer.is_even


def sized_after_slow(batch_size: int | None, each: float = 2e-3) -> int:
    """Samples in a run, a while after the second of two slow samples."""
    sizer = ChunkSizer()
    if batch_size is not None:
        sizer.allow_waiting(batch_size)
    for _ in range(2):
        sizer.observe(1, 0.3)
        for _ in range(12):
            sizer.observe(4, 4 * each)
    return sizer.size()


def test_runs_stay_longer_where_those_behind_a_slow_sample_keep_nobody_waiting() -> None:
    assert sized_after_slow(None) <= 2
    assert sized_after_slow(16) == 4, "a quarter of a batch"
    assert sized_after_slow(64) == 5, "as many as make up the usual time of a run, and a quarter more"
    assert sized_after_slow(3) == sized_after_slow(None), "a quarter of a small batch is nothing"


def test_dear_samples_are_taken_one_by_one_even_where_nobody_waits_for_those_behind() -> None:
    assert sized_after_slow(64, each=20e-3) == 1


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(1, 1.0)], True),
        ([(1, 1.0), (1, 1.0)], False),
        ([(1, 1e-5), (4, 4e-5)], True),
        ([(1, 1e-5), (4, 4e-5), (16, 5e-3)], True),
        ([(1, 1e-5), (4, 0.3)], False),
        ([(1, 1e-3), (4, 4e-3)], True),
        ([(1, 1e-3), (4, 4e-3), (10, 1e-2)], False),
        ([(4, 4e-5)] * 7, False),
    ],
    ids=["first", "dear", "cheap", "put aside", "slow among cheap", "growing", "grown", "short for other reasons"],
)
def test_what_a_sample_costs_is_not_told_by_the_first_runs_of_cheap_ones(
    runs: list[tuple[int, float]], expected: bool
) -> None:
    sizer = ChunkSizer(10e-3)
    for count, seconds in runs:
        sizer.observe(count, seconds)
    assert sizer.is_finding_out is expected


@pytest.mark.parametrize(
    ("sample_bytes", "expected"),
    [(0, 400), (1, 400), (MOST_BYTES // 10, 10), (MOST_BYTES // 2, 2), (MOST_BYTES, 1), (10 * MOST_BYTES, 1)],
)
def test_large_samples_are_taken_in_few(sample_bytes: int, expected: int) -> None:
    assert after((100, 100 * 5e-6), sample_bytes=sample_bytes) == expected


@pytest.mark.parametrize("sample_bytes", [1, MOST_BYTES // 2, 10 * MOST_BYTES])
def test_large_samples_that_are_written_as_they_come_are_taken_as_small_ones(sample_bytes: int) -> None:
    sizes = []
    for size_known in (0, sample_bytes):
        sizer = ChunkSizer(0.01)
        sizer.observe_bytes(size_known)
        for _ in range(10):
            sizer.observe(sizer.size(in_parts=True), sizer.size(in_parts=True) * 1e-4)
        sizes.append(sizer.size(in_parts=True))
    assert sizes[0] == sizes[1] > 1


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 100)), max_size=30), st.integers(0, 1 << 30))
def test_a_run_is_never_empty_nor_grows_too_fast(runs: list[tuple[int, float]], sample_bytes: int) -> None:
    size = after(*runs, sample_bytes=sample_bytes)
    assert 1 <= size <= (GROWTH * max(1, *(count for count, _ in runs)) if runs else 1)


def test_a_run_that_was_cut_short_does_not_make_the_next_ones_short() -> None:
    """The end of a batch, or of what was posted: that says nothing about what a sample costs."""
    known = [(1, 1e-5), (4, 4e-5), (16, 16e-5), (64, 64e-5)]
    assert after(*known, (1, 1e-5)) == after(*known)


def test_a_run_that_was_meant_to_be_short_makes_the_next_ones_grow_slowly() -> None:
    sizer = ChunkSizer(2e-3)
    for count in (1, 4, 16, 64):
        sizer.observe(count, count * 1e-5)
    sizer.observe(200, 200 * 2e-3)
    assert sizer.size() == 1
    sizer.observe(1, 1e-9)
    sizer.observe(1, 1e-9)
    assert sizer.size() <= GROWTH


@pytest.mark.parametrize(
    ("runs", "most", "expected"),
    [
        ([], 9, 1),
        ([(1, 20e-3)], 9, MOST_IN_LANE),
        ([(1, 20e-3)], 1, 1),
        ([(1, 20e-3), (2, 1.02)], 9, 1),
        ([(1, 5.0)], 9, 1),
        ([(1, 20e-6)], 9, GROWTH),
    ],
    ids=["unknown", "dear", "by batch_pool", "one stands out", "very dear", "cheap"],
)
def test_lanes_take_dear_samples_in_pairs_unless_some_stand_out(
    runs: list[tuple[int, float]], most: int, expected: int
) -> None:
    sizer = ChunkSizer(10e-3, most, in_lane=True)
    for count, seconds in runs:
        sizer.observe(count, seconds)
    assert sizer.size() == expected


def test_rows_are_not_claimed_ahead_for_pairs_of_dear_samples() -> None:
    sizer = ChunkSizer(10e-3, in_lane=True)
    sizer.observe(1, 20e-3)
    assert not sizer.is_even
    sizer.observe(1, 1e-6)
    for _ in range(50):
        sizer.observe(4, 4e-6)
    assert sizer.is_even
