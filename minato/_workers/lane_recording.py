"""A recorder as one of several lanes of a process sees it (lanes.py): with a sample of its own at hand.

Events of all lanes go into the process's one file; the number of the lane, from 1 on, is their `thread`. Spans of the
user's code (`minato.traced`) find their lane by a context variable: threads have a context each, tasks of an event loop
too, and what those start in turn inherits it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from .._instrument import NONE, Kind, activate
from .._recording import Pending, Recorder


class LaneRecorder:
    """What one lane records by."""

    def __init__(self, lanes: LaneRecorders, recorder: Recorder, lane: int) -> None:
        self.spec = recorder.spec
        self.index = NONE
        self.pending: list[Pending] | None = []
        """Spans that wait for the number of their batch."""
        self.looks = [0, 0]
        """Misses and hits of the cache since they were told last."""
        self.thread = lane + 1
        self.name, self.flush, self.extend = recorder.name, recorder.flush, recorder.extend
        self._recorder = recorder
        self._lanes = lanes

    @property
    def ended(self) -> bool:
        """Whether nothing is recorded any more."""
        return self._recorder.ended

    def record(self, kind: Kind, start_ns: int, duration_ns: int = 0, **fields: Any) -> None:
        """Leave an event of this lane."""
        self._recorder.record(kind, start_ns, duration_ns, thread=self.thread, **fields)

    def span(self, kind: Kind, name: str, start_ns: int, duration_ns: int, cpu_ns: int, flags: int) -> None:
        """Leave a span of the sample at hand, which waits until its batch is known."""
        if self.pending is None or kind is Kind.MARK:
            fields = {"name": name, "index": self.index, "cpu_ns": cpu_ns, "flags": flags}
            self.record(kind, start_ns, duration_ns, **fields)
        else:
            cpu_us = min(cpu_ns // 1000, 0xFFFFFFFF) if self._lanes.are_threads else 0
            number = self.name(name)
            self.pending.append((kind, flags, number, self.thread, cpu_us, start_ns, duration_ns, self.index, 0))

    def settle(self, spans: list[Pending], batch: int) -> None:
        """The batch of spans that waited for it."""
        thread = self.thread
        self._recorder.settle([(*span[:3], thread, *span[4:]) for span in spans], batch)

    def tell_looks(self, batch: int) -> None:
        """Leave what was counted of the cache."""
        self._recorder.tell_looks(batch, thread=self.thread, looks=self.looks)

    def reached(self, batch: int) -> None:
        """This lane works for `batch` now: what was recorded is written when that is new to all lanes."""
        self._lanes.reached(batch)

    def enter(self) -> None:
        """Spans of the calling thread, or task, are this lane's from now on."""
        _lane.set(self)


_lane: ContextVar[LaneRecorder | None] = ContextVar("minato lane", default=None)
Line = Recorder | LaneRecorder
"""What records one sample after the other: a process, or a lane of one."""


class LaneRecorders:
    """The lanes of one process. Takes the process's recorder's place as what is active in it."""

    __minato_random__ = False  # as by `minato.deterministic`: what is recorded is none of a sample's making

    def __init__(self, recorder: Recorder, count: int, are_threads: bool) -> None:
        self.are_threads = are_threads
        """Or tasks of one thread, whose clock goes on for all of them."""
        self.index = NONE
        self.note = recorder.note
        self.record = recorder.record
        self._recorder = recorder
        self._newest = NONE
        recorder.pending = None  # whoever is in no lane works for no batch
        recorder.keep_threads(count)
        activate(self)

    def lane(self, number: int) -> LaneRecorder:
        """What lane `number` records by."""
        return LaneRecorder(self, self._recorder, number)

    def span(self, kind: Kind, name: str, start_ns: int, duration_ns: int, cpu_ns: int, flags: int) -> None:
        """Leave a span of the lane that the calling thread or task is in."""
        (_lane.get() or self._recorder).span(kind, name, start_ns, duration_ns, cpu_ns, flags)

    def looked_up(self, hit: bool, samples: int = 1) -> None:
        """Count for that lane."""
        (_lane.get() or self._recorder).looks[hit] += samples

    def reached(self, batch: int) -> None:
        """See `LaneRecorder.reached`. At most what belongs to the newest batch is not written yet."""
        if batch > self._newest:
            self._newest = batch
            self._recorder.flush()
