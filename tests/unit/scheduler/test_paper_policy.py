"""The published formula, by tables."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._scheduler.policy import Observation, PaperPolicy, WorkerLimits

LIMITS = WorkerLimits(least=1, most=64, cores=8)


def seen(occupancy: float, cpu: float, workers: int = 12, time: float = 0.0) -> Observation:
    return Observation(time, workers, occupancy, cpu, wait_share=0.0, throughput=1.0)


# Q/Qmax, C, alpha (1 - Q/Qmax) + beta (C - 0.7) with alpha 2 and beta 1
TABLE = [
    (0.0, 0.7, 2.0),
    (0.0, 1.0, 2.0),  # 2.3, clipped
    (0.0, 0.0, 1.3),
    (0.5, 0.7, 1.0),
    (0.5, 0.2, 0.5),
    (0.75, 0.7, 0.5),
    (0.9, 0.5, 0.0),
    (1.0, 1.0, 0.3),
    (1.0, 0.7, 0.0),
    (1.0, 0.2, -0.5),
    (1.0, 0.0, -0.7),
]


@pytest.mark.parametrize(("occupancy", "cpu", "delta"), TABLE)
def test_delta_is_the_published_formula(occupancy: float, cpu: float, delta: float) -> None:
    assert PaperPolicy().delta(occupancy, cpu) == pytest.approx(delta, abs=1e-12)


@pytest.mark.parametrize(
    ("occupancy", "cpu", "target"),
    [(0.0, 0.7, 14), (0.0, 0.0, 14), (0.5, 0.7, 13), (0.75, 0.7, 13), (0.9, 0.5, 12), (1.0, 0.7, 12), (1.0, 0.2, 11)],
)
def test_twelve_workers_become(occupancy: float, cpu: float, target: int) -> None:
    """Fractions are rounded away from zero; a delta of zero, also one that is so but for rounding, changes nothing."""
    assert PaperPolicy().begin(LIMITS).decide(seen(occupancy, cpu)).target == target


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 50), st.floats(0, 50), st.integers(1, 5), st.integers(1, 64))
def test_no_step_is_larger_than_allowed_and_limits_hold(
    occupancy: float, cpu: float, alpha: float, beta: float, step: int, workers: int
) -> None:
    policy = PaperPolicy(alpha=alpha, beta=beta, max_step=step)
    decision = policy.begin(LIMITS).decide(seen(occupancy, cpu, workers))
    assert abs(decision.target - workers) <= step
    assert 1 <= decision.target <= 64


def test_beta_can_take_workers_away_only_with_cpu_to_spare() -> None:
    """A weakness of the published formula, kept: with an empty queue and an idle CPU a large beta shrinks the pool."""
    assert PaperPolicy(alpha=1, beta=3).begin(LIMITS).decide(seen(0.0, 0.0)).target == 10


def test_the_queue_is_averaged() -> None:
    controller = PaperPolicy(average_over=2).begin(LIMITS)
    targets = [controller.decide(seen(q, 0.7, time=n)).target for n, q in enumerate([0.0, 1.0, 1.0])]
    assert targets == [14, 13, 12]  # means 0, 0.5, 1


def test_there_is_one_decision_per_period() -> None:
    controller = PaperPolicy(period_s=1.0).begin(LIMITS)
    targets = [controller.decide(seen(0.0, 0.7, time=time)).target for time in (0.0, 0.4, 0.9, 1.0, 1.9, 2.0)]
    assert targets == [14, 12, 12, 14, 12, 14]


def test_controllers_of_one_policy_do_not_share_memory() -> None:
    policy = PaperPolicy(average_over=5)
    first, second = policy.begin(LIMITS), policy.begin(LIMITS)
    first.decide(seen(0.0, 0.7))
    assert second.decide(seen(1.0, 0.7)).target == 12


def test_a_decision_carries_its_inputs() -> None:
    observation = seen(0.25, 0.9)
    decision = PaperPolicy().begin(LIMITS).decide(observation)
    assert decision.observation is observation
    assert "+1.700" in decision.reason


BAD = [("alpha", -1), ("beta", float("nan")), ("cpu_threshold", float("inf")), ("max_step", 0), ("max_step", 1.5)]
BAD += [("period_s", 0), ("period_s", -2.0), ("average_over", 0), ("max_step", True)]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_constants_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        PaperPolicy(**{name: value})
