"""From a plan to a running engine: the steps `iter(loader)` takes, in torch's order of drawing random numbers."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import IterableDataset, IterDataPipe

from .._fetchers.asynchronous import async_getter, lacking
from .._plan import Fetcher, LoaderPlan, Source
from .._protocols import RemoteSide
from .._workers.copies import warn_of_copies
from .._workers.datapipes import ShardingInit, draw_shared_seed, is_data_pipe, seed_pipe, shard_here
from .._workers.hazards import warn_of_fork_hazards
from .._workers.program import Program, check_picklable
from .ahead import Forecast
from .budget import default_memory_budget
from .courses import begin_course
from .engine import Engine
from .feeds import Epoch
from .inline import Habits, InlineMap, InlineStream
from .inline_ahead import make_ahead
from .inline_mending import MendingMap, MendingStream
from .memory import MemoryKeeper
from .observing import KeptProfile
from .progress import StreamProgress, Track
from .resume import Resumed
from .totals import Totals
from .tracing import TracedInline, make_engine, trace_inline


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed drawn as torch draws its base seed, so that seeded programs see the same random streams afterwards."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def shared_pipe_seed(dataset: Any, generator: torch.Generator | None) -> int | None:
    """The seed of an epoch that all workers and ranks share, if the dataset is a data pipe that shuffles by one."""
    return draw_shared_seed(generator) if isinstance(dataset, IterDataPipe) else None


def start_method(context: BaseContext | None) -> BaseContext:
    """The context workers are started with: the one asked for, or the process's default."""
    return multiprocessing.get_context() if context is None else context


def check_fetcher(fetcher: str, dataset: Any) -> None:
    """Raise if the dataset cannot be fetched from that way."""
    if fetcher == "sequential":
        return
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            f"fetcher={fetcher!r} fetches samples by index, and {type(dataset).__name__} is an IterableDataset, which "
            f"gives one sample after the other; use fetcher='sequential'"
        )
    if fetcher == "asyncio" and async_getter(dataset) is None:
        names = " and ".join(lacking(dataset))
        raise TypeError(
            f"fetcher='asyncio' awaits `async def __getitem_async__(self, index)` of the dataset, and {names} has no "
            f"such method; add one, or use fetcher='threaded', which takes any map-style dataset"
        )


def check_shippable(plan: LoaderPlan, dataset: Any, context: BaseContext) -> None:
    """Raise, before anything is started, if workers cannot be given the dataset and its functions."""
    if context.get_start_method() != "fork":
        check_picklable(_program(plan, dataset))


def warn_before_fork(plan: LoaderPlan, dataset: Any, context: BaseContext, stacklevel: int) -> None:
    """Tell what workers would share with this process to their harm, or copy at great length, if they are forked."""
    if context.get_start_method() == "fork":
        program = _program(plan, dataset)
        try:
            warn_of_fork_hazards(program, stacklevel + 1)
            warn_of_copies(program, plan.worker.num_workers, default_memory_budget(), stacklevel + 1)
        except Warning:
            raise  # the user wants warnings to be errors
        except Exception as error:  # the user's objects are looked at, whatever they are: that must not end a training
            warnings.warn(f"looking for hazards of a fork failed: {error!r}", RuntimeWarning, stacklevel=stacklevel + 1)


def start_engine(
    plan: LoaderPlan,
    dataset: Any,
    sampler: Iterable[Any],
    context: BaseContext,
    generator: torch.Generator | None,
    totals: Totals,
    profile: KeptProfile,
    keeper: MemoryKeeper,
    resumed: Resumed | None = None,
    remote: RemoteSide | None = None,
    layer: Any = None,
) -> tuple[Engine, Track]:
    """An engine with its first epoch under way, or what is left of one. `layer`: as in `Program`."""
    forecast = Forecast(sampler) if plan.persistent else None
    opening = _open(plan, dataset, sampler, generator, resumed)
    if opening.is_drawn:
        shared_pipe_seed(dataset, generator)  # torch draws one more that it does not use; seeded programs stay in step
    budget = default_memory_budget() if plan.memory_budget is None else plan.memory_budget
    # Beside the batches, half as much again in all workers together.
    spare_bytes = budget // (2 * max(1, plan.most_workers))
    plan = replace(plan, memory_budget=budget, worker=replace(plan.worker, spare_bytes=spare_bytes))
    program = replace(_program(plan, dataset), layer=layer)
    engine = make_engine(plan, program, context, opening.base_seed, totals, profile, keeper, opening.number, remote)
    engine.start(opening.epoch, forecast, opening.pipe_seed)
    return engine, replace(engine.track(), pipe_seed=opening.pipe_seed)


