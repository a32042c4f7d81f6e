"""What to change, with the reason, what it would bring, and how sure that is. The classic mistakes are looked for
too."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .._arguments import check_options
from .._pipeline.cache import MEMORY_SHARE
from .._pipeline.planning import CachePoint
from .._workers.copies import _weigh_if_large
from .._workers.walk import search
from .bound import CONSUMER, CPU, PLACES, Bound
from .measuring import ONE_AT_A_TIME, Seen
from .predicting import (
    Setting,
    cache_choice,
    machine_bound,
    places_needed,
    predict,
    reached,
    reached_now,
    undisturbed,
)
from .records import Measurement

WORTH_SAYING = 1.05  # times as fast
WORTH_A_CHANGE = 1.2  # times as fast without workers
COPIED_BYTES = 200 << 20  # in each worker, from which on copies are worth a word
INNER_THREADS = 0.3  # CPU time of other threads per CPU time of the stages


@dataclass(frozen=True, slots=True)
class Advice:
    """One change."""

    what: str
    """In words."""
    reason: str
    rate: float | None
    """Predicted batches per second, with this and the changes before it; None: it is not about the rate."""
    confidence: str
    """"high", "medium" or "low"."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Arguments of the loader to change; empty: it is to be changed elsewhere."""
    is_urgent: bool = False
    """It makes all else slow, by how much is not predicted."""
    was_tried: bool = False
    """The rate was measured, not predicted."""

    @property
    def in_full(self) -> str:
        """In words, with the arguments that it takes."""
        given = [f"{name}={value!r}" for name, value in self.changes.items()]
        changes = ", ".join(change for change in given if change not in self.what)
        return f"{self.what} ({changes})" if changes else self.what

    @property
    def rate_in_words(self) -> str:
        """What it would bring; empty: it is not about the rate."""
        if self.rate is None:
            return ""
        how = "Measured when it was tried" if self.was_tried else "Predicted"
        return f"{how}: {self.rate:,.1f} batches/s ({self.confidence} confidence)."


def advise(loader: Any, seen: Seen, may_cache: bool = True) -> tuple[Advice, ...]:
    """The most worthwhile first; each prediction counts on those before it, and on cores that nobody else uses.
    `may_cache`: whether a cache may be among them."""
    alone = replace(seen, measurement=undisturbed(seen.measurement))
    share = reached_now(seen.measurement)
    return (*_about_rate(loader, alone, _confidence(seen), may_cache, share), *_mistakes(loader, seen))


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
                f"cache samples after {point.stages[-1]!r}",
                f"{' and '.join(map(repr, point.stages))} always give{'s' * (len(point.stages) == 1)} the same for the "
                f"same sample; {point.share:.0%} of the samples fit ({_megabytes(point.total_bytes)}), from the second "
                f"epoch on",
                rate,
                sure,
                {"cache": f"after:{point.stages[-1]}", **({} if _is_sequential(loader) else ONE_AT_A_TIME)},
            )
        else:
            point = None
    has_cache = point is not None or getattr(loader, "cache", None) is not None
    yield from _workers(seen, point, rate, sure, not has_cache, share)


def _is_sequential(loader: Any) -> bool:
    return getattr(loader, "fetcher", "sequential") == "sequential"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 1e6 else "less than 1 MB"


def _workers_in_words(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def _cores_in_words(count: float) -> str:
    return f"{count:g} core{'s' * (count != 1)}"


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
                f"fetch {fetches} samples at once in each of {_workers_in_words(cores)}",
                "samples wait most of their time for something that is not the CPU, and threads wait for less memory "
                "than processes. Threads share the dataset: if it is not made for that, use as many workers instead",
                best,
                "medium",
                {"num_workers": cores, "fetcher": "threaded", "num_fetch_workers": fetches},
            )
    elif setting.workers > workers and best > WORTH_SAYING * rate:
        yield Advice(
            f"use {_workers_in_words(setting.workers)} instead of {workers}",
            f"{_held_up(seen)}; the machine has {_cores_in_words(measurement.cores)} for it",
            best,
            sure,
            {"num_workers": setting.workers},
        )
    elif (
        workers > 0
        and setting.workers == 0
        and best > WORTH_A_CHANGE * ((measurement.rate or best) if point is None else rate)
    ):
        yield _no_workers(measurement, best, was_tried=point is None and measurement.inline_rate is not None)
    elif workers > (fewer := max(1, setting.workers)) and workers > cores + 1:
        after = best if setting.workers else predict(measurement, Setting(fewer, 1, point)).rate
        yield Advice(
            f"use {_workers_in_words(fewer)} instead of {workers}",
            "more of them do not make samples faster, they only take memory and turns on the same cores",
            max(after, rate if setting.workers else measurement.rate or 0.0),
            sure,
            {"num_workers": fewer},
        )


