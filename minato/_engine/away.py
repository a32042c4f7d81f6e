"""Work for other machines, as the engine sees it: what is set aside for them, and what becomes of it.

A process of the remote side (`_protocols.RemoteSide`) has worker records of its own, the lanes, and takes what is set
aside for it like a worker. If it dies, its tickets are posted again like a worker's.
"""

from __future__ import annotations

import os

from .._plan import LoaderPlan
from .._protocols import Orders, RemoteSide, RemoteWork, Seat
from .._queues.posting import PostingBoard
from .._scheduler.window import Window
from .._workers.pool import WorkerPool
from .._workers.program import Program
from .cores import allowed_cores


class Nobody:
    """There is no remote side."""

    is_there = False
    due: float | None = None
    """When to look next, on the monotonic clock."""

    def wake(self) -> None:
        """Something was posted."""

    def asked(self) -> None:
        """The consumer asks for a batch."""

    def returned(self, samples: int, waited_s: float) -> None:
        """It got one, and waited so many seconds for it: what `next` itself takes is not among them."""

    def look(self) -> bool:
        """See what has happened; True if what was in hand elsewhere is to be posted again."""
        return False

    def recall(self, why: str) -> bool:  # noqa: ARG002
        """The same, after nothing came back for too long."""
        return False

    def close(self) -> None:
        """The engine ends."""


class Away(Nobody):
    """The remote side of one engine. Owns the eventfd by which it is woken."""

    is_there = True

    def __init__(self, work: RemoteWork, wake: int, board: PostingBoard, pool: WorkerPool, window: Window) -> None:
        self._work = work
        self._wake = wake
        self._board = board
        self._pool = pool
        self._window = window
        self._holder: int | None = None
        self._orders: Orders | None = None
        board.set_aside = work.set_aside
        self.look()

    def asked(self) -> None:
        self._work.asked()

    def returned(self, samples: int, waited_s: float) -> None:
        self._work.returned(samples, waited_s)

    def wake(self) -> None:
        if self._holder is not None:
            os.eventfd_write(self._wake, 1)

    def look(self) -> bool:
        orders = self._work.look()
        self.due = self._work.due
        return self._follow(orders)

    def recall(self, why: str) -> bool:
        return self._holder is not None and self._follow(self._work.recall(why))

    def _follow(self, orders: Orders) -> bool:
        if orders is self._orders:
            return False
        self._orders = orders
        self._window.widen(orders.extra_batches)
        self._board.share_away(orders.shared)
        had, self._holder = self._holder, orders.holder
        if had != orders.holder:
            self._pool.watch(orders.holder)
        if orders.wake:
            self._pool.wake(self._board.wake_sleepers(self._board.control.records))
        return had is not None and had != orders.holder

    def close(self) -> None:
        self._board.set_aside = None
        try:
            self._work.detach()
            self._pool.watch(None)
        finally:
            os.close(self._wake)


def make_away(
    side: RemoteSide | None,
    plan: LoaderPlan,
    program: Program,
    base_seed: int,
    board: PostingBoard,
    pool: WorkerPool,
    window: Window,
) -> Nobody:
    """The remote side of an engine: nobody, if there is none, or if it works for another engine."""
    if side is None:
        return Nobody()
    control, wake = board.control, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    work: RemoteWork | None = None
    try:
        work = side.attach(
            Seat(
                plan=plan.worker,
                dataset=program.dataset,
                base_seed=base_seed,
                control=control.fd,
                batches=control.batches,
                workers=control.records,
                first_lane=control.records_here,
                arena=board.arena.fd,
                wake=wake,
                ready=pool.ready,
                worker_pids=lambda: list(pool.pids.values()),
                cores=allowed_cores().cores,
            )
        )
    finally:
        if work is None:
            os.close(wake)
    return Nobody() if work is None else Away(work, wake, board, pool, window)
