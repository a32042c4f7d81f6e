"""The workers' side of the board: what a worker asks for and hands in. What happens under the lock: hands.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .._errors import InternalError
from .._records import CollateTask, Place, Run
from .arena import Arena
from .board import ALONE, complete
from .control import BATCH_WORDS, PARKED_PER_WORKER, ControlBlock
from .early import note_cost
from .fields import Batch, Header, Parked, Phase, State, Worker
from .hands import HandsOnBoard
from .keys import Placed, bare, read_keys, unpickled
from .rows import Column, Words, align

_NONE = range(0)


class TakingBoard(HandsOnBoard):
    """Takes work and hands it in, for one worker."""

    def __init__(
        self, control: ControlBlock, arena: Arena, worker: int = 0, announce: Callable[[], object] = lambda: None
    ) -> None:
        """`announce` is called, outside the lock, whenever this worker has made a batch ready, or has put down work
        that nobody waits for: its slot can be used again."""
        super().__init__(control, arena, worker)
        self._announce = announce
        self.tells_late = False
        """Whether what was committed is announced with the next pull, or by `tell`: the main process, once awake, wants
        the lock, and so does a worker that has just handed in. Only for who pulls, or tells, right after a commit."""
        self._untold = False
        self._retire = control.worker(worker - worker % control.lanes) + Worker.RETIRE
        self.current = control.words[self._me + Worker.CURRENT : self._me + Worker.CURRENT + 1]
        """`Worker.CURRENT` of this worker, as a sequence of one: a plain store per sample."""

    def pull(self, want: int, whole_from: int = 0, with_rows: bool = False) -> Run | CollateTask | None:
        """Take up to `want` tickets of the batch wanted next, orphans first. None: there is nothing, and the worker
        counts as asleep. With `whole_from`, a wish for at least one ticket in `whole_from` takes the whole batch. With
        `with_rows`, rows are claimed for several tickets at once, where that is possible: who takes several finds them
        cheap, and will not keep the rows' batch waiting."""
        with self._lock:
            taken = self._pull_orphan() or self._pull_early() or self._pull_open(want, whole_from, with_rows)
            taken = taken or self._share_away(want)
            if taken is None:
                self._words[self._me + Worker.PHASE] = Phase.ASLEEP
        self.tell()
        if isinstance(taken, Run) and type(taken.keys[0]) is bytes:
            return unpacked(taken)
        return taken

    def pull_stream(self) -> Run | None:
        """Take the next batch meant for this worker's stream. None: there is none, and the worker counts as asleep."""
        words = self._words
        with self._lock:
            for number in range(words[Header.PULL], words[Header.PUBLISHED]):
                at = self.control.batch(number)
                if words[at + Batch.WORKER] == self.worker and words[at + Batch.PULLED] == 0:
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
            is_whole = place.count == words[at + Batch.FILLED]
            if is_whole or np.count_nonzero(owners) == words[at + Batch.FILLED]:
                completed = True
                words[at + Batch.RUN] = positions.start + 1 if is_whole else 0
                to_collate = complete(words, at, rows_table)
                words[self._me + Worker.COLLATE] = place.batch + 1 if to_collate else 0
            self._put_down(place.count)
            void = words[at + Batch.EPOCH] < words[Header.LIVE_EPOCH]
        if (completed and not to_collate) or void:
            self._untold = True
            if not self.tells_late:
                self.tell()
        return to_collate

    def tell(self) -> None:
        """Announce what was committed, if that has to be done yet."""
        if self._untold:
            self._untold = False
            self._announce()

    @property
    def stopped(self) -> bool:
        """Whether the whole pool is to end now."""
        return bool(self._words[Header.STOP])

    @property
    def dismissed(self) -> bool:
        """Whether this worker is to end now."""
        return bool(self._words[Header.STOP] or self._words[self._retire])

    def shorten(self, batch: int, filled: int) -> None:
        """A stream's last batch has only `filled` samples. To be said before they are committed."""
        with self._lock:
            self._words[self.control.batch(batch) + Batch.FILLED] = filled

    def bind(self, batch: int, layout: int, heap: int) -> tuple[int, int]:
        """Bind a batch to a slot, and to the layout of its first written sample (heap beginning at `heap`), unless
        another worker was first. Returns the slot and the layout word in force."""
        at = self.control.batch(batch)
        with self._lock:
            slot = self._bind_slot(batch)
            if self._words[at + Batch.LAYOUT] == 0:
                self._words[at + Batch.HEAP_TOP] = heap
                self._words[at + Batch.LAYOUT] = layout
            return slot, self._words[at + Batch.LAYOUT]

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
                words[at + Batch.RUN] = positions.start + 1
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

    def park(self, most: int) -> int | None:
        """Put the single ticket in hand aside, unfinished. Returns its entry of the worker's temp queue, or None if
        that is full, or all temp queues have `most` entries together: the ticket stays in hand."""
        words, me = self._words, self._me
        with self._lock:
            for entry in range(PARKED_PER_WORKER if self.control.count_parked() < most else 0):
                at = self.control.parked(self.worker, entry)
                if not words[at + Parked.BATCH]:
                    words[at + Parked.PLACE] = words[me + Worker.FIRST]
                    words[at + Parked.BATCH] = words[me + Worker.BATCH] + 1  # counts from here on
                    self._put_down(1)
                    words[me + Worker.PARKS] += 1
                    return entry
        return None

    def unpark(self, entry: int) -> bool:
        """Take a parked ticket in hand again. False: nobody waits for it any more."""
        words, me, at = self._words, self._me, self.control.parked(self.worker, entry)
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

    @property
    def are_unsent(self) -> bool:
        """Whether some worker has met a sample that cannot be sent to another. A look without the lock."""
        return bool(self._words[Header.UNSENT])

    def note_unsent(self) -> None:
        """This worker has met such a sample."""
        self._words[Header.UNSENT] = 1

    def run_at(self, epoch: int, position: int) -> Run:
        """The ticket of a position that was not delivered, as a run of one. It stays in whose hand it is."""
        words, published = self._words, self._words[Header.PUBLISHED]
        with self._lock:
            for number in range(published - 1, max(-1, published - 1 - self.control.batches), -1):
                at = self.control.batch(number)
                record = words[at : at + BATCH_WORDS].tolist()
                place = position - record[Batch.POSITION]
                if record[Batch.EPOCH] == epoch and 0 <= place < record[Batch.TICKETS]:
                    keys = read_keys(self.arena, number % self.control.batches, record[Batch.KEYS_BYTES], place, 1)
                    run = Run(number, place, epoch, record[Batch.SEED], position, keys, None, record[Batch.SHIFT])
                    return unpacked(run) if type(keys[0]) is bytes else run
        raise InternalError(f"position {position} of epoch {epoch} has no ticket any more")

    def note_time(self, samples: int, seconds: float, from_cache: bool = False) -> bool:
        """Leave word of what a run took, for the profile: of samples made, or of such that were in a cache. True:
        longer than the threshold. Takes no lock: this worker alone writes there."""
        words, me, nanoseconds = self._words, self._me, int(seconds * 1e9)
        at = self.control.times(self.worker, words[me + Worker.TIMES])
        words[at] = -samples if from_cache else samples
        words[at + 1] = nanoseconds
        words[me + Worker.TIMES] += 1
        return 0 < words[Header.THRESHOLD_NS] * samples < nanoseconds

    def note_cost(self, key: int, seconds: float) -> None:
        """Leave word of what a single sample took that is, or was thought to be, slow. Takes no lock."""
        note_cost(self.control, self.worker, key, seconds)

    def mark_slow(self, slow: bool) -> None:
        """Say that this worker is at a sample that is past the threshold, or no longer."""
        self._words[self._me + Worker.SLOW] = slow

    def mark_late(self, place: Place) -> None:
        """Say of rows, before they are committed, that their samples took longer than the threshold."""
        at = self.control.batch(place.batch)
        table = self.row_table(self._words[at + Batch.SLOT], self._words[at + Batch.ROWS])
        table[place.row : place.row + place.count, Column.LATE] = 1

    @property
    def active(self) -> int:
        """Workers that are meant to run now."""
        return self._words[Header.ACTIVE]

    @property
    def threshold_s(self) -> float | None:
        """Seconds from which on a sample counts as slow; None: none does."""
        return self._words[Header.THRESHOLD_NS] * 1e-9 or None

    @property
    def first_open(self) -> tuple[int | None, int]:
        """The batch of the ticket that would be taken next, and its epoch; None: there is none, or only one of an
        abandoned epoch. A look without the lock."""
        words, head = self._words, self._words[Header.ORPHAN_HEAD]
        is_orphan = head < words[Header.ORPHAN_TAIL]
        number = words[self.control.orphan(head)] % ALONE if is_orphan else words[Header.PULL]
        epoch = words[self.control.batch(number) + Batch.EPOCH]
        return (number if is_orphan or number < words[Header.PUBLISHED] else None), epoch

    @property
    def newest(self) -> int:
        """The batch posted last."""
        return self._words[Header.PUBLISHED] - 1

    @property
    def posted_before(self) -> int:
        """Epochs before this one have no more tickets to post."""
        return self._words[Header.POSTED_BEFORE]

    def is_void(self, epoch: int) -> bool:
        """Whether nobody waits for that epoch any more."""
        return epoch < self._words[Header.LIVE_EPOCH]

    def enter(self, phase: int) -> None:
        """Announce a phase of a worker's life."""
        with self._lock:
            self._enter(phase)


def unpacked(run: Run) -> Run:
    """A run with its keys as the sampler gave them."""
    keys = unpickled(run.keys)
    if not any(type(key) is Placed for key in keys):
        return replace(run, keys=keys)
    origins = [key.origin if type(key) is Placed else run.origin(number) for number, key in enumerate(keys)]
    return replace(run, keys=bare(keys), origins=origins)


def _owner_words(positions: range) -> Words:
    """What the OWNER column says of samples at these positions."""
    return np.arange(positions.start + 1, positions.stop + 1)
