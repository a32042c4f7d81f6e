"""How fast a loader is, by running one like it: batches per second until that is steady, the CPU time it takes, and
what other programs leave of the cores meanwhile."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from .._engine.start import start_method
from .._pipeline.aside import run_aside
from .._pipeline.judging import streams_kept
from .._pipeline.looking import Look as PipelineLook
from .machine import CoresTime, cores_time
from .rebuilding import inline_arguments, measuring_loader, no_word_of_workers, typical_batch

LEAST_S, TOLERANCE = 0.6, 0.01
PARTS = 3  # of a measurement, of which the one with the least CPU time counts: others' work can only add to it
FEWEST_BATCHES = 8  # in such a part: batches under way at its ends are a small share of it then


@dataclass(frozen=True, slots=True)
class Rate:
    """Of a loader that nothing but the given step holds up."""

    batches_s: float
    """With the step, if there is one: what a loop over the loader reaches."""
    change: float
    """By which share it still changed at the end."""
    main_cpu_s: float
    """CPU seconds of the consuming thread per batch without those of the step: delivery and transfer."""
    step_s: float | None
    """Seconds per batch that the given step took."""
    workers_cpu_s: float | None = None
    """CPU seconds of all workers per batch; None: there were none, or it could not be seen."""
    free_cores: float | None = None
    """Cores' worth of time that was there for it, with what others used left out; None: it could not be seen."""
    first_s: float = 0.0
    """Seconds from the start of the epoch to its first batch: workers are started in it."""
    wait_share: float | None = None
    """Share of the time that the step waited for batches; None: no step was given."""

    def over(self, batches: int) -> float:
        """Batches per second over epochs of so many batches, each with its start."""
        return batches / max(1e-9, max(self.first_s, 1 / self.batches_s) + (batches - 1) / self.batches_s)


def measure_rate(
    loader: Any,
    indices: Sequence[int],
    max_seconds: float,
    step: Callable[[Any], Any] | None = None,
    skip: int = 2,
    known: PipelineLook | None = None,
    **changes: Any,
) -> Rate:
    """The rate of a loader like this one, with some arguments changed, until it is steady. `skip`: batches that do not
    count, until workers are up; nor do those that fill a cache. `known`: what was seen of its dataset, for a cache.
    Global generators are left as they were: without workers, samples draw from them."""
    with no_word_of_workers(), streams_kept():
        ours = measuring_loader(loader, indices, **changes)
        if known is not None and getattr(ours, "_cache", None) is not None:
            ours._cache.known = known
        try:
            if getattr(ours, "cache", None) is not None:
                next(iter(ours))  # what is cached is decided once in a loader's life, not at each epoch
            began = time.monotonic()
            batches = iter(ours)
            next(batches)
            first_s = time.monotonic() - began
            if getattr(ours, "cache", None) is not None:
                _fill(ours, batches, len(indices))
            return replace(_drain(batches, max_seconds, step, skip - 1), first_s=first_s)
        finally:
            close = getattr(ours, "close", None)
            if close is not None:
                close()


def measure_inline(loader: Any, indices: Sequence[int], max_seconds: float) -> float:
    """Batches per second of a loader like this one without workers. In a process of its own: a dataset whose samples
    are made in workers is not used in the main process, where it may open what workers must not share."""
    made = inline_arguments(loader, indices)
    return run_aside(start_method(loader.multiprocessing_context), max_seconds, _run_inline, *made, max_seconds)


def _run_inline(kind: Callable[..., Any], arguments: dict[str, Any], max_seconds: float) -> float:
    return _drain(iter(kind(**arguments)), max_seconds, None, 2).batches_s


