"""Batches with failed samples are mended: a sample is fetched again, replaced, left out, or its error is raised.

A failed sample is a row like any other until its batch is complete. Then the batch is the main process's own, and

    examine   makes a `SampleError` of each failure and asks the policy; the batch is set aside, or condemned to raise
    apply     once its backoff is over: rows are opened again (retry, or another key in the failed one's place), or a
              worker collates the rows that are good, or nothing is left and the batch vanishes

Every batch but the last stays full where the user gave a batch size: a sample that is left out is replaced by the next
one of the sampler. When the sampler has no more, the batch that would be delivered last is taken back: its samples fill
the holes of others, and what is left of it is posted again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .._errors import CapturedError, SampleError
from .._plan import LoaderPlan, Order
from .._queues import reopening
from .._queues.control import MOST_REOPENED
from .._queues.fields import Batch, Flag, State
from .._queues.keys import bare
from .._queues.leases import Slots
from .._queues.posting import PostingBoard
from .._queues.reopening import Ticket
from .._scheduler.error_policy import ErrorPolicy, Verdict, backoff_s
from .feeds import Feed, StreamFeed, TicketFeed
from .totals import Totals

WHOLE = -1  # in place of a ticket's place: the batch as a whole
Place = tuple[int, int]
"""A ticket: its batch, and its place there. Batches count from the pool's start, so it is unique."""


@dataclass(slots=True)
class _Case:
    """A batch that was set aside."""

    due: float
    """When its backoff is over, on the monotonic clock."""
    whole: bool
    """The unit is the batch: its collation failed."""
    again: list[Ticket] = field(default_factory=list)
    """To be fetched again."""
    out: list[Ticket] = field(default_factory=list)
    """To be left out."""


