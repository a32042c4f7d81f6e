"""Spans of single operations: which samples are looked at that closely, and how their stages are timed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from .._fetchers.sequential import has_getitems
from .._instrument import NONE, Flag, Kind, Tally
from .lane_recording import Line
from .splitting import Steps
from .stages import SampleRun, find_stages

OP_BUDGET = 0.005  # share of a worker's time that spans of operations may cost where they are not asked for
SPAN_COST_S = 10e-6  # seconds to record one, stages included, between samples that empty the CPU's caches
_MOST_CREDIT_S = 0.1  # not more is spent at once
_MOST_DEBT_S = 0.05  # no more may be spent ahead, whatever chance says
_MEMORY = 1000  # samples; older ones count less and less in what a sample takes
_SEED = 1  # any will do
_SHORT_NS = 50_000  # a stage that is over sooner was on the CPU all the time
_MOST_FUNCTIONS = 1000
_SPANS_OF_A_STREAM = 2  # per sample
_FAILED, _PARKED = int(Flag.FAILED), int(Flag.PARKED)
_SAMPLE, _LOADER, _OP = int(Kind.SAMPLE), int(Kind.LOADER), int(Kind.OP)
_now, _cpu = time.monotonic_ns, time.thread_time_ns


class OpWatch:
    """Chooses the runs of samples whose operations are recorded, one by one."""

    def __init__(self, recorder: Line, granularity: str) -> None:
        self._recorder = recorder
        self._always = granularity == "op"
        self._never = granularity == "batch"
        self._has_begun = False
        self._seen: Any = None
        self._view: OpView | None = None
        self._credit_s = 0.0
        self._random = random.Random(_SEED)
        self._samples, self._worked_s = 0, 0.0
        """Samples that were begun, and the work on them; the older ones count less."""

    def worked(self, duration_ns: int) -> None:
        """So much work on samples was done: a share of it may be spent on looking closely."""
        spent_s = duration_ns * 1e-9
        self._worked_s += spent_s
        self._credit_s = min(_MOST_CREDIT_S, self._credit_s + OP_BUDGET * spent_s)

    def choose(self, dataset: Any, samples: int) -> Any:
        """The dataset, or a view of it whose samples leave spans."""
        if has_getitems(dataset) or not self.wants(samples, 3 if self._view is None else self._view.spans_per_sample):
            return dataset
        if self._seen is not dataset or self._view is None:
            self._seen, self._view = dataset, OpView(self._recorder, dataset)
        return self._view

    def wants(self, samples: int, spans: int) -> bool:
        """Whether to look closely at the next samples, with so many spans each. The first run is always looked at."""
        if self._never or self._recorder.ended:
            return False
        if not self._always:
            looks = self._throw(spans) or not self._has_begun
            self._count(samples)
            if not looks:
                return False
            self._credit_s -= samples * SPAN_COST_S * spans
        self._has_begun = True
        return True

    def _throw(self, spans: int) -> bool:
        """Whether chance is for looking. It knows what samples take on average and nothing of the last ones: slow ones
        are seen as often as others, also where they come at even distances."""
        if self._credit_s < -_MOST_DEBT_S:
            return False
        allowed_s, wanted_s = OP_BUDGET * self._worked_s, self._samples * SPAN_COST_S * spans
        return allowed_s >= wanted_s or self._random.random() * wanted_s < allowed_s

    def _count(self, samples: int) -> None:
        if self._samples > _MEMORY:
            self._samples, self._worked_s = self._samples // 2, self._worked_s / 2
        self._samples += samples


class OpView:
    """A dataset whose samples are made stage by stage, each with a span."""

    def __init__(self, recorder: Line, dataset: Any) -> None:
        self._recorder = recorder
        self._dataset = dataset
        self._clock = clock = StageClock(recorder)
        own = getattr(dataset, "steps_of", None)  # a layer before the user's dataset that can tell its own
        if own is not None:
            self._begin: Callable[[Any], SampleRun] = lambda key: TracedSampleRun(own(key), clock)
        else:
            self._begin = find_stages(dataset, lambda steps: TracedSampleRun(steps, clock)) or self._opaque
        self.spans_per_sample = 2

    def __getitem__(self, key: Any) -> Any:
        recorder = self._recorder
        waiting = recorder.pending
        if waiting is None:
            return self._dataset[key]
        recorder.index = as_index(key)
        before = len(waiting)
        try:
            run = self._begin(key)
            while not run.advance():
                pass
            return run.result
        finally:
            self.spans_per_sample = len(waiting) - before
            recorder.index = NONE

    def _opaque(self, key: Any) -> SampleRun:
        return TracedSampleRun(_as_one_step(self._dataset, key), self._clock)


class OpStream:
    """The samples of a stream, of which whole batches leave spans. What a stream does for one is all loading, but for
    what the user names."""

    def __init__(self, recorder: Line, ops: OpWatch, samples: Iterator[Any], batch_size: int) -> None:
        self._recorder = recorder
        self._ops = ops
        self._samples = samples
        self._batch_size = batch_size
        self._left = 0
        """Samples until it is decided anew whether to look."""
        self._looks = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._left:
            self._left = self._batch_size
            self._looks = self._ops.wants(self._batch_size, _SPANS_OF_A_STREAM)
        self._left -= 1
        return self._seen() if self._looks else next(self._samples)

    def _seen(self) -> Any:
        start_ns, cpu_ns = _now(), _cpu()
        try:
            sample = next(self._samples)
        except StopIteration:
            raise
        except BaseException:
            self._tell(start_ns, cpu_ns, _FAILED, 0)
            raise
        self._tell(start_ns, cpu_ns, 0, size_of(sample))
        return sample

    def _tell(self, start_ns: int, cpu_ns: int, flags: int, nbytes: int) -> None:
        recorder, used_us, length_ns = self._recorder, max(0, _cpu() - cpu_ns) // 1000, _now() - start_ns
        if recorder.pending is not None:
            for kind, name, size in ((_LOADER, "Loader", 0), (_SAMPLE, "Sample", nbytes)):
                recorder.pending.append((kind, flags, recorder.name(name), 0, used_us, start_ns, length_ns, NONE, size))


def _as_one_step(dataset: Any, key: Any) -> Steps:
    """A sample whose stages cannot be seen: all of it is loading."""
    yield from ()
    return dataset[key]


class StageClock:
    """Times stages, with one look at the CPU clock for each that takes a while: that look is a system call."""

    def __init__(self, recorder: Line) -> None:
        self.recorder = recorder
        self.owner: object = None
        """The sample at work."""
        self.cpu_ns = 0
        """CPU time of this thread when the last stage ended, as far as it was looked at."""
        self.end_ns = 0
        """When the last stage ended."""
        self.loader = recorder.name("Loader")
        self.sample = recorder.name("Sample")
        self._numbers: dict[int, tuple[object, int]] = {}
        """Numbers of functions' names, by the functions' ids; the functions are kept, so that ids stay theirs."""

    def ended(self, kind: int, name: int, start_ns: int, end_ns: int, flags: int, index: int, nbytes: int = 0) -> None:
        """A stage has ended."""
        self.end_ns = end_ns
        duration_ns = end_ns - start_ns
        if duration_ns < _SHORT_NS:  # nobody was waited for in so short a time
            used_ns = duration_ns
            self.cpu_ns += duration_ns
        else:
            cpu_ns = _cpu()
            used_ns, self.cpu_ns = cpu_ns - self.cpu_ns, cpu_ns
            # Asking for CPU time is when the system gives the core to others whose turn it is. What they take of it
            # belongs to this stage, like any other turn that it lost, and not to what comes between two; asking itself
            # does not.
            self.end_ns = _now()
            if self.end_ns - end_ns > _SHORT_NS:
                duration_ns = self.end_ns - start_ns
        pending = self.recorder.pending
        if pending is not None:
            pending.append((kind, flags, name, 0, max(0, used_ns) // 1000, start_ns, duration_ns, index, nbytes))

    def number(self, function: object, run: SampleRun) -> int:
        """The number of the name of the stage that calls `function`, the next of `run`."""
        known = self._numbers.get(id(function))
        if known is not None and known[0] is function:
            return known[1]
        number = self.recorder.name(run.stage)
        if len(self._numbers) < _MOST_FUNCTIONS:  # some are made anew for every sample
            self._numbers[id(function)] = function, number
        return number


class TracedSampleRun(SampleRun):
    """A sample on its way that leaves a span for each stage, for what is between stages where that takes time, and for
    the whole of it."""

    __slots__ = ("_clock", "_cpu_ns", "_index", "_parked", "_start_ns", "_work_ns")

    def __init__(self, steps: Steps, clock: StageClock) -> None:
        super().__init__(steps)
        self._clock = clock
        self._index = clock.recorder.index
        self._start_ns = self._work_ns = self._cpu_ns = 0
        self._parked = 0

    def advance(self) -> bool:
        clock = self._clock
        if clock.owner is not self:  # it begins, or others were at work in between
            clock.owner, clock.cpu_ns = self, _cpu()
            self._parked = _PARKED if self._start_ns else 0
            self._start_ns = _now()
        flags, before_ns = _FAILED, clock.cpu_ns
        start_ns = _now()
        try:
            done = self._load() if self._next is None else self._apply()
            flags = 0
            return done
        finally:
            self._work_ns += clock.end_ns - start_ns
            self._cpu_ns += clock.cpu_ns - before_ns
            if flags or self.done:
                self._tell(flags)

    def _load(self) -> bool:
        told, start_ns, flags = Tally(), _now(), _FAILED
        try:
            with told:
                done = super().advance()
            flags = 0
            return done
        finally:
            end_ns = _now()
            self._clock.ended(_LOADER, self._clock.loader, start_ns, end_ns, flags, self._index, told.nbytes)

    def _apply(self) -> bool:
        """Call the next transform; what follows it up to the next one is told apart if it takes time."""
        clock = self._clock
        assert self._next is not None
        function, args, keywords = self._next
        self._next = self._timed, (clock.number(function, self), function, args, keywords), {}
        try:
            return super().advance()
        finally:
            start_ns, end_ns = clock.end_ns, _now()
            if end_ns - start_ns > _SHORT_NS:
                clock.ended(_OP, clock.recorder.name("(rest)"), start_ns, end_ns, 0, self._index)

    def _timed(self, name: int, function: Callable[..., Any], args: Any, keywords: Any) -> Any:
        flags = _FAILED
        start_ns = _now()
        try:
            value = function(*args, **keywords)
            flags = 0
            return value
        finally:
            end_ns = _now()
            self._clock.ended(_OP, name, start_ns, end_ns, flags, self._index)

    def _tell(self, flags: int) -> None:
        """The whole of it. Of a sample that was parked, its work: others were at work in between."""
        clock, pending = self._clock, self._clock.recorder.pending
        clock.owner = None
        if pending is not None:
            duration_ns = self._work_ns if self._parked else clock.end_ns - self._start_ns
            nbytes = 0 if flags else size_of(self._result)
            start_ns, cpu_us = clock.end_ns - duration_ns, max(0, self._cpu_ns) // 1000
            flags |= self._parked
            pending.append((_SAMPLE, flags, clock.sample, 0, cpu_us, start_ns, duration_ns, self._index, nbytes))


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
