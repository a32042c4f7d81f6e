"""The board: where work is posted, taken, and handed in. What both sides of it share.

posting.py   the main process's side: publish batches of tickets, see which are ready
taking.py    the workers' side: pull tickets, claim rows, commit rows, finish batches (hands.py: under the lock)
recovery.py  what a dead worker had in hand is posted again

In order, a ticket's place in its batch is its row. When samples may overtake, `claim` gives a finished sample the next
free row of its epoch's open batch; since each published batch brings as many rows as tickets, a claim never waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from .._errors import InternalError
from .arena import Arena, Stretch
from .control import BATCH_WORDS, PARKED_PER_WORKER, ControlBlock
from .fields import Batch, Flag, Header, Parked, Phase, State, Worker
from .rows import Column, Kind, Words, table, table_bytes

ALONE = 1 << 60  # added to an orphan's batch: its tickets are to be fetched with nothing beside them
NO_LAYOUT = -1  # layout word of a batch whose rows all go through the heap

Fields = Sequence[int]
"""The words of a batch's record, by the names in `Batch`. Of a ready batch: it changes no more."""


def samples_in(fields: Fields) -> int:
    """Samples in a ready batch."""
    return fields[Batch.FILLED] - fields[Batch.LEFT_OUT]


class Board:
    """Operations on the control block. Public methods take the pool's lock themselves, but for those that say so."""

    def __init__(self, control: ControlBlock, arena: Arena) -> None:
        self.control = control
        self.arena = arena
        self._words = control.words
        self._lock = control.lock
        self._tables: dict[int, Words] = {}
        """Row tables by slot, each as long as the longest asked for."""
        self.now_ns = time.monotonic_ns
        """The clock of `Worker.SINCE_NS`."""

    def field(self, batch: int, field: int) -> int:
        """One word of a batch's record, for whoever the batch belongs to at the moment. Takes no lock."""
        return self._words[self.control.batch(batch) + field]

    def fields(self, batch: int) -> Fields:
        """All words of a batch's record as they are now: one look in place of many. For whoever the batch belongs to.
        Takes no lock."""
        at = self.control.batch(batch)
        return self._words[at : at + BATCH_WORDS].tolist()

    def is_collated(self, batch: int) -> bool:
        """Whether nobody needs the single samples of a batch any more. A look without the lock."""
        at = self.control.batch(batch)
        return self._words[at + Batch.NUMBER] != batch or self._words[at + Batch.STATE] in (State.READY, State.ENDED)

    def bind_slot(self, batch: int) -> int:
        """The slot of a batch, taken from the free ones if it has none yet."""
        slot = self._words[self.control.batch(batch) + Batch.SLOT]
        if slot < 0:
            with self._lock:
                slot = self._bind_slot(batch)
        return slot

    def _bind_slot(self, batch: int) -> int:
        """The same under the lock."""
        words, at = self._words, self.control.batch(batch)
        self._finish_binding()
        if words[at + Batch.SLOT] < 0:
            slot = words[self.control.free_base + words[Header.FREE_SLOTS] - 1]
            self.row_table(slot, words[at + Batch.ROWS])[:] = 0
            # Killed from here on, a worker leaves word that the slot may still be on the stack.
            words[Header.BINDING] = batch + 1
            words[at + Batch.SLOT] = slot
            words[Header.FREE_SLOTS] -= 1
            words[Header.BINDING] = 0
        return words[at + Batch.SLOT]

    def _finish_binding(self) -> None:
        """Take off the stack what a worker bound and was killed before taking off. Under the lock, before any use of
        the stack."""
        words = self._words
        if words[Header.BINDING]:
            slot = words[self.control.batch(words[Header.BINDING] - 1) + Batch.SLOT]
            count = words[Header.FREE_SLOTS]
            if count and words[self.control.free_base + count - 1] == slot:
                words[Header.FREE_SLOTS] = count - 1
            words[Header.BINDING] = 0

    def parked(self, worker: int) -> list[tuple[int, int]]:
        """(batch, place) of the tickets a worker has put aside. Takes no lock."""
        entries = (self.control.parked(worker, entry) for entry in range(PARKED_PER_WORKER))
        return [
            (self._words[at + Parked.BATCH] - 1, self._words[at + Parked.PLACE])
            for at in entries
            if self._words[at + Parked.BATCH]
        ]

    def count_slow_workers(self) -> int:
        """Workers that are at a sample past the threshold: those that say so, and those that have been at theirs for
        that long, and cannot say so. Takes no lock."""
        words, threshold_ns, now_ns = self._words, self._words[Header.THRESHOLD_NS], self.now_ns()
        count = 0
        for me in map(self.control.worker, range(self.control.records)) if threshold_ns else ():
            tickets = words[me + Worker.COUNT] if words[me + Worker.PHASE] == Phase.FETCHING else 0
            late = tickets and now_ns - words[me + Worker.SINCE_NS] > threshold_ns * tickets
            count += bool(words[me + Worker.SLOW] or late)
        return count

    def row_table(self, slot: int, rows: int) -> Words:
        """The row table of a slot that holds `rows` rows. Takes no lock."""
        kept = self._tables.get(slot)
        if kept is None or len(kept) < rows:
            kept = self._tables[slot] = table(self.arena.view(Stretch.SLOT, slot, table_bytes(rows)), rows)
        return kept[:rows]

    def share_tables(self, other: Board) -> None:
        """Use the views that another board of this process has made of row tables, and make them for it."""
        self._tables = other._tables

    def post_orphan(self, batch: int, first: int, count: int, alone: bool = False) -> None:
        """Offer tickets to whoever comes first, ahead of all others; no tickets: the collation of a batch. `alone`: one
        process is to fetch nothing beside them. Under the lock."""
        tail = self._words[Header.ORPHAN_TAIL]
        if tail - self._words[Header.ORPHAN_HEAD] >= self.control.orphans:
            raise InternalError(f"more than {self.control.orphans} pieces of work orphaned at once")
        at = self.control.orphan(tail)
        self._words[at], self._words[at + 1], self._words[at + 2] = batch + alone * ALONE, first, first + count
        self._words[Header.ORPHAN_TAIL] = tail + 1


def complete(words: memoryview, at: int, table: Words) -> bool:
    """All rows of the batch with the record at `at` are there: it becomes ready, or (True) has to be collated first."""
    kinds, flags = table[: words[at + Batch.FILLED], Column.KIND], words[at + Batch.FLAGS]
    odd = kinds.any()  # most batches have fixed rows only: one look in place of two
    if odd and not flags & Flag.SHORT and (kinds == Kind.FAILED).any():
        words[at + Batch.FLAGS] |= Flag.ERROR
    elif not flags & Flag.RESULT and (odd or flags & (Flag.COLLATE | Flag.SHORT)):
        words[at + Batch.STATE] = State.COLLATING
        return True
    words[at + Batch.STATE] = State.READY
    return False
