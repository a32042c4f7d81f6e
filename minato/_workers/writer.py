"""Samples into rows, rows into batches: what a worker does with a sample once it has it.

A sample that has its batch's layout is written straight into the batch's columns. Any other is pickled into the slot's
heap, and the worker that completes such a batch reads all samples back and calls the collate function on them, so that
its result (or its error) is what torch's loader gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._errors import CapturedError
from .._plan import Collate
from .._queues import codec
from .._queues.arena import Stretch
from .._queues.board import NO_LAYOUT
from .._queues.columns import WORTH_MAPPING, Columns
from .._queues.fields import Batch, Current, Flag
from .._queues.layout_book import LayoutBook
from .._queues.mapping import Bytes, prefault
from .._queues.rows import Column, Kind, Words, table_bytes
from .._queues.taking import TakingBoard
from .._queues.texts import texts_of_row
from .._records import Place
from .._sample_random import SampleSource, announce
from .generators import mix
from .heap import Heap
from .lanes import RunsUnderSeeds
from .randomness import COLLATE_SALT, Reseed

OfBatch = Callable[[int], object]
ColumnsByPlace = dict[tuple[int, int, int], Columns]
"""Columns by slot, layout word and rows of the slot."""


class Sheet:
    """The rows of a run of samples whose batch has its slot and its layout."""

    def __init__(
        self, columns: Columns, row: int, put_odd: Callable[[int, Any], None], tell_heap: Callable[[int], None]
    ) -> None:
        """`row`: the first. `put_odd`: writes a sample that has another layout than its batch. `tell_heap`: is given
        the size of each sample while it is there."""
        self._columns = columns
        self._row = row
        self._put_odd = put_odd
        self._tell_heap = tell_heap

    def put(self, number: int, sample: Any) -> None:
        """Write the sample of that number in the run. It counts only once committed."""
        if not self._columns.write_one(sample, self._row + number, []):
            self._put_odd(self._row + number, sample)
        self._tell_heap(self._columns.row_bytes)


class BatchWriter:
    """Writes rows and results for one worker."""

    def __init__(
        self,
        worker: int,
        board: TakingBoard,
        book: LayoutBook,
        collate: Collate,
        function: Callable[[Any], Any],
        randomness: RunsUnderSeeds | None,
        columns: ColumnsByPlace | None = None,
        heap: Heap | None = None,
    ) -> None:
        """`randomness` gives collation its random numbers; None leaves it the worker's own streams. `columns`: those
        that the writers of this process have made, if it has several. `heap`: is told of large samples and batches."""
        self._worker = worker
        self._board = board
        self._arena = board.arena
        self._book = book
        self._single = collate is Collate.NONE
        self._own: dict[int, dict[int, Any]] | None = {} if collate is Collate.FUNCTION else None
        """By batch and row: samples that this worker has made of batches that are not collated yet. The user's function
        is given these themselves, as far as it is called here."""
        self._function = function
        self._randomness = None if collate is Collate.ROWS else randomness
        self.row_bytes = 0
        """Size of a row of the layout last written."""
        self.goes_singly = False
        """Whether samples of that layout are better written one by one: see `sheet`."""
        self._columns: ColumnsByPlace = {} if columns is None else columns
        self._heap = heap
        self.make_again: Callable[[int, int], Any] | None = None
        """Makes the sample at a position of an epoch, or the error in its place: for samples that another worker has
        made and could not send. None: they are errors."""
        self._mapped: dict[int, int] = {}
        """By slot: up to where this writer has had the heap of the slot mapped."""

    # ---- rows -----------------------------------------------------------------------------------------------------

    def write(self, place: Place, samples: Sequence[Any]) -> None:
        """Put samples (or captured errors) into the rows of `place`, in order. They count only once committed."""
        board, batch = self._board, place.batch
        record = board.fields(batch)
        slot, word, rows = record[Batch.SLOT], record[Batch.LAYOUT], record[Batch.ROWS]
        if word == 0:
            slot, word = self._bind(batch, rows, samples)
        elif slot < 0:
            slot = board.bind_slot(batch)
        table = board.row_table(slot, rows)
        if word != NO_LAYOUT:
            columns = self._columns_of(slot, word, rows)
            self.row_bytes, self.goes_singly = columns.row_bytes, columns.goes_singly
            texts = columns.write(samples, place.row)
            self._tell_heap(columns.row_bytes)
            if texts is not None:
                table[place.row : place.row + place.count, Column.KIND :] = (Kind.FIXED, 0, 0)
                if texts:
                    table[place.row, Column.OFFSET] = self._store(batch, slot, texts)
                return
        for row, sample in enumerate(samples, place.row):
            kind, offset = self._write_one(batch, slot, word, rows, row, sample)
            table[row, Column.KIND :] = (kind, offset, 0)
        if self._own is not None:
            self._keep_own(self._own, place, samples)

    def _keep_own(self, own: dict[int, dict[int, Any]], place: Place, samples: Sequence[Any]) -> None:
        for other in [other for other in own if self._board.is_collated(other)]:
            del own[other]  # by another worker
        # What has failed may be fetched again, by whoever.
        made = {row: sample for row, sample in enumerate(samples, place.row) if type(sample) is not CapturedError}
        own.setdefault(place.batch, {}).update(made)

    def sheet(self, place: Place, done: int = 0) -> Sheet | None:
        """Where to put the samples of `place` as they come, one by one, but for the first `done`; None: their batch has
        no rows for that yet, or never will."""
        record = self._board.fields(place.batch)
        slot, word, rows = record[Batch.SLOT], record[Batch.LAYOUT], record[Batch.ROWS]
        if word in (0, NO_LAYOUT) or slot < 0 or self._book.layout(word).texts:
            return None
        columns, table = self._columns_of(slot, word, rows), self._board.row_table(slot, rows)
        first, end = place.row + done, place.row + place.count
        columns.prepare(first, end - first)
        table[first:end, Column.KIND :] = (Kind.FIXED, 0, 0)

        def put_odd(row: int, sample: Any) -> None:
            table[row, Column.KIND :] = (*self._write_one(place.batch, slot, word, rows, row, sample), 0)

        return Sheet(columns, place.row, put_odd, self._tell_heap)

    def _bind(self, batch: int, rows: int, samples: Sequence[Any]) -> tuple[int, int]:
        """Bind the batch to a slot and to the layout of its first good sample; returns both."""
        sample = next((s for s in samples if type(s) is not CapturedError), None)
        word = NO_LAYOUT if sample is None else self._book.word_for(sample)
        heap = table_bytes(rows) if word == NO_LAYOUT else self._book.offsets(word, rows)[-1]
        return self._board.bind(batch, word, heap)

    def _columns_of(self, slot: int, word: int, rows: int) -> Columns:
        columns = self._columns.get((slot, word, rows))
        if columns is None:
            layout = self._book.layout(word)
            memory = self._arena.view(Stretch.SLOT, slot, self._book.offsets(word, rows)[-1])
            columns = self._columns[slot, word, rows] = Columns(layout, memory, rows)
        return columns

    def _write_one(self, batch: int, slot: int, word: int, rows: int, row: int, sample: Any) -> tuple[int, int]:
        """Write a single row by whatever way it fits; returns the kind and heap offset for its table entry."""
        if type(sample) is CapturedError:
            return Kind.FAILED, self._store(batch, slot, sample)
        if word != NO_LAYOUT:
            texts = self._columns_of(slot, word, rows).write([sample], row)
            if texts is not None:
                return Kind.FIXED, self._store(batch, slot, texts) if texts else 0
        try:
            return Kind.PICKLED, self._store(batch, slot, sample)
        except Exception as error:
            if self.make_again is not None:
                self._board.note_unsent()
                return Kind.UNSENT, 0
            where = f"in DataLoader worker process {self._worker}, pickling a sample"
            failure = CapturedError.capture(error, where, self._worker)
            return Kind.FAILED, self._store(batch, slot, failure)

    def _store(self, batch: int, slot: int, value: object) -> int:
        """Pickle `value` into the heap of a batch; returns its offset in the slot."""
        return self._store_packed(batch, slot, codec.pack(value))

    def _store_packed(self, batch: int, slot: int, packed: codec.Packed) -> int:
        offset = self._board.allocate(batch, packed.nbytes)
        end, mapped = offset + packed.nbytes, self._mapped.get(slot, 0)
        memory = self._arena.view(Stretch.SLOT, slot, end)
        if end > mapped and packed.nbytes >= WORTH_MAPPING:
            prefault(memory, max(offset, mapped), end)
            self._mapped[slot] = end
        codec.write(packed, memory, offset)
        self._tell_heap(packed.nbytes)
        return offset

    def _tell_heap(self, nbytes: int) -> None:
        if self._heap is not None and nbytes >= self._heap.told_from:
            self._heap.made(nbytes)

    # ---- results --------------------------------------------------------------------------------------------------

    def collate_rows(self, batch: int) -> None:
        """Read all samples of a complete batch back, collate them, hand in the result."""
        board = self._board
        slot = board.bind_slot(batch)
        word, rows, filled = (board.field(batch, f) for f in (Batch.LAYOUT, Batch.ROWS, Batch.FILLED))
        memory = self._arena.view(Stretch.SLOT, slot, board.field(batch, Batch.HEAP_TOP))
        table = board.row_table(slot, rows)
        own = {} if self._own is None else self._own.pop(batch, {})
        chosen: Iterable[int] = range(filled)
        if board.field(batch, Batch.FLAGS) & Flag.SHORT:
            chosen = [row for row in chosen if table[row, Column.KIND] != Kind.FAILED]
        samples = [
            own[row] if row in own else self._read_row(table, row, memory, slot, word, rows, batch) for row in chosen
        ]
        error = next((sample for sample in samples if type(sample) is CapturedError), None)
        if error is None:
            self.collate(batch, samples)
        else:
            self.fail(batch, error, range(0))

    def _read_row(self, table: Words, row: int, memory: Bytes, slot: int, word: int, rows: int, batch: int) -> Any:
        """The sample in a row, or an error, if it has to be made again and that fails."""
        if table[row, Column.KIND] == Kind.UNSENT:
            return self._made_again(batch, int(table[row, Column.OWNER]) - 1)
        # Copied: a collate function may keep a sample, and the slot will hold another batch one day.
        if table[row, Column.KIND] == Kind.PICKLED:
            return codec.read(memory, int(table[row, Column.OFFSET]), keep=codec.copy_all)
        texts = texts_of_row(table, row, memory) if self._book.layout(word).texts else []
        return self._columns_of(slot, word, rows).read(row, texts)

    def _made_again(self, batch: int, position: int) -> Any:
        assert self.make_again is not None, "whoever leaves samples unsent can make them again"
        self._board.current[0] = Current.COLLATION
        sample = self.make_again(self._board.field(batch, Batch.EPOCH), position)
        self._board.current[0] = Current.NOTHING
        return sample

    def collate(
        self, batch: int, samples: Any, positions: range = range(0), before_finish: OfBatch | None = None
    ) -> None:
        """Call the collate function and hand in its result, or its error, as the result of `batch`. `samples`: a list,
        or what `__getitems__` gave in place of one. `positions`: of the samples, if their rows were not committed
        before. `before_finish`: what is to be done before the batch is ready."""
        slot = self._board.bind_slot(batch)
        flags = Flag.RESULT
        self._board.current[0] = Current.COLLATION
        try:
            result = codec.pack(self._collated(batch, samples), codec.ResultPickler)
            offset = self._store_packed(batch, slot, result)
        except Exception as error:
            where = f"in DataLoader worker process {self._worker}, collating"
            captured = CapturedError.capture(error, where, self._worker, "collate")
            offset, flags = self._store(batch, slot, captured), flags | Flag.ERROR
        if before_finish is not None:
            before_finish(batch)
        self._board.current[0] = Current.NOTHING
        self._board.finish(batch, offset, flags, positions)

    def fail(self, batch: int, error: CapturedError, positions: range, before_finish: OfBatch | None = None) -> None:
        """Hand in an error as the result of a batch."""
        offset = self._store(batch, self._board.bind_slot(batch), error)
        if before_finish is not None:
            before_finish(batch)
        self._board.finish(batch, offset, Flag.RESULT | Flag.ERROR, positions)

    def finish_packed(self, batch: int, packed: codec.Packed, positions: range) -> None:
        """Hand in the result of a batch that was collated elsewhere."""
        offset = self._store_packed(batch, self._board.bind_slot(batch), packed)
        self._board.finish(batch, offset, Flag.RESULT, positions)

    def save_stream_state(self, batch: int, packed: bytes) -> None:
        """Leave the state of this worker's stream with a batch that is not ready yet."""
        self._board.note_stream_state(batch, self._store(batch, self._board.bind_slot(batch), packed))

    def _collated(self, batch: int, samples: Any) -> Any:
        value = samples[0] if self._single else samples
        if self._randomness is None:
            return self._function(value)
        seed, position = self._board.field(batch, Batch.SEED), self._board.field(batch, Batch.POSITION)
        position += self._board.field(batch, Batch.SHIFT)

        source = SampleSource(lambda _: mix(seed, position, COLLATE_SALT), lambda: 0)

        def call(reseed: Reseed | None) -> list[Any]:
            announce(source)
            if reseed is not None:
                reseed(0)
            return [self._function(value)]

        return self._randomness.fetch(call, source.seed_of)[0]
