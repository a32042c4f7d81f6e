"""A ready batch becomes the user's object: tensors over the slot, which is lent to the user until they are garbage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import CapturedError
from .._queues import codec, columns
from .._queues.arena import Stretch
from .._queues.board import NO_LAYOUT, Fields, samples_in
from .._queues.fields import Batch, Flag
from .._queues.layout_book import LayoutBook
from .._queues.leases import Slots
from .._queues.mapping import Bytes
from .._queues.posting import PostingBoard
from .._queues.rows import Column, Kind, Words, table_bytes
from .._queues.texts import texts_of_batch
from .totals import Totals


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch as the user gets it."""

    data: Any
    samples: int
    nbytes: int
    is_copied: bool
    """Whether it was copied because the user holds so many others; small ones are copied anyhow."""


def hand_out(batch: Delivered | BaseException, totals: Totals) -> Any:
    """What the user gets: the batch, which counts from now on, or the error in its place."""
    if isinstance(batch, BaseException):
        try:
            raise batch
        finally:
            del batch  # its traceback refers to this frame: a cycle
    totals.count_delivered(batch.samples, batch.nbytes, batch.is_copied)
    return batch.data


class Delivery:
    """Builds batches in the main process."""

    def __init__(self, board: PostingBoard, slots: Slots) -> None:
        self._board = board
        self._slots = slots
        self._book = LayoutBook(board.control, board.arena)

    def error(self, fields: Fields) -> BaseException | None:
        """The error that a ready batch carries: its collation's, or that of its first failed row."""
        if not fields[Batch.FLAGS] & Flag.ERROR:
            return None
        memory, table = self._memory(fields), self._table(fields)
        if fields[Batch.FLAGS] & Flag.RESULT:
            offset = fields[Batch.RESULT]
        else:
            offset = int(next(entry for entry in table if entry[Column.KIND] == Kind.FAILED)[Column.OFFSET])
        captured: CapturedError = codec.read(memory, offset, keep=codec.copy_all)
        return captured.rebuild()

    def take(self, fields: Fields) -> Delivered:
        """The batch. Its slot is lent under it, or free again if everything was copied."""
        slot, nbytes, samples = fields[Batch.SLOT], fields[Batch.HEAP_TOP], samples_in(fields)
        is_large = nbytes > codec.SMALL
        if is_large and self._slots.may_lend():
            data = self._build(fields, self._slots.lend(slot, nbytes), codec.keep_large)
            return Delivered(data, samples, nbytes, is_copied=False)
        data = self._build(fields, self._memory(fields), codec.copy_all)
        self._slots.put_back(slot)
        return Delivered(data, samples, nbytes, is_copied=is_large)

    def payload(self, fields: Fields) -> tuple[bool, Bytes]:
        """Whether a ready batch is a full one, and the bytes of its samples' columns, or else of its heap."""
        rows, word = fields[Batch.ROWS], fields[Batch.LAYOUT]
        end = fields[Batch.HEAP_TOP] if word in (0, NO_LAYOUT) else self._book.offsets(word, rows)[-1]
        return samples_in(fields) == rows, self._memory(fields)[table_bytes(rows) : end]

    def stream_state(self, fields: Fields) -> bytes | None:
        """The pickled state of a stream after a batch, if its worker sent one."""
        offset = fields[Batch.STREAM_STATE]
        if not offset:
            return None
        packed: bytes = codec.read(self._memory(fields), offset, keep=codec.copy_all)
        return packed

    def owners(self, fields: Fields) -> Sequence[int]:
        """The positions of the samples in a batch, those that failed and were left out included. A range where a worker
        made all of them in one go, as nearly all batches of cheap samples."""
        run = fields[Batch.RUN]
        if run:
            return range(run - 1, run - 1 + fields[Batch.FILLED])
        owners: list[int] = (self._table(fields)[:, Column.OWNER] - 1).tolist()
        return owners

    def _build(self, fields: Fields, memory: Bytes, keep: Callable[[int], bool]) -> Any:
        if fields[Batch.FLAGS] & Flag.RESULT:
            return codec.read(memory, fields[Batch.RESULT], keep)
        word = fields[Batch.LAYOUT]
        assert word not in (0, NO_LAYOUT), "a ready batch without result has rows of a layout"
        plan = self._book.layout(word)
        texts = texts_of_batch(self._table(fields), memory) if plan.texts else []
        offsets = self._book.offsets(word, fields[Batch.ROWS])
        return columns.build(plan, memory, offsets, fields[Batch.FILLED], texts, keep)

    def _memory(self, fields: Fields) -> Bytes:
        return self._board.arena.view(Stretch.SLOT, fields[Batch.SLOT], fields[Batch.HEAP_TOP])

    def _table(self, fields: Fields) -> Words:
        return self._board.row_table(fields[Batch.SLOT], fields[Batch.ROWS])[: fields[Batch.FILLED]]
