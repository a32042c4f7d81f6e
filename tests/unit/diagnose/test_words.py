"""The first line for somebody who knows nothing of loaders, from measurements made up for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import minato
from minato._pipeline.judging import Randomness
from minato._pipeline.looking import Look, choose_indices, look
from minato._pipeline.planning import CachePoint
from minato.diagnose import mistakes
from minato.diagnose.advising import advise
from minato.diagnose.bound import PLACES, Bound
from minato.diagnose.measuring import Seen
from minato.diagnose.predicting import Setting, predict, reached
from minato.diagnose.records import COLLATE, LOAD, TRANSFER, TRANSFORM, CachedRun, Measurement, StageMeasurement
from minato.diagnose.report import Diagnosis, conclude
from minato.diagnose.wording import limit_in_words

DATA = TensorDataset(torch.arange(64))
LOADING = StageMeasurement("load", LOAD, completions=80, cpu_s=0.8, wall_s=0.8)
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
BUSY = Measurement(
    stages=(LOADING,), samples=80, batch_size=8, dataset_samples=64, workers=2, concurrency=1, prefetch=2, cores=2.0,
    rate=24.0, rate_change=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def looked() -> Look:
    return look(DATA, choose_indices(DATA, 4), 1.0)


def said(looked: Look, measurement: Measurement, **options: Any) -> Diagnosis:
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=measurement.workers, cache="source", **options)
    seen = Seen(measurement, looked, None, 0.0)
    return conclude(loader, seen, advise(loader, seen))


def test_a_loader_that_is_right_is_told_so(looked: Look) -> None:
    verdict = said(looked, BUSY).verdict
    assert "all 2 cores are busy (sure)" in verdict
    assert verdict.endswith(
        "The loader's arguments are right for this machine; to go faster, make 'load' cheaper, or use more cores."
    )


def test_a_rate_far_below_the_limit_is_not_explained_by_it(looked: Look) -> None:
    """Cores that are not busy are not said to be."""
    report = said(looked, replace(BUSY, rate=10.0))
    assert "that allows 25.0 batches/s" in report.verdict
    assert "10.0 were measured: the rest is lost outside the stages" in report.verdict
    assert "(fairly sure)" in report.verdict
    assert "what holds the rate" not in report.verdict


def test_others_on_the_cores_are_named(looked: Look) -> None:
    """As what holds the rate, as something to change, and at the limit."""
    report = said(looked, replace(BUSY, rate=12.0, free_cores=1.0))
    assert "all 2 cores are busy, 1.0 of them with other programs" in report.verdict
    assert "Do this: let the loader have the cores to itself. To go faster, make 'load' cheaper" in report.verdict
    assert report.best.rate == pytest.approx(12.5)
    assert report.share_of_bound == pytest.approx(0.96)


def test_predictions_count_on_all_cores_and_say_so(looked: Look) -> None:
    """How many times as fast: against what the loader would do now with the cores to itself."""
    report = said(looked, replace(BUSY, workers=0, rate=6.0, free_cores=1.0))
    assert (
        "use 2 workers instead of 0 (num_workers=2): 25.0 batches/s predicted with the cores to itself"
        in report.verdict
    )
    assert report.verdict.endswith(", 2.0 times as many.")
    assert report.advice[0].confidence == "medium"


def test_others_do_not_matter_to_samples_that_wait(looked: Look) -> None:
    waiting = replace(BUSY, stages=(replace(LOADING, cpu_s=0.01, wall_s=0.8),), free_cores=1.0)
    assert not [one for one in said(looked, waiting).advice if "to itself" in one.what]


def test_a_mistake_beside_the_rate_leaves_room_for_what_would_make_it_faster(looked: Look) -> None:
    slow = StageMeasurement("collate", COLLATE, completions=10, cpu_s=2.0, wall_s=2.0)
    verdict = said(looked, replace(BUSY, stages=(LOADING, slow)), pin_memory=True).verdict
    assert "Do this: leave pin_memory=False. To go faster, make 'collate' cheaper, or use more cores." in verdict


def test_a_loop_that_waits_for_uneven_batches_is_told_so(looked: Look) -> None:
    uneven = replace(BUSY, stages=(replace(LOADING, wall_std_s=0.08),), step_s=0.05, wait_share=0.15, prefetch=1)
    verdict = said(looked, uneven, prefetch_factor=1).verdict
    assert "your own loop: it takes 50 ms per batch" in verdict
    assert "it still waits 15% of its time, as they come unevenly (fairly sure). Do this: prefetch" in verdict
    for little in (0.0, 0.03):
        assert "unevenly" not in said(looked, replace(uneven, wait_share=little), prefetch_factor=1).verdict


def test_a_slow_loop_that_makes_its_samples_itself_is_told_so(looked: Look) -> None:
    """What takes more holds the rate; a worker makes samples meanwhile, all the same."""
    slow = said(looked, replace(BUSY, workers=0, step_s=0.5, rate=1.7))
    assert slow.verdict.startswith(
        "The bottleneck is your own loop: it takes 500 ms per batch, and the loader can give"
    )
    assert (
        "(sure). Do this: use 1 worker instead of 0 (num_workers=1): 2.0 batches/s predicted, 1.2 times" in slow.verdict
    )
    assert said(looked, replace(BUSY, workers=0, step_s=0.01, rate=11.0)).bottleneck == "load"


def test_how_sure_a_slow_loop_is_depends_on_how_much_slower_it_is(looked: Look) -> None:
    """Two workers give a batch in 40 ms."""
    steps = {step_s: said(looked, replace(BUSY, step_s=step_s)) for step_s in (0.041, 0.05, 0.1)}
    assert [found.bottleneck for found in steps.values()] == ["consumer"] * 3
    assert [found.sureness for found in steps.values()] == ["low", "medium", "high"]


def test_a_dataset_that_is_sent_to_each_worker_is_in_the_first_line(
    looked: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is packed at each start; forked workers only come to hold copies."""
    monkeypatch.setattr(mistakes, "search", lambda *_: [("dataset.names", SimpleNamespace(bytes=300_000_000))])
    sent, shared = (said(looked, BUSY, multiprocessing_context=method) for method in ("spawn", "fork"))
    assert "keep the dataset's lists in arrays" in sent.verdict
    assert "300 MB of Python objects: spawn packs them for each worker at each start" in str(sent)
    assert "300 MB of Python objects: every use of one writes its reference count" in str(shared)
    assert [one.is_urgent for found in (sent, shared) for one in found.advice if "arrays" in one.what] == [True, False]


