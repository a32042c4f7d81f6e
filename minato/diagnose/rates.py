"""How fast a loader is, by running one like it: batches per second until that is steady, and the CPU time it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from .rebuilding import measuring_loader, no_word_of_workers

LEAST_S, TOLERANCE = 0.6, 0.01
PARTS = 3  # of a measurement, of which the one with the least CPU time counts: others' work can only add to it
FEWEST_BATCHES = 8  # in such a part: batches under way at its ends are a small share of it then


@dataclass(frozen=True, slots=True)
class Rate:
    """Of a loader that nobody else holds up."""

    batches_s: float
    change: float
    """By which share it still changed at the end."""
    main_cpu_s: float
    """CPU seconds of the consuming thread per batch: delivery and transfer."""
    step_s: float | None
    """Seconds per batch that the given step took."""
    workers_cpu_s: float | None = None
    """CPU seconds of all workers per batch; None: there were none, or it could not be seen."""
    first_s: float = 0.0
    """Seconds from the start of the epoch to its first batch: workers are started in it."""

    def over(self, batches: int) -> float:
        """Batches per second over epochs of so many batches, each with its start."""
        return batches / max(1e-9, max(self.first_s, 1 / self.batches_s) + (batches - 1) / self.batches_s)


def measure_rate(
    loader: Any,
    indices: Sequence[int],
    max_seconds: float,
    step: Callable[[Any], Any] | None = None,
    skip: int = 2,
    **changes: Any,
) -> Rate:
    """The rate of a loader like this one, with some arguments changed, until it is steady. `skip`: batches that do not
    count, until workers are up."""
    with no_word_of_workers():
        ours = measuring_loader(loader, indices, **changes)
        try:
            if getattr(ours, "cache", None) is not None:
                next(iter(ours))  # what is cached is decided once in a loader's life, not at each epoch
            began = time.monotonic()
            batches = iter(ours)
            next(batches)
            first_s = time.monotonic() - began
            return replace(_drain(batches, max_seconds, step, skip - 1), first_s=first_s)
        finally:
            close = getattr(ours, "close", None)
            if close is not None:
                close()


def _drain(batches: Any, max_seconds: float, step: Callable[[Any], Any] | None, skip: int) -> Rate:
    """Take batches until the rate changes by less than 1 % from one stretch to the next, or the time is up."""
    for _ in range(skip):
        next(batches)
    deadline = time.monotonic() + max_seconds
    began, cpu = time.monotonic(), time.thread_time()
    taken, stretch, step_s, change = 0, max(0.15, max_seconds / 30), 0.0, math.inf
    rates: list[float] = []
    workers = WorkersCpu(batches)
    mark = began + stretch
    while True:
        batch = next(batches)
        taken += 1
        if step is not None:
            before = time.perf_counter()
            step(batch)
            step_s += time.perf_counter() - before
        del batch
        now = time.monotonic()
        if now >= mark:
            rates.append(taken / (now - began - step_s))
            change = max((abs(rates[-1] / old - 1) for old in rates[-3:-1]), default=math.inf)
            mark = now + stretch
            workers.look(taken)
            if len(rates) >= 3 and change < TOLERANCE and now - began > LEAST_S:
                break
        if now > deadline:
            break
    elapsed = time.monotonic() - began - (step_s if step is not None else 0.0)
    used = max(0.0, time.thread_time() - cpu)
    workers.look(taken)
    own_s = step_s / taken if step is not None else None
    return Rate(taken / elapsed, min(change, 1.0), used / taken, own_s, workers.least_s())


class WorkersCpu:
    """CPU time of an iterator's worker processes, looked at now and then."""

    def __init__(self, batches: Any) -> None:
        self._pids = _pids_of(batches)
        self._looks: list[tuple[int, float]] = []
        """Batches taken, and CPU seconds used so far."""
        self.look(0)

    def look(self, taken: int) -> None:
        """Note what was used until so many batches were taken."""
        used = None if self._pids is None else _cpu_s(self._pids)
        if used is None:
            self._pids = None
        else:
            self._looks.append((taken, used))

    def least_s(self) -> float | None:
        """Seconds per batch in the part of the time with the least; None: not known."""
        if self._pids is None or self._looks[-1][0] == 0:
            return None
        step = max(1, (len(self._looks) - 1) // PARTS)
        marks = [*self._looks[:-1:step][:PARTS], self._looks[-1]]
        spans = [(last[0] - first[0], last[1] - first[1]) for first, last in pairwise(marks)]
        each = [seconds / batches for batches, seconds in spans if batches >= FEWEST_BATCHES]
        whole = (self._looks[-1][1] - self._looks[0][1]) / self._looks[-1][0]
        return min([*each, whole])


def _pids_of(batches: Any) -> list[int] | None:
    """Process ids of an iterator's workers, minato's or torch's; None: it has none."""
    pids = getattr(batches, "worker_pids", None)
    if pids is None:
        pids = {number: worker.pid for number, worker in enumerate(getattr(batches, "_workers", ()))}
    return list(pids.values()) or None


def _cpu_s(pids: Sequence[int]) -> float | None:
    """What all threads of these processes have used; None: one has ended, or the system does not tell."""
    total = 0
    try:
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return total * 1e-9
