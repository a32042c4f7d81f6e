"""From a plan to a running engine: the steps `iter(loader)` takes, in torch's order of drawing random numbers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterDataPipe
from torch.utils.data.graph_settings import apply_random_seed

from .._plan import LoaderPlan, Source
from .._workers.program import Program, check_picklable
from .ahead import Forecast
from .budget import default_memory_budget
from .engine import Engine
from .inline import InlineMap, InlineStream
from .memory import MemoryKeeper
from .totals import Totals


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed drawn as torch draws its base seed, so that seeded programs see the same random streams afterwards."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def prepare_dataset(dataset: Any, generator: torch.Generator | None) -> Any:
    """Data pipes shuffle by a seed that all workers and ranks share; other datasets are used as they are."""
    if not isinstance(dataset, IterDataPipe):
        return dataset
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
    if dist.is_available() and dist.is_initialized():
        dist.broadcast(seed, src=0, group=dist.new_group(backend="gloo"))
    return apply_random_seed(dataset, torch.Generator().manual_seed(int(seed.item())))


def start_method(context: BaseContext | None) -> BaseContext:
    """The context workers are started with: the one asked for, or the process's default."""
    return multiprocessing.get_context() if context is None else context


def check_shippable(plan: LoaderPlan, dataset: Any, context: BaseContext) -> None:
    """Raise, before anything is started, if workers cannot be given the dataset and its functions."""
    if context.get_start_method() != "fork":
        check_picklable(_program(plan, dataset))


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
    forecast = Forecast(sampler) if plan.persistent else None
    sampler = _Begun(sampler)
    base_seed = draw_seed(generator)
    if plan.memory_budget is None:
        plan = replace(plan, memory_budget=default_memory_budget())
    engine = Engine(plan, _program(plan, dataset), context, base_seed, totals, keeper)
    engine.start(sampler, forecast)
    return engine


def start_inline(
    plan: LoaderPlan, dataset: Any, sampler: Iterable[Any], generator: torch.Generator | None, totals: Totals
) -> InlineMap | InlineStream:
    """The same without workers."""
    sampler = _Begun(sampler)
    base_seed = draw_seed(generator)
    if plan.worker.source is Source.ITERABLE:
        return InlineStream(dataset, plan.worker, totals)
    return InlineMap(dataset, plan.worker, sampler, base_seed, totals)


class _Begun:
    """A sampler whose `iter()` was called already: before the base seed is drawn, as torch does it."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._iterator = iter(sampler)

    def __iter__(self) -> Any:
        return self._iterator


def _program(plan: LoaderPlan, dataset: Any) -> Program:
    return Program(dataset, plan.worker.collate_fn, plan.worker.worker_init_fn)


