"""The default worker-count policy on simulated loaders: where it ends, how fast, and whether it comes to rest."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato._scheduler.climbing import ClimbingPolicy
from minato._scheduler.policy import Decision, Observation, PaperPolicy, WorkerLimits
from tests.support.pipelines import Simulation, Work, best_fixed

COUNTS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64]
POLICY = ClimbingPolicy()

SLEEPING = Work(sleep_s=0.05, cpu_s=0.0002)
COMPUTING = Work(cpu_s=0.01)
MIXED = Work(sleep_s=0.02, cpu_s=0.01)
NARROW = Work(sleep_s=0.05, bandwidth=200, crowding=0.03)
CONSUMER = Work(sleep_s=0.05, cpu_s=0.0002, step_s=0.004)
UNEVEN = Work(sleep_s=0.1, spread=0.9)


def steer(work: Work, start: int, seconds: float, seed: int = 3, most: int = 64) -> Simulation:
    simulation = Simulation(work, start, seed)
    simulation.steer(POLICY.begin(WorkerLimits(1, most, work.cores)), POLICY.period_s, seconds)
    return simulation


def changes(decisions: list[Decision], since: float) -> int:
    late = [decision.target for decision in decisions if decision.observation.time >= since]
    return sum(a != b for a, b in itertools.pairwise(late))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("work", "start"),
    [
        (SLEEPING, 2),
        (SLEEPING, 12),
        (SLEEPING, 64),
        (COMPUTING, 1),
        (COMPUTING, 2),
        (COMPUTING, 12),
        (MIXED, 2),
        (MIXED, 16),
        (NARROW, 2),
        (NARROW, 48),
        (CONSUMER, 2),
        (CONSUMER, 40),
        (UNEVEN, 2),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_it_ends_near_the_best_fixed_count_and_rests_there(work: Work, start: int, seed: int) -> None:
    _, best = best_fixed(work, COUNTS, seconds=10)
    simulation = steer(work, start, 90, seed)
    assert simulation.throughput(last_s=30) >= 0.95 * best
    assert changes(simulation.decisions, since=60) <= 4


def test_work_that_sleeps_gets_workers_far_beyond_the_cores_within_seconds() -> None:
    simulation = steer(SLEEPING, 2, 10)
    assert simulation.workers == 64
    reached = next(seen.time for seen in simulation.observations if seen.workers == 64)
    assert reached < 4  # simulated seconds


@pytest.mark.parametrize("start", [1, 2, 12])
def test_work_that_computes_stays_within_the_cores(start: int) -> None:
    simulation = steer(COMPUTING, start, 60)
    assert simulation.workers == 2
    beyond = [seen for seen in simulation.observations if seen.workers > 2]
    assert len(beyond) * POLICY.period_s < 4


def test_work_that_computes_comes_back_to_the_cores_although_the_machine_was_slower_when_that_was_tried() -> None:
    simulation = Simulation(COMPUTING, 4, 3)
    controller = POLICY.begin(WorkerLimits(1, 16, COMPUTING.cores))
    while simulation.wanted == 4:
        simulation.steer(controller, POLICY.period_s, POLICY.period_s)
    simulation.change(lambda work: replace(work, cpu_s=work.cpu_s * 1.15))
    simulation.steer(controller, POLICY.period_s, 5)
    taken_back = simulation.wanted
    simulation.steer(controller, POLICY.period_s, 40)
    assert (taken_back, simulation.workers) == (4, 2)


def test_samples_that_take_longer_than_any_measurement_break_nothing() -> None:
    """The consumer waits, and nothing at all is finished, before a trial and after it."""
    controller, workers = POLICY.begin(WorkerLimits(1, 16, 2)), 2
    for tick in range(1000):
        workers = controller.decide(Observation(tick * POLICY.period_s, workers, 0.0, 0.1, 1.0, 0.0)).target
    assert 1 <= workers <= 16


def test_work_that_waits_and_computes_may_have_more_workers_than_cores() -> None:
    assert steer(MIXED, 2, 40).workers == 6


def test_workers_nobody_needs_are_let_go_and_the_consumer_does_not_notice() -> None:
    simulation = steer(CONSUMER, 40, 120)
    assert 13 <= simulation.workers <= 16  # 12.5 are needed
    waits = [seen.wait_share for seen in simulation.observations if seen.time > 5]
    assert sum(waits) / len(waits) < 0.01


def test_limits_bound_everything() -> None:
    simulation = Simulation(SLEEPING, 6, 3)
    simulation.steer(POLICY.begin(WorkerLimits(4, 9, 2)), POLICY.period_s, 30)
    assert {decision.target for decision in simulation.decisions} <= set(range(4, 10))
    assert simulation.workers == 9


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_drift_of_the_cost_is_followed(factor: float) -> None:
    """The consumer takes 250 samples a second; when samples cost four times as much, that takes more workers."""
    work = replace(CONSUMER, sleep_s=0.05 if factor > 1 else 0.2)
    simulation = Simulation(work, 4, 3)
    controller = POLICY.begin(WorkerLimits(1, 64, work.cores))
    simulation.steer(controller, POLICY.period_s, 60)
    simulation.change(lambda work: replace(work, sleep_s=work.sleep_s * factor))
    simulation.steer(controller, POLICY.period_s, 60)
    assert simulation.throughput(last_s=30) >= 0.95 * 250


def test_after_a_rest_a_changed_machine_is_tried_anew() -> None:
    """The disk was busy, and more workers did not help; then it is not any more."""
    simulation = Simulation(replace(NARROW, bandwidth=60), 2, 3)
    controller = POLICY.begin(WorkerLimits(1, 64, 2))
    simulation.steer(controller, POLICY.period_s, 40)
    few = simulation.workers
    simulation.change(lambda work: replace(work, bandwidth=1000))
    simulation.steer(controller, POLICY.period_s, 300)
    assert few <= 16  # of 64; it may be in the middle of a trial
    assert simulation.throughput(last_s=20) >= 0.9 * 1000


def test_trials_become_rarer() -> None:
    simulation = steer(NARROW, 10, 400)
    assert changes(simulation.decisions, since=200) <= changes(simulation.decisions[:500], since=0)
    assert changes(simulation.decisions, since=200) <= 12


def test_a_pause_of_the_consumer_changes_nothing() -> None:
    """While nobody asks for batches (an evaluation, a breakpoint) the queue is full, and that means nothing."""
    controller = POLICY.begin(WorkerLimits(1, 64, 2))
    simulation = Simulation(SLEEPING, 2, 3)
    simulation.steer(controller, POLICY.period_s, 20)
    before = simulation.wanted
    for tick in range(500):
        idle = Observation(simulation.now + tick * POLICY.period_s, before, 1.0, 0.0, 0.0, 0.0)
        assert controller.decide(idle).target == before


def test_workers_that_never_come_do_not_hold_everything_up() -> None:
    """No process can be started any more: after a while the count that is there is taken for what it is."""
    controller = POLICY.begin(WorkerLimits(1, 64, 2))
    reasons = []
    for tick in range(200):
        observation = Observation(tick * POLICY.period_s, 5, 0.0, 0.1, 0.9, 100.0)
        reasons.append(controller.decide(observation).reason)
    assert reasons.count("trial: more workers") >= 3


def test_the_same_observations_give_the_same_decisions() -> None:
    simulation = steer(NARROW, 4, 60)
    replayed = POLICY.begin(WorkerLimits(1, 64, 2))
    assert [replayed.decide(seen) for seen in simulation.observations] == simulation.decisions


def test_every_decision_has_a_reason_and_its_inputs() -> None:
    simulation = steer(NARROW, 4, 30)
    assert all(decision.reason for decision in simulation.decisions)
    assert [decision.observation for decision in simulation.decisions] == simulation.observations


shares = st.floats(0, 1)
anything = st.lists(st.tuples(st.integers(0, 80), shares, shares, shares, st.floats(0, 1e6)), min_size=1, max_size=200)


@settings(max_examples=60)
@given(anything, st.integers(1, 8), st.integers(0, 20), st.floats(0.1, 16), st.booleans())
def test_whatever_is_observed_the_target_stays_within_limits(
    stream: list[tuple[int, float, float, float, float]], least: int, room: int, cores: float, paper: bool
) -> None:
    limits = WorkerLimits(least, least + room, cores)
    policy = PaperPolicy() if paper else POLICY
    controller = policy.begin(limits)
    for number, (workers, occupancy, cpu, wait, throughput) in enumerate(stream):
        decision = controller.decide(Observation(float(number), workers, occupancy, cpu, wait, throughput))
        assert least <= decision.target <= least + room


@pytest.mark.parametrize(("work", "workers"), [(SLEEPING, 12), (COMPUTING, 2), (COMPUTING, 8), (MIXED, 6)])
def test_the_simulation_itself_keeps_to_the_arithmetic(work: Work, workers: int) -> None:
    """Samples per second: workers by time, and never more than the cores can do."""
    simulation = Simulation(work, workers, 1)
    simulation.observe(2)
    found = simulation.observe(20).throughput
    most = min(workers / (work.sleep_s + work.cpu_s), work.cores / work.cpu_s)
    assert 0.9 * most <= found <= 1.02 * most