class Mender:
    """Mends the batches of one engine's current epoch."""

    def __init__(self, board: PostingBoard, slots: Slots, plan: LoaderPlan, totals: Totals) -> None:
        self._board = board
        self._slots = slots
        self._totals = totals
        self.policy = ErrorPolicy(plan.on_error, plan.sample_retries)
        self._late_rows = plan.worker.order is Order.SAMPLES_OVERTAKE
        self._drop_last = plan.worker.drop_last
        self._cases: dict[int, _Case] = {}
        self._applied_at = 0.0
        """When backoffs were last looked at, on the monotonic clock."""
        self._condemned: dict[int, CapturedError] = {}
        """Batches that are delivered as an error."""
        self._tries: Counter[Place] = Counter()
        """Failures of a ticket, or of a batch as a whole."""
        self._decided: dict[Place, Verdict] = {}
        """Tickets that the policy was asked about, until they are open again."""
        self._reopened: dict[int, int] = {}
        """Batches that wait for rows that were opened again, and how many."""

    def forget(self, before: int) -> None:
        """Batches before that number are of no interest any more."""
        for batches in (self._cases, self._condemned, self._reopened):
            for batch in [b for b in batches if b < before]:
                del batches[batch]
        for tickets in (self._tries, self._decided):
            for ticket in [t for t in tickets if t[0] < before]:
                del tickets[ticket]

    # ---- what the engine asks ----------------------------------------------------------------------------------------

    @property
    def has_cases(self) -> bool:
        """Whether batches are set aside."""
        return bool(self._cases)

    @property
    def due(self) -> float | None:
        """When a backoff is over next, on the monotonic clock; None: nothing waits for the time to pass. It may be over
        by now, if it was not yet when `apply` looked."""
        return min((case.due for case in self._cases.values() if case.due > self._applied_at), default=None)

    def wants(self, batch: int) -> bool:
        """Whether a ready batch has failures that the policy was not asked about."""
        return bool(self._board.field(batch, Batch.FLAGS) & Flag.ERROR) and batch not in self._condemned

    def sentence(self, batch: int) -> CapturedError | None:
        """The error to raise in place of a batch."""
        return self._condemned.pop(batch, None)

    # ---- examine -----------------------------------------------------------------------------------------------------

    def examine(self, feed: Feed) -> None:
        """Ask the policy about all failures in complete batches. Calls the user's function; nothing is changed by an
        interrupt in it."""
        for batch in list(feed.out):
            if self._board.state(batch) == State.READY and self.wants(batch):
                self._reopened.pop(batch, None)
                if self._board.field(batch, Batch.FLAGS) & Flag.RESULT:
                    self._examine_whole(feed, batch)
                else:
                    self._examine_rows(feed, batch)

    def _examine_whole(self, feed: Feed, batch: int) -> None:
        if self._decided.pop((batch, WHOLE), None) is Verdict.SKIP:
            self._set_aside(batch, _Case(0.0, whole=True))
            return
        captured = self._error(batch, None)
        stream = isinstance(feed, StreamFeed)
        tickets = [] if stream else self._tickets(feed, batch, range(self._board.field(batch, Batch.ROWS)))
        keys = [self._key(ticket) for ticket in tickets]
        position = self._board.field(batch, Batch.POSITION)
        tries = self._tries[batch, WHOLE] + 1
        failure = _told(captured, None if stream else keys, None if stream else position, feed.epoch, tries)
        try:
            # A stream goes on with its next sample, or not: there is nothing that could be tried again.
            verdict = self.policy.final(failure) if stream else self.policy.decide(failure)
        except Exception as error:
            self._condemn(batch, _of_policy(error, failure))
            return
        self._tries[batch, WHOLE] = tries
        if verdict is Verdict.RAISE or captured.final:
            self._condemn(batch, captured)
        elif verdict is Verdict.SKIP:
            self._set_aside(batch, _Case(0.0, whole=True))
            self._totals.count_skipped(self._board.filled(batch), keys, failure)
        elif stream:
            self._set_aside(batch, _Case(0.0, whole=True))
            self._totals.samples_retried += 1
        else:
            self._set_aside(batch, _Case(time.monotonic() + backoff_s(tries), whole=True, again=tickets))
            self._totals.samples_retried += len(tickets)

    def _examine_rows(self, feed: Feed, batch: int) -> None:
        case = _Case(0.0, whole=False)
        for ticket in self._tickets(feed, batch, reopening.failed_rows(self._board, batch)):
            place = ticket.batch, ticket.place
            captured = self._error(batch, ticket.row)
            if place not in self._decided:
                tries = self._tries[place] + 1
                failure = _told(captured, self._key(ticket), self._position(batch, ticket.row), feed.epoch, tries)
                try:
                    verdict = self.policy.decide(failure)
                except Exception as error:
                    self._condemn(batch, _of_policy(error, failure))
                    return
                if verdict is Verdict.RAISE:
                    self._condemn(batch, captured)
                    return
                self._tries[place] = tries
                self.settle(ticket.batch, ticket.place, verdict, failure)
                self._decided[place] = verdict
            if self._decided[place] is Verdict.RETRY:
                case.again.append(ticket)
                case.due = max(case.due, time.monotonic() + backoff_s(self._tries[place]))
            else:
                case.out.append(ticket)
        self._set_aside(batch, case)

    def settle(self, batch: int, place: int, verdict: Verdict, failure: SampleError) -> None:
        """The policy has spoken about a ticket, or a batch. If it is to be left out, that is what happens when its
        failure is met."""
        keys = failure.index if place == WHOLE else [failure.index]
        if verdict is Verdict.SKIP:
            self._totals.count_skipped(len(keys), keys, failure)
            self._decided[batch, place] = verdict
        else:
            self._totals.samples_retried += len(keys)

    def count_try(self, batch: int, place: int) -> int:
        """A ticket, or a batch, failed once more; returns how often it has."""
        self._tries[batch, place] += 1
        return self._tries[batch, place]

    def keys_of(self, feed: Feed, batch: int) -> list[object]:
        """The keys of all samples in a complete batch."""
        return [self._key(ticket) for ticket in self._tickets(feed, batch, range(self._board.field(batch, Batch.ROWS)))]

    def _condemn(self, batch: int, error: CapturedError) -> None:
        self._condemned[batch] = error

    def _set_aside(self, batch: int, case: _Case) -> None:
        self._cases[batch] = case  # first: an interrupt in between must not leave a batch that nobody sees to
        reopening.set_aside(self._board, batch)

    # ---- apply -------------------------------------------------------------------------------------------------------

    def apply(self, feed: Feed) -> None:
        """Do what was decided, as far as it can be done now."""
        self._applied_at = now = time.monotonic()
        for batch in list(self._cases):
            case = self._cases.get(batch)  # None: it was taken back to fill another
            if case is not None and case.due <= now and self._treat(feed, batch, case):
                self._cases.pop(batch, None)

    def _treat(self, feed: Feed, batch: int, case: _Case) -> bool:
        """False: it has to wait, for others or for room."""
        if case.whole:
            if case.again:
                self._reopen(batch, case.again)
            else:
                self._vanish(feed, batch)
            return True
        room = MOST_REOPENED - self._count_reopened(feed)
        again = case.again[:room]
        if isinstance(feed, TicketFeed) and feed.refills:
            again += self._replaced(feed, case.out[: room - len(again)])
        if again:
            self._reopen(batch, again)
            return True
        if room <= 0:
            return False
        if isinstance(feed, TicketFeed) and feed.refills and not self._is_last(feed, batch):
            return self._fill_from_last(feed, batch, case)
        self._leave_out(feed, batch, case.out)
        return True

    def _replaced(self, feed: TicketFeed, tickets: Sequence[Ticket]) -> list[Ticket]:
        """The tickets that got another key, as long as there are any."""
        keys = feed.replacements([self._board.field(t.batch, Batch.POSITION) + t.place for t in tickets])
        for ticket, key in zip(tickets, keys, strict=False):
            reopening.set_key(self._board, ticket.batch, ticket.place, key)
            del self._tries[ticket.batch, ticket.place]
        return list(tickets[: len(keys)])

    def _count_reopened(self, feed: Feed) -> int:
        """Rows that were opened again and wait for their samples."""
        waiting = [b for b in feed.out if b in self._reopened and self._board.state(b) == State.OPEN]
        self._reopened = {batch: self._reopened[batch] for batch in waiting}
        return sum(self._reopened.values())

    def _reopen(self, batch: int, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._decided.pop((ticket.batch, ticket.place), None)
        self._reopened[batch] = len(tickets)
        reopening.reopen(self._board, batch, tickets, self._late_rows)

    def _is_last(self, feed: TicketFeed, batch: int) -> bool:
        return feed.last_of([b for b in feed.out if b not in self._condemned]) == batch

    def _fill_from_last(self, feed: TicketFeed, batch: int, case: _Case) -> bool:
        """The sampler has no more: the batch that would be delivered last gives its samples, once it is complete."""
        last = feed.last_of([b for b in feed.out if b not in self._condemned])
        other = self._cases.get(last)
        if self._board.is_sound(last) or (other is not None and not other.whole):
            self._take_back(feed, last)
            return self._treat(feed, batch, case)
        return False

    def _take_back(self, feed: TicketFeed, batch: int) -> None:
        """A complete batch is not delivered; the keys of its samples are given out again."""
        case = self._cases.pop(batch, None) or _Case(0.0, whole=False)
        out = {ticket.row for ticket in case.out}
        if self._board.field(batch, Batch.FLAGS) & Flag.SHORT:
            out.update(reopening.failed_rows(self._board, batch))
        rows = [row for row in range(self._board.field(batch, Batch.ROWS)) if row not in out]
        tickets = self._tickets(feed, batch, rows)
        positions = [self._board.field(ticket.batch, Batch.POSITION) + ticket.place for ticket in tickets]
        keys = [self._key(ticket) for ticket in tickets]
        self._vanish(feed, batch)
        feed.give_back(batch, positions, keys)

    def _leave_out(self, feed: Feed, batch: int, tickets: Sequence[Ticket]) -> None:
        refilling = feed if isinstance(feed, TicketFeed) and feed.refills else None
        if len(tickets) == self._board.field(batch, Batch.ROWS) or (refilling and self._drop_last):
            self._vanish(feed, batch)
        else:
            if refilling:
                refilling.has_shrunk(batch)
            reopening.leave_out_failed(self._board, batch, len(tickets))

    def _vanish(self, feed: Feed, batch: int) -> None:
        """Nothing of a batch is delivered; its positions count as done."""
        board = self._board
        if self._late_rows:
            rows = range(board.field(batch, Batch.ROWS))
            feed.ledger.deliver([reopening.position_at(board, batch, row) for row in rows])
        else:
            feed.ledger.deliver_batch(batch)
        feed.out.remove(batch)
        if isinstance(feed, StreamFeed):
            feed.vanished(batch)
        self._slots.put_back(board.take_slot(batch))

    # ---- looking up --------------------------------------------------------------------------------------------------

    def _tickets(self, feed: Feed, batch: int, rows: Sequence[int]) -> list[Ticket]:
        if not self._late_rows:
            return [Ticket(batch, row, row) for row in rows]
        homes = [feed.ledger.home_of(self._position(batch, row)) for row in rows]
        return [Ticket(home, place, row) for (home, place), row in zip(homes, rows, strict=True)]

    def _key(self, ticket: Ticket) -> object:
        return bare(reopening.keys_of(self._board, ticket.batch, ticket.place, 1))[0]

    def _position(self, batch: int, row: int) -> int:
        return reopening.position_at(self._board, batch, row)

    def _error(self, batch: int, row: int | None) -> CapturedError:
        captured = reopening.error_at(self._board, batch, row)
        assert isinstance(captured, CapturedError), "a failed row holds a captured error"
        return captured


def _told(captured: CapturedError, index: object, position: int | None, epoch: int, tries: int) -> SampleError:
    """What the user's function is told."""
    return SampleError(
        index=index,
        position=position,
        epoch=epoch,
        worker=captured.worker,
        stage=captured.stage,
        tries=tries,
        error=captured.rebuild(),
        traceback=captured.traceback,
    )


def _of_policy(error: Exception, failure: SampleError) -> CapturedError:
    """An error of the user's function, which takes the place of the batch."""
    return CapturedError.capture(error, f"by on_error, asked about sample index {failure.index!r}", failure.worker)
