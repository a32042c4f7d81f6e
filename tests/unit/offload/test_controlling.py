"""The controller: event lists in, wishes out."""

from dataclasses import replace

import pytest

from minato.offload._controlling import STEP, Controller
from minato.offload._deciding import LocalMetrics, RemoteMetrics
from minato.offload._phases import PATIENCE_S, Policy, Stage
from minato.offload._wire import Report

POLICY = Policy(
    placements=("sample", "batch"),
    ratio=None,
    greedy=False,
    prefer_local=True,
    min_speedup=1.1,
    most_actors=8,
    profile_steps=10,
    recheck_steps=10,
)
STALLED = {"busy_s": 0.02, "wait_s": 0.08}  # consumer 50/s, local 10/s
FED = {"busy_s": 0.1, "wait_s": 0.0}


def deliver(controller: Controller, batches: int, busy_s: float, wait_s: float, cpu_s: float = 0.01) -> None:
    for _ in range(batches):
        controller.delivered(8, busy_s, wait_s, cpu_s)


def begun(policy: Policy = POLICY, local: LocalMetrics | None = None) -> Controller:
    controller = Controller(policy, cores=2, local=local)
    controller.epoch_began()
    return controller


def measure(controller: Controller, rates: dict[str, float], actors: int = 4) -> None:
    """Report what each placement gives, in batches of 8 per second, until all are measured."""
    now = 100.0
    while controller.stage is Stage.MEASURING_REMOTE:
        wish, rate = controller.wish, rates[controller.wish.placement]
        for tick in range(40):
            now += 0.1
            report = Report(now, wish.phase, actors, tick * 8, int(rate * 8 * tick * 0.1), 0, tick * 1e-4, 0)
            controller.reported(report)
            if controller.wish.phase != wish.phase:
                break


def running(**changes: object) -> Controller:
    controller = begun(replace(POLICY, **changes))  # type: ignore[arg-type]
    deliver(controller, 12, **STALLED)
    controller.ready(("node:4",), 4, {})
    measure(controller, {"sample": 200.0, "batch": 60.0})
    return controller


def test_no_stall_asks_for_nothing() -> None:
    controller = begun()
    deliver(controller, 500, **FED)
    assert controller.stage is Stage.LOCAL
    assert not controller.wish.launch
    assert controller.decisions[-1].startswith("local: no stall")


def test_a_stall_that_comes_later_is_noticed() -> None:
    controller = begun()
    deliver(controller, 50, **FED)
    deliver(controller, 25, **STALLED)
    assert controller.wish.launch


def test_first_batches_of_an_epoch_do_not_count() -> None:
    controller = begun()
    deliver(controller, 2, busy_s=0.001, wait_s=30.0)
    deliver(controller, 12, **FED)
    assert controller.stage is Stage.LOCAL


def test_placements_are_measured_in_turn_and_the_least_remote_use_is_taken() -> None:
    """50/s wanted, 10/s local: 40/s are missing, which 'sample' with 200/s gives with one of four actors."""
    controller = running()
    assert controller.stage is Stage.RUNNING
    wish = controller.wish
    assert (wish.placement, wish.actors) == ("sample", 1)
    assert wish.ratio == pytest.approx(0.8 * 1.05, rel=0.1)
    assert set(controller.remotes) == {"sample", "batch"}


def test_known_metrics_are_not_measured_again() -> None:
    known = LocalMetrics(50, 10, 0.01, 2)
    controller = begun(local=known)
    assert controller.wish.launch
    controller.ready(("node:4",), 4, {p: RemoteMetrics(p, 60, 4, 1e-4, 60) for p in ("sample", "batch")})
    assert controller.stage is Stage.RUNNING
    assert controller.profile_steps == 0


def test_a_placement_that_is_refused_is_left_out() -> None:
    controller = begun()
    deliver(controller, 12, **STALLED)
    controller.ready(("node:4",), 4, {})
    controller.reported(Report(1.0, controller.wish.phase, 0, 0, 0, 0, 0.0, 0, refused="no data"))
    assert controller.wish.placement == "batch"
    controller.reported(Report(2.0, controller.wish.phase, 0, 0, 0, 0, 0.0, 0))
    controller.reported(Report(3.0 + PATIENCE_S, controller.wish.phase, 0, 0, 0, 0, 0.0, 0))
    assert controller.stage is Stage.LOCAL, "nobody came up"


def test_reports_of_an_earlier_phase_do_not_count() -> None:
    controller = begun()
    deliver(controller, 12, **STALLED)
    controller.ready(("node:4",), 4, {})
    old = controller.wish.phase - 1
    controller.reported(Report(1.0, old, 4, 1000, 10_000, 0, 0.1, 0))
    assert not controller.is_open