def _fill(loader: Any, batches: Any, samples: int) -> None:
    """Take batches until the cache has all samples, or each was asked for once, and then those that were begun before:
    the same samples are wanted again while they are made for the first time, and are made again."""
    for _ in range(-(-samples // typical_batch(loader))):
        if loader.stats().cached_samples >= samples:
            break
        next(batches)
    for _ in range(loader.stats().batches_in_flight):
        next(batches)


def _drain(batches: Any, max_seconds: float, step: Callable[[Any], Any] | None, skip: int) -> Rate:
    """Take batches until the rate changes by less than 1 % from one stretch to the next, or the time is up."""
    for _ in range(skip):
        next(batches)
    deadline = time.monotonic() + max_seconds
    began, cpu = time.monotonic(), time.thread_time()
    taken, stretch, change = 0, max(0.15, max_seconds / 30), math.inf
    timed = None if step is None else _Timed(step)
    rates: list[float] = []
    usage = Usage(batches)
    mark = began + stretch
    while True:
        batch = next(batches)
        taken += 1
        if timed is not None:
            timed(batch)
        del batch
        now = time.monotonic()
        if now >= mark:
            rates.append(taken / (now - began))
            change = max((abs(rates[-1] / old - 1) for old in rates[-3:-1]), default=math.inf)
            mark = now + stretch
            usage.look(taken)
            if len(rates) >= 3 and change < TOLERANCE and now - began > LEAST_S:
                break
        if now > deadline:
            break
    elapsed = time.monotonic() - began
    used = max(0.0, time.thread_time() - cpu - (timed.cpu_s if timed else 0.0))
    usage.look(taken)
    return Rate(
        taken / elapsed,
        min(change, 1.0),
        used / taken,
        timed.wall_s / taken if timed else None,
        usage.least_s(),
        usage.free_cores(),
        wait_share=max(0.0, elapsed - timed.wall_s - used) / elapsed if timed else None,
    )


class _Timed:
    """The consumer's step, and what it took so far: its CPU time is none of the loader's."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        self._step = step
        self.wall_s = self.cpu_s = 0.0

    def __call__(self, batch: Any) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        self._step(batch)
        self.cpu_s += time.thread_time() - cpu
        self.wall_s += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Look:
    """What had been used at one moment."""

    at_s: float
    batches: int
    """Taken so far."""
    main_cpu_s: float
    workers_cpu_s: float | None
    """None: there are no workers, or the system does not tell."""
    delay_s: float
    """That our threads wanted to run and had no core."""
    cores: CoresTime | None


class Usage:
    """What an iterator's processes use of the cores, and what others do, looked at now and then."""

    def __init__(self, batches: Any) -> None:
        self._pids = _pids_of(batches)
        self._looks: list[Look] = []
        self.look(0)

    def look(self, taken: int) -> None:
        """Note what was used until so many batches were taken."""
        workers = None if self._pids is None else _scheduled(self._pids)
        main = _scheduled([os.getpid()])
        delay = sum(one.delay_s for one in (workers, main) if one is not None)
        used = None if workers is None else workers.cpu_s
        self._looks.append(Look(time.monotonic(), taken, time.process_time(), used, delay, cores_time()))

    def least_s(self) -> float | None:
        """CPU seconds of the workers per batch in the part of the time with the least; None: not known."""
        return least_cpu_s(self._looks)

    def free_cores(self) -> float | None:
        """Cores' worth of time that there was for us, in the part of the time with the most; None: not known."""
        return free_cores(self._looks, has_workers=self._pids is not None)


def least_cpu_s(looks: Sequence[Look]) -> float | None:
    """CPU seconds of the workers per batch in the part of the time with the least; None: not known."""
    each = []
    for first, last in _parts(looks):
        if first.workers_cpu_s is None or last.workers_cpu_s is None:
            return None
        each.append((last.workers_cpu_s - first.workers_cpu_s) / (last.batches - first.batches))
    return min(each, default=None)


def free_cores(looks: Sequence[Look], has_workers: bool) -> float | None:
    """Cores' worth of time that there was for us, in the part of the time with the most; None: not known.

    What we used and what nobody used was there for us. It would have been more if we had not wanted it: of what we did
    want, we got a share, and of all cores we would have got that much. The greater of both, since a limit is wanted.
    """
    each = []
    for first, last in _parts(looks):
        if first.cores is None or last.cores is None:
            return None
        used = last.main_cpu_s - first.main_cpu_s
        if has_workers:
            if first.workers_cpu_s is None or last.workers_cpu_s is None:
                return None
            used += last.workers_cpu_s - first.workers_cpu_s
        delayed = max(0.0, last.delay_s - first.delay_s)
        seconds = last.at_s - first.at_s
        ours = last.cores.count * seconds - (last.cores.stolen_s - first.cores.stolen_s)
        got = used / (used + delayed) if used > 0 else 1.0
        each.append(max(used + last.cores.idle_s - first.cores.idle_s, ours * got) / seconds)
    return max(each, default=None)


def _parts(looks: Sequence[Look]) -> Iterator[tuple[Look, Look]]:
    """The whole time, and its parts, as far as these have enough batches."""
    if len(looks) < 2 or looks[-1].batches == looks[0].batches:
        return
    yield looks[0], looks[-1]
    step = max(1, (len(looks) - 1) // PARTS)
    for first, last in pairwise([*looks[:-1:step][:PARTS], looks[-1]]):
        if last.batches - first.batches >= FEWEST_BATCHES:
            yield first, last


def _pids_of(batches: Any) -> list[int] | None:
    """Process ids of an iterator's workers, minato's or torch's; None: it has none."""
    pids = getattr(batches, "worker_pids", None)
    if pids is None:
        pids = {number: worker.pid for number, worker in enumerate(getattr(batches, "_workers", ()))}
    return list(pids.values()) or None


@dataclass(frozen=True, slots=True)
class _Scheduled:
    """What the threads of some processes had, and what they had to wait for it."""

    cpu_s: float
    delay_s: float


def _scheduled(pids: Sequence[int]) -> _Scheduled | None:
    """Of all threads of these processes; None: one has ended, or the system does not tell."""
    cpu, delay = 0, 0
    try:
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                words = (task / "schedstat").read_text().split()
                cpu += int(words[0])
                delay += int(words[1])
    except (OSError, IndexError, ValueError):
        return None
    return _Scheduled(cpu * 1e-9, delay * 1e-9)
