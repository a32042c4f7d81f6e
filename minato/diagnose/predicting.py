"""How fast a loader would be with other arguments: the model with another number of places, or a beginning that is
cached. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._pipeline.looking import Look
from .._pipeline.planning import OVERHEAD_S, CachePoint, choose
from .bound import CONSUMER, Bound, Resources, solve
from .model import Demand, StageModel, model
from .records import TRANSFER, CachedRun, Measurement

WAITING = 0.1  # of a sample's time, from which on more workers than cores may be of use
MOST_PER_CORE = 8  # workers for each core that waiting may justify


@dataclass(frozen=True, slots=True)
class Setting:
    """What a prediction is about."""

    workers: int
    concurrency: int = 1
    cache: CachePoint | None = None


def demands_of(measurement: Measurement, setting: Setting) -> list[Demand]:
    """What a batch costs each stage, with the cached ones replaced by having their result."""
    demands = [stage.demand for stage in model(measurement) if stage.kind != TRANSFER or setting.workers > 0]
    if setting.cache is None:
        return demands
    kept = set(setting.cache.stages)
    share = setting.cache.share
    get_s = measurement.batch_size * _get_s(measurement, setting.cache) * share
    left = [_scaled(demand, 1 - share) if demand.name in kept else demand for demand in demands]
    run = _tried(measurement, setting.cache)
    if run is not None:
        # What a loader does for a sample besides its stages is next to nothing beside decoding an image, and much
        # beside having it from memory: by what was used when it was tried.
        if run.workers_cpu_s is not None:
            left_s = sum(demand.cpu_s for demand in left if not demand.is_sequential)
            get_s = max(get_s, run.workers_cpu_s / measurement.crowding - left_s)
        left = [
            replace(demand, cpu_s=run.main_cpu_s, wall_s=run.main_cpu_s) if demand.is_sequential else demand
            for demand in left
        ]
    return [Demand("cache", get_s, get_s), *left]


def _tried(measurement: Measurement, point: CachePoint | None) -> CachedRun | None:
    """The run with this cache, if there was one."""
    run = measurement.cached
    return run if run is not None and point is not None and run.stages == point.stages else None


def reached(measurement: Measurement, point: CachePoint | None) -> float:
    """Which share of the limit a loader with this cache reached when it was tried; 1 if it was not. More than 1 where
    the stages that are left were measured as dearer than they are, beside others that kept all cores busy."""
    run = _tried(measurement, point)
    if run is None:
        return 1.0
    return run.rate / predict(measurement, Setting(run.workers, 1, point), with_consumer=False).rate


def _get_s(measurement: Measurement, point: CachePoint) -> float:
    made = sum(stage.wall_s / stage.completions for stage in measurement.stages if stage.name in point.stages)
    return max(OVERHEAD_S, made - point.saved_s)


def _scaled(demand: Demand, share: float) -> Demand:
    return replace(
        demand, cpu_s=demand.cpu_s * share, wall_s=demand.wall_s * share, bytes_read=demand.bytes_read * share
    )


def resources_of(measurement: Measurement, places: float | None, with_consumer: bool = True) -> Resources:
    """What there is, with so many places in workers; None: as many as one likes."""
    return Resources(
        cores=measurement.usable_cores,
        places=places,
        storage_bytes_s=measurement.storage_bytes_s,
        memory_bytes=measurement.memory_bytes,
        bytes_per_place=max((stage.bytes_out / max(1, stage.completions) for stage in measurement.stages), default=0.0),
        step_s=measurement.step_s if with_consumer else None,
    )


def _crowded(demands: Sequence[Demand], measurement: Measurement, places: float | None) -> list[Demand]:
    """With the CPU time that stages take in workers when all cores are busy. Fewer places than cores leave some idle.
    What the main process does was measured beside busy workers."""
    if places is not None and places < measurement.cores:
        return list(demands)
    return [
        demand if demand.is_sequential else replace(demand, cpu_s=demand.cpu_s * measurement.crowding)
        for demand in demands
    ]


def predict(measurement: Measurement, setting: Setting, with_consumer: bool = True) -> Bound:
    """The bound of a loader with these settings."""
    demands = demands_of(measurement, setting)
    if setting.workers == 0:
        # One thread does all of it, the consumer's step too: everything is in one sequential stage.
        wall = sum(demand.wall_s for demand in demands)
        whole = [replace(demand, is_sequential=False) for demand in demands]
        step = measurement.step_s or 0.0 if with_consumer else 0.0
        found = solve(whole, replace(resources_of(measurement, 1.0, False), cores=min(1.0, measurement.usable_cores)))
        limit = found.rate
        if setting.cache is None and measurement.inline_rate is not None:
            # It was run. Of cheap samples the looks at the clock are a good part of what each stage seems to take.
            wall, limit = 1.0 / measurement.inline_rate, math.inf
        if step > wall:  # they take turns, and what takes more is what holds the rate
            found = replace(found, limit=CONSUMER, stage=None)
        return replace(found, rate=min(limit, 1.0 / max(wall + step, 1e-12)))
    places = setting.workers * setting.concurrency
    return solve(_crowded(demands, measurement, places), resources_of(measurement, places, with_consumer))


def reached_now(measurement: Measurement) -> float:
    """Which share of its limit the loader reached as it is; 1 if that is not known."""
    if not measurement.rate:
        return 1.0
    now = predict(measurement, Setting(measurement.workers, measurement.concurrency))
    return min(1.0, measurement.rate / now.rate)


def over_epochs(measurement: Measurement, setting: Setting, rate: float) -> float:
    """What a rate within an epoch comes to, where workers are started at each."""
    batches = measurement.epoch_batches
    if not batches or setting.workers == 0:
        return rate
    run = _tried(measurement, setting.cache)
    first_s = measurement.first_s if run is None else run.first_s
    return batches / (max(first_s, 1 / rate) + (batches - 1) / rate)


def machine_bound(measurement: Measurement, cache: CachePoint | None = None) -> Bound:
    """The bound of this machine, whatever the number of workers: no workers at all may be best, or what there is."""
    demands = _crowded(demands_of(measurement, Setting(1, 1, cache)), measurement, None)
    now = Setting(measurement.workers, measurement.concurrency, cache)
    bounds = [solve(demands, resources_of(measurement, None)), predict(measurement, now)]
    return max(bounds, key=lambda bound: bound.rate)


def undisturbed(measurement: Measurement) -> Measurement:
    """The same with nobody else on the cores. Others come and go: what a loader should be set to does not hang on
    them."""
    return replace(measurement, free_cores=None)


def places_needed(measurement: Measurement, cache: CachePoint | None, target: float) -> int:
    """The least places in workers that give nearly `target` batches per second."""
    most = max(1, math.ceil(measurement.cores)) * (MOST_PER_CORE if _waits(measurement) else 1)
    places = 1
    while places < most and predict(measurement, Setting(places, 1, cache)).rate < 0.97 * target:
        places += 1
    return places


def _waits(measurement: Measurement) -> bool:
    """Whether samples wait for something that is not a core for a good part of their time."""
    wall = sum(stage.wall_s for stage in measurement.stages)
    return wall - sum(stage.cpu_s for stage in measurement.stages) > WAITING * wall


def stage_shares(stages: Sequence[StageModel]) -> dict[str, float]:
    """Of a batch's time in workers, by stage."""
    total = sum(stage.demand.wall_s for stage in stages if not stage.demand.is_sequential)
    return {
        stage.name: stage.demand.wall_s / total if total and not stage.demand.is_sequential else 0.0 for stage in stages
    }


def cache_choice(measurement: Measurement, look: Look, limit_bytes: int) -> CachePoint | None:
    """Where a cache would be put."""
    samples = measurement.dataset_samples or 0
    point = choose(look, "auto", samples, limit_bytes) if samples else None
    return point if isinstance(point, CachePoint) else None
