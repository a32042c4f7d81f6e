"""Whole epochs with slow samples, simulated: what parking does to order, to batches, and to the time it all takes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.unit.workers.pool_simulation import Case, Report, Simulation

BATCH = 16
FAST_S = 0.01
THRESHOLD_S = 2 * FAST_S
NEVER_S = 1e9


def planted(samples: int, share: float, slow_s: float, seed: int = 3) -> list[tuple[float, ...]]:
    """Costs in three stages; a share of the samples, in random places, is slow."""
    chance = random.Random(seed)
    cheap, dear = (FAST_S / 2, FAST_S / 4, FAST_S / 4), (FAST_S / 2, slow_s / 2, slow_s / 2)
    return [dear if chance.random() < share else cheap for _ in range(samples)]


def case(workers: int, share: float, slow_s: float, batches: int = 100, max_deferral: int | None = None) -> Case:
    window = 2 * workers
    return Case(
        planted(batches * BATCH, share, slow_s),
        workers,
        BATCH,
        window,
        4 * window if max_deferral is None else max_deferral,
        THRESHOLD_S,
    )


def unevenness(report: Report, given: Case) -> float:
    """Chi-squared over its degrees of freedom: how far the share of slow samples per batch is from chance."""
    slow = [sum(cost) > given.threshold for cost in given.costs]
    share = sum(slow) / len(slow)
    squares = [
        (sum(slow[sample] for sample in batch) - len(batch) * share) ** 2 / (len(batch) * share * (1 - share))
        for batch in report.batches
    ]
    return sum(squares) / len(squares)


CASES = {
    "one worker": case(1, 0.25, 0.1),
    "two workers": case(2, 0.25, 0.1),
    "two workers, rare ones": case(2, 0.02, 0.5),
    "four workers": case(4, 0.25, 0.1),
    "four workers, half of all": case(4, 0.5, 0.1),
    "eight workers": case(8, 0.2, 0.06),
}


@pytest.mark.parametrize("name", CASES)
def test_an_epoch_with_parking_is_whole_as_fast_and_as_mixed_as_one_without(name: str) -> None:
    given = CASES[name]
    report, without = Simulation(given).run(), Simulation(replace(given, threshold=NEVER_S)).run()
    assert report.parks > 0 == without.parks
    assert sorted(sample for batch in report.batches for sample in batch) == list(range(len(given.costs)))
    assert all(len(batch) == BATCH for batch in report.batches)
    assert max(report.deferrals(BATCH)) <= given.max_deferral
    assert report.seconds <= 1.01 * without.seconds, "no more than the end of an epoch may differ"
    assert unevenness(report, given) < 1.49  # one epoch in a thousand, of 100 batches mixed by chance


@pytest.mark.parametrize("max_deferral", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 3])
def test_the_bound_on_deferral_holds_however_tight(workers: int, max_deferral: int) -> None:
    report = Simulation(case(workers, 0.1, 1.0, batches=40, max_deferral=max_deferral)).run()
    assert sorted(sample for batch in report.batches for sample in batch) == list(range(40 * BATCH))
    assert max(report.deferrals(BATCH)) <= max_deferral


@pytest.mark.parametrize("queue_size", [1, 3])
def test_the_temp_queues_stay_within_queue_size(queue_size: int) -> None:
    report = Simulation(replace(case(2, 0.5, 0.2, batches=30), queue_size=queue_size)).run()
    assert report.parks > 0
    assert 0 < report.most_parked <= queue_size


@pytest.mark.parametrize("workers", [1, 2])
def test_a_consumer_waits_less_where_slow_samples_are_put_aside(workers: int) -> None:
    given = case(workers, 0.05, 0.5, batches=200)
    step = sum(map(sum, given.costs)) / workers / 200 / 0.9  # the workers could do a tenth more
    report = Simulation(replace(given, step=step)).run()
    without = Simulation(replace(given, step=step, threshold=NEVER_S)).run()
    waited, waited_without = (one.seconds - 199 * step for one in (report, without))
    assert waited < 0.75 * waited_without
