"""What an engine is made of, put together in the order in which the parts need each other."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from multiprocessing.context import BaseContext

from .._plan import LoaderPlan, Order, Source
from .._protocols import RemoteSide
from .._queues.control import ControlBlock
from .._queues.leases import Slots
from .._queues.posting import PostingBoard
from .._scheduler.window import Window
from .._workers.pool import WorkerPool
from .._workers.program import Program
from .._workers.sync import DatasetWatch
from .away import Nobody, make_away
from .casualties import Casualties
from .delivery import Delivery
from .epochs import Epochs
from .foresight import make_foresight
from .hangs import Hangs
from .memory import BatchMemory, MemoryKeeper
from .mending import Mender
from .observing import KeptProfile, SampleTimes
from .pace import Pace
from .scaling import Scaler, make_scaler
from .totals import Totals


@dataclass(frozen=True, slots=True)
class Parts:
    """All of them. The pool has not been started."""

    plan: LoaderPlan
    base_seed: int
    totals: Totals
    """The loader's."""
    profile: KeptProfile
    """The loader's."""
    keeper: MemoryKeeper
    """The loader's: where the memory comes from, and goes back to."""
    memory: BatchMemory
    board: PostingBoard
    window: Window
    pool: WorkerPool
    away: Nobody
    """Other machines."""
    delivery: Delivery
    times: SampleTimes
    scaler: Scaler | None
    """None: the number of workers stays."""
    mender: Mender | None
    """None: a sample's failure is its batch's."""
    casualties: Casualties
    hangs: Hangs | None
    """None: batches are waited for without a timeout."""
    epochs: Epochs
    watch: DatasetWatch | None
    """Of what changes on the dataset, if the workers are to live on."""

    @property
    def slots(self) -> Slots:
        return self.memory.slots


def assemble(
    plan: LoaderPlan,
    program: Program,
    context: BaseContext,
    base_seed: int,
    totals: Totals,
    profile: KeptProfile,
    keeper: MemoryKeeper,
    first_epoch: int = 0,
    remote: RemoteSide | None = None,
) -> Parts:
    """The parts of a new engine. What is there already is given back if the rest cannot be had. `first_epoch`: the
    number of the epoch to begin with, of those of the base seed. `remote`: other machines."""
    # Batches from the oldest with an undelivered sample to the newest: bounds how far a sample falls behind.
    span = 1 + (plan.most_window if plan.worker.order is Order.IN_ORDER else plan.max_deferral)
    window = Window(plan.window, plan.memory_budget or 0, plan.first_window, plan.depth)
    memory = keeper.take()
    with contextlib.ExitStack() as undo:
        undo.callback(keeper.give_back, memory)
        # Twice the window beside the span: abandoned batches may still be in hand.
        records = max(span, plan.most_window) + 2 * plan.most_window
        control = ControlBlock.create(records, plan.most_workers, plan.worker.lanes, remote.lanes if remote else 0)
        undo.callback(control.close)
        board = PostingBoard(control, memory.arena)
        pool = WorkerPool(board, plan.worker, program, context, base_seed)
        undo.callback(pool.stop)
        away = make_away(remote, plan, program, base_seed, board, pool, window)
        undo.callback(away.close)
        foresight = make_foresight(plan, program.dataset, board, profile.profile, window)
        mender = Mender(board, memory.slots, plan, totals) if plan.worker.mends or plan.timeout > 0 else None
        casualties = Casualties(board, pool, memory.slots, plan, totals, mender)
        pace = Pace(board, pool, window, plan.worker.source is Source.ITERABLE)
        parts = Parts(
            plan=plan,
            base_seed=base_seed,
            totals=totals,
            profile=profile,
            keeper=keeper,
            memory=memory,
            board=board,
            window=window,
            pool=pool,
            away=away,
            delivery=Delivery(board, memory.slots),
            times=SampleTimes(board, profile, totals, foresight),
            scaler=make_scaler(plan, pool, board, window, totals, profile.recorder),
            mender=mender,
            casualties=casualties,
            hangs=Hangs(board, pool, plan, casualties, mender) if plan.timeout and mender is not None else None,
            epochs=Epochs(plan, base_seed, board, memory.slots, away, window, foresight, pace, span, first_epoch),
            watch=DatasetWatch(program.dataset) if plan.persistent else None,
        )
        undo.pop_all()
    return parts
