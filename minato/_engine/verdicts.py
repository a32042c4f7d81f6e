"""Errors handed in by the main process, in the name of a worker that is gone.

A worker that was killed by a sample, or stuck in one, cannot hand in an error for it. The main process does so in its
place, with the worker's own record and the worker's own code, before another is started there.
"""

from __future__ import annotations

from .._errors import CapturedError
from .._plan import Collate
from .._queues.fields import Batch, Header
from .._queues.layout_book import LayoutBook
from .._queues.posting import PostingBoard
from .._queues.taking import TakingBoard
from .._records import Place
from .._workers.writer import BatchWriter


def fail_ticket(
    board: PostingBoard, worker: int, batch: int, place: int, error: CapturedError, late_rows: bool
) -> None:
    """A ticket that was withheld from recovery gets `error` in place of its sample. `late_rows`: samples may overtake,
    so that a row has to be claimed for it."""
    taking = TakingBoard(board.control, board.arena, worker)
    position = board.field(batch, Batch.POSITION) + place
    row = taking.claim(board.field(batch, Batch.EPOCH), 1) if late_rows else Place(batch, place, 1)
    if row is None:  # nobody waits for this epoch any more
        taking.drop()
        return
    _writer(board, taking, worker).write(row, [error])
    taking.commit(row, range(position, position + 1))


def fail_collation(board: PostingBoard, worker: int, batch: int, uncommitted: range, error: CapturedError) -> None:
    """A batch whose collation was withheld from recovery gets `error` in place of its result. `uncommitted`: positions
    of its samples, if they are not in rows."""
    taking = TakingBoard(board.control, board.arena, worker)
    if board.field(batch, Batch.EPOCH) < board.control.words[Header.LIVE_EPOCH]:
        taking.drop()
    else:
        _writer(board, taking, worker).fail(batch, error, uncommitted)


def _writer(board: PostingBoard, taking: TakingBoard, worker: int) -> BatchWriter:
    return BatchWriter(worker, taking, LayoutBook(board.control, board.arena), Collate.ROWS, list, None)
