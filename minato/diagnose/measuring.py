"""From a loader to a `Measurement`: a look at its stages, what they cost, how fast it runs, what the storage gives.

Nothing of it touches the user's run. Stages are measured aside; the rate is that of a loader of our own over the same
dataset with the same arguments, but its own sampler and generator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import IterableDataset

from .._engine.cores import allowed_cores
from .._engine.start import start_method
from .._pipeline.aside import run_aside
from .._pipeline.cache import MEMORY_SHARE
from .._pipeline.looking import Look, choose_indices, look
from .._pipeline.planning import OVERHEAD_S, CachePoint, choose
from .._pipeline.room import available_bytes
from .model import model
from .probing import Probe, probe
from .rates import Rate, measure_inline, measure_rate
from .rebuilding import typical_batch
from .records import CACHE, COLLATE, LOAD, TRANSFER, CachedRun, Measurement, StageMeasurement
from .storage import StorageCurve, probe_storage

LEAST_CROWDING, MOST_CROWDING = 0.5, 4.0  # beyond these it is no crowding that was seen
LEAST_TRIAL_S = 1.0  # of a loader with a cache; a third of it is for filling
LEAST_INLINE_S = 0.3  # of one without workers
CHEAP_S = 200e-6  # seconds per sample, below which workers may not be worth their handing over
HANDED_BYTES_S = 2e9  # bytes of samples that are handed over in a second: large ones may be made faster
_MOST_INDICES = 20_000
ONE_AT_A_TIME = {"fetcher": "sequential"}
"""What a cache needs."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that was measured."""

    measurement: Measurement
    look: Look
    storage: StorageCurve | None
    inner_threads: float
    """CPU time that other threads of the process used per CPU time of the one that ran the stages."""


PHASES = 7
"""Times that `tell` is called by `measure`, at most."""


