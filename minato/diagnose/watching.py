"""Measuring while training: stages by the loader's own workers, on the samples they make anyway.

    with minato.diagnose.watch(loader) as watch:
        for batch in loader:
            train(batch)
    print(watch.diagnosis())

Every sample is made once, by the code that would have made it, and goes into its batch. Of cheap samples only one in
some is timed, so that timing takes no more than about 1 % of the time. The counters are in shared memory, a row for
each process.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from multiprocessing import context
from multiprocessing.reduction import DupFd
from types import TracebackType
from typing import Any

import numpy as np
from torch.utils.data import default_collate, default_convert

from .._engine.cores import allowed_cores
from .._engine.start import start_method
from .._pipeline.aside import run_aside
from .._pipeline.looking import choose_indices, fetches_batches, look, stages_of
from .._pipeline.room import available_bytes
from .._pipeline.sizes import bytes_of
from .._queues.control import PoolLock
from .._queues.mapping import map_file
from .advising import advise
from .clocks import UsageMeter, Used
from .measuring import Seen, concurrency_of, judged
from .rebuilding import typical_batch
from .records import COLLATE, LOAD, TRANSFORM, Measurement, StageMeasurement
from .report import Diagnosis, conclude

MOST_STAGES = 64
MOST_PROCESSES = 256
SHARE = 0.005  # of the time that timing may take, by its own account: what it evicts from caches is not in it
MOST_BETWEEN = 1000  # samples from one that is timed to the next
_NAME_BYTES = 64
_COUNTERS = ("completions", "cpu_ns", "wall_ns", "square_us", "bytes_out", "bytes_read")
_NAMES_AT = 64
_ROWS_AT = _NAMES_AT + MOST_STAGES * _NAME_BYTES
_ROW_BYTES = MOST_STAGES * len(_COUNTERS) * 8
_TOTAL = _ROWS_AT + MOST_PROCESSES * _ROW_BYTES


class Counters:
    """The table of counters. Travels to workers with their start."""

    def __init__(self) -> None:
        self._attach(os.memfd_create("minato-watch", os.MFD_CLOEXEC))
        os.posix_fallocate(self._fd, 0, _TOTAL)
        self._map()

    def _attach(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False
        self._lock = PoolLock(fd)
        self._threads = threading.Lock()
        self._row: Any = None
        self._owner = 0
        self._known: dict[str, int] = {}

    def _map(self) -> None:
        memory = map_file(self._fd, _TOTAL, 0)
        self._head = memory[:_NAMES_AT].view(np.int64)
        self._names = memory[_NAMES_AT:_ROWS_AT].reshape(MOST_STAGES, _NAME_BYTES)
        self._rows = memory[_ROWS_AT:].view(np.int64).reshape(MOST_PROCESSES, MOST_STAGES, len(_COUNTERS))

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return DupFd(self._fd)

    def __setstate__(self, state: Any) -> None:
        self._attach(state.detach())
        self._map()

    def add(self, name: str, values: tuple[int, ...]) -> None:
        """Count one completion of a stage, in this process's own row."""
        if self._owner != os.getpid():
            with self._threads, self._lock:
                row = int(self._head[1]) % MOST_PROCESSES
                self._head[1] += 1
            self._row, self._owner = self._rows[row], os.getpid()
        number = self._known.get(name)
        if number is None:
            number = self._known[name] = self._number(name)
        if number >= 0:
            self._row[number] += values

    def _number(self, name: str) -> int:
        data = name.encode()[: _NAME_BYTES - 1]
        with self._threads, self._lock:
            names = self.names
            if data.decode(errors="replace") in names:
                return names.index(data.decode(errors="replace"))
            if len(names) == MOST_STAGES:
                return -1
            self._names[len(names), : len(data)] = np.frombuffer(data, np.uint8)
            self._head[0] += 1
            return len(names)

    @property
    def names(self) -> list[str]:
        """Stages, in the order they were met."""
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self._names[: int(self._head[0])]]

    def totals(self) -> dict[str, dict[str, int]]:
        """Over all processes."""
        sums = self._rows.sum(axis=0)
        return {
            name: dict(zip(_COUNTERS, map(int, sums[number]), strict=True)) for number, name in enumerate(self.names)
        }


