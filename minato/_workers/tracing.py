"""What a worker leaves in a trace. Nothing here exists in a worker that is not traced.

`TracedBoard` is the board a traced worker takes its work from: between taking work and handing it in lies all that is
to be recorded, whichever loop is at it. Single operations are recorded in op_tracing.py. A process with many lanes has
a board for each: lane_tracing.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._fetchers.stream import Stream
from .._instrument import NONE, RECORD, Flag, Kind, TraceSpec
from .._queues.arena import Arena
from .._queues.control import ControlBlock
from .._queues.taking import TakingBoard
from .._recording import Pending
from .._records import CollateTask, Place, Run
from .._trace_sessions import open_worker
from .lane_recording import Line
from .op_tracing import OpStream, OpWatch, StageClock, TracedSampleRun, as_index
from .splitting import Steps
from .stages import SampleRun

_now, _cpu = time.monotonic_ns, time.thread_time_ns
_SAMPLE, _RUN = int(Kind.SAMPLE), int(Kind.RUN)
_pack = RECORD.pack


class LineTrace:
    """The instruments of one line of work: samples that are made one after the other."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._ops = OpWatch(line, line.spec.granularity)
        self._clock = StageClock(line)
        self._only_batches = line.spec.granularity == "batch"

    def board(self, control: ControlBlock, arena: Arena, worker: int, announce: Callable[[], object]) -> TakingBoard:
        """The board to take work from."""
        return TracedBoard(self._line, self.worked, control, arena, worker, announce)

    @property
    def worked(self) -> Callable[[int], None] | None:
        """Whom to tell of work that was done; None: nobody wants to know."""
        return None if self._only_batches else self._ops.worked

    def dataset(self, dataset: Any, samples: int) -> Any:
        """What to fetch a run of samples from."""
        return dataset if self._only_batches else self._ops.choose(dataset, samples)

    def see(self, stream: Stream, batch_size: int) -> None:
        """Look at samples of a stream, where they are to be looked at."""
        if not self._only_batches:
            stream.see(lambda samples: OpStream(self._line, self._ops, samples, batch_size))

    def sample_run(self, steps: Steps) -> SampleRun:
        """A sample that is seen through its stages by somebody else; to be given to `find_stages`."""
        return SampleRun(steps) if self._only_batches else TracedSampleRun(steps, self._clock)

    def collate(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The collate function, timed."""
        return TimedCollate(self._line, function)


class WorkerTrace(LineTrace):
    """The instruments of one worker process."""

    def __init__(self, spec: TraceSpec, worker: int) -> None:
        self.recorder = open_worker(spec, worker)
        super().__init__(self.recorder)
        self._worker = worker
        self._tell("start")

    def stop(self) -> None:
        """The worker ends in order."""
        self._tell("stop")
        self.recorder.let_go()

    def _tell(self, what: str) -> None:
        self.recorder.record(Kind.WORKER, _now(), name=what, index=self._worker, nbytes=self.recorder.pid)
        self.recorder.tell_starved()
        self.recorder.flush()


def open_trace(spec: TraceSpec | None, worker: int) -> WorkerTrace | None:
    """The instruments of a worker, if it is traced."""
    return None if spec is None else WorkerTrace(spec, worker)


@dataclass(slots=True)
class _Aside:
    """A parked sample's spans so far."""

    parts: list[tuple[int, int, int]]
    """Work on it: start, duration and CPU time in nanoseconds."""
    spans: list[Pending]
    index: int


class TracedBoard(TakingBoard):
    """A board that notes when work was taken and handed in."""

    def __init__(self, recorder: Line, worked: Callable[[int], None] | None, *args: Any) -> None:
        """`worked` is told the nanoseconds of each run."""
        super().__init__(*args)
        self._recorder = recorder
        self._worked = worked
        self._pool = recorder.spec.pool & 0xFFFF
        self._start_ns, self._cpu_ns = 0, _cpu()
        self._shares_clock = False
        """Whether `_used_ns` has to be asked what was used: others may be at work in the same thread."""
        self._fetched_ns: int | None = None
        self._taken = self._made = 0
        self._keys: list[object] = []
        self._parts: list[tuple[int, int, int]] = []
        """Of the sample in hand: work before it was parked."""
        self._aside: dict[int, _Aside] = {}
        """Parked samples, by their entry."""
        self._batch = NONE
        """Which batch the newest records belong to: at most one batch's are not written yet."""

    # ---- taking -----------------------------------------------------------------------------------------------------

    def pull(self, want: int, whole_from: int = 0, with_rows: bool = False) -> Run | CollateTask | None:
        taken = super().pull(want, whole_from, with_rows)
        self._begin(taken)
        return taken

    def pull_stream(self) -> Run | None:
        taken = super().pull_stream()
        self._begin(taken)
        self._recorder.index = NONE  # samples of a stream have none, and what is taken is a whole batch
        return taken

    def _begin(self, taken: Run | CollateTask | None) -> None:
        if self._recorder.pending:
            self._settle(NONE)  # nobody waited for what was made before
        if taken is None:
            self._recorder.flush()
            return
        self._keys = taken.keys if isinstance(taken, Run) else []
        self._start_ns = _now()  # the CPU clock stands where the last work left it: idle workers use none
        self._fetched_ns = None
        self._taken, self._made = len(self._keys), 0
        self._parts = []
        self._recorder.index = as_index(self._keys[0]) if self._taken == 1 else NONE

    def claim(self, epoch: int, count: int) -> Place | None:
        if self._fetched_ns is None:
            self._fetched_ns = _now()
        return super().claim(epoch, count)

    # ---- handing in -------------------------------------------------------------------------------------------------

    def commit(self, place: Place, positions: range) -> bool:
        end_ns = _now()  # the consumer may have the batch before `commit` returns
        to_collate = super().commit(place, positions)
        self._note_made(place.batch, place.count, end_ns)
        return to_collate

    def finish(self, batch: int, offset: int, flags: int, positions: range = range(0)) -> None:
        end_ns = _now()
        super().finish(batch, offset, flags, positions)
        if positions:
            self._note_made(batch, len(positions), end_ns)
        else:
            self._settle(batch)
            if batch != self._batch:
                self._write(batch)

    def _note_made(self, batch: int, count: int, end_ns: int) -> None:
        """Samples are in their rows.

        All of it in one function: this comes a millisecond after it came last, when nothing of it is in the CPU's
        caches, and a call more takes as long as ten lines.
        """
        if self._shares_clock:
            used_ns = self._used_ns()
        else:
            cpu_ns = _cpu()
            used_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns
        recorder, start_ns = self._recorder, self._start_ns
        if self._made and self._fetched_ns is not None:
            # Rows of another batch than the run's first samples: theirs began later.
            start_ns += (self._fetched_ns - start_ns) * self._made // max(1, self._taken)
        self._made += count
        if self._parts:
            self._tell_parts(batch)
        length_ns = end_ns - start_ns
        thread, used_us = recorder.thread, used_ns // 1000
        recorder.extend(_pack(_RUN, 0, 0, self._pool, thread, count, used_us, start_ns, length_ns, batch, NONE, 0))
        looks = recorder.looks
        if looks[0] or looks[1]:
            recorder.tell_looks(batch)
        if self._worked is not None:
            self._worked(length_ns)
        if recorder.pending:
            self._settle(batch, count if self._made < self._taken else None)
        if batch != self._batch:
            self._write(batch)

    def _tell_parts(self, batch: int) -> None:
        """Work on the sample in hand before it was parked."""
        for start_ns, length_ns, used_ns in self._parts:
            self._recorder.record(Kind.RUN, start_ns, length_ns, batch=batch, count=0, cpu_ns=used_ns)
        self._parts = []

    def _settle(self, batch: int, samples: int | None = None) -> None:
        """The batch of spans that wait for it: those of the first `samples` samples, or all."""
        waiting = self._recorder.pending
        if not waiting:
            return
        upto = len(waiting)
        if samples is not None:
            ends = [number for number, span in enumerate(waiting, 1) if span[0] == _SAMPLE]
            upto = ends[samples - 1] if len(ends) >= samples else upto
        self._recorder.settle(waiting[:upto], batch)
        del waiting[:upto]

    def _used_ns(self) -> int:
        """CPU time since this was asked last."""
        before, self._cpu_ns = self._cpu_ns, _cpu()
        return self._cpu_ns - before

    def _write(self, batch: int) -> None:
        """Records of another batch begin: what was recorded so far goes to the file."""
        self._batch = batch
        self._recorder.flush()

    # ---- parking ----------------------------------------------------------------------------------------------------

    def park(self, most: int) -> int | None:
        entry = super().park(most)
        if entry is not None:
            now = _now()
            index = as_index(self._keys[0]) if self._keys else NONE
            waiting = self._recorder.pending or []
            part = (self._start_ns, now - self._start_ns, self._used_ns())
            self._aside[entry] = _Aside([*self._parts, part], waiting[:], index)
            waiting.clear()
            self._recorder.record(Kind.PARKED, now, index=index)
        return entry

    def unpark(self, entry: int) -> bool:
        wanted = super().unpark(entry)
        aside = self._aside.pop(entry, None)
        if wanted and aside is not None:
            self._begin(None)
            self._start_ns = _now()
            self._used_ns()  # so far: not for this sample
            self._taken, self._made, self._fetched_ns = 1, 0, None
            self._parts, self._keys = aside.parts, [aside.index]
            self._recorder.index = aside.index
            if self._recorder.pending is not None:
                self._recorder.pending.extend(aside.spans)
            self._recorder.record(Kind.RESUMED, self._start_ns, index=aside.index)
        return wanted


class TimedCollate:
    """A collate function that leaves a span; its batch is told when the result is handed in."""

    def __init__(self, recorder: Line, function: Callable[[Any], Any]) -> None:
        self._recorder = recorder
        self._function = function

    def __call__(self, samples: Any) -> Any:
        start_ns, cpu_ns = _now(), _cpu()
        flags = int(Flag.FAILED)
        try:
            result = self._function(samples)
            flags = 0
            return result
        finally:
            self._recorder.index = NONE
            self._recorder.span(Kind.COLLATION, "Collation", start_ns, _now() - start_ns, _cpu() - cpu_ns, flags)
