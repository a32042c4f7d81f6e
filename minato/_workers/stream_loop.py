"""Fill batches from this worker's own stream: the loop of a worker on an iterable dataset.

Streams keep torch's meaning: every worker iterates its own copy of the dataset, and batches never mix workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import IterDataPipe

from .._errors import CapturedError
from .._fetchers.stream import Stream, Take
from .._plan import Collate
from .._queues.fields import Batch
from .._queues.keys import unpickled
from .._records import Place, Run, StreamStart
from .datapipes import seed_pipe
from .stream_account import StreamAccount, skip_batches
from .writer import BatchWriter, Sheet

if TYPE_CHECKING:
    from .main import WorkerContext


_WRITTEN = object()
"""In place of a sample that is in its row already."""


class StreamLoop:
    """One worker's loop. A batch is filled by one worker from first to last row."""

    def __init__(self, context: WorkerContext, writer: BatchWriter) -> None:
        self._context = context
        self._board = context.board
        self._worker = context.worker
        self._writer = writer
        self._by_function = context.plan.collate is not Collate.ROWS
        self._stream: Stream | None = None
        self._start: StreamStart | None = None
        self._account = StreamAccount()
        self._epoch = -1

    def run(self) -> None:
        """Work until the pool stops."""
        context = self._context
        while not context.stopped:
            run = self._board.pull_stream()
            if run is None:
                context.sleep()
            else:
                self._fill(run)

    def _fill(self, run: Run) -> None:
        batch = run.batch
        try:
            if run.epoch != self._epoch or self._stream is None:
                self._context.sync_dataset()
                self._stream = None
                self._stream = self._begin(run)
            samples = self._stream.next_batch(self._writes_rows(batch))
        except Exception as error:
            where = f"in DataLoader worker process {self._worker}, iterating the dataset"
            hopeless = self._stream is None or self._stream.is_hopeless
            captured = CapturedError.capture(error, where, self._worker, final=hopeless)
            self._writer.fail(batch, captured, range(1), self._save_state)
            return
        if not samples:
            self._save_state(batch)
            self._board.end_stream(batch)
        elif self._by_function:
            self._writer.collate(batch, samples, range(len(samples)), self._save_state)
        else:
            self._hand_in(batch, samples)

    def _begin(self, run: Run) -> Stream:
        """Begin the epoch of a run, or what is left of it."""
        plan, dataset = self._context.plan, self._context.dataset
        if run.epoch != self._epoch:  # otherwise it could not be begun before, and is to begin where it should have
            key = unpickled(run.keys)[0]
            self._start = key if isinstance(key, StreamStart) else None
        is_first, start, self._epoch = self._epoch in (-1, run.epoch), self._start, run.epoch
        self._account.begin(start, is_first)
        if isinstance(dataset, IterDataPipe):
            seed_pipe(dataset, run.seed)
        stream = Stream(dataset, plan.batch_size, plan.drop_last, start, keeps=plan.skips)
        if start is not None:
            skip_batches(stream, start.skip, self._collate if self._by_function else None, self._context)
        if self._context.trace is not None:
            self._context.trace.see(stream, plan.batch_size or 1)
        self._account.begun(start)
        return stream

    def _collate(self, samples: list[object]) -> object:
        return self._context.plan.collate_fn(samples[0] if self._context.plan.collate is Collate.NONE else samples)

    def _save_state(self, batch: int) -> None:
        """Hand in the stream's state with a batch, where there is one that the main process does not know."""
        packed = None if self._stream is None else self._account.state_after_batch(self._stream)
        if packed is not None:
            self._writer.save_stream_state(batch, packed)

    def _writes_rows(self, batch: int) -> Take | None:
        """What writes each sample of a batch into its row as soon as it is there, where that is better."""
        if not self._writer.goes_singly or self._by_function or self._context.plan.skips:
            return None
        place = Place(batch, 0, self._board.field(batch, Batch.ROWS))
        sheet: Sheet | None = None

        def write(number: int, sample: object) -> object:
            nonlocal sheet
            sheet = sheet or self._writer.sheet(place, number)
            if sheet is None:
                self._writer.write(Place(batch, number, 1), [sample])
            else:
                sheet.put(number, sample)
            return _WRITTEN

        return write

    def _hand_in(self, batch: int, samples: list[object]) -> None:
        """Write what is not written yet, and declare the rows done."""
        if len(samples) < self._board.field(batch, Batch.ROWS):
            self._board.shorten(batch, len(samples))
        place = Place(batch, 0, len(samples))
        if samples[0] is not _WRITTEN:
            self._writer.write(place, samples)
        self._save_state(batch)
        if self._board.commit(place, range(len(samples))):
            self._writer.collate_rows(batch)