def test_ratio_follows_the_consumers_waiting() -> None:
    """More while it waits, less while it does not; nothing remote once nothing is needed."""
    controller = running()
    controller.reported(Report(500.0, controller.wish.phase, 4, 0, 0, 0, 0.0, 0))
    before = controller.wish.ratio
    deliver(controller, 10, busy_s=0.02, wait_s=0.015)
    assert controller.wish.ratio == pytest.approx(min(1.0, before + STEP))
    deliver(controller, 1000, busy_s=0.05, wait_s=0.0)
    assert controller.stage is Stage.LOCAL
    assert not controller.wish.launch


def test_slower_than_local_goes_back_to_local() -> None:
    controller = running()
    controller.reported(Report(500.0, controller.wish.phase, 4, 0, 0, 0, 0.0, 0))
    deliver(controller, 25, busy_s=0.02, wait_s=0.2)
    assert controller.stage is Stage.LOCAL
    assert "slower than local" in controller.decisions[-1]


def test_lost_cluster_is_asked_for_again_and_taken_when_it_comes_back() -> None:
    controller = running()
    controller.lost("gone")
    assert (controller.wish.placement, controller.wish.launch) == ("local", True)
    controller.ready(("node:4",), 4, controller.remotes)
    assert controller.stage is Stage.RUNNING


def test_a_ratio_that_is_given_is_kept() -> None:
    """No stall test, no correction, no stealing."""
    controller = begun(replace(POLICY, placements=("sample",), ratio=0.3))
    assert controller.wish.launch
    controller.ready(("node:4",), 4, {})
    deliver(controller, 200, **FED)
    assert (controller.wish.ratio, controller.wish.shared, controller.wish.beyond) == (0.3, False, False)


def test_nothing_remote_is_wanted_with_ratio_zero_or_no_placement() -> None:
    for policy in (replace(POLICY, ratio=0), replace(POLICY, placements=())):
        controller = begun(policy)
        deliver(controller, 100, **STALLED)
        assert not controller.wish.launch


def test_a_cluster_without_cpus_is_used_once_it_has_some() -> None:
    for policy in (POLICY, replace(POLICY, placements=("sample",), ratio=0.3)):
        controller = begun(policy)
        deliver(controller, 12, **STALLED)
        for _ in range(3):
            controller.ready((), 0, {})
        assert controller.decisions[-1].startswith("local: the cluster has no CPUs")
        assert len(controller.decisions) == 2, "said once"
        controller.ready(("node:4",), 4, {})
        assert controller.wish.placement == "sample"


def test_nodes_that_come_later_are_another_chance() -> None:
    """Also for a ratio that is given, after all actors refused."""
    controller = begun(replace(POLICY, placements=("sample",), ratio=0.3))
    controller.ready(("node:4",), 4, {})
    controller.reported(Report(1.0, controller.wish.phase, 0, 0, 0, 0, 0.0, 0, refused="no data"))
    assert controller.stage is Stage.LOCAL
    controller.resized(4)
    assert controller.stage is Stage.LOCAL, "the same nodes"
    controller.resized(6)
    assert controller.stage is Stage.STARTING


def test_what_was_decided_is_gone_back_to_after_a_comparison() -> None:
    """Whatever was tried in between, local alone included."""
    controller = running()
    before = controller.wish
    for ratio in (0.9, 0.0, 0.1):
        controller.pin("batch", ratio)
    controller.unpin()
    assert controller.stage is Stage.RUNNING
    assert controller.wish == replace(before, phase=controller.wish.phase)
    controller.unpin()
    assert controller.wish.phase > before.phase, "nothing is pinned: nothing changes"


WAITING = {"busy_s": 0.01, "wait_s": 0.03}
SLOWER_BY_HALF = {"busy_s": 0.01, "wait_s": 0.07}


def _keep_reporting(controller: Controller, actors: int) -> None:
    """Have it know that there are actors, without anything else."""
    controller.reported(Report(1e6, controller.wish.phase, actors, 0, 0, 0, 0.0, 0))


def test_a_rate_that_falls_for_good_has_the_placements_measured_again() -> None:
    """What was the best need not be any more."""
    controller = running()
    before = controller.wish.placement
    _keep_reporting(controller, 4)
    deliver(controller, 30, **WAITING)
    assert controller.stage is Stage.RUNNING
    deliver(controller, 10, **SLOWER_BY_HALF)
    assert controller.stage is Stage.RUNNING, "once is chance"
    deliver(controller, 10, **SLOWER_BY_HALF)
    assert controller.stage is Stage.MEASURING_REMOTE
    assert any(text.startswith("measured again: ") for text in controller.decisions)
    measure(controller, {"sample": 60.0, "batch": 200.0})
    assert controller.stage is Stage.RUNNING
    assert (before, controller.wish.placement) == ("sample", "batch")


def test_a_rate_that_falls_because_actors_are_missing_is_no_reason_to_measure() -> None:
    controller = running()
    _keep_reporting(controller, 4)
    deliver(controller, 30, **WAITING)
    _keep_reporting(controller, 1)
    deliver(controller, 60, **SLOWER_BY_HALF)
    assert controller.stage is Stage.RUNNING
