"""From a plan to a running engine: the steps `iter(loader)` takes, in torch's order of drawing random numbers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import IterDataPipe

from .._plan import LoaderPlan, Source
from .._workers.copies import warn_of_copies
from .._workers.datapipes import ShardingInit, draw_shared_seed, is_data_pipe, seed_pipe, shard_here
from .._workers.hazards import warn_of_fork_hazards
from .._workers.program import Program, check_picklable
from .ahead import Forecast
from .budget import default_memory_budget
from .engine import Engine
from .inline import InlineMap, InlineStream
from .memory import MemoryKeeper
from .sampling import batches_of
from .totals import Totals


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed drawn as torch draws its base seed, so that seeded programs see the same random streams afterwards."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def shared_pipe_seed(dataset: Any, generator: torch.Generator | None) -> int | None:
    """The seed of an epoch that all workers and ranks share, if the dataset is a data pipe that shuffles by one."""
    return draw_shared_seed(generator) if isinstance(dataset, IterDataPipe) else None


def start_method(context: BaseContext | None) -> BaseContext:
    """The context workers are started with: the one asked for, or the process's default."""
    return multiprocessing.get_context() if context is None else context


def check_shippable(plan: LoaderPlan, dataset: Any, context: BaseContext) -> None:
    """Raise, before anything is started, if workers cannot be given the dataset and its functions."""
    if context.get_start_method() != "fork":
        check_picklable(_program(plan, dataset))


def warn_before_fork(plan: LoaderPlan, dataset: Any, context: BaseContext, stacklevel: int) -> None:
    """Tell what workers would share with this process to their harm, or copy at great length, if they are forked."""
    if context.get_start_method() == "fork":
        program = _program(plan, dataset)
        warn_of_fork_hazards(program, stacklevel + 1)
        warn_of_copies(program, plan.worker.num_workers, default_memory_budget(), stacklevel + 1)


def start_engine(
    plan: LoaderPlan,
    dataset: Any,
    sampler: Iterable[Any],
    context: BaseContext,
    generator: torch.Generator | None,
    totals: Totals,
    keeper: MemoryKeeper,
) -> Engine:
    """An engine with its first epoch under way."""
    shared_seed = shared_pipe_seed(dataset, generator)
    forecast = Forecast(sampler) if plan.persistent else None
    sampler = _Begun(sampler)
    base_seed = draw_seed(generator)
    shared_pipe_seed(dataset, generator)  # torch draws one more that it does not use; seeded programs stay in step
    if plan.memory_budget is None:
        plan = replace(plan, memory_budget=default_memory_budget())
    engine = Engine(plan, _program(plan, dataset), context, base_seed, totals, keeper)
    engine.start(sampler, forecast, shared_seed)
    return engine


def start_inline(
    plan: LoaderPlan, dataset: Any, sampler: Iterable[Any], generator: torch.Generator | None, totals: Totals
) -> InlineMap | InlineStream:
    """The same without workers."""
    shared_seed = shared_pipe_seed(dataset, generator)
    sampler = _Begun(sampler)
    base_seed = draw_seed(generator)
    if shared_seed is not None:
        seed_pipe(dataset, shared_seed)
    if is_data_pipe(dataset):
        shard_here(dataset)
    if plan.worker.source is Source.ITERABLE:
        return InlineStream(dataset, plan.worker, totals)
    return InlineMap(dataset, plan.worker, sampler, base_seed, totals)


class _Begun:
    """A sampler whose `iter()` was called already: before the base seed is drawn, as torch does it."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._iterator = batches_of(sampler)

    def __iter__(self) -> Any:
        return self._iterator


def _program(plan: LoaderPlan, dataset: Any) -> Program:
    worker_init_fn = plan.worker.worker_init_fn
    if is_data_pipe(dataset):
        worker_init_fn = ShardingInit(worker_init_fn)
    return Program(dataset, plan.worker.collate_fn, worker_init_fn)
