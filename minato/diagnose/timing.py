"""Which samples of a loader that is watched are timed, and how.

Of a run of samples that a worker takes at most one is timed, and of most runs none: those are fetched from the dataset
itself, and a look once in a run is all that watching them costs. How many runs there are from one that is timed to the
next is decided by what timing a sample has taken, so that it takes no more than `SHARE` of the time.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from .._fetchers.asynchronous import AsyncGetter, async_getter
from .._instrument import Tally
from .._pipeline.looking import LOAD, fetches_batches
from .._pipeline.sizes import bytes_of
from .._workers.splitting import Steps
from .._workers.stages import Begin, SampleRun, find_stages
from .clocks import Mark, UsageMeter
from .counting import Counters
from .records import COLLATE

SHARE = 0.001  # of the time that timing may take, by its own account: a third of what it takes with what it evicts
MOST_BETWEEN = 10_000  # samples from one that is timed to the next
_FIRST = 4  # samples between the first looks, until it is known what one takes
_UNUSUAL = 2  # looks that take longer than others: stages are given their places, code is run for the first time
_ELSEWHERE_NS = 50_000  # from one stage to the next; after more than that, others were at work in between
_now = time.perf_counter_ns


class SampleTimer:
    """Times some of the samples of one process. Threads share it: that a look is had twice, or missed, does no harm."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._local = threading.local()
        self._begins: dict[int, tuple[Any, Begin | None]] = {}
        """How to begin a sample, by the dataset's id; with the dataset, which keeps its id that way."""
        self._every = 2  # not the first sample: files are opened for it, and modules imported
        self._since = 0
        self._looks = 0
        self._cost_ns = self._work_ns = 0.0
        self._looked_ns = 0
        self._each_ns = math.inf
        """Time for each sample from the look before the last to the last one: one that is timed takes longer itself."""

    # ---- which ------------------------------------------------------------------------------------------------------

    def choose(self, dataset: Any, samples: int, least: int = 1) -> Any:
        """What to fetch a run of samples from: the dataset, or a view of it that times one of them. `least`: samples
        from one that is timed to the next, whatever that takes."""
        if not self._is_due(samples, least):
            return dataset
        if fetches_batches(dataset):
            return _TimedBatch(dataset, self)
        skip = self._looks % samples if samples else 0  # the first of a run follows other work than the others do
        kind = _TimedSubsetRun if getattr(dataset, "__getitems__", None) else _TimedRun
        return kind(dataset, self, skip)

    def sample_run(self, untimed: Callable[[Steps], SampleRun], least: int, steps: Steps) -> SampleRun:
        """What sees a sample through its stages, if it is made in stages anyway."""
        return self._run(steps) if self._is_due(1, least) else untimed(steps)

    def getter(self, getter: AsyncGetter, samples: int) -> AsyncGetter:
        """What to await a run of samples from."""
        if not self._is_due(samples):
            return getter
        return lambda key: _TimedAwait(getter(key), self)

    def _is_due(self, samples: int, least: int = 1) -> bool:
        """Whether one of the next samples is to be timed."""
        self._since += samples
        if self._since < self._every or self._since < least:
            return False
        before, self._looked_ns = self._looked_ns, _now()
        self._each_ns = (self._looked_ns - before) / self._since if before else math.inf
        self._since = 0
        return True

    # ---- how --------------------------------------------------------------------------------------------------------

    @property
    def meter(self) -> UsageMeter:
        """This thread's."""
        meter: UsageMeter | None = getattr(self._local, "meter", None)
        if meter is None:
            meter = self._local.meter = UsageMeter()
        return meter

    def sample(self, dataset: Any, index: Any) -> Any:
        """A sample, timed stage by stage."""
        known = self._begins.get(id(dataset))
        if known is None:
            known = self._begins[id(dataset)] = dataset, find_stages(dataset, self._run)
        begin = known[1]
        run = self._run(_as_one_step(dataset, index)) if begin is None else begin(index)
        while not run.advance():
            pass
        return run.result

    def _run(self, steps: Steps) -> SampleRun:
        self.meter  # noqa: B018  made before the clocks run, if it is not there yet
        return TimedSampleRun(steps, self)

    def count(self, names: list[str], marks: list[tuple[Mark, Mark]], sizes: list[int], told: list[int]) -> int:
        """A sample is done; `told`: bytes that `count_bytes` was told by each stage. Returns nanoseconds of work on
        it."""
        meter, work_ns, seen = self.meter, 0, Counter[str]()
        for name, (before, after), nbytes, more in zip(names, marks, sizes, told, strict=True):
            used = meter.between(before, after)
            seen[name] += 1
            label = name if seen[name] == 1 else f"{name}#{seen[name]}"
            squared = (used.wall_ns // 1000) ** 2
            self._counters.add(label, (1, used.cpu_ns, used.wall_ns, squared, nbytes, used.bytes_read + more))
            work_ns += used.wall_ns
        return work_ns

    def count_batch(self, before: Mark, after: Mark, count: int, samples: Any, told: int) -> None:
        """The same of `count` samples that were fetched together: each took its share."""
        used, count = self.meter.between(before, after), max(1, count)
        squared = count * (used.wall_ns // count // 1000) ** 2
        nbytes_read = used.bytes_read + told
        self._counters.add(LOAD, (count, used.cpu_ns, used.wall_ns, squared, bytes_of(samples), nbytes_read))
        cost_ns = time.thread_time_ns() - after.cpu_ns + 2 * self.meter.own.cpu_ns
        self.told(cost_ns, used.wall_ns // count)

    def count_awaited(self, cpu_ns: int, wall_ns: int, sample: Any, told: int) -> None:
        """The same of a sample that was awaited. What it read from files cannot be told from what others did."""
        began = time.thread_time_ns()
        self._counters.add(LOAD, (1, cpu_ns, wall_ns, (wall_ns // 1000) ** 2, bytes_of(sample), told))
        self.told(4 * (time.thread_time_ns() - began), cpu_ns)  # with the looks at the clock

    def told(self, cost_ns: int, work_ns: int) -> None:
        """Timing a sample has taken so long, and the sample itself so long."""
        seen = self._looks - _UNUSUAL
        if seen < 0:
            self._looks, self._every = self._looks + 1, _FIRST
            return
        weight = 1 / min(8, seen + 1)
        if seen > 0:
            cost_ns = min(cost_ns, int(4 * self._cost_ns))  # a look may be held up, by anything
        self._cost_ns += weight * (cost_ns - self._cost_ns)
        self._work_ns += weight * (max(1000.0, min(work_ns, self._each_ns)) - self._work_ns)
        self._looks += 1
        every = min(MOST_BETWEEN, math.ceil(self._cost_ns / (SHARE * self._work_ns)))
        self._every = max(1, every)


class TimedSampleRun(SampleRun):
    """A sample on its way whose stages are timed, wherever they are done."""

    __slots__ = ("_marks", "_names", "_sizes", "_timer", "_told", "_was_aside")

    def __init__(self, steps: Steps, timer: SampleTimer) -> None:
        super().__init__(steps)
        self._timer = timer
        self._names: list[str] = []
        self._marks: list[tuple[Mark, Mark]] = []
        self._sizes: list[int] = []
        self._told: list[int] = []
        self._was_aside = False

    def advance(self) -> bool:
        meter = self._timer.meter
        self._names.append(self.stage)
        # The look after a stage serves as the one before the next, unless the sample was put aside in between.
        before = self._marks[-1][1] if self._marks else None
        if before is None or _now() - before.seen_ns > _ELSEWHERE_NS:
            self._was_aside = before is not None
            before = meter.mark()
        with Tally() as told:
            done = super().advance()
        self._marks.append((before, meter.mark()))
        self._told.append(told.nbytes)
        self._sizes.append(bytes_of(self.result if done else self.call[1:] if self.call else None))
        if done:
            self._finish(meter)
        return done

    def _finish(self, meter: UsageMeter) -> None:
        work_ns = self._timer.count(self._names, self._marks, self._sizes, self._told)
        if self._was_aside:  # what others used meanwhile cannot be told from what timing took
            return
        stages_ns = sum(after.cpu_ns - before.cpu_ns for before, after in self._marks)
        looks_ns = (len(self._marks) + 1) * meter.own.cpu_ns
        self._timer.told(time.thread_time_ns() - self._marks[0][0].cpu_ns - stages_ns + looks_ns, work_ns)


class _TimedAwait:
    """A sample that is awaited: all of it is loading. CPU time is that of its own steps; others' are in between."""

    def __init__(self, sample: Awaitable[Any], timer: SampleTimer) -> None:
        self._sample = sample
        self._timer = timer

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps()

    def _steps(self) -> Generator[Any, Any, Any]:
        began, steps = _now(), self._sample.__await__()
        cpu_ns, sent, told = 0, None, Tally()
        error: BaseException | None = None
        while True:
            before = time.thread_time_ns()
            try:
                with told:  # not while others are at work in between
                    wanted = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration as end:
                cpu_ns += time.thread_time_ns() - before
                self._timer.count_awaited(cpu_ns, _now() - began, end.value, told.nbytes)
                return end.value
            cpu_ns += time.thread_time_ns() - before
            try:
                sent, error = (yield wanted), None
            except BaseException as thrown:
                sent, error = None, thrown


def _as_one_step(dataset: Any, index: Any) -> Steps:
    """A sample whose stages cannot be seen."""
    yield from ()
    return dataset[index]


class _TimedRun:
    """A dataset for one run of samples, one of which is timed."""

    def __init__(self, dataset: Any, timer: SampleTimer, skip: int) -> None:
        self._dataset = dataset
        self._timer = timer
        self._skip = skip

    def __getitem__(self, index: Any) -> Any:
        self._skip -= 1
        return self._timer.sample(self._dataset, index) if self._skip == -1 else self._dataset[index]


class _TimedSubsetRun(_TimedRun):
    """The same for a `Subset`, which is asked for several samples at once and makes them one by one."""

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        return [self[index] for index in indices]


class _TimedBatch:
    """A dataset that fetches several samples at once by a way of its own: all of them are timed, as one stage."""

    def __init__(self, dataset: Any, timer: SampleTimer) -> None:
        self._dataset = dataset
        self._timer = timer

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        meter = self._timer.meter
        with Tally() as told:
            before = meter.mark()
            samples = self._dataset.__getitems__(indices)
            after = meter.mark()
        self._timer.count_batch(before, after, len(indices), samples, told.nbytes)
        return samples


class TimedDataset:
    """A dataset of a loader without workers, some of whose samples are timed."""

    def __init__(self, dataset: Any, timer: SampleTimer) -> None:
        self._dataset = dataset
        self._timer = timer
        getter = async_getter(dataset)
        if getter is not None:
            self.__getitem_async__ = lambda key: timer.getter(getter, 1)(key)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._timer.choose(self._dataset, 1)[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> TimedDataset:
        """For a thread of its own; who counts stays the same."""
        return type(self)(copy.deepcopy(self._dataset, memo), self._timer)


class TimedTogether(TimedDataset):
    """The same for one that is asked for several samples at once."""

    def __getitems__(self, indices: Any) -> Any:
        return self._timer.choose(self._dataset, len(indices)).__getitems__(indices)


class TimedCollate:
    """A collate function of the user's whose calls are timed, each of them."""

    def __init__(self, function: Callable[[Any], Any], counters: Counters) -> None:
        self._function = function
        self._counters = counters
        self._meters = threading.local()

    def __call__(self, samples: Any) -> Any:
        meter = getattr(self._meters, "meter", None)
        if meter is None:
            meter = self._meters.meter = UsageMeter()
        with Tally() as told:
            before = meter.mark()
            made = self._function(samples)
            used = meter.since(before)
        squared, nbytes_read = (used.wall_ns // 1000) ** 2, used.bytes_read + told.nbytes
        self._counters.add(COLLATE, (1, used.cpu_ns, used.wall_ns, squared, bytes_of(made), nbytes_read))
        return made

    def __reduce__(self) -> tuple[type[TimedCollate], tuple[Any, Counters]]:
        return TimedCollate, (self._function, self._counters)
