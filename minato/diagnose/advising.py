"""What to change, with the reason, what it would bring, and how sure that is. The classic mistakes are looked for
too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .._arguments import check_options
from .._pipeline.cache import MEMORY_SHARE
from .._pipeline.planning import CachePoint
from .bound import CONSUMER, Bound
from .measuring import CHEAP_S, ONE_AT_A_TIME, Seen
from .mistakes import mistakes
from .predicting import (
    Setting,
    cache_choice,
    machine_bound,
    over_epochs,
    places_needed,
    predict,
    reached,
    reached_now,
    undisturbed,
)
from .records import Advice, Measurement
from .wording import cores_in_words, megabytes, mostly_waits, workers_in_words

WORTH_SAYING = 1.05  # times as fast
WORTH_A_CHANGE = 1.2  # times as fast without workers


def advise(loader: Any, seen: Seen, may_cache: bool = True) -> tuple[Advice, ...]:
    """The most worthwhile first; each prediction counts on those before it, and on cores that nobody else uses.
    `may_cache`: whether a cache may be among them."""
    alone = replace(seen, measurement=undisturbed(seen.measurement))
    share = reached_now(seen.measurement)
    about_rate = tuple(_about_rate(loader, alone, _confidence(seen), may_cache, share))
    is_told = any("persistent_workers" in one.changes for one in about_rate)
    return (*about_rate, *mistakes(loader, seen, is_told))


# ---- workers, cache, fetching, prefetch ------------------------------------------------------------------------------


def _about_rate(loader: Any, seen: Seen, sure: str, may_cache: bool, share: float) -> Iterator[Advice]:
    """`share`: of its limit, that the loader reaches now."""
    measurement = seen.measurement
    now = predict(measurement, Setting(measurement.workers, measurement.concurrency))
    # Without workers even a slow loop gains by some: samples are made while it works.
    if measurement.workers > 0 and (now.limit == CONSUMER or _consumer_is_slower(seen, now)):
        inline = predict(measurement, Setting(0, 1)).rate
        if measurement.inline_rate is not None and measurement.rate and inline > WORTH_A_CHANGE * measurement.rate:
            yield _no_workers(measurement, inline, was_tried=True)  # a loop that handing over holds up is not at fault
        else:
            yield from _prefetch(loader, seen, now)
        return
    rate = now.rate
    point = None
    if may_cache and getattr(loader, "cache", None) is None:
        point = cache_choice(measurement, seen.look, int(MEMORY_SHARE * (measurement.memory_bytes or 0)))
        cached = None if point is None else _best_setting(seen, point, share)
        if point is not None and cached is not None and cached[1] > WORTH_SAYING * _best_setting(seen, None, share)[1]:
            after = predict(measurement, Setting(measurement.workers, measurement.concurrency, point)).rate
            rate = max(rate, _reachable(measurement, after, point))
            yield Advice(
                f"cache samples after {point.stages[-1]!r}{_with_ours(loader)}",
                f"{' and '.join(map(repr, point.stages))} always give{'s' * (len(point.stages) == 1)} the same for the "
                f"same sample; {point.share:.0%} of the samples fit ({megabytes(point.total_bytes)}), from the second "
                f"epoch on",
                over_epochs(measurement, Setting(measurement.workers, measurement.concurrency, point), rate),
                sure,
                {"cache": f"after:{point.stages[-1]}", **({} if _is_sequential(loader) else ONE_AT_A_TIME)},
            )
        else:
            point = None
    has_cache = point is not None or getattr(loader, "cache", None) is not None
    setting = Setting(measurement.workers, measurement.concurrency, point)
    for one in _workers(seen, point, rate, sure, not has_cache, share):
        rate = one.rate or rate
        setting = replace(setting, workers=one.changes.get("num_workers", measurement.workers))
        what = f"{one.what}{_with_ours(loader)}" if "fetcher" in one.changes else one.what
        yield replace(one, what=what, rate=over_epochs(measurement, setting, rate))
    yield from _kept_workers(measurement, setting, rate, sure)


def _with_ours(loader: Any) -> str:
    """Who has arguments that torch's loader has not."""
    return "" if hasattr(loader, "cache") else " with minato.DataLoader"


def _is_sequential(loader: Any) -> bool:
    return getattr(loader, "fetcher", "sequential") == "sequential"


def _best_setting(seen: Seen, point: CachePoint | None, share: float) -> tuple[Setting, float]:
    """The fewest workers that come near to what this machine can do; none, if that is as fast. What was measured
    without workers is held against what workers reach of their limit, by what they do now."""
    measurement = seen.measurement
    target = machine_bound(measurement, point).rate
    setting = Setting(places_needed(measurement, point, target), 1, point)
    rate = _reachable(measurement, predict(measurement, setting).rate, point)
    inline = predict(measurement, Setting(0, 1, point)).rate
    with_workers = rate * share if point is None and measurement.inline_rate is not None else rate
    return (Setting(0, 1, point), inline) if inline >= 0.97 * with_workers else (setting, rate)


def _reachable(measurement: Measurement, limit: float, point: CachePoint | None) -> float:
    """What a loader with this cache comes to, by how it did when it was tried; a loop goes no faster than its step."""
    rate = limit * reached(measurement, point)
    return min(rate, 1 / measurement.step_s) if measurement.step_s else rate


