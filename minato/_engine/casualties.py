"""Workers that died: their work goes to others, a new worker takes their place, and what cannot be mended is raised.

A sample is suspected when a worker dies while making it. It is poison once it has killed `sample_retries + 1` workers,
and never after one death, which says little: the sample is fetched again, alone. A crash (a bad memory access, `abort`,
an exit) that happens again was the sample's doing; SIGKILL and SIGTERM mostly come from outside, from the out-of-memory
killer or an operator, and take three.
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
from .._queues.fields import Batch, Phase
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

CRASHES = 2  # deaths that make a sample poison at the least: one may have been chance
KILLS = 3  # the same, of signals that mostly come from outside
ALONE_AFTER = 2  # deaths among others in flight, after which a sample is fetched alone
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
        self._in_company: Counter[tuple[int, int]] = Counter()
        """Deaths by (batch, place) of tickets whose samples were being made, several at once."""
        self._totals = totals
        self._mender = mender
        self._restarts = 0

    def forget(self) -> None:
        """A new epoch begins."""
        self._suspects.clear()
        self._in_company.clear()

    def treat(self, dead: Sequence[int], feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Recover from the deaths of workers. Raises a worker's own error if its start failed, WorkerDied if its work
        cannot be done by another."""
        for worker in dead:
            phase = self._board.phase(worker * self._board.control.lanes)
            record, hand = self._suspect(worker)
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
            self._recover(feed, ahead, void, record, hand, verdict)
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
        record: int,
        hand: Hand,
        verdict: CapturedError | None,
    ) -> None:
        """Post again what workers that are gone had in hand, but for what is failed in the name of the one with that
        record."""
        alone = [ticket for ticket, deaths in self._in_company.items() if deaths >= ALONE_AFTER]
        epochs = [feed.open_epoch()] if ahead is None else [feed.open_epoch(), ahead.open_epoch()]
        withheld = None if verdict is None else Withheld(record, hand.batch, hand.current)
        recover(self._board, self._pool.holders, epochs, void, self._slots.out, withheld, alone)
        if verdict is not None and hand.current is not None:
            fail_ticket(self._board, record, hand.batch, hand.current, verdict, self._late_rows)
        elif verdict is not None and hand.collating is not None:
            fail_collation(self._board, record, hand.collating, hand.uncommitted, verdict)
            # tickets it had beside that batch
            recover(self._board, self._pool.holders, epochs, void, self._slots.out, None, alone)

    def succeed(
        self,
        record: int,
        hand: Hand,
        verdict: CapturedError | None,
        feed: Feed,
        ahead: Feed | None,
        void: Sequence[int],
    ) -> None:
        """Another takes the place of a worker, one of whose records is given, that was killed on purpose: its hand is
        known to be whole. `verdict` is handed in for what it was at."""
        self._recover(feed, ahead, void, record, hand, verdict)
        self._replace(record // self._board.control.lanes)

    def post_again(self, feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Offer what is in nobody's hand any more to the workers that are left."""
        epochs = [feed.open_epoch()] if ahead is None else [feed.open_epoch(), ahead.open_epoch()]
        recover(self._board, self._pool.holders, epochs, void, self._slots.out)
        self._pool.wake(self._board.wake_sleepers(self._board.control.records))

    def _replace(self, worker: int) -> None:
        self._totals.worker_restarts += 1
        self._pool.restart(worker)
        self._pool.wake(self._board.wake_sleepers(self._board.control.records))

    def _check_restarts(self, how: str) -> None:
        if self._restarts >= self._plan.max_worker_restarts:
            raise WorkerDied(f"{how}, after max_worker_restarts={self._restarts} restarts")

    def _suspect(self, process: int) -> tuple[int, Hand]:
        """What a dead worker was at: a record of its, and what it had in hand. Of several samples that it was making at
        once none can be blamed; one that was among them twice is fetched alone from then on, and blamed next time."""
        hands = self._board.hands(process)
        making = {record: hand for record, hand in hands.items() if hand.current is not None}
        if len(making) == 1:
            return next(iter(making.items()))
        for hand in making.values():
            assert hand.current is not None
            self._in_company[hand.batch, hand.current] += 1
        record, first = next(iter(hands.items()), (process * self._board.control.lanes, Hand(0, 0, 0, [])))
        if len(hands) <= 1:
            return record, first
        keys = [key for hand in hands.values() for key in hand.keys]
        return record, Hand(first.batch, first.first, len(keys), keys)

    # ---- poison samples ---------------------------------------------------------------------------------------------

    def _judge(self, how: str, worker: int, hand: Hand, burial: Burial, epochs: Sequence[int]) -> CapturedError | None:
        """The error to hand in for the sample the worker died of, if it is to be left out. Raises WorkerDied if it is
        poison, and not to be left out."""
        if hand.current is None:
            return None
        epoch = self._board.field(hand.batch, Batch.EPOCH)
        self._suspects[hand.batch, hand.current] += 1
        deaths = self._suspects[hand.batch, hand.current]
        enough = max(self._plan.sample_retries + 1, KILLS if burial.code in _FROM_OUTSIDE else CRASHES)
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
