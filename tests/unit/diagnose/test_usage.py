"""What a loader uses of the cores, what others leave of them, and what the model makes of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from minato.diagnose import clocks
from minato.diagnose.clocks import Mark, UsageMeter
from minato.diagnose.machine import CoresTime, time_of
from minato.diagnose.measuring import eased
from minato.diagnose.predicting import Setting, machine_bound, places_needed, predict, undisturbed
from minato.diagnose.rates import Look, free_cores, least_cpu_s
from minato.diagnose.records import LOAD, TRANSFER, Measurement, StageMeasurement

STAT = """cpu  10 0 10 700 30 0 0 5 0 0
cpu0 5 0 5 400 10 0 0 5 0 0
cpu1 5 0 5 300 20 0 0 0 0 0
intr 1 2 3
"""


def test_cores_that_wait_for_a_disk_count_as_idle() -> None:
    """And only those that this process may use."""
    assert time_of(STAT, {0, 1}, 100) == CoresTime(2, 7.3, 0.05)
    assert time_of(STAT, {1}, 100) == CoresTime(1, 3.2, 0.0)
    assert time_of(STAT, {0, 7}, 100) is None


def look(
    at_s: float, batches: int, main: float, workers: float | None, idle: float, delay: float = 0.0, stolen: float = 0.0
) -> Look:
    return Look(at_s, batches, main, workers, delay, CoresTime(2, idle, stolen))


def test_free_cores_are_what_we_use_and_what_nobody_uses() -> None:
    """Two cores in a virtual machine, busy, of which others have half of one."""
    seen = [look(0, 0, 1.0, 2.0, 3.0), look(2, 20, 1.2, 4.4, 3.4, delay=0.8, stolen=0.2)]
    assert free_cores(seen, has_workers=True) == pytest.approx(1.5)
    alone = [look(0, 0, 1.0, None, 3.0), look(2, 20, 3.0, None, 5.0)]
    assert free_cores(alone, has_workers=False) == 2.0


def test_cores_that_were_not_asked_for_are_not_counted_as_others() -> None:
    """Workers that sleep use little while others fill the cores: asked for, they would give way."""
    seen = [look(0, 0, 0.0, 0.0, 0.0), look(2, 20, 0.0, 0.1, 0.0, delay=0.1)]
    assert free_cores(seen, has_workers=True) == pytest.approx(1.0)
    never_late = [look(0, 0, 0.0, 0.0, 0.0), look(2, 20, 0.0, 0.1, 0.0, stolen=0.4)]
    assert free_cores(never_late, has_workers=True) == pytest.approx(1.8)


def test_more_workers_than_cores_are_not_counted_as_others() -> None:
    """They wait for each other."""
    seen = [look(0, 0, 0.0, 0.0, 0.0), look(2, 20, 0.0, 4.0, 0.0, delay=28.0)]
    assert free_cores(seen, has_workers=True) == pytest.approx(2.0)


def test_part_of_the_time_that_was_least_disturbed_counts() -> None:
    """An upper limit is wanted; parts of a few batches say too little."""
    seen = [
        look(0, 0, 0, 0, 0), look(1, 10, 0, 1.0, 0, 1.0), look(2, 30, 0, 3.0, 0, 1.0), look(3, 40, 0, 4.5, 0, 1.5),
    ]  # fmt: skip
    assert least_cpu_s(seen) == pytest.approx(0.1)
    assert free_cores(seen, has_workers=True) == pytest.approx(2.0)
    few = [look(0, 0, 0, 0, 0), look(1, 2, 0, 2.0, 0), look(2, 4, 0, 3.0, 0), look(3, 6, 0, 3.0, 0)]
    assert least_cpu_s(few) == pytest.approx(0.5)


def test_what_the_system_does_not_tell_is_not_known() -> None:
    assert free_cores([Look(0, 0, 0, 0, 0, None), Look(1, 10, 0, 1, 0, None)], has_workers=True) is None
    assert free_cores([look(0, 0, 0, None, 0), look(1, 10, 0, None, 1)], has_workers=True) is None
    assert least_cpu_s([look(0, 0, 0, None, 0), look(1, 10, 0, None, 1)]) is None
    assert least_cpu_s([look(0, 0, 0, 0, 0), look(1, 0, 0, 1, 0)]) is None  # no batch
    assert least_cpu_s([]) is None


BURN = Measurement(
    stages=(StageMeasurement("load", LOAD, completions=80, cpu_s=0.8, wall_s=0.8),),
    samples=80, batch_size=8, dataset_samples=1000, workers=0, concurrency=1, prefetch=2, cores=2.0, rate=12.0,
    rate_change=0.0,
)  # fmt: skip


def test_limit_counts_on_the_cores_that_others_leave() -> None:
    """Others that take one of two cores halve the limit, but not the number of workers that is right."""
    disturbed = replace(BURN, free_cores=1.0)
    assert machine_bound(BURN).rate == pytest.approx(25.0)
    assert machine_bound(disturbed).rate == pytest.approx(12.5)
    assert predict(disturbed, Setting(2)).rate == pytest.approx(12.5)
    assert disturbed.others_cores == pytest.approx(1.0)
    alone = undisturbed(disturbed)
    assert places_needed(alone, None, machine_bound(alone).rate) == 2


def test_little_that_others_use_is_counted_and_not_told() -> None:
    quiet = replace(BURN, free_cores=1.9)
    assert quiet.usable_cores == 1.9
    assert quiet.others_cores == 0.0
    assert replace(BURN, free_cores=2.4).usable_cores == 2.0
    assert replace(BURN, free_cores=0.0).usable_cores > 0


def test_busy_cores_make_workers_slower_and_not_what_was_measured_beside_them() -> None:
    """A batch takes 80 ms alone and 120 in busy workers, and 20 ms in the main process: 140 ms of two cores."""
    handing = StageMeasurement("transfer", TRANSFER, completions=10, cpu_s=0.2, wall_s=0.2, is_sequential=True)
    crowded = replace(BURN, stages=(*BURN.stages, handing), workers=2, crowding=1.5)
    assert predict(crowded, Setting(2)).rate == pytest.approx(2 / 0.14)
    assert predict(crowded, Setting(1)).rate == pytest.approx(1 / 0.08)


def test_limit_of_the_machine_is_never_below_that_of_the_loader() -> None:
    """Without workers nothing is handed over, nor crowded."""
    crowded = replace(BURN, crowding=4.0)
    assert predict(crowded, Setting(0)).rate == pytest.approx(12.5)
    assert machine_bound(crowded).rate == pytest.approx(12.5)


def test_stages_cost_no_more_than_the_loader_was_seen_to_take() -> None:
    """80 ms a batch alone, at a slow moment; 60 in a loader: its limit is not below what it reached."""
    assert predict(eased(BURN, (0.06, 0.07)), Setting(0)).rate == pytest.approx(1 / 0.06)
    assert predict(eased(BURN, (0.09, None)), Setting(0)).rate == pytest.approx(1 / 0.08)
    assert predict(eased(BURN, (0.001, None)), Setting(0)).rate == pytest.approx(1 / 0.04)  # that was something else


@pytest.mark.parametrize(("looks_take", "seen_at"), [([5, 7], 5), ([9000, 5, 7], 9005), ([9000] * 9, 36_000)])
def test_a_look_in_which_the_thread_was_put_aside_is_had_again(
    looks_take: list[int], seen_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Microseconds. Its counters are of different moments. Where all are so, the fourth has to do."""
    meter, now, left = UsageMeter(), [0], iter(looks_take)

    def look() -> Mark:
        now[0] += next(left) * 1000
        return Mark(0, now[0], b"", b"")

    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    monkeypatch.setattr(meter, "_look", look)
    assert meter.mark().seen_ns == seen_at * 1000
