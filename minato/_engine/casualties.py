"""Workers that died: their work goes to others, a new worker takes their place, and what cannot be mended is raised.

A sample is suspected when a worker dies while making it. One death says little: the sample is fetched again, alone. A
crash (a bad memory access, `abort`, an exit) that happens again was the sample's doing; SIGKILL and SIGTERM mostly come
from outside, from the out-of-memory killer or an operator, and get one try more.
"""

from __future__ import annotations

import signal
import warnings
from collections import Counter
from collections.abc import Sequence

from .._errors import CapturedError, SampleError, WorkerDied
from .._plan import LoaderPlan, Order
from .._queues import messages
from .._queues.arena import Stretch
from .._queues.control import Batch, Phase
from .._queues.leases import Slots
from .._queues.posting import PostingBoard
from .._queues.recovery import Withheld, recover
from .._records import Hand
from .._scheduler.error_policy import Verdict
from .._workers.pool import Burial, WorkerPool
from .feeds import Feed, StreamFeed
from .mending import Mender
from .totals import Totals
from .verdicts import fail_collation, fail_ticket

CRASHES = 2  # deaths that make a sample poison, besides `sample_retries`
KILLS = 3  # the same, of signals that mostly come from outside
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)


class Casualties:
    """Treats deaths on behalf of one engine."""

    def __init__(
        self,
        board: PostingBoard,
        pool: WorkerPool,
        slots: Slots,
        plan: LoaderPlan,
        totals: Totals,
        mender: Mender | None,
    ) -> None:
        self._board = board
        self._pool = pool
        self._slots = slots
        self._plan = plan
        self._late_rows = plan.worker.order is Order.SAMPLES_OVERTAKE
        self._suspects: Counter[tuple[int, int]] = Counter()
        """Deaths by (batch, place) of the ticket whose sample was being made."""
        self._totals = totals
        self._mender = mender
        self._restarts = 0

    def forget(self) -> None:
        """A new epoch begins."""
        self._suspects.clear()

    def treat(self, dead: Sequence[int], feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Recover from the deaths of workers. Raises a worker's own error if its start failed, WorkerDied if its work
        cannot be done by another."""
        for worker in dead:
            phase = self._board.phase(worker)
            hand = self._board.hand(worker)
            burial = self._pool.bury(worker)
            how = f"DataLoader worker (pid {burial.pid}) {_manner(burial.code)}{_doing(hand)}{_memory(burial)}"
            stream = isinstance(feed, StreamFeed)
            verdict = None
            if not stream and phase != Phase.FAILED:
                # Before its samples are offered to others, who might die of them too.
                verdict = self._judge(
                    how, worker, hand, burial, [feed.epoch] if ahead is None else [feed.epoch, ahead.epoch]
                )
                self._check_restarts(how)
            self._recover(feed, ahead, void, worker, hand, verdict)
            if phase == Phase.FAILED:
                captured: CapturedError = messages.get(self._board.arena, Stretch.WORKER, worker)
                raise captured.rebuild()
            if isinstance(feed, StreamFeed):
                if feed.unfinished(worker):
                    raise WorkerDied(f"{how}: worker {worker}'s stream cannot be replayed by another")
                if not self._plan.persistent:
                    continue  # it had nothing left to do
                self._check_restarts(how)
            self._restarts += 1
            self._replace(worker)
            warnings.warn(f"{how}; its samples go to other workers", RuntimeWarning, stacklevel=5)

    def _recover(
        self,
        feed: Feed,
        ahead: Feed | None,
        void: Sequence[int],
        worker: int,
        hand: Hand,
        verdict: CapturedError | None,
    ) -> None:
        """Post again what the worker had in hand, but for what is failed in its name."""
        epochs = [feed.open_epoch()] if ahead is None else [feed.open_epoch(), ahead.open_epoch()]
        withheld = None if verdict is None else Withheld(worker, hand.batch, hand.current)
        recover(self._board, self._pool.holders, epochs, void, self._slots.out, withheld)
        if verdict is not None and hand.current is not None:
            fail_ticket(self._board, worker, hand.batch, hand.current, verdict, self._late_rows)
        elif verdict is not None and hand.collating is not None:
            fail_collation(self._board, worker, hand.collating, hand.uncommitted, verdict)
            recover(self._board, self._pool.holders, epochs, void, self._slots.out)  # tickets it had beside that batch

    def succeed(
        self,
        worker: int,
        hand: Hand,
        verdict: CapturedError | None,
        feed: Feed,
        ahead: Feed | None,
        void: Sequence[int],
    ) -> None:
        """Another takes the place of a worker that was killed on purpose, whose hand is known to be whole. `verdict` is
        handed in for what it was at."""
        self._recover(feed, ahead, void, worker, hand, verdict)
        self._replace(worker)

    def post_again(self, feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Offer what is in nobody's hand any more to the workers that are left."""
        epochs = [feed.open_epoch()] if ahead is None else [feed.open_epoch(), ahead.open_epoch()]
        recover(self._board, self._pool.holders, epochs, void, self._slots.out)
        self._pool.wake(self._board.wake_sleepers(self._board.control.workers))

    def _replace(self, worker: int) -> None:
        self._totals.worker_restarts += 1
        self._pool.restart(worker)
        self._pool.wake(self._board.wake_sleepers(self._board.control.workers))

    def _check_restarts(self, how: str) -> None:
        if self._restarts >= self._plan.max_worker_restarts:
            raise WorkerDied(f"{how}, after max_worker_restarts={self._restarts} restarts")

    # ---- poison samples ---------------------------------------------------------------------------------------------

    def _judge(self, how: str, worker: int, hand: Hand, burial: Burial, epochs: Sequence[int]) -> CapturedError | None:
        """The error to hand in for the sample the worker died of, if it is to be left out. Raises WorkerDied if it is
        poison, and not to be left out."""
        if hand.current is None:
            return None
        epoch = self._board.field(hand.batch, Batch.EPOCH)
        self._suspects[hand.batch, hand.current] += 1
        deaths = self._suspects[hand.batch, hand.current]
        enough = self._plan.sample_retries + (KILLS if burial.code in _FROM_OUTSIDE else CRASHES)
        if deaths < enough or epoch not in epochs:
            return None
        error = WorkerDied(f"{how}, as did the workers that tried this sample before")
        if self._mender is None or self._mender.policy.always_raises:
            raise error
        position = self._board.field(hand.batch, Batch.POSITION) + hand.current
        failure = SampleError(hand.key, position, epoch, worker, "death", deaths, error, "")
        try:
            verdict = self._mender.policy.final(failure)
        except Exception as mistake:
            raise error from mistake
        if verdict is Verdict.RAISE:
            raise error
        if verdict is Verdict.RETRY:
            return None
        del self._suspects[hand.batch, hand.current]  # another sample will take its place
        self._mender.settle(hand.batch, hand.current, verdict, failure)
        return CapturedError.capture(error, f"while fetching sample index {hand.key!r}", worker, "death")


def _manner(code: int | None) -> str:
    if code is not None and code < 0:
        return f"is killed by signal: {signal.strsignal(-code)}"
    return f"exited unexpectedly with exit code {code}"


def _doing(hand: Hand) -> str:
    if hand.count == 0:
        return ""
    if hand.current is not None:
        return f" while fetching sample index {hand.key!r}"
    keys = ", ".join(repr(key) for key in hand.keys[:3])
    return f" with sample index {keys}" + (f" and {hand.count - 3} more" if hand.count > 3 else "") + " in hand"


def _memory(burial: Burial) -> str:
    return "" if burial.peak_bytes is None else f" (its memory reached {burial.peak_bytes / 2**20:.0f} MiB)"