def start_inline(
    plan: LoaderPlan,
    dataset: Any,
    sampler: Iterable[Any],
    generator: torch.Generator | None,
    totals: Totals,
    habits: Habits,
    resumed: Resumed | None = None,
    layer: Any = None,
) -> tuple[InlineMap | InlineStream | TracedInline, Track]:
    """The same without workers. `habits`: what earlier epochs have shown, kept up to date."""
    opening = _open(plan, dataset, sampler, generator, resumed)
    plan, traced = trace_inline(plan, totals)
    if opening.pipe_seed is not None:
        seed_pipe(dataset, opening.pipe_seed)
    if is_data_pipe(dataset):
        shard_here(dataset)
    batches: InlineMap | InlineStream
    if plan.worker.source is Source.ITERABLE:
        before = opening.epoch if isinstance(opening.epoch, StreamProgress) else None
        place = None if before is None else before.streams[0]
        if plan.worker.mends:
            batches = MendingStream(dataset, plan, totals, place)
        else:
            batches = InlineStream(dataset, plan.worker, totals, place)
        if resumed is not None and not opening.is_drawn:
            resumed.settle()  # replaying the stream has moved the generators
    else:
        assert not isinstance(opening.epoch, StreamProgress)
        if layer is not None:
            dataset = getattr(layer, "wrap_here", layer.wrap)(dataset)
        if plan.worker.fetcher is not Fetcher.SEQUENTIAL:
            batches = make_ahead(plan, dataset, opening.epoch, opening.base_seed, totals, opening.number)
        elif plan.worker.mends:
            batches = MendingMap(dataset, plan, opening.epoch, opening.base_seed, totals, opening.number, habits)
        else:
            worker = plan.worker
            batches = InlineMap(dataset, worker, opening.epoch, opening.base_seed, totals, opening.number, habits)
    return traced(batches), Track(batches, opening.base_seed, opening.number, opening.pipe_seed)


@dataclass(frozen=True, slots=True)
class _Opening:
    """What an epoch begins with."""

    epoch: Epoch
    base_seed: int
    number: int
    """Of the epoch, among those of the base seed."""
    pipe_seed: int | None
    is_drawn: bool
    """Whether its seeds were drawn now."""


def _open(
    plan: LoaderPlan, dataset: Any, sampler: Iterable[Any], generator: torch.Generator | None, resumed: Resumed | None
) -> _Opening:
    """Begin an epoch, or go on with one. What was drawn before the interruption is not drawn again."""
    if resumed is not None and resumed.base_seed is not None:
        epoch = resumed.begin()
        resumed.settle()
        pipe_seed = shared_pipe_seed(dataset, generator) if resumed.is_new else resumed.pipe_seed
        return _Opening(epoch, resumed.base_seed, resumed.number, pipe_seed, is_drawn=False)
    if resumed is not None:
        resumed.settle()
    pipe_seed = shared_pipe_seed(dataset, generator)
    # In torch's order of drawing: `iter(sampler)` is called before the base seed is drawn.
    begun: Epoch = begin_course(sampler) if plan.worker.source is Source.MAP else sampler
    return _Opening(begun, draw_seed(generator), 0, pipe_seed, is_drawn=True)


def _program(plan: LoaderPlan, dataset: Any) -> Program:
    worker_init_fn = plan.worker.worker_init_fn
    if is_data_pipe(dataset):
        worker_init_fn = ShardingInit(worker_init_fn)
    return Program(dataset, plan.worker.collate_fn, worker_init_fn)
