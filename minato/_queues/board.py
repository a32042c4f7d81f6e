"""The board: where work is posted, taken, and handed in. All rules about the control block's words are here.

Main process:  publish a batch of tickets with a slot for its rows · see which batches are ready · recover a death.
Workers:       pull a run of tickets · claim rows for finished samples (samples may overtake) · commit rows · finish.

In order, a ticket's place in its batch is its row. When samples may overtake, `claim` gives a finished sample the next
free row of its epoch's open batch; since each published batch brings as many rows as tickets, a claim never waits.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .._errors import InternalError
from .._records import CollateTask, Hand, Place, Run
from .arena import Arena, Stretch
from .control import Batch, ControlBlock, Flag, Header, Phase, State, Worker
from .rows import Column, Kind, Words, align, table, table_bytes

NO_LAYOUT = -1  # layout word of a batch whose rows all go through the heap


class Board:
    """Operations on the control block. Every public method takes the pool's lock itself."""

    def __init__(self, control: ControlBlock, arena: Arena, announce: Callable[[], object] = lambda: None) -> None:
        """`announce` is called, outside the lock, whenever this process has made a batch ready."""
        self.control = control
        self.arena = arena
        self._announce = announce
        self._words = control.words
        self._lock = control.lock

    # ---- main process: posting work -------------------------------------------------------------------------------

    def publish(
        self,
        *,
        epoch: int,
        seed: int,
        position: int,
        keys: Sequence[object],
        rows: int,
        slot: int,
        flags: Flag,
        first: bool,
        worker: int = -1,
    ) -> int:
        """Post a batch: its tickets, and a slot for its rows. `first`: it opens its epoch. `worker`: only that worker's
        stream may fill it. Returns the batch's number."""
        words = self._words
        number = words[Header.PUBLISHED]
        at = self.control.batch(number)
        by_function = Flag.COLLATE in flags
        keys_bytes = self._write_keys(number, keys)
        self.row_table(slot, rows)[:] = 0
        for field, value in (
            (Batch.NUMBER, number),
            (Batch.EPOCH, epoch),
            (Batch.SEED, seed),
            (Batch.TICKETS, len(keys)),
            (Batch.PULLED, 0),
            (Batch.POSITION, position),
            (Batch.KEYS_BYTES, keys_bytes),
            (Batch.ROWS, rows),
            (Batch.SLOT, slot),
            (Batch.CLAIMED, 0),
            (Batch.LAYOUT, NO_LAYOUT if by_function else 0),
            (Batch.HEAP_TOP, table_bytes(rows)),
            (Batch.STATE, State.OPEN),
            (Batch.FLAGS, flags),
            (Batch.RESULT, 0),
            (Batch.WORKER, worker),
            (Batch.FILLED, rows),
        ):
            words[at + field] = value
        with self._lock:
            if first:
                words[Header.CLAIM_EVEN + (epoch & 1)] = number
            words[Header.PUBLISHED] = number + 1
            if not keys:
                self.post_orphan(number, 0, 0)
        return number

    def wake_sleepers(self, most: int) -> list[int]:
        """Workers to be woken, at most `most`; they count as awake from now on."""
        woken: list[int] = []
        with self._lock:
            for worker in range(self.control.workers):
                at = self.control.worker(worker) + Worker.PHASE
                if len(woken) < most and self._words[at] == Phase.ASLEEP:
                    self._words[at] = Phase.IDLE
                    woken.append(worker)
        return woken

    def state(self, batch: int) -> State:
        """The state of a batch; a batch seen as READY has all its memory visible to this process."""
        with self._lock:
            return State(self._words[self.control.batch(batch) + Batch.STATE])

    def first_ready(self, batches: Sequence[int]) -> int | None:
        """The first of `batches` that is complete."""
        words, done = self._words, (State.READY, State.ENDED)
        with self._lock:
            for batch in batches:
                if words[self.control.batch(batch) + Batch.STATE] in done:
                    return batch
        return None

    def count_ready(self, batches: Sequence[int]) -> int:
        """How many of `batches` are complete."""
        with self._lock:
            return sum(self._words[self.control.batch(b) + Batch.STATE] == State.READY for b in batches)

    def field(self, batch: int, field: Batch) -> int:
        """One word of a batch's record, for whoever the batch belongs to at the moment."""
        return self._words[self.control.batch(batch) + field]

    @property
    def next_number(self) -> int:
        """The number the next published batch will have."""
        return self._words[Header.PUBLISHED]

    def slot(self, batch: int) -> int:
        """The slot of a batch."""
        return self.field(batch, Batch.SLOT)

    def filled(self, batch: int) -> int:
        """Samples in a ready batch."""
        return self.field(batch, Batch.FILLED)

    def nbytes(self, batch: int) -> int:
        """Bytes of its slot that a ready batch takes."""
        return self.field(batch, Batch.HEAP_TOP)

    def phase(self, worker: int) -> Phase:
        """What a worker said it was doing."""
        return Phase(self._words[self.control.worker(worker) + Worker.PHASE])

    def hand(self, worker: int) -> Hand:
        """The tickets a worker had in hand, for messages: after a kill it may be a little off."""
        with self._lock:
            me = self.control.worker(worker)
            batch, first, count = self._words[me + Worker.BATCH : me + Worker.COUNT + 1]
            keys = self._read_keys(batch, first, count) if count else []
        return Hand(batch, first, count, _unpickled(keys))

    def abandon_epochs_before(self, epoch: int) -> None:
        """Nobody waits for earlier epochs any more: their open tickets vanish, what is in hand ends on its own."""
        with self._lock:
            words = self._words
            words[Header.LIVE_EPOCH] = epoch
            words[Header.PULL] = words[Header.PUBLISHED]
            words[Header.ORPHAN_HEAD] = words[Header.ORPHAN_TAIL]
            words[Header.SPARE_HEAD] = words[Header.SPARE_TAIL]

    def held(self) -> set[int]:
        """Batches that some worker is still reading from or writing to."""
        held: set[int] = set()
        with self._lock:
            for me in map(self.control.worker, range(self.control.workers)):
                if self._words[me + Worker.COUNT]:
                    held.add(self._words[me + Worker.BATCH])
                if self._words[me + Worker.CLAIM_COUNT]:
                    held.add(self._words[me + Worker.CLAIM_BATCH])
                if self._words[me + Worker.COLLATE]:
                    held.add(self._words[me + Worker.COLLATE] - 1)
        return held

    # ---- workers: taking work and handing it in -------------------------------------------------------------------

    def pull(self, worker: int, want: int, whole_from: int = 0) -> Run | CollateTask | None:
        """Take up to `want` tickets of the batch wanted next, orphans first. None: there is nothing, and the worker
        counts as asleep. With `whole_from`, a wish for at least one ticket in `whole_from` takes the whole batch."""
        me = self.control.worker(worker)
        with self._lock:
            taken = self._pull_orphan(me) or self._pull_open(me, want, whole_from)
            if taken is None:
                self._words[me + Worker.PHASE] = Phase.ASLEEP
        return replace(taken, keys=_unpickled(taken.keys)) if isinstance(taken, Run) else taken

    def pull_stream(self, worker: int) -> Run | None:
        """Take the next batch meant for this worker's stream. None: there is none, and the worker counts as asleep."""
        words = self._words
        me = self.control.worker(worker)
        with self._lock:
            for number in range(words[Header.PULL], words[Header.PUBLISHED]):
                at = self.control.batch(number)
                if words[at + Batch.WORKER] == worker and words[at + Batch.PULLED] == 0:
                    words[at + Batch.PULLED] = words[at + Batch.TICKETS]
                    self._skip_taken()
                    return self._take(me, number, 0, words[at + Batch.TICKETS])
            words[me + Worker.PHASE] = Phase.ASLEEP
            return None

    def claim(self, worker: int, epoch: int, count: int) -> Place | None:
        """Rows of one batch for up to `count` finished samples of `epoch`, spare rows first. None: nobody waits for
        that epoch any more."""
        words, me = self._words, self.control.worker(worker)
        with self._lock:
            if epoch < words[Header.LIVE_EPOCH]:
                return None
            place = self._claim_spare(epoch, count) or self._claim_open(epoch, count)
            words[me + Worker.CLAIM_BATCH] = place.batch
            words[me + Worker.CLAIM_ROW] = place.row
            words[me + Worker.CLAIM_COUNT] = place.count
        return place

    def commit(self, worker: int, place: Place, positions: Sequence[int]) -> bool:
        """Declare the rows of `place` done: they hold the samples at `positions`, the next of the worker's tickets.
        True: that completed the batch, and this worker has to collate it now."""
        words, me, at = self._words, self.control.worker(worker), self.control.batch(place.batch)
        completed = to_collate = False
        with self._lock:
            rows_table = self.row_table(words[at + Batch.SLOT], words[at + Batch.ROWS])
            owners = rows_table[:, Column.OWNER]
            # The column is strided, so numpy stores word by word and a kill cannot leave half an owner behind.
            owners[place.row : place.row + place.count] = [p + 1 for p in positions]
            if np.count_nonzero(owners) == words[at + Batch.FILLED]:
                completed = True
                to_collate = complete(words, at, rows_table)
                words[me + Worker.COLLATE] = place.batch + 1 if to_collate else 0
            self._put_down(me, place.count)
        if completed and not to_collate:
            self._announce()
        return to_collate

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

    def finish(self, worker: int, batch: int, offset: int, flags: Flag, positions: Sequence[int] = ()) -> None:
        """Hand in the collated result (or captured error) of a batch, at `offset` of its slot. `positions`: the rows
        were not committed before, since this worker had all samples of the batch."""
        words, me, at = self._words, self.control.worker(worker), self.control.batch(batch)
        with self._lock:
            # The result counts once all rows are owned and RESULT is set; recovery relies on that.
            words[at + Batch.RESULT] = offset
            words[at + Batch.FLAGS] |= flags
            if positions:
                owners = self.row_table(words[at + Batch.SLOT], words[at + Batch.ROWS])[:, Column.OWNER]
                owners[: len(positions)] = [p + 1 for p in positions]
                words[at + Batch.FILLED] = len(positions)
            words[at + Batch.STATE] = State.READY
            words[me + Worker.COLLATE] = 0
            self._put_down(me, len(positions))
        self._announce()

    def end_stream(self, worker: int, batch: int) -> None:
        """The worker's stream has nothing left for `batch`."""
        me = self.control.worker(worker)
        with self._lock:
            self._words[self.control.batch(batch) + Batch.STATE] = State.ENDED
            self._put_down(me, self._words[me + Worker.COUNT])
        self._announce()

    def drop(self, worker: int) -> None:
        """Put down what the worker has in hand: nobody waits for it."""
        with self._lock:
            me = self.control.worker(worker)
            self._put_down(me, self._words[me + Worker.COUNT])

    def enter(self, worker: int, phase: Phase) -> None:
        """Announce a phase of a worker's life."""
        with self._lock:
            self._enter(self.control.worker(worker), phase)

    def row_table(self, slot: int, rows: int) -> Words:
        """The row table of a slot that holds `rows` rows."""
        return table(self.arena.view(Stretch.SLOT, slot, rows * 32), rows)

    # ---- under the lock -------------------------------------------------------------------------------------------

    def _enter(self, me: int, phase: Phase) -> None:
        self._words[me + Worker.SINCE_NS] = time.monotonic_ns()
        self._words[me + Worker.PHASE] = phase

    def _take(self, me: int, number: int, first: int, count: int) -> Run:
        words = self._words
        at = self.control.batch(number)
        words[me + Worker.BATCH] = number
        words[me + Worker.FIRST] = first
        words[me + Worker.COUNT] = count
        self._enter(me, Phase.FETCHING)
        return Run(
            batch=number,
            first=first,
            epoch=words[at + Batch.EPOCH],
            seed=words[at + Batch.SEED],
            position=words[at + Batch.POSITION] + first,
            keys=self._read_keys(number, first, count),
            whole=count == words[at + Batch.TICKETS],
        )

    def _pull_open(self, me: int, want: int, whole_from: int) -> Run | None:
        words = self._words
        self._skip_taken()
        number = words[Header.PULL]
        if number == words[Header.PUBLISHED]:
            return None
        at = self.control.batch(number)
        tickets, first = words[at + Batch.TICKETS], words[at + Batch.PULLED]
        if whole_from and first == 0 and want * whole_from >= tickets:
            count = tickets
        else:
            count = min(want, tickets - first, max(1, tickets // self.control.workers))
        words[at + Batch.PULLED] = first + count
        if first + count == tickets:
            words[Header.PULL] = number + 1
        return self._take(me, number, first, count)

    def _pull_orphan(self, me: int) -> Run | CollateTask | None:
        words = self._words
        head = words[Header.ORPHAN_HEAD]
        if head == words[Header.ORPHAN_TAIL]:
            return None
        entry = self.control.orphan(head)
        batch, first, count = words[entry : entry + 3]
        if count > 1:  # one at a time: if a sample kills its worker, the next death names it
            words[entry + 1], words[entry + 2] = first + 1, count - 1
        else:
            words[Header.ORPHAN_HEAD] = head + 1
        if count:
            return self._take(me, batch, first, 1)
        words[me + Worker.COLLATE] = batch + 1
        self._enter(me, Phase.COLLATING)
        return CollateTask(batch)

    def _skip_taken(self) -> None:
        words = self._words
        while words[Header.PULL] < words[Header.PUBLISHED]:
            at = self.control.batch(words[Header.PULL])
            if words[at + Batch.PULLED] < words[at + Batch.TICKETS]:
                return
            words[Header.PULL] += 1

    def _claim_spare(self, epoch: int, count: int) -> Place | None:
        words = self._words
        head = words[Header.SPARE_HEAD]
        if head == words[Header.SPARE_TAIL]:
            return None
        entry = self.control.spare(head)
        batch, row, rows = words[entry : entry + 3]
        if words[self.control.batch(batch) + Batch.EPOCH] != epoch:
            return None
        if rows <= count:
            words[Header.SPARE_HEAD] = head + 1
            return Place(batch, row, rows)
        words[entry + 1] = row + count
        words[entry + 2] = rows - count
        return Place(batch, row, count)

    def _claim_open(self, epoch: int, count: int) -> Place:
        words = self._words
        cursor = Header.CLAIM_EVEN + (epoch & 1)
        number = words[cursor]
        at = self.control.batch(number)
        row = words[at + Batch.CLAIMED]
        count = min(count, words[at + Batch.ROWS] - row)
        words[at + Batch.CLAIMED] = row + count
        if row + count == words[at + Batch.ROWS]:
            words[cursor] = number + 1
        return Place(number, row, count)

    def post_orphan(self, batch: int, first: int, count: int) -> None:
        """Offer tickets to whoever comes first, ahead of all others; no tickets: the collation of a batch."""
        tail = self._words[Header.ORPHAN_TAIL]
        if tail - self._words[Header.ORPHAN_HEAD] >= self.control.orphans:
            raise InternalError(f"more than {self.control.orphans} pieces of work orphaned at once")
        at = self.control.orphan(tail)
        self._words[at], self._words[at + 1], self._words[at + 2] = batch, first, count
        self._words[Header.ORPHAN_TAIL] = tail + 1

    def _put_down(self, me: int, count: int) -> None:
        """The worker no longer has the first `count` of its tickets, nor its claim, in hand."""
        self._words[me + Worker.CLAIM_COUNT] = 0
        count = min(count, self._words[me + Worker.COUNT])  # a stream's batch is one ticket for many samples
        self._words[me + Worker.FIRST] += count
        self._words[me + Worker.COUNT] -= count
        phase = Phase.COLLATING if self._words[me + Worker.COLLATE] else Phase.FETCHING
        self._enter(me, phase if self._words[me + Worker.COUNT] or phase is Phase.COLLATING else Phase.IDLE)

    # ---- keys -----------------------------------------------------------------------------------------------------

    def _write_keys(self, number: int, keys: Sequence[object]) -> int:
        """Keys of tickets: plain ints as words, anything else pickled so that its type is kept. Returns the pickled
        length, 0 for words."""
        record = number % self.control.batches
        if all(type(key) is int for key in keys):
            try:
                values = np.array(keys, np.int64)
            except OverflowError:
                pass  # beyond 64 bits: pickled below
            else:
                self.arena.view(Stretch.KEYS, record, values.nbytes)[: values.nbytes].view(np.int64)[:] = values
                return 0
        data = pickle.dumps(list(keys), protocol=5)
        self.arena.view(Stretch.KEYS, record, len(data))[: len(data)] = np.frombuffer(data, np.uint8)
        return len(data)

    def _read_keys(self, number: int, first: int, count: int) -> list[object]:
        """The run's keys; pickled ones as a single bytes object, since unpickling runs the user's code."""
        record = number % self.control.batches
        nbytes = self._words[self.control.batch(number) + Batch.KEYS_BYTES]
        if nbytes:
            return [self.arena.view(Stretch.KEYS, record, nbytes)[:nbytes].tobytes(), first, count]
        last = (first + count) * 8
        values: list[object] = self.arena.view(Stretch.KEYS, record, last)[first * 8 : last].view(np.int64).tolist()
        return values


def complete(words: memoryview, at: int, table: Words) -> bool:
    """All rows of the batch with the record at `at` are there: it becomes ready, or (True) has to be collated first."""
    kinds = table[: words[at + Batch.FILLED], Column.KIND]
    if (kinds == Kind.FAILED).any():
        words[at + Batch.FLAGS] |= Flag.ERROR
    elif not words[at + Batch.FLAGS] & Flag.RESULT and (
        words[at + Batch.FLAGS] & Flag.COLLATE or (kinds == Kind.PICKLED).any()
    ):
        words[at + Batch.STATE] = State.COLLATING
        return True
    words[at + Batch.STATE] = State.READY
    return False


def _unpickled(keys: list[object]) -> list[object]:
    """Keys as the sampler gave them; to be called outside the lock."""
    match keys:
        case [bytes() as data, int(first), int(count)]:
            unpickled: list[object] = pickle.loads(data)[first : first + count]
            return unpickled
    return keys
