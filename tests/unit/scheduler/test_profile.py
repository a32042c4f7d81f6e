"""What samples cost, and which ones count as slow: lists of costs in, thresholds out."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._scheduler.profile import MOST_STAGES, RECONSIDER_EVERY, WINDOW, CostProfile, Profile
from minato._scheduler.quantiles import SlidingWindow, evenly_spaced, quantile
from minato._scheduler.threshold import JUDGED, Reason, ThresholdRule, share_of

RECENT = 0.02  # a threshold was chosen some samples ago: as a share, what they may have changed
costs = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def profile_of(values: list[float], rule: ThresholdRule | None = None, window: int = WINDOW) -> CostProfile:
    profile = CostProfile(rule or ThresholdRule(), window)
    for value in values:
        profile.observe(value)
    return profile


def mixture(seed: int, count: int, slow_share: float, slow: float, fast: float = 0.01) -> list[float]:
    """Fast and slow samples, each with a spread of a tenth."""
    draw = random.Random(seed)
    return [
        (slow if draw.random() < slow_share else fast) * draw.uniform(0.95, 1.05)  # in an order that means nothing
        for _ in range(count)
    ]


# ---- quantiles -----------------------------------------------------------------------------------------------------


@given(st.lists(costs, min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], share: float) -> None:
    assert math.isclose(quantile(sorted(values), share), float(np.quantile(values, share)), rel_tol=1e-9, abs_tol=1e-9)


@given(st.lists(costs, max_size=100), st.integers(1, 20))
def test_a_window_holds_the_last_numbers_sorted(values: list[float], size: int) -> None:
    window = SlidingWindow(size)
    for value in values:
        window.add(value)
        assert window.ordered[-1] == max(window.ordered)
    assert window.ordered == sorted(values[-size:])
    assert len(window) == len(values[-size:])


@given(st.lists(costs, min_size=1, max_size=300), st.integers(2, 50))
def test_thinned_numbers_keep_ends_and_order(values: list[float], count: int) -> None:
    ordered = sorted(values)
    few = evenly_spaced(ordered, count)
    assert len(few) == min(count, len(values))
    assert few == sorted(few)
    assert (few[0], few[-1]) == (ordered[0], ordered[-1])


# ---- the threshold -------------------------------------------------------------------------------------------------


def test_there_is_no_threshold_before_the_warm_up_is_over() -> None:
    values = mixture(1, 100, 0.3, 1.0)
    profile = CostProfile(ThresholdRule(warmup_samples=100))
    for value in values[:-1]:
        assert profile.observe(value) is False
        assert (profile.threshold, profile.summary().reason) == (None, Reason.WARMING_UP)
    profile.observe(values[-1])
    assert profile.threshold is not None


@given(st.floats(1e-6, 100), st.integers(0, 1000))
def test_a_nearly_constant_cost_has_no_slow_samples(cost: float, seed: int) -> None:
    draw = random.Random(seed)
    profile = profile_of([cost * draw.uniform(0.7, 1.3) for _ in range(500)])
    assert (profile.threshold, profile.summary().reason) == (None, Reason.NO_TAIL)
    assert profile.summary().slow == 0


def test_one_hiccup_is_no_tail() -> None:
    values = [0.01] * 200
    values[50] = 5.0
    assert profile_of(values).threshold is None


@pytest.mark.parametrize("share", [0.3, 0.4, 0.45])
def test_with_many_slow_samples_the_threshold_is_the_percentile_as_published(share: float) -> None:
    values = mixture(2, 2048, share, 1.0)
    profile = profile_of(values)
    assert profile.summary().reason is Reason.PERCENTILE
    assert profile.threshold == pytest.approx(np.percentile(values[-WINDOW:], 75), rel=RECENT)


@pytest.mark.parametrize("name", ["p60", "p75", "p97.5"])
def test_the_percentile_asked_for_is_used(name: str) -> None:
    values = mixture(3, 2048, 0.45, 1.0)
    profile = profile_of(values, ThresholdRule(slow_timeout=name, slow_fallback=None))
    assert profile.threshold == pytest.approx(np.quantile(values[-WINDOW:], share_of(name)), rel=RECENT)


@given(st.integers(8, 200))
def test_a_tail_that_shows_only_after_the_warm_up_is_noticed_within_a_quarter_more_samples(warmup: int) -> None:
    profile = profile_of([0.01] * warmup, ThresholdRule(warmup_samples=warmup))
    assert profile.threshold is None
    soon = max(8, warmup // 4)
    for value in ([0.15, 0.15] + [0.01] * soon)[:soon]:
        profile.observe(value)
    assert profile.threshold is not None


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_the_samples_flagged_are_those_that_are_slow(share: float, seed: int) -> None:
    values = mixture(seed, 10_000, share, slow=1.5)
    profile = CostProfile(ThresholdRule())
    flags = [profile.observe(value) for value in values]
    late = range(2000, 10_000)  # by then a tail of one in a hundred was seen
    assert [flags[n] for n in late] == [values[n] > 1 for n in late]


def test_a_given_number_of_seconds_is_the_threshold_from_the_first_sample_on() -> None:
    profile = CostProfile(ThresholdRule(slow_timeout=0.5))
    assert (profile.threshold, profile.summary().reason) == (0.5, Reason.GIVEN)
    assert [profile.observe(cost) for cost in (0.4, 0.5, 0.6)] == [False, False, True]
    assert profile_of([3.0] * 500, ThresholdRule(slow_timeout=0.5)).threshold == 0.5


def test_without_classification_nothing_is_slow() -> None:
    profile = profile_of(mixture(4, 1000, 0.3, 1.0), ThresholdRule(slow_timeout=None))
    assert (profile.threshold, profile.summary().reason, profile.summary().slow) == (None, Reason.OFF, 0)


@given(st.lists(costs, min_size=1, max_size=600), st.sampled_from([(8, 32), (64, 1024)]))
def test_whatever_comes_the_threshold_lies_within_what_was_seen(values: list[float], sizes: tuple[int, int]) -> None:
    """And never below twice the median; and the counters add up."""
    warmup, window = sizes
    profile = CostProfile(ThresholdRule(warmup_samples=warmup), window)
    slow = 0
    for number, value in enumerate(values, 1):
        before = profile.threshold
        flagged = profile.observe(value)
        assert flagged == (before is not None and value > before)
        slow += flagged
        decided = number >= warmup and (number - warmup) % RECONSIDER_EVERY == 0
        if decided and profile.threshold is not None:
            recent = values[max(0, number - window) : number]
            assert 2 * np.median(recent) <= profile.threshold * (1 + 1e-9)
            assert profile.threshold <= max(recent)
    summary = profile.summary()
    assert (summary.samples, summary.slow) == (len(values), slow)
    assert 0 <= summary.flagged_share <= 1


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf])
def test_a_cost_that_is_none_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        CostProfile(ThresholdRule()).observe(cost)


# ---- drift ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 30.0])
@pytest.mark.parametrize("share", [0.05, 0.4])
def test_the_threshold_follows_a_drift_within_a_window(factor: float, share: float) -> None:
    before, after = mixture(5, 3000, share, 1.0), mixture(6, WINDOW + RECONSIDER_EVERY, share, factor, 0.01 * factor)
    profile = profile_of(before)
    for value in after:
        profile.observe(value)
    fresh = profile_of(after)
    assert profile.threshold == pytest.approx(fresh.threshold, rel=0.2)


def test_while_too_many_are_flagged_the_fallback_counts() -> None:
    """Everything becomes three times slower: for a while nearly all samples lie above what used to be slow."""
    profile = profile_of(mixture(7, 3000, 0.4, 1.0))
    reasons, shares = set(), []
    for value in mixture(8, 3000, 0.4, 3.0, fast=1.2):
        profile.observe(value)
        reasons.add(profile.summary().reason)
        shares.append(profile.summary().flagged_share)
    assert Reason.FALLBACK in reasons
    assert max(shares) > 1.5 * 0.25
    assert shares[-1] <= 1.5 * 0.25
    assert profile.summary().reason is not Reason.FALLBACK


def test_without_a_fallback_there_is_none() -> None:
    profile = profile_of(mixture(7, 3000, 0.4, 1.0), ThresholdRule(slow_fallback=None))
    for value in mixture(8, 1000, 0.4, 3.0, fast=1.2):
        profile.observe(value)
        assert profile.summary().reason is not Reason.FALLBACK


def test_a_tail_that_goes_away_takes_the_threshold_with_it() -> None:
    profile = profile_of(mixture(9, 2000, 0.2, 1.0))
    assert profile.threshold is not None
    for _ in range(WINDOW + RECONSIDER_EVERY):
        profile.observe(0.01)
    assert profile.threshold is None


def test_a_tail_near_the_limit_does_not_flap() -> None:
    """One slow sample in 130: the number in the window varies, the threshold does not come and go with it."""
    profile = CostProfile(ThresholdRule())
    there = []
    for value in mixture(10, 60_000, 1 / 130, 1.0):
        profile.observe(value)
        there.append(profile.threshold is not None)
    changes = sum(a != b for a, b in itertools.pairwise(there))
    assert there[-1]
    assert changes == 1


# ---- stages, kinds, files ------------------------------------------------------------------------------------------


def test_stages_and_sizes_are_summed_up() -> None:
    profile = CostProfile(ThresholdRule())
    for number in range(1, 101):
        profile.observe(0.1, nbytes=1000 * number, stages=[("load", 0.01 * number), ("crop", 0.5)])
    summary = profile.summary()
    load, crop = summary.stages
    assert (load.name, crop.name) == ("load", "crop")
    assert load.median == pytest.approx(0.505)
    assert (crop.median, crop.p95, crop.mean) == (0.5, 0.5, pytest.approx(0.5))
    assert summary.mean_bytes == pytest.approx(50_500)


def test_memory_is_bounded_whatever_the_stages_are_called() -> None:
    profile = CostProfile(ThresholdRule())
    for number in range(10 * MOST_STAGES):
        profile.observe(0.1, stages=[(f"stage {number}", 0.1)])
    assert len(profile.summary().stages) == MOST_STAGES


def test_cached_samples_do_not_move_the_threshold_of_the_others() -> None:
    profile = Profile(ThresholdRule())
    alone = Profile(ThresholdRule())
    for value in mixture(11, 2000, 0.3, 1.0):
        profile.of(from_cache=False).observe(value)
        alone.made.observe(value)
        profile.of(from_cache=True).observe(value / 1000)
    assert profile.made.summary() == alone.made.summary()
    assert profile.cached.threshold == pytest.approx(profile.made.threshold / 1000)


def test_a_saved_profile_gives_its_threshold_without_warm_up(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    first = Profile(ThresholdRule())
    for value in mixture(12, 3000, 0.3, 1.0):
        first.made.observe(value, nbytes=500, stages=[("load", value / 2)])
    first.save(path)
    second = Profile(ThresholdRule())
    second.load(path)
    assert second.made.threshold == pytest.approx(first.made.threshold, rel=0.05)
    assert second.cached.threshold is None
    assert second.made.summary().samples == 0
    assert second.made.summary().stages[0].median == pytest.approx(first.made.summary().stages[0].median, rel=0.05)
    assert second.made.summary().mean_bytes == 500
    assert path.stat().st_size < 20_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]


def test_a_rare_tail_survives_saving(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    first = Profile(ThresholdRule())
    for value in mixture(13, 3000, 0.02, 1.5):
        first.made.observe(value)
    first.save(path)
    second = Profile(ThresholdRule())
    second.load(path)
    assert second.made.threshold == pytest.approx(first.made.threshold, rel=0.05)


def test_real_samples_push_loaded_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    first = Profile(ThresholdRule())
    for value in mixture(14, 3000, 0.3, 1.0):
        first.made.observe(value)
    first.save(path)
    second = Profile(ThresholdRule())
    second.load(path)
    for _ in range(WINDOW + RECONSIDER_EVERY):
        second.made.observe(0.02)
    assert second.made.threshold is None


def broken(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], str]:
    def text(content: dict[str, Any]) -> str:
        change(content)
        return json.dumps(content)

    return text


BROKEN = {
    "no json": lambda content: "{",
    "a list": lambda content: "[]",
    "another format": broken(lambda content: content.update(format=7)),
    "a part missing": broken(lambda content: content.pop("cached")),
    "text for numbers": broken(lambda content: content["made"].update(totals=["a"])),
    "negative": broken(lambda content: content["cached"].update(totals=[-1])),
    "stages no table": broken(lambda content: content["made"].update(stages=[1])),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_profile_is_named_and_nothing_is_learned_from_it(tmp_path: Path, case: str) -> None:
    path = tmp_path / "profile.json"
    saved = Profile(ThresholdRule())
    for value in mixture(15, 300, 0.3, 1.0):
        saved.made.observe(value)
    saved.save(path)
    path.write_text(BROKEN[case](json.loads(path.read_text())))
    profile = Profile(ThresholdRule())
    with pytest.raises(ValueError, match=r"profile\.json' is not a saved profile"):
        profile.load(path)
    assert profile.made.summary() == CostProfile(ThresholdRule()).summary()


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError):
        Profile(ThresholdRule()).save(target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_the_flagged_share_counts_the_last_samples_only() -> None:
    profile = CostProfile(ThresholdRule(slow_timeout=1.0))
    for _ in range(JUDGED):
        profile.observe(2.0)
    assert profile.summary().flagged_share == 1
    for _ in range(JUDGED):
        profile.observe(0.5)
    assert profile.summary().flagged_share == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), max_size=300))
def test_runs_noted_together_count_as_if_noted_one_by_one(runs: list[tuple[float, int]]) -> None:
    rule = ThresholdRule("p75", "p90", 8)
    together, one_by_one = CostProfile(rule), CostProfile(rule)
    slow = together.observe_runs([cost for cost, _ in runs], [count for _, count in runs])
    slow_one_by_one = sum(count for cost, count in runs if one_by_one.observe(cost, samples=count))
    assert slow == slow_one_by_one
    assert together.threshold == one_by_one.threshold
    assert together.samples == one_by_one.samples == len(runs)
    assert together.mean_cost == pytest.approx(one_by_one.mean_cost)
