"""The workers' side of the board."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._records import CollateTask, Place, Run
from .arena import Arena
from .board import ALONE, Board, complete
from .control import (
    BATCH_WORDS,
    PARKED_PER_WORKER,
    Batch,
    ControlBlock,
    Current,
    Header,
    Parked,
    Phase,
    State,
    Worker,
)
from .keys import Placed, bare, read_keys, unpickled
from .rows import Column, Words, align

_NONE = range(0)


class TakingBoard(Board):
    """Takes work and hands it in, for one worker."""

    def __init__(
        self, control: ControlBlock, arena: Arena, worker: int = 0, announce: Callable[[], object] = lambda: None
    ) -> None:
        """`announce` is called, outside the lock, whenever this worker has made a batch ready, or has put down work
        that nobody waits for: its slot can be used again."""
        super().__init__(control, arena)
        self._announce = announce
        self._me = control.worker(worker)
        self._retire = control.worker(worker - worker % control.lanes) + Worker.RETIRE
        self._worker = worker
        self.current = control.words[self._me + Worker.CURRENT : self._me + Worker.CURRENT + 1]
        """`Worker.CURRENT` of this worker, as a sequence of one: a plain store per sample."""

    def pull(self, want: int, whole_from: int = 0, with_rows: bool = False) -> Run | CollateTask | None:
        """Take up to `want` tickets of the batch wanted next, orphans first. None: there is nothing, and the worker
        counts as asleep. With `whole_from`, a wish for at least one ticket in `whole_from` takes the whole batch. With
        `with_rows`, rows are claimed for several tickets at once, where that is possible: who takes several finds them
        cheap, and will not keep the rows' batch waiting."""
        with self._lock:
            taken = self._pull_orphan() or self._pull_open(want, whole_from, with_rows)
            if taken is None:
                self._words[self._me + Worker.PHASE] = Phase.ASLEEP
        if isinstance(taken, Run) and type(taken.keys[0]) is bytes:
            return _unpacked(taken)
        return taken

    def pull_stream(self) -> Run | None:
        """Take the next batch meant for this worker's stream. None: there is none, and the worker counts as asleep."""
        words = self._words
        with self._lock:
            for number in range(words[Header.PULL], words[Header.PUBLISHED]):
                at = self.control.batch(number)
                if words[at + Batch.WORKER] == self._worker and words[at + Batch.PULLED] == 0:
                    words[at + Batch.PULLED] = words[at + Batch.TICKETS]
                    self._skip_taken()
                    return self._take(number, 0, words[at + Batch.TICKETS])
            words[self._me + Worker.PHASE] = Phase.ASLEEP
            return None

    def claim(self, epoch: int, count: int) -> Place | None:
        """Rows of one batch for up to `count` finished samples of `epoch`, spare rows first. None: nobody waits for
        that epoch any more."""
        words = self._words
        with self._lock:
            if epoch < words[Header.LIVE_EPOCH]:
                return None
            return self._hold(self._claim_spare(epoch, count) or self._claim_open(epoch, count))

    def commit(self, place: Place, positions: range) -> bool:
        """Declare the rows of `place` done: they hold the samples at `positions`, the next of the worker's tickets.
        True: that completed the batch, and this worker has to collate it now."""
        words, at = self._words, self.control.batch(place.batch)
        completed = to_collate = False
        new_owners = _owner_words(positions)
        with self._lock:
            rows_table = self.row_table(words[at + Batch.SLOT], words[at + Batch.ROWS])
            owners = rows_table[:, Column.OWNER]
            # The column is strided, so numpy stores word by word and a kill cannot leave half an owner behind.
            owners[place.row : place.row + place.count] = new_owners
            if np.count_nonzero(owners) == words[at + Batch.FILLED]:
                completed = True
                to_collate = complete(words, at, rows_table)
                words[self._me + Worker.COLLATE] = place.batch + 1 if to_collate else 0
            self._put_down(place.count)
            void = words[at + Batch.EPOCH] < words[Header.LIVE_EPOCH]
        if (completed and not to_collate) or void:
            self._announce()
        return to_collate

    @property
    def dismissed(self) -> bool:
        """Whether this worker is to end now."""
        return bool(self._words[Header.STOP] or self._words[self._retire])

    def shorten(self, batch: int, filled: int) -> None:
        """A stream's last batch has only `filled` samples. To be said before they are committed."""
        with self._lock:
            self._words[self.control.batch(batch) + Batch.FILLED] = filled

    def bind_layout(self, batch: int, layout: int, heap: int) -> int:
        """Bind a batch to the layout of its first written sample (heap beginning at `heap`), unless another worker
        was first. Returns the layout word in force."""
        at = self.control.batch(batch)
        with self._lock:
            if self._words[at + Batch.LAYOUT] == 0:
                self._words[at + Batch.HEAP_TOP] = heap
                self._words[at + Batch.LAYOUT] = layout
            return self._words[at + Batch.LAYOUT]

    def allocate(self, batch: int, nbytes: int) -> int:
        """Take `nbytes` bytes of the heap of a batch, whose layout is bound. Returns their offset in the slot."""
        at = self.control.batch(batch)
        with self._lock:
            offset = self._words[at + Batch.HEAP_TOP]
            self._words[at + Batch.HEAP_TOP] = offset + align(nbytes)
            return offset

    def note_stream_state(self, batch: int, offset: int) -> None:
        """The state of the stream after `batch` is at `offset` of its slot. To be said before the batch is ready."""
        self._words[self.control.batch(batch) + Batch.STREAM_STATE] = offset

    def finish(self, batch: int, offset: int, flags: int, positions: range = _NONE) -> None:
        """Hand in the collated result (or captured error) of a batch, at `offset` of its slot. `positions`: the rows
        were not committed before, since this worker had all samples of the batch."""
        words, at = self._words, self.control.batch(batch)
        new_owners = _owner_words(positions)
        with self._lock:
            # The result counts once all rows are owned and RESULT is set; recovery relies on that.
            words[at + Batch.RESULT] = offset
            words[at + Batch.FLAGS] |= flags
            if positions:
                owners = self.row_table(words[at + Batch.SLOT], words[at + Batch.ROWS])[:, Column.OWNER]
                owners[: len(positions)] = new_owners
                words[at + Batch.FILLED] = len(positions)
            words[at + Batch.STATE] = State.READY
            words[self._me + Worker.COLLATE] = 0
            self._put_down(len(positions))
        self._announce()

    def end_stream(self, batch: int) -> None:
        """The worker's stream has nothing left for `batch`."""
        with self._lock:
            self._words[self.control.batch(batch) + Batch.STATE] = State.ENDED
            self._put_down(self._words[self._me + Worker.COUNT])
        self._announce()

    def drop(self) -> None:
        """Put down what the worker has in hand: nobody waits for it."""
        with self._lock:
            self._put_down(self._words[self._me + Worker.COUNT])
        self._announce()

    def park(self) -> int | None:
        """Put the single ticket in hand aside, unfinished. Returns its entry of the worker's temp queue, or None if
        that is full: the ticket stays in hand."""
        words, me = self._words, self._me
        with self._lock:
            for entry in range(PARKED_PER_WORKER):
                at = self.control.parked(self._worker, entry)
                if not words[at + Parked.BATCH]:
                    words[at + Parked.PLACE] = words[me + Worker.FIRST]
                    words[at + Parked.BATCH] = words[me + Worker.BATCH] + 1  # counts from here on
                    self._put_down(1)
                    return entry
        return None

    def unpark(self, entry: int) -> bool:
        """Take a parked ticket in hand again. False: nobody waits for it any more."""
        words, me, at = self._words, self._me, self.control.parked(self._worker, entry)
        with self._lock:
            batch = words[at + Parked.BATCH] - 1
            wanted = words[self.control.batch(batch) + Batch.EPOCH] >= words[Header.LIVE_EPOCH]
            if wanted:
                words[me + Worker.BATCH] = batch
                words[me + Worker.FIRST] = words[at + Parked.PLACE]
                words[me + Worker.COUNT] = 1
                self._enter(Phase.FETCHING)
            words[at + Parked.BATCH] = 0
        if not wanted:
            self._announce()
        return wanted

    def note_time(self, samples: int, seconds: float) -> None:
        """Leave word of what a run took, for the profile. Takes no lock: this worker alone writes there."""
        words, me = self._words, self._me
        at = self.control.times(self._worker, words[me + Worker.TIMES])
        words[at] = samples
        words[at + 1] = int(seconds * 1e9)
        words[me + Worker.TIMES] += 1

    def mark_slow(self, slow: bool) -> None:
        """Say that this worker is at a sample that is past the threshold, or no longer."""
        self._words[self._me + Worker.SLOW] = slow

    @property
    def slow_holders(self) -> int:
        """Workers that are at a slow sample now, as far as they have noticed."""
        return sum(self._words[self.control.worker(w) + Worker.SLOW] for w in range(self.control.records))

    @property
    def active(self) -> int:
        """Workers that are meant to run now."""
        return self._words[Header.ACTIVE]

    @property
    def threshold_s(self) -> float | None:
        """Seconds from which on a sample counts as slow; None: none does."""
        return self._words[Header.THRESHOLD_NS] * 1e-9 or None

    @property
    def has_open_tickets(self) -> bool:
        """Whether there is other work to be taken; a look without the lock."""
        words = self._words
        return words[Header.PULL] < words[Header.PUBLISHED] or words[Header.ORPHAN_HEAD] < words[Header.ORPHAN_TAIL]

    def enter(self, phase: int) -> None:
        """Announce a phase of a worker's life."""
        with self._lock:
            self._enter(phase)

    # ---- under the lock -------------------------------------------------------------------------------------------

    def _enter(self, phase: int) -> None:
        self._words[self._me + Worker.SINCE_NS] = time.monotonic_ns()
        self._words[self._me + Worker.PHASE] = phase

    def _take(self, number: int, first: int, count: int) -> Run:
        words, at = self._words, self.control.batch(number)
        words[self._me + Worker.BATCH] = number
        words[self._me + Worker.FIRST] = first
        words[self._me + Worker.COUNT] = count
        words[self._me + Worker.CURRENT] = Current.NOTHING
        self._enter(Phase.FETCHING)
        record = words[at : at + BATCH_WORDS].tolist()
        keys = read_keys(self.arena, number % self.control.batches, record[Batch.KEYS_BYTES], first, count)
        position = record[Batch.POSITION] + first
        return Run(number, first, record[Batch.EPOCH], record[Batch.SEED], position, keys, None, record[Batch.SHIFT])

    def _pull_open(self, want: int, whole_from: int, with_rows: bool) -> Run | None:
        words = self._words
        self._skip_taken()
        number = words[Header.PULL]
        if number == words[Header.PUBLISHED]:
            return None
        at = self.control.batch(number)
        tickets, first = words[at + Batch.TICKETS], words[at + Batch.PULLED]
        if whole_from and first == 0 and want > 1 and want * whole_from >= tickets:
            count = tickets
        else:
            count = min(want, tickets - first, max(1, tickets // max(1, words[Header.ACTIVE])))
        rows = self._rows_at_hand(words[at + Batch.EPOCH]) if with_rows and count > 1 else 0
        count = min(count, rows or count)
        words[at + Batch.PULLED] = first + count
        if first + count == tickets:
            words[Header.PULL] = number + 1
        run = self._take(number, first, count)
        return replace(run, place=self._hold(self._claim_open(run.epoch, count))) if rows else run

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


def _unpacked(run: Run) -> Run:
    """A run with its keys as the sampler gave them."""
    keys = unpickled(run.keys)
    if not any(type(key) is Placed for key in keys):
        return replace(run, keys=keys)
    origins = [key.origin if type(key) is Placed else run.origin(number) for number, key in enumerate(keys)]
    return replace(run, keys=bare(keys), origins=origins)


def _owner_words(positions: range) -> Words:
    """What the OWNER column says of samples at these positions."""
    return np.arange(positions.start + 1, positions.stop + 1)
