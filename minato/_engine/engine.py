"""The loop of the main process: await a ready batch, deliver it, post the next ones. See the package's docstring."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from typing import Any

from .._errors import InternalError, WorkerDied
from .._plan import Order, Source
from .._queues.board import Fields, samples_in
from .._queues.fields import Batch
from .._records import LoaderStats
from .ahead import Forecast
from .beforehand import Beforehand
from .delivery import Delivered, hand_out
from .feeds import Epoch, StreamFeed
from .interrupts import Uninterrupted
from .lifetime import closed_error, keep_until_exit, release
from .observing import queue_lengths
from .parts import Parts
from .progress import Handover, Track
from .twins import Twins
from .waiting import Waiting


class Engine:
    """A pool of workers and the batches between them and the user. Used by one thread at a time."""

    def __init__(self, parts: Parts) -> None:
        """Whatever may fail has been done by `assemble`."""
        self._parts = parts
        self._plan = plan = parts.plan
        self._pid = os.getpid()
        self._closed = False
        self._in_use = threading.RLock()  # held by the thread that awaits or delivers; `close` may come from another
        self._uninterrupted = Uninterrupted()
        self._totals = parts.totals
        self._board = parts.board
        self._slots = parts.slots
        self._pool = parts.pool
        self._away = parts.away
        self._delivery = parts.delivery
        self._epochs = parts.epochs
        self._mender = parts.mender
        self._waiting = self._make_waiting(parts)
        self._beforehand = Beforehand(self._prepare, self._in_use)
        # Where failures may have to be seen to, every batch is taken by the consumer.
        self._prepares = parts.mender is None
        # The system takes long to take down processes with much memory: that can be done while the user has the last
        # batch. Not where somebody may yet start workers, or watches the processes that have work of this pool.
        self._ends_with_epoch = not (plan.persistent or parts.scaler is not None or parts.away.is_there)
        self._twins = Twins(plan.worker.num_workers if plan.worker.source is Source.ITERABLE else 0)
        keep_until_exit(self)

    def _make_waiting(self, parts: Parts) -> Waiting:
        return Waiting(parts, self._uninterrupted)

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def start(self, sampler: Epoch, forecast: Forecast | None, seed: int | None) -> None:
        """Start the workers and post the first epoch's first batches. `forecast`: of the epochs to come, if the workers
        are to live on. `seed`: of the epoch, if it is not to be derived from the base seed."""
        self._epochs.forecast = forecast
        try:
            with self._in_use, self._uninterrupted:
                self._epochs.begin(sampler, seed)
                self._pool.start(self._parts.memory.arena, self._post_for_first_worker)
                self._epochs.top_up()
        except BaseException:
            self.close()
            raise

    def _post_for_first_worker(self) -> None:
        """A worker that comes up finds something to do while others are still being forked. Code of the user's is not
        run before all are, as with torch: they might inherit what it did."""
        if self._epochs.current.may_be_posted_aside:
            self._epochs.top_up()

    def start_epoch(self, sampler: Iterable[Any], seed: int | None) -> None:
        """Begin another epoch with the same workers; what was left of the one before is abandoned."""
        with self._in_use, self._uninterrupted:
            self._check_open()
            self._beforehand.drop()
            self._start_epoch(sampler, seed)

    def _start_epoch(self, sampler: Iterable[Any], seed: int | None) -> None:
        if self._epochs.begin_next(sampler, seed, self._send_dataset_changes()):
            self._totals.epochs_started_ahead += 1
        else:
            self._parts.casualties.forget()
            if self._parts.hangs is not None:
                self._parts.hangs.forget()
        if self._mender is not None:
            self._mender.forget(before=min(self._epochs.current.out, default=self._board.next_number))

    def _send_dataset_changes(self) -> bool:
        """Tell persistent workers what changed on the dataset; True if nothing did."""
        watch = self._parts.watch
        if watch is None or (changes := watch.changes()) is None:
            return True
        self._board.send_update(changes)
        return False

    def track(self) -> Track:
        """The epoch that has begun, to be watched."""
        epochs = self._epochs
        base_seed = self._parts.base_seed
        return Track(epochs.current, base_seed, epochs.number, lock=self._in_use, following=epochs.following)

    # ---- batches --------------------------------------------------------------------------------------------------

    def next_batch(self) -> Any:
        """The next batch, or StopIteration, or the error that the batch carries."""
        self._totals.count_step(self._beforehand.asked())
        if self._epochs.is_behind or self._waiting.is_time_to_tend:
            self._catch_up()
        return hand_out(self._take_prepared() or self._take_here(), self._totals)

    def _take_prepared(self) -> Delivered | BaseException | None:
        batch: Delivered | BaseException | None = self._beforehand.take()
        if isinstance(batch, Delivered):
            self._away.returned(batch.samples, 0.0)
        return batch

    def _take_here(self) -> Delivered | BaseException:
        """The next batch, or the error in its place, taken by the consumer itself."""
        if self.is_foreign:
            self._check_open()  # not under the lock: some thread may have held it when the process was forked
        with self._in_use:
            self._check_open()
            prepared = self._take_prepared()  # it has become ready meanwhile
            if prepared is not None:
                return prepared
            self._away.asked()
            # Before a batch is taken: an error of a policy, or in a warning, loses none. Who waits tends meanwhile.
            if self._waiting.pick() is not None or self._mender is not None or self._twins.found:
                with self._uninterrupted:
                    self._waiting.tend()
                    self._twins.tell()
                    batch = self._at_hand()
                    if batch is not None:
                        self._beforehand.was_here()
                        return self._hand_over(batch)
            batch = self._await_batch()
            if batch is None:
                self._end_epoch()
                raise StopIteration
            with self._uninterrupted:
                return self._hand_over(batch)

    def batch_arrived(self) -> None:
        """The user has got the batch: the next one may be made ready while he works with it."""
        if self._prepares:
            self._beforehand.arrived()

    def was_interrupted(self, handover: Handover) -> None:
        """The user asked for a batch, and did not wait for it."""
        with self._in_use:
            handover.interrupted(still_here=len(self._beforehand))

    def _prepare(self) -> Delivered | BaseException | None:
        """The next batch, made ready in another thread while the user works with the last one; None: there is none.
        What calls the user's code, draws random numbers or starts processes is left to the consumer."""
        try:
            if self._waiting.is_closing or self._twins.found:
                return None
            self._parts.times.look(self._epochs.current.out)
            batch = self._waiting.pick()
            return None if batch is None else self._hand_over(batch, aside=True)
        except BaseException as error:  # for whoever asks for this batch
            return error

    def _catch_up(self) -> None:
        """Do what could not be done aside, before a batch is taken: an error loses none."""
        if self.is_foreign:
            return
        with self._in_use:
            self._check_open()
            with self._uninterrupted:
                self._waiting.tend()
                self._epochs.catch_up()

    def has_batch(self) -> bool:
        """Whether `next_batch` would return, or raise, without waiting. A batch with failures that the policy has yet
        to be asked about may have to wait for another try."""
        with self._in_use:
            self._check_open()
            batch = self._waiting.pick()
            return batch is not None and (self._mender is None or not self._mender.wants(batch))

    def _at_hand(self) -> int | None:
        """The batch to deliver now, if nobody has to wait for it, nor to see to failures first."""
        return self._waiting.pick() if self._mender is None else None

    def _await_batch(self) -> int | None:
        """The number of the batch to deliver now; None at the end of the epoch."""
        try:
            return self._waiting.await_batch()
        except WorkerDied:
            if self.broken:
                self.close()
            raise

    def _end_epoch(self) -> None:
        """There are no more batches, and the user is about to be told."""
        self._parts.times.look_at_once(self._epochs.current.out)
        self._parts.profile.save()
        self._twins.end()
        self._twins.tell()

    def _hand_over(self, batch: int, aside: bool = False) -> Delivered:
        """Deliver a batch, and post others in its place."""
        fields, waited_s, self._waiting.waited_s = self._board.fields(batch), self._waiting.waited_s, 0.0
        self._epochs.current.out.remove(batch)
        try:
            return self._deliver(batch, fields)
        finally:
            self._epochs.top_up_in_time(aside)
            if self._epochs.is_over and self._ends_with_epoch:
                self._pool.let_go()
            if not aside:  # what is made ready aside is returned later
                self._away.returned(samples_in(fields), waited_s)

    def _deliver(self, batch: int, fields: Fields) -> Delivered:
        feed = self._epochs.current
        if type(feed) is StreamFeed:  # `isinstance` takes a call of Python's, since feeds are abstract
            if not self._twins.is_over:
                self._twins.look(feed.worker_of(batch), *self._delivery.payload(fields))
            feed.delivered(batch, self._delivery.stream_state(fields))
            feed.ledger.deliver_batch(batch)
        elif self._plan.worker.order is Order.SAMPLES_OVERTAKE:
            tickets = self._delivery.owners(fields)
            self._totals.largest_deferral = feed.deferral(tickets, self._totals.largest_deferral)
            feed.handover.add((batch, tickets))
            feed.ledger.deliver(tickets)
        else:
            feed.handover.add((batch, feed.ledger.tickets_of(batch)))
            feed.ledger.deliver_batch(batch)
        condemned = None if self._mender is None else self._mender.sentence(batch)
        error = self._delivery.error(fields) if condemned is None else condemned.rebuild()
        if error is not None:
            self._slots.put_back(self._board.take_slot(batch))
            raise error
        self._parts.window.observe(fields[Batch.HEAP_TOP], samples_in(fields))
        return self._delivery.take(fields)

    # ---- state and end --------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """The state right now; totals are the loader's."""
        try:
            return LoaderStats() if self._closed else self._stats_now()
        except IndexError:
            if self._closed:  # meanwhile: in another thread, or by the collector, in this one
                return LoaderStats()
            raise

    def _stats_now(self) -> LoaderStats:
        prepared = len(self._beforehand)
        return LoaderStats(
            workers=len(self._pool.alive),
            batches_in_flight=self._epochs.in_flight + prepared,
            slots=self._slots.count,
            slots_lent=self._slots.lent,
            window=self._parts.window.size,
            memory_budget=self._plan.memory_budget or 0,
            **queue_lengths(self._board, self._epochs.current.out, prepared),
        )

    @property
    def broken(self) -> bool:
        """Whether workers died and their work could not be given to others."""
        return bool(self._waiting.broken)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked process's copy of its parent's engine."""
        return os.getpid() != self._pid

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of running workers, by worker number."""
        return {} if self._closed else self._pool.pids

    @property
    def worker_processes(self) -> list[BaseProcess]:
        """Running workers, in order of their numbers."""
        return [] if self._closed else self._pool.processes

    def _check_open(self) -> None:
        if self.broken:
            raise WorkerDied(self._waiting.broken)
        if self._closed:
            raise closed_error("the loader was closed: make a new iterator with iter(loader), or a new loader")
        if self.is_foreign:
            raise InternalError("this iterator belongs to another process; make a new one with iter(loader)")

    def close(self) -> None:
        """End the workers and give everything back. Idempotent; does nothing in a forked copy of the process."""
        if self._closed or self.is_foreign:
            return
        # Half of it would leave workers that write to memory which the next engine gets. Not the engine's own, which is
        # for whoever holds its lock.
        with Uninterrupted():
            self._waiting.is_closing = True
            self._pool.interrupt()
            if not self._pool.puts_off(self._end):
                self._end()

    def _end(self) -> None:
        if self._beforehand.end(self._finish):
            self._finish()

    def _finish(self) -> None:
        with self._in_use:
            self._beforehand.drop()
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        release(self)
        with contextlib.ExitStack() as steps:  # from the last to the first, each whatever becomes of the others
            steps.callback(self._parts.keeper.give_back, self._parts.memory)
            steps.callback(self._board.control.close)
            steps.callback(self._pool.stop)
            self._away.close()