def test_a_single_core_is_not_called_cores(looked: Look) -> None:
    one = replace(BUSY, cores=1.0, workers=1, rate=12.0)
    assert "the CPU: its only core is busy" in said(looked, one).verdict


def test_why_nothing_is_cached_is_said(looked: Look) -> None:
    """A user whose decoding could be kept learns what stands against it."""
    stage = replace(looked.stages[0], randomness=Randomness.RANDOM, reason="it called random.random when it was run")
    random = replace(looked, stages=(stage,))
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=2)
    report = str(conclude(loader, Seen(BUSY, random, None, 0.0), ()))
    assert (
        "no cache is proposed: the first stage, 'load', is random (it called random.random when it was run)" in report
    )
    assert "no cache" not in str(said(random, BUSY))


def test_a_cache_is_predicted_by_what_was_seen_when_it_was_tried(looked: Look) -> None:
    """Having a sample from memory costs next to nothing by itself; handing it on does not."""
    stage = replace(looked.stages[0], wall_s=0.01, get_s=1e-5)
    cheap = replace(looked, stages=(stage,))
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=2)
    measurement = replace(BUSY, memory_bytes=1 << 30)
    run = CachedRun(("load",), workers=2, rate=400.0, workers_cpu_s=0.004, main_cpu_s=0.0001)
    rates = {}
    for cached in (None, run):
        (cache,) = advise(loader, Seen(replace(measurement, cached=cached), cheap, None, 0.0))
        assert cache.changes == {"cache": "after:load"}
        rates[cached] = cache.rate
    assert rates[run] == pytest.approx(400.0)
    slow_loop = replace(measurement, cached=run, workers=0, step_s=0.5)
    assert [one.changes for one in advise(loader, Seen(slow_loop, cheap, None, 0.0))] == [{"num_workers": 1}]
    assert (rates[None] or 0) > 3000


def test_handing_over_is_named_in_words(looked: Look) -> None:
    """Of cheap samples it is the most: there is no share of a sample's time to tell."""
    cheap = StageMeasurement("load", LOAD, completions=80, cpu_s=0.001, wall_s=0.001)
    handing = StageMeasurement("transfer", TRANSFER, completions=10, cpu_s=0.01, wall_s=0.01, is_sequential=True)
    report = said(looked, replace(BUSY, stages=(cheap, handing), rate=500.0))
    assert report.verdict.startswith(
        "The bottleneck is handing batches over to your loop ('transfer'), which takes the main process 1 ms for each"
    )
    assert "1. Use no workers (num_workers=0).\n" in str(report)
    less_cheap = replace(cheap, cpu_s=0.0095, wall_s=0.0095)
    right = said(looked, replace(BUSY, stages=(less_cheap, handing), rate=990.0)).verdict
    assert right.endswith("hand over more samples at a time (a larger batch_size), or use more cores.")


