"""A batch that does not come within `timeout`: stuck workers are found, their stacks told, and others take their place.

When the consumer has waited that long, a worker whose work began as long ago is stuck. It is killed, a new one started,
and what it had in hand goes to others; the sample it was stuck in is treated as `on_error` and `sample_retries` say:

    retry   it is fetched again by another worker
    skip    it fails in the worker's name, and its batch is mended
    raise   SampleTimeout; it is fetched again all the same, since torch's loader too lets one go on waiting for it, and
            may then take twice as long as before
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._errors import CapturedError, SampleError, SampleTimeout
from .._plan import LoaderPlan
from .._queues.fields import Batch, Phase
from .._queues.posting import PostingBoard
from .._records import Hand
from .._scheduler.error_policy import Verdict
from .._workers.pool import WorkerPool
from .._workers.stacks import innermost
from .casualties import Casualties
from .feeds import Feed, StreamFeed
from .mending import WHOLE, Mender

_BUSY = (Phase.FETCHING, Phase.COLLATING)


@dataclass(frozen=True, slots=True)
class _Stuck:
    """A worker that was stuck, and what in."""

    worker: int
    record: int
    """Which of the worker's: where it fetches many samples at once it has several."""
    pid: int
    hand: Hand
    stack: str


class Hangs:
    """Treats timeouts on behalf of one engine."""

    def __init__(
        self, board: PostingBoard, pool: WorkerPool, plan: LoaderPlan, casualties: Casualties, mender: Mender
    ) -> None:
        self._board = board
        self._pool = pool
        self._timeout = plan.timeout
        self._casualties = casualties
        self._mender = mender
        self._lanes = board.control.lanes
        self._raised: Counter[tuple[int, int]] = Counter()
        """How often a ticket (or a collation: WHOLE) was raised; each time doubles what it may take."""

    def forget(self) -> None:
        """A new epoch begins."""
        self._raised.clear()

    def next_moment(self) -> float | None:
        """When the work that is under way longest will have taken too long, on the monotonic clock."""
        moments = [self._limit(record) for record in self._busy()]
        return min(moments, default=None)

    def relieve(self, feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Free the workers that are stuck. Raises SampleTimeout if the policy says so, or if there is nothing to be
        done; RuntimeError, as torch does, if nobody is stuck."""
        now = time.monotonic()
        stuck = [record for record in self._busy() if self._limit(record) <= now]
        if isinstance(feed, StreamFeed):
            self._raise_without_cure(stuck, "its stream")
        if not stuck:
            firsts = [worker * self._lanes for worker in self._pool.alive]
            starting = [record for record in firsts if self._board.phase(record) == Phase.STARTING]
            self._raise_without_cure([w for w in starting if self._since(w) + self._timeout <= now], "its start")
        stopped: set[int] = set()
        # Of a process's stuck lanes the one that is stuck longest is treated; the others' samples are fetched again.
        for record in sorted(stuck, key=self._since):
            if record // self._lanes in stopped:
                continue
            found = self._stop(record)
            if found is not None:
                stopped.add(found.worker)
                self._treat(found, feed, ahead, void)

    def _busy(self) -> list[int]:
        """Records of workers that are at something."""
        lanes = self._board.control.lanes_of
        records = (record for worker in self._pool.alive for record in lanes(worker))
        return [record for record in records if self._board.phase(record) in _BUSY]

    def _raise_without_cure(self, records: Sequence[int], what: str) -> None:
        for record in records:
            worker, stack = record // self._lanes, self._stack(record)
            raise self._error(f"worker {worker} is busy with {what}, {innermost(stack)}", stack)
        raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def _stack(self, record: int) -> str:
        """Of the thread that works for a record."""
        return self._pool.stack_of(record // self._lanes, self._board.thread_of(record))

    def _since(self, record: int) -> float:
        return self._board.since_ns(record) / 1e9

    def _limit(self, record: int) -> float:
        """When the work of a record has taken too long."""
        hand = self._board.hand(record)
        return self._since(record) + self._timeout * 2.0 ** min(self._raised[_ticket(hand)], 20)

    def _stop(self, record: int) -> _Stuck | None:
        """Kill a stuck worker; None if it turns out to have moved on, or will not die."""
        worker, since = record // self._lanes, self._board.since_ns(record)
        stack = self._stack(record)
        with self._board.control.lock:  # so that it is not killed while it writes to the control block
            if self._board.since_ns(record) != since:
                return None
            self._pool.kill(worker)
        if not self._pool.is_dead(worker):
            raise self._error(f"worker {worker} is stuck and cannot be killed, {innermost(stack)}", stack)
        hand = self._board.hand(record)
        return _Stuck(worker, record, self._pool.bury(worker).pid, hand, stack)

    def _treat(self, stuck: _Stuck, feed: Feed, ahead: Feed | None, void: Sequence[int]) -> None:
        """Give the work of a worker that was killed to others, but for what the policy says to leave out."""
        hand = stuck.hand
        feeds = [feed] if ahead is None else [feed, ahead]
        epoch = self._board.field(_ticket(hand)[0], Batch.EPOCH)
        live = next((one for one in feeds if one.epoch == epoch), None)
        known = hand.collating is not None or hand.current is not None
        to_raise: BaseException | None = None
        verdict: CapturedError | None = None
        if live is not None and known:
            captured = self._captured(stuck)
            failure = self._told(captured, stuck, live)
            answer = self._ask(failure)
            if isinstance(answer, Exception):
                to_raise = answer
            elif answer is Verdict.RAISE:
                self._raised[_ticket(hand)] += 1
                to_raise = captured.rebuild()
            else:
                self._mender.settle(*_ticket(hand), answer, failure)
                verdict = captured if answer is Verdict.SKIP else None
        elif live is not None and hand.count <= 1:
            to_raise = self._error(f"worker {stuck.worker} was stuck, {innermost(stuck.stack)}", stuck.stack)
        self._casualties.succeed(stuck.record, hand, verdict, feed, ahead, void)
        if to_raise is not None:
            raise to_raise

    def _ask(self, failure: SampleError) -> Verdict | Exception:
        try:
            return self._mender.policy.decide(failure)
        except Exception as error:
            return error

    def _told(self, captured: CapturedError, stuck: _Stuck, feed: Feed) -> SampleError:
        hand = stuck.hand
        batch, place = _ticket(hand)
        index: object = hand.key
        if place == WHOLE:
            index = hand.keys[: len(hand.uncommitted)] or self._mender.keys_of(feed, batch)
        position = self._board.field(batch, Batch.POSITION) + max(0, place)
        tries = self._mender.count_try(batch, place)
        return SampleError(
            index, position, feed.epoch, stuck.worker, "timeout", tries, captured.rebuild(), captured.traceback
        )

    def _captured(self, stuck: _Stuck) -> CapturedError:
        hand = stuck.hand
        if hand.collating is not None:
            what, where = "a batch was being collated", "collating"
        else:
            what, where = f"sample index {hand.key!r} was being fetched", f"fetching sample index {hand.key!r}"
        text = f"{what} by worker {stuck.worker} (pid {stuck.pid}), {innermost(stuck.stack)}"
        error = self._error(text, stuck.stack)
        captured = CapturedError.capture(
            error, f"in DataLoader worker process {stuck.worker}, {where}", stuck.worker, "timeout"
        )
        return replace(captured, traceback=stuck.stack or captured.traceback)

    def _error(self, text: str, stack: str) -> SampleTimeout:
        error = SampleTimeout(f"DataLoader timed out after {self._timeout} seconds: {text}")
        if stack:
            error.add_note(f"The worker's stack:\n{stack}")
        return error


def _ticket(hand: Hand) -> tuple[int, int]:
    """What a worker is at: a ticket, or the collation of a batch."""
    if hand.collating is not None:
        return hand.collating, WHOLE
    return hand.batch, hand.first if hand.current is None else hand.current


class Patience:
    """How long the consumer waits for a batch."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.deadline: float | None = None
        self._latest = 0.0
        self.renew()

    def renew(self) -> None:
        """Something was done about what kept the batch: the time begins anew."""
        if self._timeout:
            self.deadline = time.monotonic() + self._timeout
            self._latest = self.deadline + self._timeout

    def extend(self, moment: float | None) -> bool:
        """Wait a little longer, until it can be said who is stuck: a sample that began after the waiting did."""
        if moment is None or self.deadline is None or not time.monotonic() < moment <= self._latest:
            return False
        self.deadline = moment
        return True

    @property
    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline
