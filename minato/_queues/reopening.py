"""Failed rows of a complete batch are opened again, or left out. The main process's side; a complete batch is its own.

What this leaves behind after each call is what `recovery.recover` would derive: tickets without a done row are orphans,
rows without an owner are spare. So a death at any moment does no harm to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import codec
from .arena import Stretch
from .fields import Batch, Flag, Header, State
from .keys import read_keys, unpickled, write_keys
from .posting import PostingBoard
from .rows import Column, Kind, Words


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket, and the row its sample is in."""

    batch: int
    """The batch whose ticket it is, which need not be the one the row is in."""
    place: int
    row: int


def failed_rows(board: PostingBoard, batch: int) -> list[int]:
    """Rows of a complete batch that hold errors."""
    kinds = _table(board, batch)[: board.field(batch, Batch.FILLED), Column.KIND]
    return [row for row, kind in enumerate(kinds.tolist()) if kind == Kind.FAILED]


def error_at(board: PostingBoard, batch: int, row: int | None) -> object:
    """The captured error in a row, or (None) in place of the result."""
    slot, top = board.field(batch, Batch.SLOT), board.field(batch, Batch.HEAP_TOP)
    offset = board.field(batch, Batch.RESULT) if row is None else int(_table(board, batch)[row, Column.OFFSET])
    return codec.read(board.arena.view(Stretch.SLOT, slot, top), offset, keep=codec.copy_all)


def position_at(board: PostingBoard, batch: int, row: int) -> int:
    """Position in the epoch of the sample in a row."""
    return int(_table(board, batch)[row, Column.OWNER]) - 1


def keys_of(board: PostingBoard, batch: int, first: int, count: int) -> list[object]:
    """Keys of a batch's tickets, as the sampler gave them."""
    nbytes = board.field(batch, Batch.KEYS_BYTES)
    return unpickled(read_keys(board.arena, batch % board.control.batches, nbytes, first, count))


def set_key(board: PostingBoard, batch: int, place: int, key: object) -> None:
    """Give a ticket another key. Nobody has that ticket in hand; other tickets of the batch may be."""
    keys = keys_of(board, batch, 0, board.field(batch, Batch.TICKETS))
    keys[place] = key
    with board.control.lock:
        nbytes = write_keys(board.arena, batch % board.control.batches, keys)
        board.control.words[board.control.batch(batch) + Batch.KEYS_BYTES] = nbytes


def set_aside(board: PostingBoard, batch: int) -> None:
    """A ready batch is not delivered for the time being."""
    board.control.words[board.control.batch(batch) + Batch.STATE] = State.MENDING


def reopen(board: PostingBoard, batch: int, tickets: Sequence[Ticket], rows_are_spare: bool) -> None:
    """Have the samples of rows fetched again. `rows_are_spare`: samples may overtake, so that any sample may take the
    row; otherwise a row waits for its own ticket."""
    words, at = board.control.words, board.control.batch(batch)
    with board.control.lock:
        owners = _table(board, batch)[:, Column.OWNER]
        for ticket in tickets:
            owners[ticket.row] = 0
        words[at + Batch.FLAGS] &= ~(Flag.ERROR | Flag.RESULT)
        words[at + Batch.STATE] = State.OPEN
        for home in sorted({ticket.batch for ticket in tickets}):
            for first, count in _stretches(t.place for t in tickets if t.batch == home):
                board.post_orphan(home, first, count)
        if rows_are_spare:
            for row, count in _stretches(ticket.row for ticket in tickets):
                entry = board.control.spare(words[Header.SPARE_TAIL])
                words[entry : entry + 3] = array("q", [batch, row, row + count])
                words[Header.SPARE_TAIL] += 1


def leave_out_failed(board: PostingBoard, batch: int, count: int) -> None:
    """Have a worker collate the rows of a batch but for `count` failed ones."""
    words, at = board.control.words, board.control.batch(batch)
    with board.control.lock:
        words[at + Batch.LEFT_OUT] = count
        words[at + Batch.FLAGS] = words[at + Batch.FLAGS] & ~(Flag.ERROR | Flag.RESULT) | Flag.SHORT
        words[at + Batch.STATE] = State.COLLATING
        board.post_orphan(batch, 0, 0)


def _table(board: PostingBoard, batch: int) -> Words:
    return board.row_table(board.field(batch, Batch.SLOT), board.field(batch, Batch.ROWS))


def _stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, count) of each stretch of consecutive numbers."""
    stretches: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if stretches and sum(stretches[-1]) == number:
            stretches[-1] = (stretches[-1][0], stretches[-1][1] + 1)
        else:
            stretches.append((number, 1))
    return stretches
