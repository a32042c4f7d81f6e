"""Which samples are begun before their turn, and how long before."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._scheduler.early import EarlyStarts, HintTable, LearnedCosts, make_hint


def starts(known: dict[int, float], mean: float = 0.01, hint: Any = None) -> EarlyStarts:
    costs = LearnedCosts()
    for key, seconds in known.items():
        costs.learn(key, seconds, threshold=0.0)
    return EarlyStarts(costs, lambda: mean, make_hint(hint))


def test_known_samples_come_first_the_slowest_foremost() -> None:
    chosen = starts({3: 0.1, 7: 0.4, 9: 0.2}).choose([1, 3, 7, 8, 9], workers=4, window=100)
    assert chosen is not None
    assert list(chosen.places) == [2, 4, 1]


@pytest.mark.parametrize("other", [2, (3, 4), "x", [3], {}, True, 1.0])
def test_only_plain_indices_are_known_whatever_keys_are_beside_them(other: Any) -> None:
    """Some have no hash, and some are equal to an index."""
    costs = LearnedCosts()
    costs.learn(1, 0.5, threshold=0.0)
    assert list(costs.known([other])) == []
    assert list(costs.known([other, 1])) == [(1, 0.5)]


@pytest.mark.parametrize(("cost", "workers", "lead"), [(0.4, 8, 20), (0.4, 4, 10), (0.05, 8, 3), (9.0, 8, 64)])
def test_a_sample_is_begun_as_many_batches_early_as_workers_do_while_it_is_made(
    cost: float, workers: int, lead: int
) -> None:
    """16 samples of 10 ms take 8 workers 20 ms: a sample of 0.4 s lasts 20 such batches. Never beyond the window."""
    chosen = starts({5: cost}).choose([*range(16)], workers, window=64)
    assert chosen is not None
    assert (list(chosen.places), chosen.lead) == ([5], lead)


def test_nothing_known_means_nothing_early() -> None:
    unknown = starts({})
    assert not unknown.may_choose(4, 2)
    assert unknown.choose([1, 2], 2, 4) is None


def test_where_all_are_slow_none_is_preferred() -> None:
    assert starts({1: 1.0, 2: 1.0}).choose([1, 2], 2, 4) is None
    assert starts({1: 1.0}).choose([1], 2, 4) is not None, "a batch of one may overtake other batches"


def test_hinted_samples_of_unknown_cost_are_begun_half_a_window_early() -> None:
    hinted = starts({}, hint=lambda index: index == 2)
    chosen = hinted.choose([1, 2, 3], workers=2, window=10)
    assert chosen is not None
    assert (list(chosen.places), chosen.lead) == ([1], 5)


def test_hinted_samples_cost_what_slow_ones_usually_do_once_that_is_known() -> None:
    chosen = starts({99: 0.4}, hint=lambda index: index == 2).choose([*range(16)], workers=8, window=64)
    assert chosen is not None
    assert chosen.lead == 20


def test_a_table_of_costs_in_any_unit_finds_the_slow_ones() -> None:
    """Twice the median and beyond the percentile, as for measured costs."""
    table = HintTable([10.0] * 95 + [900.0] * 5)
    mean = (95 * 10 + 5 * 900) / 100
    assert [index for index in range(100) if table.ratio(index) is not None] == [95, 96, 97, 98, 99]
    assert table.ratio(95) == pytest.approx(900 / mean)
    assert all(HintTable([1.0] * 50).ratio(index) is None for index in range(50))


def test_a_table_of_bools_and_keys_that_are_no_indices() -> None:
    table = HintTable([False, True])
    assert [table.ratio(key) for key in (0, 1, 2, "a", (1, 2))] == [None, math.inf, None, None, None]


@pytest.mark.parametrize("values", [[1.0, -1.0], [math.nan, 1.0], [math.inf, 0.0]])
def test_costs_that_are_none_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        HintTable(values)


def test_a_sample_that_is_no_longer_slow_is_forgotten() -> None:
    costs = LearnedCosts()
    costs.learn(1, 2.0, threshold=1.0)
    assert costs.get(1) == 2.0
    costs.learn(1, 0.5, threshold=1.0)
    assert costs.get(1) is None


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0.1, 100)), max_size=300), st.integers(2, 20))
def test_memory_is_bounded_and_the_dearest_stay(notes: list[tuple[int, float]], most: int) -> None:
    costs = LearnedCosts(most)
    for key, seconds in notes:
        costs.learn(key, seconds, threshold=0.0)
        assert len(costs) <= most
        assert costs.get(key) is not None or seconds < max((costs.get(k) or 0.0) for k in range(201))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40), st.integers(2, 9))
def test_the_dearest_that_is_known_is_known_at_any_time(notes: list[tuple[int, int]], most: int) -> None:
    costs = LearnedCosts(most)
    for key, seconds in notes:
        costs.learn(key, float(seconds), threshold=3.0)
        assert costs.at_most == max(costs.to_plain()["seconds"], default=0.0)


def test_samples_that_cost_little_beside_their_batch_are_left_in_their_turn() -> None:
    """1,000 samples of 10 ms take 2 workers 5 s; one of 0.2 s among them holds nobody up, one of 2 s does."""
    assert starts({5: 0.2}).choose([*range(1000)], workers=2, window=8) is None
    assert starts({5: 2.0}).choose([*range(1000)], workers=2, window=8) is not None
    assert starts({5: 0.2}).choose([*range(10)], workers=2, window=8) is not None
