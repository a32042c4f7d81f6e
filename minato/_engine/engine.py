"""The loop of the main process: await a ready batch, deliver it, post the next ones. See the package's docstring."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from multiprocessing.context import BaseContext
from typing import Any

from .._errors import InternalError, LoaderClosed, WorkerDied
from .._plan import LoaderPlan, Order
from .._queues.arena import Arena
from .._queues.board import Board
from .._queues.control import ControlBlock, State
from .._queues.leases import Slots
from .._records import LoaderStats
from .._scheduler.window import Window
from .._workers.generators import mix
from .._workers.pool import WorkerPool
from .._workers.program import Program
from .casualties import Casualties
from .delivery import Delivery
from .feeds import Feed, StreamFeed, make_feed
from .lifetime import keep_until_exit, release
from .totals import Totals

MOST_LENT = 4  # slots under batches the user holds: the current one, the previous, and a trainer's prefetch


class Engine:
    """A pool of workers and the batches between them and the user. Used by one thread at a time."""

    def __init__(
        self, plan: LoaderPlan, program: Program, context: BaseContext, base_seed: int, totals: Totals
    ) -> None:
        self._plan = plan
        self._base_seed = base_seed
        self._pid = os.getpid()
        self._closed = False
        self._broken: WorkerDied | None = None
        self.arena = Arena.create()
        records = plan.window + plan.max_deferral + 1
        self._board = Board(ControlBlock.create(records, plan.worker.num_workers), self.arena)
        self._slots = Slots(self.arena, MOST_LENT)
        self._totals = totals
        self._delivery = Delivery(self._board, self._slots, totals)
        self._window = Window(plan.window, plan.memory_budget or 0)
        self._pool = WorkerPool(self._board, plan.worker, program, context, base_seed)
        self._casualties = Casualties(self._board, self._pool, plan, totals)
        self._feed: Feed | None = None
        self._epoch = -1
        self._out: list[int] = []
        """Batches posted for the current epoch and not delivered, oldest first."""
        self._void: list[int] = []
        """Batches of abandoned epochs whose slots some worker may still write to."""
        keep_until_exit(self)

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def start(self, sampler: Iterable[Any]) -> None:
        """Post the first epoch's first batches and start the workers."""
        try:
            self.start_epoch(sampler)
            self._pool.start(self.arena)
        except BaseException:
            self.close()
            raise

    def start_epoch(self, sampler: Iterable[Any]) -> None:
        """Begin an epoch; what was left of the one before is abandoned."""
        self._check_open()
        self._abandon_epoch()
        self._epoch += 1
        self._feed = make_feed(self._epoch, mix(self._base_seed, self._epoch), self._plan.worker, sampler)
        self._top_up()

    def _abandon_epoch(self) -> None:
        self._void += self._out
        self._out = []
        self._board.abandon_epochs_before(self._epoch + 1)
        self._casualties.forget()

    def _top_up(self) -> None:
        """Post batches until the window is full or the epoch has no more."""
        feed = self._feed
        assert feed is not None
        self._reclaim_void()
        posted = 0
        while not feed.exhausted and len(self._out) < self._window.size and self._has_room(feed):
            slot = self._slots.take()
            try:
                number = feed.post(self._board, slot)
            except BaseException:
                self._slots.put_back(slot)
                raise
            if number is None:
                self._slots.put_back(slot)
                break
            self._out.append(number)
            posted += 1
        if posted:
            self._pool.wake(self._board.wake_sleepers(self._board.control.workers))

    def _has_room(self, feed: Feed) -> bool:
        """Whether the next batch's record is free: a straggler may keep the record of its own batch in use."""
        next_number = self._board.next_number
        straggler = feed.ledger.oldest
        oldest = min(*self._out[:1], *self._void[:1], next_number if straggler is None else straggler, next_number)
        return next_number - oldest < self._board.control.batches

    def _reclaim_void(self) -> None:
        if self._void:
            held = self._board.held()
            for batch in [b for b in self._void if b not in held]:
                self._void.remove(batch)
                self._slots.put_back(self._board.slot(batch))

    # ---- batches --------------------------------------------------------------------------------------------------

    def next_batch(self) -> Any:
        """The next batch, or StopIteration, or the error that the batch carries."""
        self._check_open()
        batch = self._await_batch()
        if batch is None:
            raise StopIteration
        self._out.remove(batch)
        try:
            return self._deliver(batch)
        finally:
            self._top_up()

    def _await_batch(self) -> int | None:
        """The number of the batch to deliver now; None at the end of the epoch."""
        deadline = time.monotonic() + self._plan.timeout if self._plan.timeout else None
        waiting_since: float | None = None
        while True:
            batch = self._pick()
            if batch is not None:
                if waiting_since is not None:
                    self._totals.waits += 1
                    self._totals.wait_seconds += time.monotonic() - waiting_since
                return batch
            if not self._out:
                return None
            waiting_since = waiting_since or time.monotonic()
            self._wait(deadline)

    def _wait(self, deadline: float | None) -> None:
        dead = self._pool.wait(None if deadline is None else deadline - time.monotonic())
        self._pool.check_started()
        if dead:
            feed = self._feed
            assert feed is not None
            try:
                self._casualties.treat(dead, feed, self._out)
            except WorkerDied as error:
                self._broken = error
                raise
        elif deadline is not None and time.monotonic() >= deadline and self._pick() is None:
            raise RuntimeError(f"DataLoader timed out after {self._plan.timeout} seconds")

    def _pick(self) -> int | None:
        """The batch to deliver now, if it is ready. Batches of ended streams are dropped on the way."""
        feed = self._feed
        assert feed is not None
        while self._out:
            if self._plan.worker.order is Order.IN_ORDER:
                batch = self._board.first_ready(self._out[:1])
            else:
                batch = self._board.first_ready([b for b in self._out if not feed.comes_last(b)] or self._out)
            if batch is None or self._board.state(batch) is not State.ENDED:
                return batch
            self._out.remove(batch)
            feed.ledger.deliver_batch(batch)
            feed.ended(batch)
            self._slots.put_back(self._board.slot(batch))
            self._top_up()
        return None

    def _deliver(self, batch: int) -> Any:
        feed = self._feed
        assert feed is not None
        if self._plan.worker.order is Order.SAMPLES_OVERTAKE:
            feed.ledger.deliver(self._delivery.owners(batch))
        else:
            feed.ledger.deliver_batch(batch)
        if isinstance(feed, StreamFeed):
            feed.delivered(batch)
        error = self._delivery.error(batch)
        if error is not None:
            self._slots.put_back(self._board.slot(batch))
            raise error
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += self._board.filled(batch)
        self._window.observe(self._board.nbytes(batch))
        return self._delivery.take(batch)

    # ---- state and end --------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """The state right now; totals are the loader's."""
        if self._closed:
            return LoaderStats()
        return LoaderStats(
            workers=len(self._pool.alive),
            batches_in_flight=len(self._out),
            batches_ready=self._board.count_ready(self._out),
            slots=self._slots.count,
            slots_lent=self._slots.lent,
            window=self._window.size,
            memory_budget=self._plan.memory_budget or 0,
        )

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of running workers, by worker number."""
        return {} if self._closed else self._pool.pids

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed("the loader was closed: make a new iterator with iter(loader), or a new loader")
        if self._broken is not None:
            raise self._broken
        if os.getpid() != self._pid:
            raise InternalError("this iterator belongs to another process; make a new one with iter(loader)")

    def close(self) -> None:
        """End the workers and give everything back. Idempotent; does nothing in a forked copy of the process."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        release(self)
        try:
            self._pool.stop()
        finally:
            self._board.control.close()
            self.arena.close()
