"""Fill batches from this worker's own stream: the loop of a worker on an iterable dataset.

Streams keep torch's meaning: every worker iterates its own copy of the dataset, and batches never mix workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import IterDataPipe

from .._errors import CapturedError
from .._fetchers.stream import Stream
from .._plan import Collate
from .._queues.control import Batch
from .._records import Place, Run
from .datapipes import seed_pipe
from .writer import BatchWriter

if TYPE_CHECKING:
    from .main import WorkerContext


class StreamLoop:
    """One worker's loop. A batch is filled by one worker from first to last row."""

    def __init__(self, context: WorkerContext, writer: BatchWriter) -> None:
        self._context = context
        self._board = context.board
        self._worker = context.worker
        self._writer = writer
        self._by_function = context.plan.collate is not Collate.ROWS
        self._stream: Stream | None = None
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
        plan, batch = self._context.plan, run.batch
        try:
            if run.epoch != self._epoch or self._stream is None:
                self._context.sync_dataset()
                self._stream, self._epoch = None, run.epoch
                if isinstance(self._context.dataset, IterDataPipe):
                    seed_pipe(self._context.dataset, run.seed)
                self._stream = Stream(self._context.dataset, plan.batch_size, plan.drop_last, keeps=plan.skips)
            samples = self._stream.next_batch()
        except Exception as error:
            where = f"in DataLoader worker process {self._worker}, iterating the dataset"
            hopeless = self._stream is None or self._stream.is_hopeless
            self._writer.fail(batch, CapturedError.capture(error, where, self._worker, final=hopeless), range(1))
            return
        if not samples:
            self._board.end_stream(batch)
        elif self._by_function:
            self._writer.collate(batch, samples, range(len(samples)))
        else:
            self._write_rows(batch, samples)

    def _write_rows(self, batch: int, samples: list[object]) -> None:
        if len(samples) < self._board.field(batch, Batch.ROWS):
            self._board.shorten(batch, len(samples))
        place = Place(batch, 0, len(samples))
        self._writer.write(place, samples)
        if self._board.commit(place, range(len(samples))):
            self._writer.collate_rows(batch)
