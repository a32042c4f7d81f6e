"""What a worker does on the board while it holds the pool's lock: take tickets, claim rows, put both down.

Every word that says what a worker has in hand is written here. A worker may be killed between any two stores: entries
change by a single store each, and recovery.py finds what was given out and is in nobody's hand.
"""

from __future__ import annotations

from dataclasses import replace

from .._records import CollateTask, Place, Run
from .arena import Arena
from .board import ALONE, Board
from .control import BATCH_WORDS, ControlBlock
from .early import places_of, stepped_over, take
from .fields import Batch, Current, Header, Phase, Worker
from .keys import read_keys

MANY_WORKERS = 8
MANY_TICKETS = 64


class HandsOnBoard(Board):
    """One worker's hands. All methods are called under the lock."""

    def __init__(self, control: ControlBlock, arena: Arena, worker: int) -> None:
        super().__init__(control, arena)
        self.worker = worker
        self._me = control.worker(worker)

    def _enter(self, phase: int) -> None:
        self._words[self._me + Worker.SINCE_NS] = self.now_ns()
        self._words[self._me + Worker.PHASE] = phase

    def _take(self, number: int, first: int, count: int, with_rows: bool = False) -> Run:
        """Have tickets of a batch in hand; `with_rows`: and as many rows, which have to be there."""
        words, at = self._words, self.control.batch(number)
        words[self._me + Worker.BATCH] = number
        words[self._me + Worker.FIRST] = first
        words[self._me + Worker.COUNT] = count
        words[self._me + Worker.CURRENT] = Current.NOTHING
        self._enter(Phase.FETCHING)
        record = words[at : at + BATCH_WORDS].tolist()
        keys = read_keys(self.arena, number % self.control.batches, record[Batch.KEYS_BYTES], first, count)
        position, epoch = record[Batch.POSITION] + first, record[Batch.EPOCH]
        place = self._hold(self._claim_open(epoch, count)) if with_rows else None
        return Run(number, first, epoch, record[Batch.SEED], position, keys, place, record[Batch.SHIFT])

    def _pull_open(self, want: int, whole_from: int, with_rows: bool) -> Run | None:
        words = self._words
        self._skip_taken()
        number = words[Header.PULL]
        if number == words[Header.PUBLISHED]:
            return None
        at = self.control.batch(number)
        tickets, first = words[at + Batch.TICKETS], words[at + Batch.PULLED]
        early = places_of(self.control, number)
        if whole_from and first == 0 and not early and want > 1 and want * whole_from >= tickets:
            count = tickets
        else:
            posted = (words[Header.PUBLISHED] - number) * tickets - first
            count = _evenly(tickets - first, min(want, self._share(tickets, posted)))
        rows = self._rows_at_hand(words[at + Batch.EPOCH]) if with_rows and count > 1 else 0
        count = min(count, rows or count, *(place - first for place in early if place > first))
        words[at + Batch.PULLED] = stepped_over(self.control, number, first + count) if early else first + count
        if words[at + Batch.PULLED] == tickets:
            words[Header.PULL] = number + 1
        return self._take(number, first, count, with_rows=rows > 0)

    def _share(self, tickets: int, posted: int) -> int:
        """Most tickets of a batch that are taken at once, where `posted` are left."""
        return _share(tickets, posted, self._words[Header.ACTIVE])

    def _pull_early(self) -> Run | None:
        ticket = take(self.control, self._words)
        if ticket is None:
            return None
        run = self._take(*ticket, 1)
        self._skip_taken()  # a batch may have early tickets only: the cursor must not stay there
        return replace(run, is_early=True)

    def _pull_orphan(self) -> Run | CollateTask | None:
        words = self._words
        head = words[Header.ORPHAN_HEAD]
        if head == words[Header.ORPHAN_TAIL]:
            return None
        entry = self.control.orphan(head)
        batch, first, end = words[entry : entry + 3]
        if end - first > 1:  # one at a time: if a sample kills its worker, the next death names it
            words[entry + 1] = first + 1  # a single store: a kill leaves no entry that is half of each
        else:
            words[Header.ORPHAN_HEAD] = head + 1
        if end > first:
            run = self._take(batch % ALONE, first, 1)
            return replace(run, alone=True) if batch >= ALONE else run
        words[self._me + Worker.COLLATE] = batch + 1
        self._enter(Phase.COLLATING)
        return CollateTask(batch)

    def _share_away(self, want: int) -> Run | None:
        """What is set aside for the remote side, if it may be taken here."""
        words = self._words
        return self._take_away(words[Header.AWAY_HEAD], want) if words[Header.AWAY_SHARED] else None

    def _take_away(self, head: int, want: int) -> Run | None:
        words = self._words
        if head == words[Header.AWAY_TAIL]:
            return None
        entry = self.control.away(head)
        batch, first, end = words[entry : entry + 3]
        count = min(want, end - first)
        if first + count == end:
            words[Header.AWAY_HEAD] = head + 1
        else:
            words[entry + 1] = first + count  # a single store: a kill leaves no entry that is half of each
        return self._take(batch, first, count)

    def _skip_taken(self) -> None:
        words = self._words
        while words[Header.PULL] < words[Header.PUBLISHED]:
            at = self.control.batch(words[Header.PULL])
            if words[at + Batch.PULLED] < words[at + Batch.TICKETS]:
                return
            words[Header.PULL] += 1

    def _hold(self, place: Place) -> Place:
        """Announce a claim."""
        words = self._words
        words[self._me + Worker.CLAIM_BATCH] = place.batch
        words[self._me + Worker.CLAIM_ROW] = place.row
        words[self._me + Worker.CLAIM_COUNT] = place.count
        return place

    def _rows_at_hand(self, epoch: int) -> int:
        """How many rows a claim for `epoch` would find together; 0 while there are spare rows, which go first, one
        sample at a time."""
        words = self._words
        number = words[Header.CLAIM_EVEN + (epoch & 1)]
        if words[Header.SPARE_HEAD] != words[Header.SPARE_TAIL] or number >= words[Header.PUBLISHED]:
            return 0
        at = self.control.batch(number)
        return words[at + Batch.ROWS] - words[at + Batch.CLAIMED] if words[at + Batch.EPOCH] == epoch else 0

    def _claim_spare(self, epoch: int, count: int) -> Place | None:
        words = self._words
        for number in range(words[Header.SPARE_HEAD], words[Header.SPARE_TAIL]):
            entry = self.control.spare(number)
            batch, row, end = words[entry : entry + 3]
            if row == end:  # used up
                if number == words[Header.SPARE_HEAD]:
                    words[Header.SPARE_HEAD] = number + 1
            elif words[self.control.batch(batch) + Batch.EPOCH] == epoch:  # two epochs may be under way
                taken = min(count, end - row)
                words[entry + 1] = row + taken  # a single store: a kill leaves no entry that is half of each
                return Place(batch, row, taken)
        return None

    def _claim_open(self, epoch: int, count: int) -> Place:
        words = self._words
        cursor = Header.CLAIM_EVEN + (epoch & 1)
        number = words[cursor]
        at = self.control.batch(number)
        if words[at + Batch.CLAIMED] == words[at + Batch.ROWS]:  # who claimed the last row was killed at once
            number += 1
            at = self.control.batch(number)
        row = words[at + Batch.CLAIMED]
        count = min(count, words[at + Batch.ROWS] - row)
        words[at + Batch.CLAIMED] = row + count
        if row + count == words[at + Batch.ROWS]:
            words[cursor] = number + 1
        return Place(number, row, count)

    def _put_down(self, count: int) -> None:
        """The worker no longer has the first `count` of its tickets, nor its claim, in hand."""
        self._words[self._me + Worker.CLAIM_COUNT] = 0
        count = min(count, self._words[self._me + Worker.COUNT])  # a stream's batch is one ticket for many samples
        self._words[self._me + Worker.FIRST] += count
        self._words[self._me + Worker.COUNT] -= count
        phase = Phase.COLLATING if self._words[self._me + Worker.COLLATE] else Phase.FETCHING
        self._enter(phase if self._words[self._me + Worker.COUNT] or phase == Phase.COLLATING else Phase.IDLE)


def _evenly(tickets: int, most: int) -> int:
    """How many of `tickets` to take at once, `most` at a time: not all but a few, for whoever comes next would have
    those few as a run of their own."""
    return -(-tickets // -(-tickets // most))


def _share(tickets: int, posted: int, workers: int) -> int:
    """Most tickets of a batch that one worker takes at once: what is behind a slow sample in a run waits for it. Among
    few workers, an equal share of the batch; among many, up to twice that. Of a batch of many tickets, an equal share
    of all that are posted: a run is ten milliseconds at most, and costs as much to take and hand in whatever its
    length."""
    workers = max(1, workers)
    if tickets >= MANY_TICKETS:
        return max(1, posted // workers)
    return max(1, tickets // (workers if workers < MANY_WORKERS else workers // 2))