def _no_workers(measurement: Measurement, rate: float, was_tried: bool) -> Advice:
    reason = "samples are so cheap that handing them over costs more than making them"
    if was_tried:
        now = f" {measurement.rate:,.1f} batches/s" if measurement.rate else ""
        reason += f": both were run, and with {_workers_in_words(measurement.workers)} it was{now or ' slower'}"
    sure = "high" if was_tried else "medium"
    return Advice("use no workers (num_workers=0)", reason, rate, sure, {"num_workers": 0}, was_tried=was_tried)


def _held_up(seen: Seen) -> str:
    measurement = seen.measurement
    if measurement.workers == 0:
        return "samples are made in the training loop's own process, one at a time"
    if _mostly_waits(measurement):
        return "workers wait most of their time for something that is not the CPU"
    return "the workers are all busy, and cores are left"


def _mostly_waits(measurement: Measurement) -> bool:
    waiting = sum(max(0.0, stage.wall_s - stage.cpu_s) for stage in measurement.stages)
    return waiting > 0.5 * sum(stage.wall_s for stage in measurement.stages)


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


# ---- mistakes --------------------------------------------------------------------------------------------------------


def _mistakes(loader: Any, seen: Seen) -> Iterator[Advice]:
    measurement = seen.measurement
    present, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    if allowed == 1 < present:
        yield Advice(
            "let this process use more cores",
            f"it is pinned to one of {present} cores, and its workers with it: something called sched_setaffinity, or "
            f"it was started with taskset or by a scheduler that binds it (OMP_PROC_BIND, numactl, srun --cpu-bind)",
            None,
            "high",
            is_urgent=True,
        )
    if measurement.others_cores and not _mostly_waits(measurement):
        yield Advice(
            "let the loader have the cores to itself",
            f"other programs on this machine, or other guests of its host, used {measurement.others_cores:.1f} of "
            f"{_cores_in_words(measurement.cores)} while this was measured; predictions count on all of it",
            None,
            "high",
        )
    if loader.pin_memory and not torch.accelerator.is_available():
        yield Advice(
            "leave pin_memory=False",
            "there is no accelerator here that could copy from page-locked memory",
            None,
            "high",
            {"pin_memory": False},
        )
    if seen.inner_threads > INNER_THREADS and measurement.workers > 0:
        yield Advice(
            "let libraries use one thread in each worker",
            f"for each CPU second of a stage other threads of the same process used {seen.inner_threads:.1f} s: with "
            f"{measurement.workers} workers they take each other's cores. In worker_init_fn: cv2.setNumThreads(0), or "
            f"threadpoolctl.threadpool_limits(1); or set OMP_NUM_THREADS=1 before Python starts",
            None,
            "medium",
            is_urgent=True,
        )
    method = (loader.multiprocessing_context or multiprocessing).get_start_method()
    copied = sum(weight.bytes for _, weight in search(loader.dataset, "dataset", _weigh_if_large))
    if measurement.workers > 1 and copied > COPIED_BYTES:
        how = "every use of one writes its reference count"
        if method != "fork":
            how = f"{method} packs them for each worker at each start, which waits for it"
        yield Advice(
            "keep the dataset's lists in arrays",
            f"each worker comes to hold its own copy of about {copied / 1e6:,.0f} MB of Python objects: {how}. numpy "
            f"arrays and tensors are shared" + ("" if method == "fork" else ", or copied in one piece"),
            None,
            "high",
            is_urgent=method != "fork",
        )
    if measurement.workers > 0 and method == "spawn" and not loader.persistent_workers:
        yield Advice(
            "keep workers from epoch to epoch",
            "they are started by spawn, which imports everything anew, at each epoch",
            None,
            "high",
            {"persistent_workers": True},
        )


def limit_in_words(bound: Bound, seen: Seen, as_configured: bool = True) -> str:
    """What holds the rate, for somebody who knows nothing of the model; as the loader is, or with as many workers as
    one likes."""
    measurement = seen.measurement
    cores, others = measurement.cores, measurement.others_cores
    taken = f", {others:.1f} of {'it' if cores == 1 else 'them'} with other programs" if others else ""
    busy = "its only core is busy" if cores == 1 else f"all {cores:g} cores are busy"
    words = {
        CPU: f"the CPU: {busy}{taken}" if as_configured else f"its {_cores_in_words(cores)}{taken}",
        PLACES: f"the number of workers ({measurement.workers})",
        "memory": "memory for samples in the making",
        "storage": f"the storage, which gives {(measurement.storage_bytes_s or 0) / 1e6:,.0f} MB/s",
        CONSUMER: "your own loop",
        "sequential": "what the main process does for each batch",
    }
    if as_configured and bound.limit in (CPU, PLACES) and measurement.workers == 0:
        return "one process doing everything in turn (num_workers=0)"
    return words.get(bound.limit, bound.limit)
