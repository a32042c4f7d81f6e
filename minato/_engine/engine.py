"""The loop of the main process: await a ready batch, deliver it, post the next ones. See the package's docstring."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from .._errors import InternalError, WorkerDied
from .._plan import LoaderPlan, Order, Source
from .._protocols import RemoteSide
from .._queues.board import Fields, samples_in
from .._queues.control import Batch, ControlBlock, State
from .._queues.posting import PostingBoard
from .._records import LoaderStats
from .._scheduler.window import Window
from .._workers.pool import WorkerPool
from .._workers.program import Program
from .._workers.sync import DatasetWatch
from .ahead import Forecast
from .away import make_away
from .beforehand import Beforehand
from .casualties import Casualties
from .delivery import Delivered, Delivery, hand_out
from .epochs import Epochs
from .feeds import Epoch, Feed, StreamFeed
from .foresight import make_foresight
from .hangs import Hangs, Patience
from .interrupts import Uninterrupted
from .lifetime import closed_error, keep_until_exit, release
from .memory import MemoryKeeper
from .mending import Mender
from .observing import KeptProfile, SampleTimes, queue_lengths
from .pace import Pace
from .progress import Handover, Track
from .scaling import make_scaler
from .totals import Totals
from .twins import Twins


class Engine:
    """A pool of workers and the batches between them and the user. Used by one thread at a time."""

    def __init__(
        self,
        plan: LoaderPlan,
        program: Program,
        context: BaseContext,
        base_seed: int,
        totals: Totals,
        profile: KeptProfile,
        keeper: MemoryKeeper,
        first_epoch: int = 0,
        remote: RemoteSide | None = None,
    ) -> None:
        """`first_epoch`: the number of the epoch to begin with, of those of the base seed. `remote`: other machines."""
        self._plan = plan
        self._base_seed = base_seed
        self._pid = os.getpid()
        self._closed = False
        self._closing = False
        self._in_use = threading.RLock()  # held by the thread that awaits or delivers; `close` may come from another
        self._uninterrupted = Uninterrupted()
        self._broken = ""
        """What ended the workers, if their work could not be given to others."""
        self._keeper = keeper
        self._memory = keeper.take()
        self._slots = self._memory.slots
        self._in_order = plan.worker.order is Order.IN_ORDER
        # Batches from the oldest with an undelivered sample to the newest: bounds how far a sample falls behind.
        span = 1 + (plan.most_window if self._in_order else plan.max_deferral)
        # Twice the window beside the span: abandoned batches may still be in hand.
        records = max(span, plan.most_window) + 2 * plan.most_window
        control = ControlBlock.create(records, plan.most_workers, plan.worker.lanes, remote.lanes if remote else 0)
        self._board = PostingBoard(control, self._memory.arena)
        self._totals = totals
        self._delivery = Delivery(self._board, self._slots)
        self._waited_s = 0.0
        """For the batch that is being handed over."""
        self._window = Window(plan.window, plan.memory_budget or 0, plan.first_window, plan.depth)
        with contextlib.ExitStack() as undo:  # what is there already, if the rest cannot be had
            undo.callback(keeper.give_back, self._memory)
            undo.callback(control.close)
            self._pool = WorkerPool(self._board, plan.worker, program, context, base_seed)
            undo.callback(self._pool.stop)
            self._away = make_away(remote, plan, program, base_seed, self._board, self._pool, self._window)
            undo.pop_all()
        foresight = make_foresight(plan, program.dataset, self._board, profile.profile, self._window)
        self._times = SampleTimes(self._board, profile, totals, foresight)
        self._profile = profile
        self._pace = Pace(self._board, self._pool, self._window, plan.worker.source is Source.ITERABLE)
        self._scaler = make_scaler(plan, self._pool, self._board, self._window, totals, profile.recorder)
        self._mender = Mender(self._board, self._slots, plan, totals) if plan.worker.mends or plan.timeout > 0 else None
        self._casualties = Casualties(self._board, self._pool, self._slots, plan, totals, self._mender)
        self._hangs: Hangs | None = None
        if plan.timeout and self._mender is not None:
            self._hangs = Hangs(self._board, self._pool, plan, self._casualties, self._mender)
        pace, away = self._pace, self._away
        self._epochs = Epochs(
            plan, base_seed, self._board, self._slots, away, self._window, foresight, pace, span, first_epoch
        )
        self._beforehand = Beforehand(self._prepare, self._in_use)
        # Where failures may have to be seen to, every batch is taken by the consumer.
        self._prepares = self._mender is None
        self._twins = Twins(plan.worker.num_workers if plan.worker.source is Source.ITERABLE else 0)
        self._watch = DatasetWatch(program.dataset) if plan.persistent else None
        keep_until_exit(self)

    # ---- epochs ---------------------------------------------------------------------------------------------------

    def start(self, sampler: Epoch, forecast: Forecast | None, seed: int | None) -> None:
        """Start the workers and post the first epoch's first batches. `forecast`: of the epochs to come, if the workers
        are to live on. `seed`: of the epoch, if it is not to be derived from the base seed."""
        self._epochs.forecast = forecast
        try:
            with self._in_use, self._uninterrupted:
                self._pool.start(self._memory.arena)  # first, as torch does: workers come up while the sampler is asked
                self._epochs.begin(sampler, seed)
        except BaseException:
            self.close()
            raise

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
            self._casualties.forget()
            if self._hangs is not None:
                self._hangs.forget()
        if self._mender is not None:
            self._mender.forget(before=min(self._current.out, default=self._board.next_number))

    def _send_dataset_changes(self) -> bool:
        """Tell persistent workers what changed on the dataset; True if nothing did."""
        if self._watch is None or (changes := self._watch.changes()) is None:
            return True
        self._board.send_update(changes)
        return False

    def track(self) -> Track:
        """The epoch that has begun, to be watched."""
        epochs = self._epochs
        return Track(self._current, self._base_seed, epochs.number, lock=self._in_use, following=epochs.following)

    @property
    def _current(self) -> Feed:
        return self._epochs.current

    # ---- batches --------------------------------------------------------------------------------------------------

    def next_batch(self) -> Any:
        """The next batch, or StopIteration, or the error that the batch carries."""
        self._totals.count_step(self._beforehand.asked())
        if self._epochs.is_behind or self._is_time_to_tend:
            self._catch_up()
        return hand_out(self._take_prepared() or self._take_here(), self._totals)

    def _take_prepared(self) -> Delivered | BaseException | None:
        batch: Delivered | BaseException | None = self._beforehand.take()
        if isinstance(batch, Delivered):
            self._away.returned(batch.samples, 0.0)
        return batch

    @property
    def _is_time_to_tend(self) -> bool:
        """Whether workers are to be counted, or other machines to be looked after, before a prepared batch is taken."""
        due = self._away.due
        if self._scaler is not None:
            due = self._scaler.due if due is None else min(due, self._scaler.due)
        return due is not None and due <= time.monotonic()

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
            if self._pick() is not None or self._mender is not None or self._twins.found:
                with self._uninterrupted:
                    self._tend()
                    self._twins.tell()
                    batch = self._at_hand()
                    if batch is not None:
                        self._beforehand.was_here()
                        return self._hand_over(batch)
            batch = self._await_batch()
            if batch is None:
                self._times.look_at_once(self._current.out)
                self._profile.save()
                self._twins.end()
                self._twins.tell()
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
            if self._closing or self._twins.found:
                return None
            self._times.look(self._current.out)
            batch = self._pick()
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
                self._tend()
                self._epochs.catch_up()

    def has_batch(self) -> bool:
        """Whether `next_batch` would return, or raise, without waiting. A batch with failures that the policy has yet
        to be asked about may have to wait for another try."""
        with self._in_use:
            self._check_open()
            batch = self._pick()
            return batch is not None and (self._mender is None or not self._mender.wants(batch))

    def _tend(self, waiting_since: float | None = None) -> None:
        """Read what samples cost, and adapt the number of workers if it is time."""
        self._times.look(self._current.out)
        if self._away.look():
            self._casualties.post_again(self._current, self._epochs.ahead, self._epochs.void)
        if self._scaler is not None:
            waiting_s = 0.0 if waiting_since is None else time.monotonic() - waiting_since
            self._scaler.look(self._board.count_ready(self._current.out), waiting_s)

    def _at_hand(self) -> int | None:
        """The batch to deliver now, if nobody has to wait for it, nor to see to failures first."""
        return self._pick() if self._mender is None else None

    def _await_batch(self) -> int | None:
        """The number of the batch to deliver now; None at the end of the epoch."""
        patience = Patience(self._plan.timeout)
        waiting_since: float | None = None
        while True:
            if self._mender is not None:
                self._mend(self._mender)
            batch = self._pick()
            if batch is not None and self._mender is not None and self._mender.wants(batch):
                continue  # it became ready in between
            if batch is not None:
                if waiting_since is not None:
                    self._waited_s = time.monotonic() - waiting_since
                    self._totals.count_wait(self._waited_s)
                return batch
            if not self._current.out:
                if self._current.exhausted:
                    return None
                with self._uninterrupted:  # nothing could be posted for want of room; something was put down since
                    self._epochs.top_up()
                if self._current.out or self._current.exhausted:
                    continue
            waiting_since = waiting_since or self._epochs.begin_to_wait()
            self._wait(patience)
            if self._times.is_due or self._scaler is not None or self._away.is_there:
                with self._uninterrupted:
                    self._tend(waiting_since)
                    if self._scaler is not None or self._away.due is not None:
                        self._epochs.top_up()  # the window follows the number of workers

    def _mend(self, mender: Mender) -> None:
        """Have failed samples fetched again, or left out, where the policy says so."""
        mender.examine(self._current)
        if mender.has_cases:
            with self._uninterrupted:
                mender.apply(self._current)
                self._epochs.top_up()
                self._pool.wake(self._board.wake_sleepers(self._board.control.records))

    def _wait(self, patience: Patience) -> None:
        due = None if self._mender is None else self._mender.due
        look = None if self._scaler is None else self._scaler.due
        moments = (patience.deadline, due, look, self._away.due)
        until = min((moment for moment in moments if moment is not None), default=None)
        try:
            dead = self._pool.wait(None if until is None else until - time.monotonic())
            self._pool.check_started()
            if dead:
                with self._uninterrupted:
                    self._casualties.treat(dead, self._current, self._epochs.ahead, self._epochs.void)
        except WorkerDied as error:
            self._broken = str(error)  # not the error itself: its traceback would keep this engine alive
            self.close()
            raise
        if self._closing:
            raise closed_error("the loader was closed while this iterator waited for a batch")
        if not dead and self._hangs is not None and patience.is_over and self._pick() is None:
            self._relieve(self._hangs, patience)

    def _relieve(self, hangs: Hangs, patience: Patience) -> None:
        """The batch has not come within `timeout`."""
        if self._away.recall(f"no batch came within timeout={self._plan.timeout} s"):
            self._casualties.post_again(self._current, self._epochs.ahead, self._epochs.void)
            patience.renew()
            return
        if patience.extend(hangs.next_moment()):
            return
        with self._uninterrupted:
            hangs.relieve(self._current, self._epochs.ahead, self._epochs.void)
        patience.renew()

    def _pick(self) -> int | None:
        """The batch to deliver now, if it is ready. Batches of ended streams are dropped on the way."""
        feed = self._current
        while feed.out:
            batch = self._board.first_ready(feed.out[:1] if self._in_order else feed.deliverable())
            if batch is None or self._board.state(batch) != State.ENDED:
                return batch
            with self._uninterrupted:
                self._epochs.drop_ended(batch, self._delivery.stream_state(self._board.fields(batch)))
        return None

    def _hand_over(self, batch: int, aside: bool = False) -> Delivered:
        """Deliver a batch, and post others in its place."""
        fields, waited_s, self._waited_s = self._board.fields(batch), self._waited_s, 0.0
        self._current.out.remove(batch)
        try:
            return self._deliver(batch, fields)
        finally:
            self._epochs.top_up_in_time(aside)
            if not aside:  # what is made ready aside is returned later
                self._away.returned(samples_in(fields), waited_s)

    def _deliver(self, batch: int, fields: Fields) -> Delivered:
        feed = self._current
        if isinstance(feed, StreamFeed):
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
        self._window.observe(fields[Batch.HEAP_TOP], samples_in(fields))
        return self._delivery.take(fields)

    # ---- state and end --------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """The state right now; totals are the loader's."""
        if self._closed:
            return LoaderStats()
        prepared = len(self._beforehand)
        return LoaderStats(
            workers=len(self._pool.alive),
            batches_in_flight=self._epochs.in_flight + prepared,
            slots=self._slots.count,
            slots_lent=self._slots.lent,
            window=self._window.size,
            memory_budget=self._plan.memory_budget or 0,
            **queue_lengths(self._board, self._current.out, prepared),
        )

    @property
    def broken(self) -> bool:
        """Whether workers died and their work could not be given to others."""
        return bool(self._broken)

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
        if self._broken:
            raise WorkerDied(self._broken)
        if self._closed:
            raise closed_error("the loader was closed: make a new iterator with iter(loader), or a new loader")
        if self.is_foreign:
            raise InternalError("this iterator belongs to another process; make a new one with iter(loader)")

    def close(self) -> None:
        """End the workers and give everything back. Idempotent; does nothing in a forked copy of the process."""
        if self._closed or self.is_foreign:
            return
        self._closing = True
        self._pool.interrupt()
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
            steps.callback(self._keeper.give_back, self._memory)
            steps.callback(self._board.control.close)
            steps.callback(self._pool.stop)
            self._away.close()