class TimedDataset:
    """A dataset whose samples are timed stage by stage, one in some of them."""

    def __init__(self, dataset: Any, counters: Counters) -> None:
        self._dataset = dataset
        self._counters = counters
        self._begin = stages_of(dataset)
        self._meters = threading.local()
        self._every = 1
        self._mean_every = 0.0
        self._looks = 0
        self._since = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        self._since += 1
        if self._since < self._every:
            return self._dataset[index]
        self._since = 0
        began = time.thread_time_ns()
        sample, used = self._timed(index)
        cost_ns = time.thread_time_ns() - began - sum(one.cpu_ns for one in used)
        work_ns = max(1000, sum(one.wall_ns for one in used))
        # What timing one sample takes, by the samples that follow it; smoothed, since one look may be held up.
        every = min(MOST_BETWEEN, cost_ns / (SHARE * work_ns))
        self._mean_every += (every - self._mean_every) / min(8, self._looks + 1)
        self._looks += 1
        self._every = max(1, math.ceil(self._mean_every))
        return sample

    @property
    def _meter(self) -> UsageMeter:
        """This thread's."""
        meter: UsageMeter | None = getattr(self._meters, "meter", None)
        if meter is None:
            meter = self._meters.meter = UsageMeter()
        return meter

    def _timed(self, index: Any) -> tuple[Any, list[Used]]:
        """The sample, and what each of its stages used."""
        meter, names, sizes = self._meter, ["load"], list[int]()
        if self._begin is None:
            marks = [meter.now()]
            sample = self._dataset[index]
            marks.append(meter.now())
            sizes.append(bytes_of(sample))
        else:
            run = self._begin(index)
            names.clear()
            marks = [meter.now()]
            while not run.done:
                names.append(run.stage)
                done = run.advance()
                sizes.append(bytes_of(run.result if done else run.call[1:] if run.call else None))
                marks.append(meter.now())
            sample = run.result
        used = [meter.between(*pair) for pair in pairwise(marks)]
        self._count(names, used, sizes)
        return sample, used

    def _count(self, names: list[str], used: list[Used], sizes: list[int]) -> None:
        seen: dict[str, int] = {}
        for name, one, nbytes in zip(names, used, sizes, strict=True):
            seen[name] = seen.get(name, 0) + 1
            label = name if seen[name] == 1 else f"{name}#{seen[name]}"
            wall_us = one.wall_ns // 1000
            self._counters.add(label, (1, one.cpu_ns, one.wall_ns, wall_us**2, nbytes, one.bytes_read))


class TimedSubset(TimedDataset):
    """The same for a `Subset`, which is asked for several samples at once and makes them one by one."""

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        return [self[index] for index in indices]


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
        before = meter.now()
        made = self._function(samples)
        used = meter.since(before)
        wall_us = used.wall_ns // 1000
        self._counters.add(COLLATE, (1, used.cpu_ns, used.wall_ns, wall_us**2, bytes_of(made), used.bytes_read))
        return made

    def __reduce__(self) -> tuple[type[TimedCollate], tuple[Any, Counters]]:
        return TimedCollate, (self._function, self._counters)


class _Layer:
    """Puts the timing in front of a worker's dataset."""

    def __init__(self, counters: Counters, below: Any) -> None:
        self._counters = counters
        self._below = below

    def wrap(self, dataset: Any) -> Any:
        source = dataset if self._below is None else self._below.wrap(dataset)
        if fetches_batches(dataset):  # nothing to tell apart
            return source
        kind = TimedSubset if getattr(source, "__getitems__", None) else TimedDataset
        return kind(source, self._counters)


