"""What a worker leaves in a trace. Nothing here exists in a worker that is not traced.

`TracedBoard` is the board a traced worker takes its work from: between taking work and handing it in lies all that is
to be recorded, whichever loop is at it. `OpWatch` decides whose samples are looked at operation by operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._fetchers.sequential import has_getitems
from .._instrument import NONE, Flag, Kind, TraceSpec
from .._queues.arena import Arena
from .._queues.control import ControlBlock
from .._queues.taking import TakingBoard
from .._recording import Pending, Recorder, open_worker
from .._records import CollateTask, Place, Run
from .stages import SampleRun, find_stages

OP_BUDGET = 0.005  # share of a worker's time that spans of operations may cost where they are not asked for
SPAN_COST_S = 4e-6  # seconds to record one, stages included
LEAST_REST_NS = 20_000  # of code between two stages, to have a span of its own
_now, _cpu = time.monotonic_ns, time.thread_time_ns


class WorkerTrace:
    """The instruments of one worker."""

    def __init__(self, spec: TraceSpec, worker: int) -> None:
        self._recorder = open_worker(spec, worker)
        self._worker = worker
        self._ops = OpWatch(self._recorder, spec.granularity)
        self._tell("start")

    def board(self, control: ControlBlock, arena: Arena, worker: int, announce: Callable[[], object]) -> TakingBoard:
        """The board to take work from."""
        return TracedBoard(self._recorder, control, arena, worker, announce)

    def dataset(self, dataset: Any, samples: int) -> Any:
        """What to fetch a run of samples from."""
        return self._ops.choose(dataset, samples)

    def collate(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The collate function, timed."""
        return TimedCollate(self._recorder, function)

    def stop(self) -> None:
        """The worker ends in order."""
        self._tell("stop")
        self._recorder.let_go()

    def _tell(self, what: str) -> None:
        self._recorder.record(Kind.WORKER, _now(), name=what, index=self._worker, nbytes=self._recorder.pid)
        self._recorder.flush()


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

    def __init__(self, recorder: Recorder, *args: Any) -> None:
        super().__init__(*args)
        self._recorder = recorder
        self._start_ns = self._cpu_ns = 0
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
        return taken

    def _begin(self, taken: Run | CollateTask | None) -> None:
        if self._recorder.pending:
            self._settle(NONE)  # nobody waited for what was made before
        if taken is None:
            self._recorder.flush()
            return
        self._keys = taken.keys if isinstance(taken, Run) else []
        self._start_ns, self._cpu_ns = _now(), _cpu()
        self._fetched_ns = None
        self._taken, self._made = len(self._keys), 0
        self._parts = []

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
            self._write(batch)

    def _note_made(self, batch: int, count: int, end_ns: int) -> None:
        """Samples are in their rows."""
        cpu_ns, start_ns = _cpu(), self._start_ns
        if self._made and self._fetched_ns is not None:
            # Rows of another batch than the run's first samples: theirs began later.
            start_ns += (self._fetched_ns - start_ns) * self._made // max(1, self._taken)
        self._made += count
        record = self._recorder.record
        for part_ns, duration_ns, used_ns in self._parts:
            record(Kind.RUN, part_ns, duration_ns, batch=batch, count=0, cpu_ns=used_ns)
        self._parts = []
        record(Kind.RUN, start_ns, end_ns - start_ns, batch=batch, count=count, cpu_ns=cpu_ns - self._cpu_ns)
        self._cpu_ns = cpu_ns
        self._settle(batch, count if self._made < self._taken else None)
        self._write(batch)

    def _settle(self, batch: int, samples: int | None = None) -> None:
        """The batch of spans that wait for it: those of the first `samples` samples, or all."""
        waiting = self._recorder.pending
        if not waiting:
            return
        upto = len(waiting)
        if samples is not None:
            ends = [number for number, span in enumerate(waiting, 1) if span[0] == Kind.SAMPLE]
            upto = ends[samples - 1] if len(ends) >= samples else upto
        self._recorder.settle(waiting[:upto], batch)
        del waiting[:upto]

    def _write(self, batch: int) -> None:
        if batch != self._batch:
            self._batch = batch
            self._recorder.flush()

    # ---- parking ----------------------------------------------------------------------------------------------------

    def park(self) -> int | None:
        entry = super().park()
        if entry is not None:
            now, cpu = _now(), _cpu()
            index = as_index(self._keys[0]) if self._keys else NONE
            waiting = self._recorder.pending or []
            part = (self._start_ns, now - self._start_ns, cpu - self._cpu_ns)
            self._aside[entry] = _Aside([*self._parts, part], waiting[:], index)
            waiting.clear()
            self._recorder.record(Kind.PARKED, now, index=index)
        return entry

    def unpark(self, entry: int) -> bool:
        wanted = super().unpark(entry)
        aside = self._aside.pop(entry, None)
        if wanted and aside is not None:
            self._begin(None)
            self._start_ns, self._cpu_ns = _now(), _cpu()
            self._taken, self._made, self._fetched_ns = 1, 0, None
            self._parts, self._keys = aside.parts, [aside.index]
            if self._recorder.pending is not None:
                self._recorder.pending.extend(aside.spans)
            self._recorder.record(Kind.RESUMED, self._start_ns, index=aside.index)
        return wanted


