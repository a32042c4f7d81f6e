"""What is recorded of samples that threads or coroutines of this process fetch ahead (inline_ahead.py).

A sample is fetched before anybody knows in which trace record its batch begins: a `FetchNote` keeps when and by whom,
and the spans of the user's code meanwhile, until the batch is put together.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from .._instrument import NONE
from .._recording import Pending, Recorder
from .._workers.lane_recording import LaneRecorder, LaneRecorders
from .._workers.op_tracing import as_index

_now, _cpu = time.monotonic_ns, time.thread_time_ns


class FetchWatch:
    """Sees what is fetched, each of those that are under way at once on a lane of its own."""

    def __init__(self, recorder: Recorder, lanes: int, are_threads: bool) -> None:
        """`are_threads`: or coroutines, which share the CPU time of one."""
        recorders = LaneRecorders(recorder, lanes, are_threads)
        self.recorder = recorder
        self.are_threads = are_threads
        self.free = [recorders.lane(number) for number in reversed(range(lanes))]
        """Lanes that nobody is on; taking and giving back is atomic."""

    def expect(self, key: Any) -> FetchNote:
        """What is to be entered while a key, or a list of keys together, is fetched."""
        return FetchNote(self, key)


class FetchNote:
    """One fetch. Times in nanoseconds; valid once it is over."""

    def __init__(self, watch: FetchWatch, key: Any) -> None:
        self._watch = watch
        self._lane: LaneRecorder | None = None
        self.index = as_index(key)
        self.start_ns = self.duration_ns = self.cpu_ns = 0
        self.thread = 0
        """Number of its lane."""
        self.failed = False
        self.spans: list[Pending] = []
        """Of the user's code."""

    def __enter__(self) -> None:
        lane = self._lane = self._watch.free.pop()
        lane.enter()
        lane.index, lane.pending = self.index, self.spans
        self.thread = lane.thread
        self.start_ns, self.cpu_ns = _now(), _cpu()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        lane, self._lane = self._lane, None
        assert lane is not None
        self.duration_ns = _now() - self.start_ns
        self.cpu_ns = _cpu() - self.cpu_ns if self._watch.are_threads else 0
        self.failed = kind is not None
        looks, lane.looks = lane.looks, [0, 0]
        for hit in (False, True):
            self._watch.recorder.looked_up(hit, looks[hit])
        lane.index, lane.pending = NONE, []
        self._watch.free.append(lane)
