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
from .._pipeline.looking import Look, choose_indices, look
from .._pipeline.room import available_bytes
from .probing import Probe, probe
from .rebuilding import measuring_loader, no_word_of_workers, typical_batch
from .records import LOAD, TRANSFER, Measurement, StageMeasurement
from .storage import StorageCurve, probe_storage

LEAST_S, TOLERANCE = 0.6, 0.01
_MOST_INDICES = 20_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Of a loader that nobody else holds up."""

    batches_s: float
    change: float
    """By which share it still changed at the end."""
    main_cpu_s: float
    """CPU seconds of the consuming thread per batch: delivery and transfer."""
    step_s: float | None
    """Seconds per batch that the given step took."""
    first_s: float = 0.0
    """Seconds from the start of the epoch to its first batch: workers are started in it."""

    def over(self, batches: int) -> float:
        """Batches per second over epochs of so many batches, each with its start."""
        return batches / max(1e-9, max(self.first_s, 1 / self.batches_s) + (batches - 1) / self.batches_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that was measured."""

    measurement: Measurement
    look: Look
    storage: StorageCurve | None
    inner_threads: float
    """CPU time that other threads of the process used per CPU time of the one that ran the stages."""


PHASES = 4
"""Times that `tell` is called by `measure`."""


def measure(
    loader: Any,
    max_seconds: float,
    step: Callable[[Any], Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Seen:
    """Measure a loader for about `max_seconds`. `step`: what the consumer does with a batch, to see how long it takes.
    `tell` is called with what comes next."""
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "an IterableDataset has no indices to take samples by; diagnose a map-style dataset, or look at "
            "loader.stats() while training"
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
        context, 0.35 * max_seconds, _probe, loader.dataset, indices, batch, collate_fn, 0.35 * max_seconds
    )
    tell("measuring the loader's rate")
    rate = measure_rate(loader, indices, 0.35 * max_seconds, step)
    tell("measuring what the storage gives")
    storage = _storage(context, loader.dataset, indices, probed, 0.15 * max_seconds)
    return Seen(_measurement(loader, seen, probed, rate, storage, batch), seen, storage, inner)


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


def measure_rate(
    loader: Any,
    indices: Sequence[int],
    max_seconds: float,
    step: Callable[[Any], Any] | None = None,
    skip: int = 2,
    **changes: Any,
) -> Rate:
    """The rate of a loader like this one, with some arguments changed, until it is steady. `skip`: batches that do not
    count, until workers are up."""
    with no_word_of_workers():
        ours = measuring_loader(loader, indices, **changes)
        try:
            began = time.monotonic()
            batches = iter(ours)
            next(batches)
            first_s = time.monotonic() - began
            return replace(_drain(batches, max_seconds, step, skip - 1), first_s=first_s)
        finally:
            close = getattr(ours, "close", None)
            if close is not None:
                close()


def _drain(batches: Any, max_seconds: float, step: Callable[[Any], Any] | None, skip: int) -> Rate:
    """Take batches until the rate changes by less than 1 % from one stretch to the next, or the time is up."""
    for _ in range(skip):
        next(batches)
    deadline = time.monotonic() + max_seconds
    began, cpu = time.monotonic(), time.thread_time()
    taken, stretch, step_s, change = 0, max(0.15, max_seconds / 30), 0.0, math.inf
    rates: list[float] = []
    mark = began + stretch
    while True:
        batch = next(batches)
        taken += 1
        if step is not None:
            before = time.perf_counter()
            step(batch)
            step_s += time.perf_counter() - before
        del batch
        now = time.monotonic()
        if now >= mark:
            rates.append(taken / (now - began - step_s))
            change = max((abs(rates[-1] / old - 1) for old in rates[-3:-1]), default=math.inf)
            mark = now + stretch
            if len(rates) >= 3 and change < TOLERANCE and now - began > LEAST_S:
                break
        if now > deadline:
            break
    elapsed = time.monotonic() - began - (step_s if step is not None else 0.0)
    used = max(0.0, time.thread_time() - cpu)
    return Rate(taken / elapsed, min(change, 1.0), used / taken, step_s / taken if step is not None else None)


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