class TimedCollate:
    """A collate function that leaves a span; its batch is told when the result is handed in."""

    def __init__(self, recorder: Recorder, function: Callable[[Any], Any]) -> None:
        self._recorder = recorder
        self._function = function

    def __call__(self, samples: Any) -> Any:
        start_ns, cpu_ns = _now(), _cpu()
        flags = Flag.FAILED
        try:
            result = self._function(samples)
            flags = Flag(0)
            return result
        finally:
            self._recorder.index = NONE
            self._recorder.span(Kind.COLLATION, "Collation", start_ns, _now() - start_ns, _cpu() - cpu_ns, flags)


class OpWatch:
    """Chooses the runs of samples whose operations are recorded, one by one."""

    def __init__(self, recorder: Recorder, granularity: str) -> None:
        self._recorder = recorder
        self._always = granularity == "op"
        self._never = granularity == "batch"
        self._seen: Any = None
        self._view: OpView | None = None
        self._credit_s = 0.0
        self._last_s = time.monotonic()

    def choose(self, dataset: Any, samples: int) -> Any:
        """The dataset, or a view of it whose samples leave spans."""
        if self._never or self._recorder.ended or has_getitems(dataset):
            return dataset
        if not self._always:
            now = time.monotonic()
            self._credit_s = min(1.0, self._credit_s + OP_BUDGET * (now - self._last_s))
            self._last_s = now
            cost_s = samples * SPAN_COST_S * (3 if self._view is None else self._view.spans_per_sample)
            if self._seen is not None and cost_s > self._credit_s:  # the first run is always looked at
                return dataset
            self._credit_s -= cost_s
        if self._seen is not dataset or self._view is None:
            self._seen, self._view = dataset, OpView(self._recorder, dataset)
        return self._view


class OpView:
    """A dataset whose samples are made stage by stage, each with a span."""

    def __init__(self, recorder: Recorder, dataset: Any) -> None:
        self._recorder = recorder
        self._dataset = dataset
        self._sample = recorder.name("Sample")
        self._loader = recorder.name("Loader")
        self._begin = find_stages(dataset, lambda steps: TracedSampleRun(steps, recorder))
        self.spans_per_sample = 2

    def __getitem__(self, key: Any) -> Any:
        recorder = self._recorder
        waiting = recorder.pending
        if waiting is None:
            return self._dataset[key]
        recorder.index = as_index(key)
        before, flags, nbytes = len(waiting), Flag.FAILED, 0
        start_ns, cpu_ns = _now(), _cpu()
        try:
            value = self._made(key)
            flags, nbytes = Flag(0), size_of(value)
            return value
        finally:
            duration_ns, cpu_us = _now() - start_ns, (_cpu() - cpu_ns) // 1000
            index = recorder.index
            if self._begin is None:
                waiting.append((Kind.LOADER, flags, self._loader, 0, cpu_us, start_ns, duration_ns, index, nbytes))
            waiting.append((Kind.SAMPLE, flags, self._sample, 0, cpu_us, start_ns, duration_ns, index, nbytes))
            self.spans_per_sample = len(waiting) - before
            recorder.index = NONE

    def _made(self, key: Any) -> Any:
        if self._begin is None:
            return self._dataset[key]
        run = self._begin(key)
        while not run.advance():
            pass
        return run.result


class TracedSampleRun(SampleRun):
    """A sample on its way that leaves a span for each stage, and for what is between stages where that takes time."""

    __slots__ = ("_ended_ns", "_recorder")

    def __init__(self, steps: Any, recorder: Recorder) -> None:
        super().__init__(steps)
        self._recorder = recorder
        self._ended_ns = 0

    def advance(self) -> bool:
        if self._next is None:
            return bool(self._timed(Kind.LOADER, "Loader", super().advance, (), {}))
        function, args, keywords = self._next
        self._next = self._timed, (Kind.OP, self.stage, function, args, keywords), {}
        try:
            return super().advance()
        finally:
            rest_ns = _now() - self._ended_ns
            if rest_ns > LEAST_REST_NS:
                self._recorder.span(Kind.OP, "(rest)", self._ended_ns, rest_ns, 0, 0)

    def _timed(self, kind: Kind, name: str, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        flags = Flag.FAILED
        start_ns, cpu_ns = _now(), _cpu()
        try:
            value = function(*args, **keywords)
            flags = Flag(0)
            return value
        finally:
            self._ended_ns = end_ns = _now()
            self._recorder.span(kind, name, start_ns, end_ns - start_ns, _cpu() - cpu_ns, flags)


def as_index(key: object) -> int:
    """A sample's key as traces have it: NONE if it is not an integer."""
    return key if type(key) is int and -(1 << 63) <= key < 1 << 63 else NONE


def size_of(value: Any) -> int:
    """Bytes of a sample, as far as they are to be seen at a glance."""
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value[:16]))
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    nbytes = getattr(value, "nbytes", 0)
    return nbytes if type(nbytes) is int else 0