def test_cheap_samples_are_better_off_without_workers_however_many_there_are(looked: Look) -> None:
    """By what was measured without: the loop between the stages takes time, too."""
    cheap = StageMeasurement("load", LOAD, completions=80, cpu_s=0.0004, wall_s=0.0004)
    handing = StageMeasurement("transfer", TRANSFER, completions=10, cpu_s=0.003, wall_s=0.003, is_sequential=True)
    tiny = replace(BUSY, stages=(cheap, handing), workers=12, rate=1000.0, inline_rate=8000.0)
    (advice,) = said(looked, tiny).advice
    assert advice.changes == {"num_workers": 0}
    assert advice.rate == pytest.approx(8000.0)
    (advice,) = said(looked, replace(tiny, inline_rate=900.0)).advice
    assert advice.changes["num_workers"] in (1, 2)
    assert 1000.0 <= (advice.rate or 0) < 4000.0


TRIALS: list[tuple[int, float, float, float | None, bool]] = [
    # Workers; batches/s measured with them; without any; the loop's step; whether none is better. The model's limit of
    # two workers is 3,333 batches/s: what they were seen to reach counts, not what they might.
    (2, 1000.0, 2000.0, None, True),
    (2, 1000.0, 8000.0, None, True),
    (2, 1000.0, 1190.0, None, False),  # not worth a change
    (2, 1000.0, 500.0, None, False),
    (2, 3300.0, 3500.0, None, False),
    (2, 3300.0, 6000.0, None, True),
    (1, 1000.0, 1500.0, None, True),
    (12, 1000.0, 2000.0, None, True),
    (2, 600.0, 2000.0, 0.0008, True),  # a loop that takes turns with making its samples: 769 batches/s
    (2, 700.0, 2000.0, 0.0008, False),
]


@pytest.mark.parametrize(("workers", "rate", "inline", "step", "none"), TRIALS)
def test_no_workers_are_proposed_where_they_were_seen_to_be_faster(
    looked: Look, workers: int, rate: float, inline: float, step: float | None, none: bool
) -> None:
    cheap = StageMeasurement("load", LOAD, completions=80, cpu_s=0.0004, wall_s=0.0004)
    handing = StageMeasurement("transfer", TRANSFER, completions=10, cpu_s=0.003, wall_s=0.003, is_sequential=True)
    tiny = replace(
        BUSY, stages=(cheap, handing), workers=workers, rate=rate, inline_rate=inline, step_s=step, wait_share=0.0
    )
    report = said(looked, tiny)
    tried = [advice for advice in report.advice if advice.was_tried]
    assert [advice.changes for advice in tried] == [{"num_workers": 0}] * none
    if not none:
        assert "num_workers=0" not in report.verdict
        return
    loop = inline if step is None else 1 / (1 / inline + step)
    assert tried[0].rate == pytest.approx(loop)
    assert report.verdict.startswith("The bottleneck is handing samples over: they are so cheap (")
    assert report.verdict.endswith(
        f"Do this: use no workers (num_workers=0): {loop:,.1f} batches/s when it was tried, {loop / rate:.1f} times as "
        f"many."
    )
    assert f"Measured when it was tried: {loop:,.1f} batches/s (high confidence)." in str(report)


def test_what_is_not_known_to_be_deterministic_can_be_said_to_be(looked: Look) -> None:
    """Behind slow storage that is what helps most."""
    stage = replace(looked.stages[0], randomness=Randomness.UNKNOWN, reason="it reads a queue")
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=2)
    report = conclude(loader, Seen(BUSY, replace(looked, stages=(stage,)), None, 0.0), ())
    assert "(it reads a queue); mark it with minato.deterministic if it always gives the same" in report.no_cache


def test_a_library_that_computes_in_threads_is_not_called_waiting(looked: Look) -> None:
    """The stage's own thread waits for the others; the first line names what to do about them."""
    threads = replace(BUSY, stages=(replace(LOADING, cpu_s=0.2),))
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=2)
    seen = Seen(threads, looked, None, 2.0)
    verdict = conclude(loader, seen, advise(loader, seen)).verdict
    assert "is spent there, computing in several threads" in verdict
    assert "let libraries use one thread in each worker" in verdict


