"""Wait for the batch to deliver next, and see meanwhile to what becomes of workers and samples.

Whoever waits may be interrupted at any time; what is changed in between is changed uninterrupted.
"""

from __future__ import annotations

import time

from .._errors import WorkerDied
from .._plan import Order
from .._queues.fields import State
from .hangs import Hangs, Patience
from .interrupts import Uninterrupted
from .lifetime import closed_error
from .mending import Mender
from .parts import Parts


class Waiting:
    """The patience of one engine. Called by the thread that has the engine's lock."""

    def __init__(self, parts: Parts, uninterrupted: Uninterrupted) -> None:
        self._timeout_s = parts.plan.timeout
        self._in_order = parts.plan.worker.order is Order.IN_ORDER
        self._board = parts.board
        self._pool = parts.pool
        self._away = parts.away
        self._delivery = parts.delivery
        self._totals = parts.totals
        self._times = parts.times
        self._scaler = parts.scaler
        self._mender = parts.mender
        self._casualties = parts.casualties
        self._hangs = parts.hangs
        self._epochs = parts.epochs
        self._uninterrupted = uninterrupted
        self.is_closing = False
        """Whether the engine is to end, and whoever waits for a batch is to be told so."""
        self.waited_s = 0.0
        """For the batch that was found last."""
        self.broken = ""
        """What ended the workers, if their work could not be given to others."""

    def pick(self) -> int | None:
        """The batch to deliver now, if it is ready. Batches of ended streams are dropped on the way."""
        feed = self._epochs.current
        while feed.out:
            batch = self._board.first_ready(feed.out[:1] if self._in_order else feed.deliverable())
            if batch is None or self._board.state(batch) != State.ENDED:
                return batch
            with self._uninterrupted:
                self._epochs.drop_ended(batch, self._delivery.stream_state(self._board.fields(batch)))
        return None

    def tend(self, waiting_since: float | None = None) -> None:
        """Read what samples cost, and adapt the number of workers if it is time."""
        epochs = self._epochs
        self._times.look(epochs.current.out)
        if self._away.look():
            self._casualties.post_again(epochs.current, epochs.ahead, epochs.void)
        if self._scaler is not None:
            waiting_s = 0.0 if waiting_since is None else time.monotonic() - waiting_since
            self._scaler.look(self._board.count_ready(epochs.current.out), waiting_s)

    @property
    def is_time_to_tend(self) -> bool:
        """Whether workers are to be counted, or other machines to be looked after, before a prepared batch is taken."""
        due = self._away.due
        if self._scaler is not None:
            due = self._scaler.due if due is None else min(due, self._scaler.due)
        return due is not None and due <= time.monotonic()

    def await_batch(self) -> int | None:
        """The number of the batch to deliver now; None at the end of the epoch."""
        patience, epochs = Patience(self._timeout_s), self._epochs
        waiting_since: float | None = None
        while True:
            if self._mender is not None:
                self._mend(self._mender)
            batch = self.pick()
            if batch is not None and self._mender is not None and self._mender.wants(batch):
                continue  # it became ready in between
            if batch is not None:
                if waiting_since is not None:
                    self.waited_s = time.monotonic() - waiting_since
                    self._totals.count_wait(self.waited_s)
                return batch
            feed = epochs.current
            if not feed.out:
                if feed.exhausted:
                    return None
                with self._uninterrupted:  # nothing could be posted for want of room; something was put down since
                    epochs.top_up()
                if feed.out or feed.exhausted:
                    continue
            waiting_since = waiting_since or epochs.begin_to_wait()
            self._wait(patience)
            if self._times.is_due or self._scaler is not None or self._away.is_there:
                with self._uninterrupted:
                    self.tend(waiting_since)
                    if self._scaler is not None or self._away.due is not None:
                        epochs.top_up()  # the window follows the number of workers

    def _mend(self, mender: Mender) -> None:
        """Have failed samples fetched again, or left out, where the policy says so."""
        feed = self._epochs.current
        mender.examine(feed)
        if mender.has_cases:
            with self._uninterrupted:
                mender.apply(feed)
                self._epochs.top_up()
                self._pool.wake(self._board.wake_sleepers(self._board.control.records))

    def _wait(self, patience: Patience) -> None:
        """Until something has happened: a batch may be ready, a worker have died, the time be up."""
        epochs = self._epochs
        due = None if self._mender is None else self._mender.due
        look = None if self._scaler is None else self._scaler.due
        moments = (patience.deadline, due, look, self._away.due)
        until = min((moment for moment in moments if moment is not None), default=None)
        try:
            dead = self._pool.wait(None if until is None else until - time.monotonic())
            self._pool.check_started()
            if dead:
                with self._uninterrupted:
                    self._casualties.treat(dead, epochs.current, epochs.ahead, epochs.void)
        except WorkerDied as error:
            self.broken = str(error)  # not the error itself: its traceback would keep the engine alive
            raise
        if self.is_closing:
            raise closed_error("the loader was closed while this iterator waited for a batch")
        if not dead and self._hangs is not None and patience.is_over and self.pick() is None:
            self._relieve(self._hangs, patience)

    def _relieve(self, hangs: Hangs, patience: Patience) -> None:
        """The batch has not come within `timeout`."""
        epochs = self._epochs
        if self._away.recall(f"no batch came within timeout={self._timeout_s} s"):
            self._casualties.post_again(epochs.current, epochs.ahead, epochs.void)
            patience.renew()
            return
        if patience.extend(hangs.next_moment()):
            return
        with self._uninterrupted:
            hangs.relieve(epochs.current, epochs.ahead, epochs.void)
        patience.renew()
