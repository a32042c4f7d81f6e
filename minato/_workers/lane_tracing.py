"""Tracing of a process with many lanes: threads, or tasks of an event loop. Each has a board that notes its own work.

CPU time of a lane that is a thread is that thread's. Tasks share one thread: what its clock has gone on since any of
them handed something in counts for the one that hands in now, so that the sum over all is right.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from .._instrument import Flag, Kind
from .lane_recording import LaneRecorder, LaneRecorders
from .op_tracing import as_index, size_of
from .tracing import LineTrace, TracedBoard, WorkerTrace

_now, _cpu = time.monotonic_ns, time.thread_time_ns
_SPANS_PER_SAMPLE = 2  # of one that is awaited
Getter = Callable[[Any], Awaitable[Any]]


class LaneTrace(LineTrace):
    """The instruments of one lane."""

    def __init__(self, line: LaneRecorder, clock: SharedClock | None) -> None:
        super().__init__(line)
        self.recorder = line
        self._clock_of_all = clock

    @property
    def board_arguments(self) -> tuple[Any, ...]:
        """What a `TracedLaneBoard` takes before what every board takes."""
        return self._clock_of_all, self.recorder, self.worked

    def enter(self) -> None:
        """The calling thread, or task, is this lane's."""
        self.recorder.enter()

    def getter(self, getter: Getter, samples: int) -> Getter:
        """What to await samples from: `getter`, or one that leaves spans."""
        if not self._ops.wants(samples, _SPANS_PER_SAMPLE):
            return getter
        return lambda key: self._awaited(getter, key)

    async def _awaited(self, getter: Getter, key: Any) -> Any:
        """A sample that is awaited is all loading."""
        line, index = self.recorder, as_index(key)
        line.index = index
        start_ns, flags, nbytes = _now(), int(Flag.FAILED), 0
        try:
            sample = await getter(key)
            flags, nbytes = 0, size_of(sample)
            return sample
        finally:
            duration_ns = _now() - start_ns
            for kind, name, size in ((Kind.LOADER, "Loader", 0), (Kind.SAMPLE, "Sample", nbytes)):
                if line.pending is not None:
                    number = line.name(name)
                    line.pending.append((kind, flags, number, line.thread, 0, start_ns, duration_ns, index, size))


class LaneTraces:
    """The instruments of a process's lanes."""

    def __init__(self, trace: WorkerTrace, count: int, in_one_thread: bool) -> None:
        self._recorders = LaneRecorders(trace.recorder, count, not in_one_thread)
        self._clock = SharedClock() if in_one_thread else None

    def lane(self, number: int) -> LaneTrace:
        """Those of lane `number`."""
        return LaneTrace(self._recorders.lane(number), self._clock)


def open_lanes(trace: WorkerTrace | None, count: int, in_one_thread: bool) -> LaneTraces | None:
    """The instruments of the `count` lanes of a process, if it is traced."""
    return None if trace is None else LaneTraces(trace, count, in_one_thread)


class SharedClock:
    """CPU time of a thread that several lanes share."""

    def __init__(self) -> None:
        self._last_ns = _cpu()

    def used_ns(self) -> int:
        """Since anybody asked last."""
        before, self._last_ns = self._last_ns, _cpu()
        return self._last_ns - before


class TracedLaneBoard(TracedBoard):
    """The board of a lane."""

    _recorder: LaneRecorder

    def __init__(self, clock: SharedClock | None, recorder: LaneRecorder, *args: Any) -> None:
        super().__init__(recorder, *args)
        self._clock = clock
        self._has_begun = False
        self._shares_clock = True

    def _used_ns(self) -> int:
        if self._clock is not None:
            return self._clock.used_ns()
        if not self._has_begun:  # the board was made in another thread
            self._has_begun, self._cpu_ns = True, 0
        return super()._used_ns()

    def _write(self, batch: int) -> None:
        self._batch = batch
        self._recorder.reached(batch)