def _workers(
    seen: Seen, point: CachePoint | None, rate: float, sure: str, may_use_threads: bool, share: float
) -> Iterator[Advice]:
    measurement = seen.measurement
    setting, best = _best_setting(seen, point, share)
    workers, cores = measurement.workers, max(1, math.ceil(measurement.cores))
    if may_use_threads and measurement.concurrency > 1 and workers > 0:
        if setting.workers > workers * measurement.concurrency and best > WORTH_SAYING * rate:
            fetches = math.ceil(setting.workers / workers)
            yield Advice(
                f"fetch {fetches} samples at once in each worker instead of {measurement.concurrency}",
                "samples wait most of their time for something that is not the CPU, and more of them can wait at once",
                best,
                sure,
                {"num_fetch_workers": fetches},
            )
    elif setting.workers > 2 * cores and may_use_threads and _has_threads() and measurement.concurrency == 1:
        fetches = math.ceil(setting.workers / cores)
        if best > WORTH_SAYING * rate:
            yield Advice(
                f"fetch {fetches} samples at once in each of {workers_in_words(cores)}",
                "samples wait most of their time for something that is not the CPU, and threads wait for less memory "
                "than processes. Threads share the dataset: if it is not made for that, use as many workers instead",
                best,
                "medium",
                {"num_workers": cores, "fetcher": "threaded", "num_fetch_workers": fetches},
            )
    elif setting.workers > workers and best > WORTH_SAYING * rate:
        yield Advice(
            f"use {workers_in_words(setting.workers)} instead of {workers}",
            f"{_held_up(seen)}; the machine has {cores_in_words(measurement.cores)} for it",
            best,
            sure,
            {"num_workers": setting.workers},
        )
    elif (
        workers > 0
        and setting.workers == 0
        and _is_cheap(measurement, best)
        and best > WORTH_A_CHANGE * ((measurement.rate or best) if point is None else rate)
    ):
        yield _no_workers(measurement, best, was_tried=point is None and measurement.inline_rate is not None)
    elif workers > (fewer := max(1, setting.workers)) and workers > cores + 1:
        after = best if setting.workers else predict(measurement, Setting(fewer, 1, point)).rate
        yield Advice(
            f"use {workers_in_words(fewer)} instead of {workers}",
            "more of them do not make samples faster, they only take memory and turns on the same cores",
            max(after, rate if setting.workers else measurement.rate or 0.0),
            sure,
            {"num_workers": fewer},
        )


def _kept_workers(measurement: Measurement, setting: Setting, rate: float, sure: str) -> Iterator[Advice]:
    """Short epochs of a fast loader may be over before their workers are up. `rate`: within an epoch."""
    over = over_epochs(measurement, setting, rate)
    if rate > WORTH_A_CHANGE * over:
        yield Advice(
            "keep workers from epoch to epoch",
            f"an epoch has {measurement.epoch_batches:,} batches only, and the first of them takes as long as starting "
            f"workers: {over:,.1f} batches/s would be left. As with torch, samples of later epochs draw other random "
            f"numbers then",
            rate,
            sure,
            {"persistent_workers": True},
        )


def _no_workers(measurement: Measurement, rate: float, was_tried: bool) -> Advice:
    reason = "samples are so cheap that handing them over costs more than making them"
    if was_tried:
        now = f" {measurement.rate:,.1f} batches/s" if measurement.rate else ""
        reason += f": both were run, and with {workers_in_words(measurement.workers)} it was{now or ' slower'}"
    sure = "high" if was_tried else "medium"
    return Advice("use no workers (num_workers=0)", reason, rate, sure, {"num_workers": 0}, was_tried=was_tried)


def _is_cheap(measurement: Measurement, inline: float) -> bool:
    """Whether handing samples over can be what takes long; by the batches per second of a loader without workers."""
    return measurement.inline_rate is not None or 1 / (inline * measurement.batch_size) < CHEAP_S


def _held_up(seen: Seen) -> str:
    measurement = seen.measurement
    if measurement.workers == 0:
        return "samples are made in the training loop's own process, one at a time"
    if mostly_waits(measurement):
        return "workers wait most of their time for something that is not the CPU"
    return "the workers are all busy, and cores are left"


def _has_threads() -> bool:
    """Whether this version fetches in threads."""
    from .._dataloader import DataLoader

    code = DataLoader.__init__.__kwdefaults__ or {}
    try:
        check_options({**code, "fetcher": "threaded"}, 1)
    except (ValueError, KeyError):
        return False
    return True


def _consumer_is_slower(seen: Seen, now: Bound) -> bool:
    return seen.measurement.step_s is not None and 1.0 / max(seen.measurement.step_s, 1e-9) < 0.95 * now.rate


def _prefetch(loader: Any, seen: Seen, now: Bound) -> Iterator[Advice]:
    """Batches come fast enough on average, but not evenly."""
    measurement = seen.measurement
    waits, step = measurement.wait_share, measurement.step_s
    if not waits or waits < 1 - 1 / WORTH_SAYING or step is None or measurement.workers == 0:
        return
    spread = math.sqrt(sum(stage.wall_std_s**2 for stage in measurement.stages))
    needed = math.ceil((4 * spread + 1 / max(now.rate, 1e-9)) / step / measurement.workers) + 1
    depth = min(16, max(needed, measurement.prefetch + 1))
    if loader.prefetch_factor is not None and depth > loader.prefetch_factor:
        yield Advice(
            f"prefetch {depth} batches per worker instead of {loader.prefetch_factor}",
            f"the loop waits {waits:.0%} of its time although batches are made fast enough on average: samples take "
            f"unequal time (standard deviation {spread * 1e3:.1f} ms), and few batches are ready ahead",
            min(now.rate, 1 / step),
            "medium",
            {"prefetch_factor": depth},
        )


def _confidence(seen: Seen) -> str:
    change, is_disturbed = seen.measurement.rate_change, seen.measurement.others_cores > 0
    return "high" if change < 0.03 and not is_disturbed else "medium" if change < 0.15 else "low"