def test_a_process_pinned_to_one_core_is_told_first(looked: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    pinned = replace(BUSY, cores=1.0, workers=8, rate=12.0)
    verdict = said(looked, pinned).verdict
    assert "Do this: let this process use more cores, and use 1 worker instead of 8" in verdict
    right = said(looked, replace(pinned, workers=1)).verdict
    assert right.endswith("Do this: let this process use more cores."), "cores are not to be named twice"


@pytest.mark.parametrize("rate", [30.0, 900.0], ids=["below the model's limit", "above it"])
def test_a_cache_that_was_tried_is_predicted_by_what_it_reached(rate: float) -> None:
    """Stages that are left may have been measured beside others that kept all cores busy: as dearer than they are."""
    flip = StageMeasurement("flip", TRANSFORM, completions=80, cpu_s=0.4, wall_s=0.4)
    tried = CachedRun(("load",), workers=2, rate=rate, workers_cpu_s=None, main_cpu_s=0.0)
    measured = replace(BUSY, stages=(LOADING, flip), cached=tried)
    point = CachePoint(("load",), 1.0, 64.0, 1.0, saved_s=0.01, is_whole=False)
    predicted = predict(measured, Setting(2, 1, point)).rate * reached(measured, point)
    assert predicted == pytest.approx(rate)
    assert reached(measured, None) == 1.0


def test_more_fetches_are_proposed_where_there_are_fetches(looked: Look) -> None:
    """Not that many more workers."""
    waiting = replace(BUSY, stages=(replace(LOADING, cpu_s=0.01, wall_s=4.0),), concurrency=4, rate=20.0)
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=2, fetcher="threaded", num_fetch_workers=4)
    (advice,) = [one for one in advise(loader, Seen(waiting, looked, None, 0.0)) if one.changes]
    assert advice.changes == {"num_fetch_workers": 8}


def test_samples_that_are_not_cheap_are_left_to_workers_however_few_the_cores_are(looked: Look) -> None:
    """On one core workers take turns, and what that adds is not the handing over."""
    one_core = replace(BUSY, cores=1.0, rate=11.0, crowding=1.5)
    assert not any(one.changes.get("num_workers") == 0 for one in said(looked, one_core).advice)


def test_short_epochs_of_a_fast_loader_keep_their_workers(looked: Look) -> None:
    """10 batches at 24 a second, and half a second until the first."""
    short = replace(BUSY, epoch_batches=10, first_s=0.5, rate=20.0)
    found = said(looked, short)
    (advice,) = [one for one in found.advice if "persistent_workers" in one.changes]
    assert advice.rate == pytest.approx(found.now.rate)
    assert "an epoch has 10 batches only" in advice.reason
    assert "keep workers from epoch to epoch (persistent_workers=True)" in found.verdict
    assert "starts of workers counted" in found.verdict
    for other in (
        replace(short, epoch_batches=None),
        replace(short, epoch_batches=10_000),
        replace(short, first_s=0.1),
    ):
        assert not any("persistent_workers" in one.changes for one in said(looked, other).advice)


def test_predictions_count_the_starts_of_workers(looked: Look) -> None:
    """Without them a loader of one worker would be said to become twice as fast by a second."""
    slow = replace(BUSY, workers=1, rate=12.0, epoch_batches=40, first_s=0.25)
    found = said(looked, slow)
    (advice,) = [one for one in found.advice if "num_workers" in one.changes]
    assert advice.rate == pytest.approx(40 / (0.25 + 39 / 25))
    assert ", 1.9 times as many." in found.verdict


@pytest.mark.parametrize(
    ("workers", "waits", "words"),
    [
        (1, 0.0, "the number of workers (1)"),
        (2, 0.0, "(2, no fewer than cores)"),
        (2, 0.9, "the number of workers (2)"),
    ],
)
def test_as_many_workers_as_cores_are_not_said_to_be_too_few(
    looked: Look, workers: int, waits: float, words: str
) -> None:
    stage = replace(LOADING, cpu_s=0.8 * (1 - waits), wall_s=0.81)
    measurement = replace(BUSY, stages=(stage,), workers=workers, rate=None)
    bound = Bound(20.0, PLACES, "load", {}, {})
    assert words in limit_in_words(bound, Seen(measurement, looked, None, 0.0))


def test_what_torchs_loader_does_not_have_is_said_to_be_minatos(looked: Look) -> None:
    """Its user would look for an argument in vain."""
    waits = replace(BUSY, stages=(replace(LOADING, cpu_s=0.01),))
    seen = Seen(waits, looked, None, 0.0)
    theirs = advise(torch.utils.data.DataLoader(DATA, batch_size=8, num_workers=2), seen, may_cache=False)
    ours = advise(minato.DataLoader(DATA, batch_size=8, num_workers=2), seen, may_cache=False)
    assert "in each of 2 workers with minato.DataLoader (" in theirs[0].in_full
    assert "in each of 2 workers (" in ours[0].in_full