class Watch:
    """What `watch` gives."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._counters = Counters()
        self._collate: Any = None
        self._before: Any = None
        self._after: Any = None
        self._began = self._ended = 0.0

    def __enter__(self) -> Watch:
        if self._loader._watcher is not None:
            raise RuntimeError("this loader is being watched already")
        self._loader._watcher = lambda below: _Layer(self._counters, below)
        self._collate = self._loader.collate_fn
        if self._collate not in (default_collate, default_convert):  # in place of these, rows are written
            self._loader.collate_fn = TimedCollate(self._collate, self._counters)
        self._before, self._began = self._loader.stats(), time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended, self._after = time.monotonic(), self._loader.stats()
        self._loader._watcher = None
        self._loader.collate_fn = self._collate

    def measurement(self) -> Measurement:
        """What was measured until now, or until the end of the `with` block."""
        after = self._after or self._loader.stats()
        elapsed = (self._ended or time.monotonic()) - self._began
        batches = after.batches_delivered - self._before.batches_delivered
        waited = after.wait_seconds - self._before.wait_seconds
        if batches == 0:
            raise RuntimeError("no batch was delivered while the loader was watched")
        stages = self._stages()
        made_s = sum(stage.wall_s for stage in stages)
        busy = made_s / stages[0].completions * typical_batch(self._loader)
        step = (elapsed - waited) / batches if self._loader.num_workers else max(0.0, elapsed / batches - busy)
        return Measurement(
            stages=tuple(stages),
            samples=stages[0].completions,
            batch_size=typical_batch(self._loader),
            dataset_samples=len(self._loader.dataset),
            workers=self._loader.num_workers,
            concurrency=concurrency_of(self._loader),
            prefetch=self._loader.prefetch_factor or 1,
            cores=allowed_cores().cores,
            rate=batches / elapsed,
            rate_change=1 / max(1, batches) ** 0.5,
            step_s=step,
            wait_share=waited / elapsed,
            memory_bytes=available_bytes(),
            is_live=True,
        )

    def _stages(self) -> list[StageMeasurement]:
        totals = self._counters.totals()
        collated = totals.pop(COLLATE, None)
        stages: list[StageMeasurement] = []
        for number, (name, total) in enumerate(totals.items()):
            count = max(1, total["completions"])
            mean_us = total["wall_ns"] / count / 1e3
            stages.append(
                StageMeasurement(
                    name=name,
                    kind=TRANSFORM if number else LOAD,
                    completions=count,
                    cpu_s=total["cpu_ns"] * 1e-9,
                    wall_s=total["wall_ns"] * 1e-9,
                    bytes_out=total["bytes_out"],
                    bytes_read=total["bytes_read"],
                    wall_std_s=max(0.0, total["square_us"] / count - mean_us**2) ** 0.5 * 1e-6,
                )
            )
        if not stages:
            raise RuntimeError(
                "no sample was timed: the loader's workers were started before it was watched (persistent_workers), or "
                "its dataset fetches whole batches"
            )
        if collated is not None and collated["completions"]:
            stages.append(self._collation(collated, stages[0].completions))
        return stages

    def _collation(self, total: dict[str, int], samples: int) -> StageMeasurement:
        """As many collations as the samples that were timed make: of samples only some are."""
        batches = max(1, round(samples / typical_batch(self._loader)))
        scale = batches / total["completions"]
        return StageMeasurement(
            name=COLLATE,
            kind=COLLATE,
            completions=batches,
            cpu_s=total["cpu_ns"] * 1e-9 * scale,
            wall_s=total["wall_ns"] * 1e-9 * scale,
            bytes_out=int(total["bytes_out"] * scale),
        )

    def diagnosis(self) -> Diagnosis:
        """What bounds the loader as it was used. Looks at some samples aside, for their randomness and sizes."""
        measurement = self.measurement()
        indices = choose_indices(self._loader.dataset, 32)
        context_ = start_method(self._loader.multiprocessing_context)
        found = run_aside(context_, 2.0, look, self._loader.dataset, indices, 2.0)
        measurement = replace(measurement, stages=tuple(judged(measurement.stages, found)))
        seen = Seen(measurement, found, None, 0.0)
        return conclude(self._loader, seen, advise(self._loader, seen))


def watch(loader: Any) -> Watch:
    """Measure a loader while it is used: iterators begun inside `with minato.diagnose.watch(loader) as watch:`
    count."""
    if not hasattr(loader, "_watcher"):
        raise TypeError(f"a minato.DataLoader is needed, got {loader!r}")
    return Watch(loader)
