"""The offloading policy: stall test, placement, ratio, number of actors, balance."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato.offload._balancing import ShareCounter
from minato.offload._deciding import (
    LOCAL,
    MARGIN,
    LocalMetrics,
    RemoteMetrics,
    choose_actors,
    choose_ratio,
    decide,
    estimate,
    is_stalled,
    least_remote_rate,
    local_rate,
)

RATES = st.floats(0.01, 1e4)
COSTS = st.floats(1e-6, 10.0)
LOCALS = st.builds(LocalMetrics, gthp=RATES, lthp=RATES, pcycle_s=COSTS, cores=st.floats(0.5, 128))
REMOTES = st.builds(
    RemoteMetrics,
    placement=st.sampled_from(["transform", "sample", "batch"]),
    rthp=RATES,
    actors=st.integers(1, 64),
    ocycle_s=COSTS,
    alone=RATES,
)


def remote(
    placement: str = "sample", rthp: float = 10.0, actors: int = 2, ocycle_s: float = 0.0, alone: float | None = None
) -> RemoteMetrics:
    return RemoteMetrics(placement, rthp, actors, ocycle_s, rthp if alone is None else alone)


def test_stall_is_judged_by_the_ratio_of_rates() -> None:
    """1.1 times is enough by default; the number of batches per second does not matter."""
    assert is_stalled(110, 100, 1.1)
    assert not is_stalled(109, 100, 1.1)
    assert not is_stalled(100, 0, 1.1), "nothing was measured"


def test_no_stall_means_local_whatever_the_remote_side_offers() -> None:
    decision = decide(
        LocalMetrics(10, 10, 0.1, 2), [remote(rthp=1000)], min_speedup=1.1, prefer_local=True, most_actors=8
    )
    assert (decision.placement, decision.ratio, decision.actors) == (LOCAL, 0.0, 0)


def test_least_remote_use_ends_the_stall() -> None:
    """Consumer 50/s, local 20/s, idle cores: 30/s are missing, whatever else the remote side could do."""
    local = LocalMetrics(gthp=50, lthp=20, pcycle_s=0.001, cores=2)
    assert choose_ratio(local, remote(rthp=200)) == pytest.approx(30 * MARGIN / 50)
    assert choose_ratio(local, remote(rthp=200), prefer_local=False) == 1.0


def test_too_slow_a_remote_side_gets_its_share_of_the_rate() -> None:
    """Consumer 100/s, local 20/s, remote 20/s: half each."""
    assert choose_ratio(LocalMetrics(100, 20, 0.001, 2), remote(rthp=20)) == pytest.approx(0.5)


def test_saturated_cpus_make_offloading_cost_local_work() -> None:
    """Two cores make 20 batches of 0.1 s each; a remote batch that costs 0.05 s here takes half a local one away."""
    local = LocalMetrics(gthp=30, lthp=20, pcycle_s=0.1, cores=2)
    assert local_rate(local, 10, 0.05) == pytest.approx(15)
    assert least_remote_rate(local, 0.05) == pytest.approx(20)
    assert least_remote_rate(local, 0.1) == math.inf
    assert estimate(local, remote(rthp=10, ocycle_s=0.05)).rate == pytest.approx(25)


def test_placement_with_the_highest_usable_rate_is_taken() -> None:
    """And of those that reach the consumer's rate, the one that costs this machine least."""
    local = LocalMetrics(gthp=100, lthp=10, pcycle_s=0.1, cores=1)
    options = [remote("transform", 40, ocycle_s=0.001), remote("sample", 70), remote("batch", 60)]
    assert _decide(local, options).placement == "sample"
    enough = [remote("sample", 200, ocycle_s=0.002), remote("batch", 150, ocycle_s=0.001)]
    assert _decide(local, enough).placement == "batch"


def test_no_gain_means_local() -> None:
    assert _decide(LocalMetrics(100, 50, 0.001, 2), [remote(rthp=1)]).placement == LOCAL
    assert _decide(LocalMetrics(100, 50, 0.001, 2), []).placement == LOCAL


def test_actors_follow_the_rate_of_one() -> None:
    """30/s are missing, an actor gives 8/s: four of them, or as many as there may be."""
    local = LocalMetrics(50, 20, 0.001, 2)
    assert choose_actors(local, remote(rthp=16, actors=2), most=10) == math.ceil(30 * MARGIN / 8)
    assert choose_actors(local, remote(rthp=16, actors=2), most=3) == 3
    kept_waiting = remote(rthp=16, actors=2, alone=160)
    assert choose_actors(local, kept_waiting, most=10) == 1, "they had no work to do most of the time"


def _decide(local: LocalMetrics, remotes: list[RemoteMetrics]) -> object:
    return decide(local, remotes, min_speedup=1.1, prefer_local=True, most_actors=8)


@given(LOCALS, REMOTES, st.booleans())
def test_ratio_is_a_share_and_never_less_when_the_remote_side_is_preferred(
    local: LocalMetrics, one: RemoteMetrics, _: bool
) -> None:
    ratio = choose_ratio(local, one)
    assert 0 <= ratio <= 1
    assert choose_ratio(local, one, prefer_local=False) >= ratio - 1e-9


@given(LOCALS, COSTS)
def test_least_remote_rate_feeds_the_consumer(local: LocalMetrics, ocycle_s: float) -> None:
    """Unless it is infinite, both sides together reach the consumer's rate."""
    lower = least_remote_rate(local, ocycle_s)
    if lower < math.inf and local.gthp > local.lthp:
        feasible = LocalMetrics(local.gthp, min(local.lthp, local.cores / local.pcycle_s), local.pcycle_s, local.cores)
        lower = least_remote_rate(feasible, ocycle_s)
        if lower < math.inf and lower * ocycle_s <= feasible.cores:
            assert lower + local_rate(feasible, lower, ocycle_s) >= feasible.gthp * (1 - 1e-6)


@given(LOCALS, st.lists(REMOTES, max_size=3, unique_by=lambda one: one.placement))
def test_a_decision_never_expects_to_be_slower_than_local(local: LocalMetrics, remotes: list[RemoteMetrics]) -> None:
    decision = decide(local, remotes, min_speedup=1.1, prefer_local=True, most_actors=8)
    if decision.placement != LOCAL:
        chosen = next(one for one in decision.estimates if one.placement == decision.placement)
        assert chosen.rate >= 1.1 * local.lthp * (1 - 0.02)
        assert 1 <= decision.actors <= 8


@given(st.floats(0, 1), st.lists(st.integers(1, 300), min_size=1, max_size=50))
def test_shares_are_right_after_every_batch(ratio: float, sizes: list[int]) -> None:
    counter = ShareCounter(ratio)
    for size in sizes:
        away = counter.take(size)
        assert 0 <= away <= size
        assert abs(counter.remote - ratio * counter.total) <= 1


@given(st.floats(0, 1), st.integers(1, 64), st.integers(1, 100))
def test_whole_batches_are_never_divided(ratio: float, size: int, batches: int) -> None:
    counter = ShareCounter(ratio, whole=True)
    for _ in range(batches):
        assert counter.take(size) in (0, size)
        assert abs(counter.remote - ratio * counter.total) <= size