def measure(
    loader: Any,
    max_seconds: float,
    step: Callable[[Any], Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    storage_bytes_s: float | None = None,
) -> Seen:
    """Measure a loader for about `max_seconds`. `step`: what the consumer does with a batch, to see how long it takes.
    `tell` is called with what comes next. `storage_bytes_s`: given instead of measured."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "an IterableDataset has no indices to take samples by, and what it gives may not come again: run your loop "
            "with DataLoader(..., trace='run1') instead, and see what `minato trace report run1` says of it"
        )
    if len(loader.dataset) == 0:
        raise ValueError("the dataset is empty: there is nothing to measure")
    context = start_method(loader.multiprocessing_context)
    indices = choose_indices(loader.dataset, _MOST_INDICES)
    batch = typical_batch(loader)
    collate_fn = None if loader.batch_sampler is None and loader.batch_size is None else loader.collate_fn
    tell("looking at the stages of some samples")
    seen = run_aside(context, 0.15 * max_seconds, look, loader.dataset, indices[:64], 0.15 * max_seconds)
    tell("measuring what each stage costs")
    probed, inner = run_aside(
        context, 0.3 * max_seconds, _probe, loader.dataset, indices, batch, collate_fn, 0.3 * max_seconds
    )
    tell("measuring the loader's rate")
    point = _cache_point(loader, seen)
    rate = _own_rate(loader, indices, probed, 0.3 * max_seconds, step, point, seen)
    busy = rate if loader.num_workers >= allowed_cores().cores else None
    if busy is None:
        tell("measuring it with all cores busy")
        workers = max(1, math.ceil(allowed_cores().cores))
        busy = _own_rate(loader, indices, probed, 0.1 * max_seconds, None, point, seen, num_workers=workers)
    proposed = _proposed_cache(loader, seen)
    cached = None
    if proposed is not None:
        tell("trying a cache")
        cached = _cached_run(loader, indices, probed, 0.1 * max_seconds, proposed, seen)
    storage = None
    if storage_bytes_s is None:
        tell("measuring what the storage gives")
        storage = _storage(context, loader.dataset, indices, probed, 0.15 * max_seconds)
    measurement = _measurement(loader, seen, probed, rate, storage, batch)
    if storage_bytes_s is not None:
        measurement = replace(measurement, storage_bytes_s=storage_bytes_s)
    if point is not None:
        measurement = with_cache(measurement, seen, point)
    own_cpu_s = rate.main_cpu_s if loader.num_workers == 0 else rate.workers_cpu_s
    measurement = eased(measurement, (own_cpu_s, busy.workers_cpu_s))
    crowding = _crowding(measurement, busy)
    measurement = replace(
        measurement,
        crowding=crowding,
        free_cores=busy.free_cores,
        cached=cached,
        epoch_batches=_epoch_batches(loader),
        first_s=busy.first_s,
    )
    if point is None and loader.num_workers > 0 and is_cheap(probed):
        tell("trying it without workers")
        inline = measure_inline(loader, indices, max(LEAST_INLINE_S, 0.05 * max_seconds))
        measurement = replace(measurement, inline_rate=inline)
    return Seen(measurement, seen, storage, inner)


def _cache_point(loader: Any, seen: Look) -> CachePoint | None:
    """What the loader's own cache keeps, if it has one."""
    if getattr(loader, "cache", None) is None:
        return None
    limit = loader.cache_bytes or int(MEMORY_SHARE * available_bytes())
    point = choose(seen, loader.cache, len(loader.dataset), limit)
    return point if isinstance(point, CachePoint) else None


def _epoch_batches(loader: Any) -> int | None:
    """Batches between two starts of workers; None: not known, or they are kept."""
    if loader.persistent_workers:
        return None
    try:
        return max(1, len(loader))
    except (TypeError, NotImplementedError):  # of a sampler that does not know
        return None


def is_cheap(probed: Probe) -> bool:
    """Whether samples may be made in less time than it takes to hand them over."""
    nbytes = [stage.bytes_out / stage.completions for stage in probed.stages if stage.kind != COLLATE]
    return _sample_s(probed) < CHEAP_S + nbytes[-1] / HANDED_BYTES_S


def _sample_s(probed: Probe) -> float:
    return sum(stage.wall_s for stage in probed.stages) / probed.samples


def _proposed_cache(loader: Any, seen: Look) -> CachePoint | None:
    """What a cache would keep that the loader does not have, if all of it fits."""
    if getattr(loader, "cache", None) is not None:
        return None
    point = choose(seen, "auto", len(loader.dataset), int(MEMORY_SHARE * available_bytes()))
    return point if isinstance(point, CachePoint) and point.share >= 1 else None


def _cached_run(
    loader: Any, indices: Sequence[int], probed: Probe, seconds: float, point: CachePoint, seen: Look
) -> CachedRun:
    workers = max(1, math.ceil(allowed_cores().cores))
    changes = {"cache": f"after:{point.stages[-1]}", "num_workers": workers, **ONE_AT_A_TIME}
    rate = _own_rate(loader, indices, probed, max(LEAST_TRIAL_S, seconds), None, point, seen, **changes)
    return CachedRun(point.stages, workers, rate.batches_s, rate.workers_cpu_s, rate.main_cpu_s, rate.first_s)


def _own_rate(
    loader: Any,
    indices: Sequence[int],
    probed: Probe,
    seconds: float,
    step: Callable[[Any], Any] | None,
    point: CachePoint | None,
    look: Look,
    **changes: Any,
) -> Rate:
    """The rate with the loader's own arguments, but for `changes`. A cache is filled first, with as many samples as a
    third of the time is enough for."""
    if point is None or point.share < 1:
        return measure_rate(loader, indices, seconds, step, **changes)
    few = list(indices[: max(typical_batch(loader), int(seconds / 3 / max(_sample_s(probed), 1e-6)))])
    kept = {name: getattr(loader, name, None) for name in ("cache", "cache_bytes")}
    return measure_rate(loader, few, seconds * 2 / 3, step, known=look, **{**kept, **changes})


def eased(measurement: Measurement, runs_cpu_s: Sequence[float | None]) -> Measurement:
    """With stages that cost no more CPU time than the loader's own runs took for a batch. Cores are now faster, now
    slower, and a limit that a loader has passed already is none."""
    alone_s = _alone_s(measurement)
    shares = [cpu_s / alone_s for cpu_s in runs_cpu_s if cpu_s] if alone_s > 0 else []
    share = max(LEAST_CROWDING, min([1.0, *shares]))
    stages = [
        stage
        if stage.is_sequential
        else replace(stage, cpu_least_s=share * (stage.cpu_s if stage.cpu_least_s is None else stage.cpu_least_s))
        for stage in measurement.stages
    ]
    return replace(measurement, stages=tuple(stages))


def _alone_s(measurement: Measurement) -> float:
    """CPU seconds of a batch, as far as it is made in workers."""
    return sum(stage.demand.cpu_s for stage in model(measurement) if not stage.demand.is_sequential)


def _crowding(measurement: Measurement, busy: Rate) -> float:
    """How many times the CPU time of a batch alone it takes in workers when all cores are busy: they share caches and
    memory, often execution units too, and the loader's own work is in it. 1 where that is not known."""
    alone_s = _alone_s(measurement)
    if busy.workers_cpu_s is None or alone_s <= 0:
        return 1.0
    return min(MOST_CROWDING, max(LEAST_CROWDING, busy.workers_cpu_s / alone_s))


def with_cache(measurement: Measurement, look: Look, point: CachePoint) -> Measurement:
    """The pipeline once its cache is filled: what is kept costs what having it costs."""
    left = 1.0 - point.share
    made_s = sum(stage.wall_s for stage in look.stages if stage.name in point.stages)
    get_s = max(OVERHEAD_S, made_s - point.saved_s) * measurement.samples * point.share
    stages = [_scaled(stage, left) if stage.name in point.stages else stage for stage in measurement.stages]
    size = int(point.entry_bytes * measurement.samples)
    cache = StageMeasurement(CACHE, CACHE, measurement.samples, get_s, get_s, bytes_out=size)
    return replace(measurement, stages=(cache, *stages))


def _scaled(stage: StageMeasurement, share: float) -> StageMeasurement:
    return replace(
        stage,
        cpu_s=stage.cpu_s * share,
        wall_s=stage.wall_s * share,
        bytes_read=int(stage.bytes_read * share),
        cpu_least_s=None if stage.cpu_least_s is None else stage.cpu_least_s * share,
        wall_std_s=stage.wall_std_s * share**0.5,
    )


def _probe(dataset: Any, indices: Sequence[int], batch: int, collate_fn: Any, seconds: float) -> tuple[Probe, float]:
    mine, all_ = time.thread_time(), time.process_time()
    result = probe(dataset, indices, batch, collate_fn, seconds)
    mine, all_ = time.thread_time() - mine, time.process_time() - all_
    return result, max(0.0, all_ - mine) / mine if mine > 0.05 else 0.0


def _storage(context: Any, dataset: Any, indices: Sequence[int], probed: Probe, seconds: float) -> StorageCurve | None:
    load = next(stage for stage in probed.stages if stage.kind == LOAD)
    per_sample = load.bytes_read / load.completions
    waits = load.wall_s - load.cpu_s > 0.2 * load.wall_s
    if per_sample < 512 and not (waits and load.bytes_out):  # neither reads files nor waits for something else
        return None
    return run_aside(context, seconds, probe_storage, dataset, indices, probed.files, max(0.2, seconds / 6), per_sample)


def _measurement(
    loader: Any, seen: Look, probed: Probe, rate: Rate, storage: StorageCurve | None, batch: int
) -> Measurement:
    stages = judged(probed.stages, seen)
    if storage is not None and storage.by == "loading" and stages[0].bytes_read < 512 * probed.samples:
        # Read by other ways than files: what was loaded counts, as it did for the bandwidth.
        stages[0] = replace(stages[0], bytes_read=stages[0].bytes_out)
    if loader.num_workers > 0:
        stages.append(_transfer(rate, probed.samples / batch))
    return Measurement(
        stages=tuple(stages),
        samples=probed.samples,
        batch_size=batch,
        dataset_samples=len(loader.dataset),
        workers=loader.num_workers,
        concurrency=concurrency_of(loader),
        prefetch=loader.prefetch_factor or 1,
        cores=allowed_cores().cores,
        rate=rate.batches_s,
        rate_change=max(rate.change, probed.change),
        step_s=rate.step_s,
        wait_share=rate.wait_share,
        storage_bytes_s=None if storage is None else storage.bytes_s,
        storage_parallelism=None if storage is None else storage.knee,
        memory_bytes=available_bytes(),
    )


def judged(stages: Sequence[StageMeasurement], look: Look) -> list[StageMeasurement]:
    """Stages with what a look says of their randomness."""
    found = {stage.name: stage for stage in look.stages}
    return [
        replace(stage, randomness=found[stage.name].randomness.value, reason=found[stage.name].reason)
        if stage.name in found
        else stage
        for stage in stages
    ]


def _transfer(rate: Rate, batches: float) -> StageMeasurement:
    completions = max(1, round(batches))
    used = rate.main_cpu_s * batches
    return StageMeasurement(TRANSFER, TRANSFER, completions, used, used, is_sequential=True, randomness="deterministic")


def concurrency_of(loader: Any) -> int:
    """Samples that one worker fetches at once."""
    return loader.num_fetch_workers if getattr(loader, "fetcher", "sequential") != "sequential" else 1
