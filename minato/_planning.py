"""From a loader's checked arguments to its frozen plan: which order, who collates, how much is in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from ._arguments import trace_options
from ._plan import Collate, Fetcher, LoaderPlan, Order, Source, WorkerPlan

_RANDOM_SAMPLERS = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)


def decide_order(in_order: bool | None, dataset: Any, sampler: Any, own_batching: bool) -> Order:
    """How far delivery may depart from the sampler's order.

    `None` re-orders only where nobody can have relied on order: torch's own random sampler, torch's own batching (the
    user gave a batch size, not a batch sampler), and deterministic algorithms not asked for.
    """
    relied_upon = not own_batching or torch.are_deterministic_algorithms_enabled() or not _is_random(sampler)
    iterable = isinstance(dataset, IterableDataset)
    if in_order or (in_order is None and (iterable or relied_upon)):
        return Order.IN_ORDER
    # Streams and `__getitems__` make whole batches, and a batch sampler's batches belong together.
    whole = iterable or not own_batching or reads_together(dataset)
    return Order.BATCHES_OVERTAKE if whole else Order.SAMPLES_OVERTAKE


def reads_together(dataset: Any) -> bool:
    """Whether the dataset gains something by being asked for several samples at once: it has `__getitems__`. torch's
    own Subset has it for the sake of the dataset below."""
    while type(dataset) is Subset and "__getitems__" not in vars(dataset):
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def _is_random(sampler: Any) -> bool:
    if type(sampler) is DistributedSampler:
        return bool(sampler.shuffle)
    return type(sampler) in _RANDOM_SAMPLERS


def decide_collate(collate_fn: Any, batched: bool) -> Collate:
    """Who makes a batch of samples."""
    if not batched:
        return Collate.NONE
    return Collate.ROWS if collate_fn is default_collate else Collate.FUNCTION


def _first_window(worker: WorkerPlan, rows: int | None, deep: bool) -> int:
    """A batch, and enough beside it that no worker is idle, nor a fetch of theirs if `deep`. `rows`: samples of a
    batch; None: not known before one is seen."""
    if worker.source is Source.ITERABLE:
        return 2 * worker.num_workers
    lanes = worker.lanes if deep and rows is not None else 1
    return 1 + -(-worker.num_workers * lanes // (rows or 1))


def _rows_of(loader: Any) -> int | None:
    """Samples of a batch, as far as they can be known without drawing one."""
    if loader.batch_sampler is None:
        return 1
    rows = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return rows if isinstance(rows, int) and rows > 0 else None


def _lanes(loader: Any, iterable: bool) -> int:
    """Fetches a worker has under way at once."""
    if iterable or loader.fetcher == "sequential":
        return 1
    pool = loader.batch_pool or loader.num_fetch_workers
    return int(min(loader.num_fetch_workers, pool))


def _most_in_run(loader: Any, lanes: int) -> int:
    """Samples that a fetch takes at once, at most."""
    if loader.fetcher == "sequential" or not loader.batch_pool:
        return 1 << 30
    return max(1, int(loader.batch_pool) // lanes)


def slow_rule(loader: Any) -> tuple[str | float | None, str | float | None, int]:
    """From when on a sample counts as slow: the threshold, its fallback, and samples before there is one."""
    warmup = loader.warmup_samples or max(64, 2 * (loader.batch_size or 1))
    return loader.slow_timeout, loader.slow_fallback, warmup


def most_adaptive_workers(loader: Any, cores: Callable[[], int]) -> int:
    """Workers there may be: as given, or one for each core this process may use, but not fewer than it begins with."""
    if loader.max_workers is not None:
        return int(loader.max_workers)
    return max(int(loader.num_workers), cores())


def _order(loader: Any) -> Order:
    order = decide_order(loader.in_order, loader.dataset, loader.sampler, loader.batch_size is not None)
    if order is Order.SAMPLES_OVERTAKE and loader.offload is not None and loader.offload.keeps_batches:
        return Order.BATCHES_OVERTAKE
    return order


def make_plan(loader: Any, cores: Callable[[], int], workers: int | None = None) -> LoaderPlan:
    """The plan of a checked loader, from its attributes. `cores`: those this process may use, where that matters.
    `workers`: for one epoch that needs another number of them."""
    workers = loader.num_workers if workers is None else workers
    iterable = isinstance(loader.dataset, IterableDataset)
    per_worker = max(1, loader.prefetch_factor or 1)
    window = per_worker * max(1, workers)
    adaptive = loader.adaptive if not iterable and workers > 0 else None
    most_workers = workers if not adaptive else most_adaptive_workers(loader, cores)
    most_remote = 0 if loader.offload is None else loader.offload.most_remote
    lanes, rows = _lanes(loader, iterable), _rows_of(loader)
    collate = decide_collate(loader.collate_fn, loader._auto_collation)
    # The asyncio fetcher awaits samples one by one, whatever else the dataset offers.
    together = not iterable and collate is not Collate.NONE and reads_together(loader.dataset)
    together = together and loader.fetcher != "asyncio"
    # A dataset that is asked for whole batches has as many under way as there are in flight: its samples are not more.
    deep = lanes > 1 and not together
    depth = lanes / per_worker if deep else 0.0
    most_here = per_worker * max(1, most_workers)
    most_here += math.ceil(most_here * depth / (rows or 1))
    most_window = most_here + per_worker * most_remote
    max_deferral = loader.max_deferral or max(most_window, 4 * most_here)
    worker = WorkerPlan(
        source=Source.ITERABLE if iterable else Source.MAP,
        order=_order(loader),
        collate=collate,
        collate_fn=loader.collate_fn,
        num_workers=workers,
        worker_init_fn=loader.worker_init_fn,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        short_batch_last=loader.batch_size is not None and not iterable,
        mends=loader.on_error != "raise" or loader.sample_retries > 0,
        skips=loader.on_error != "raise",
        tells_stack=loader.timeout > 0,
        fetcher=Fetcher(loader.fetcher),
        lanes=lanes,
        most_in_run=_most_in_run(loader, lanes),
        batch_pool=loader.batch_pool,
        thread_copies=loader.thread_copies,
        together=together,
        # A slow sample holds one of a worker's many fetches: there is nothing to be gained by putting it aside.
        parks=not iterable and loader.slow_timeout is not None and loader.fetcher == "sequential",
        max_deferral=max_deferral,
        queue_size=loader.queue_size,
        spread=loader.worker_affinity == "spread",
        nice=loader.worker_nice,
    )
    return LoaderPlan(
        worker=worker,
        window=window,
        most_window=most_window,
        first_window=_first_window(worker, rows if loader.fetcher != "sequential" else loader.batch_size, deep),
        depth=depth,
        max_deferral=max_deferral,
        memory_budget=loader.memory_budget,
        timeout=loader.timeout,
        persistent=loader.persistent_workers and workers == loader.num_workers,
        max_worker_restarts=loader.max_worker_restarts,
        sample_retries=loader.sample_retries,
        on_error=loader.on_error,
        most_workers=most_workers,
        least_workers=min(loader.min_workers, workers),
        per_worker=per_worker,
        adaptive=adaptive or None,
        trace=trace_options(loader.trace),
    )
