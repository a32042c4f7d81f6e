"""A ready batch becomes the user's object: tensors over the slot, which is lent to the user until they are garbage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._errors import CapturedError
from .._queues import codec, columns
from .._queues.arena import Stretch
from .._queues.board import NO_LAYOUT
from .._queues.control import Batch, Flag
from .._queues.layout_book import LayoutBook
from .._queues.leases import Slots
from .._queues.mapping import Bytes
from .._queues.posting import PostingBoard
from .._queues.rows import Column, Kind, Words, table_bytes
from .._queues.texts import texts_of_batch
from .totals import Totals


class Delivery:
    """Builds batches in the main process."""

    def __init__(self, board: PostingBoard, slots: Slots, totals: Totals) -> None:
        self._board = board
        self._slots = slots
        self._book = LayoutBook(board.control, board.arena)
        self._totals = totals

    def error(self, batch: int) -> BaseException | None:
        """The error that a ready batch carries: its collation's, or that of its first failed row."""
        board = self._board
        if not board.field(batch, Batch.FLAGS) & Flag.ERROR:
            return None
        memory, table = self._memory(batch), self._table(batch)
        if board.field(batch, Batch.FLAGS) & Flag.RESULT:
            offset = board.field(batch, Batch.RESULT)
        else:
            offset = int(next(entry for entry in table if entry[Column.KIND] == Kind.FAILED)[Column.OFFSET])
        captured: CapturedError = codec.read(memory, offset, keep=codec.copy_all)
        return captured.rebuild()

    def take(self, batch: int) -> Any:
        """The batch. Its slot is lent under it, or free again if everything was copied."""
        slot = self._board.field(batch, Batch.SLOT)
        nbytes = self._board.field(batch, Batch.HEAP_TOP)
        self._totals.bytes_delivered += nbytes
        if self._slots.may_lend():
            self._totals.batches_zero_copy += 1
            return self._build(batch, self._slots.lend(slot, nbytes), codec.keep_large)
        self._totals.batches_copied += 1
        data = self._build(batch, self._memory(batch), codec.copy_all)
        self._slots.put_back(slot)
        return data

    def payload(self, batch: int) -> tuple[bool, Bytes]:
        """Whether a ready batch is a full one, and the bytes of its samples or its result."""
        rows = self._board.field(batch, Batch.ROWS)
        return self._board.filled(batch) == rows, self._memory(batch)[table_bytes(rows) :]

    def stream_state(self, batch: int) -> bytes | None:
        """The pickled state of a stream after `batch`, if its worker sent one."""
        offset = self._board.field(batch, Batch.STREAM_STATE)
        if not offset:
            return None
        packed: bytes = codec.read(self._memory(batch), offset, keep=codec.copy_all)
        return packed

    def owners(self, batch: int) -> Any:
        """The positions of the samples in a batch, those that failed and were left out included."""
        return self._table(batch)[:, Column.OWNER] - 1

    def _build(self, batch: int, memory: Bytes, keep: Callable[[int], bool]) -> Any:
        board = self._board
        if board.field(batch, Batch.FLAGS) & Flag.RESULT:
            return codec.read(memory, board.field(batch, Batch.RESULT), keep)
        word = board.field(batch, Batch.LAYOUT)
        assert word not in (0, NO_LAYOUT), "a ready batch without result has rows of a layout"
        plan = self._book.layout(word)
        texts = texts_of_batch(self._table(batch), memory) if plan.texts else []
        rows, filled = board.field(batch, Batch.ROWS), board.field(batch, Batch.FILLED)
        return columns.build(plan, memory, rows, filled, texts, keep)

    def _memory(self, batch: int) -> Bytes:
        return self._board.arena.view(
            Stretch.SLOT, self._board.field(batch, Batch.SLOT), self._board.field(batch, Batch.HEAP_TOP)
        )

    def _table(self, batch: int) -> Words:
        board = self._board
        rows = board.row_table(board.field(batch, Batch.SLOT), board.field(batch, Batch.ROWS))
        return rows[: board.field(batch, Batch.FILLED)]
