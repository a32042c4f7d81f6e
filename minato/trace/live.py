"""What a running loader is doing, as one record: from its own counters, or from the trace that it writes.

`CounterSource` asks a loader of this process (`loader.stats()`); `TraceSource` reads what any process writes with
`trace=`, as it is written. Both are asked for a `Snapshot` now and then, and rates are over the time in between (or, of
a trace, over its last `WINDOW_S` seconds). Nothing here draws; see screen.py.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .._records import LoaderStats

WINDOW_S = 10.0
HISTORY = 60
"""Rates that are kept for the little curve."""


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker, lately."""

    name: str
    samples_per_s: float
    busy_share: float
    median_ms: float
    ended: str = ""


@dataclass(frozen=True, slots=True)
class OpLine:
    """One operation, lately."""

    name: str
    mean_ms: float
    p90_ms: float
    share: float
    """Of the work on samples."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A loader at a moment."""

    title: str
    seconds: float = 0.0
    """Since the loader, or the run, began to be watched or recorded."""
    samples: int = 0
    batches: int = 0
    samples_per_s: float = 0.0
    batches_per_s: float = 0.0
    bytes_per_s: float = 0.0
    wait_share: float = 0.0
    """Share of the time that consumers waited for batches."""
    ready_share: float | None = None
    """Share of batches that were ready when asked for."""
    queues: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[WorkerLine, ...] = ()
    ops: tuple[OpLine, ...] = ()
    """Those that take most of the work first."""
    news: tuple[str, ...] = ()
    """Decisions and deaths, the newest last."""
    history: tuple[float, ...] = ()
    """Samples a second, the newest last."""


class Source(Protocol):
    """Something that can be looked at again and again. One thread at a time."""

    def snapshot(self) -> Snapshot:
        """The state now."""


class CounterSource:
    """Looks at a loader of this process."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._began = self._last_at = time.monotonic()
        self._first: LoaderStats = loader.stats()
        self._last = self._first
        self._latest: Snapshot | None = None
        self._history: deque[float] = deque(maxlen=HISTORY)

    def snapshot(self) -> Snapshot:
        """The state now; rates are since the last call, if that is long enough ago to tell."""
        now, stats = time.monotonic(), self._loader.stats()
        passed = now - self._last_at
        if self._latest is not None and passed < 0.05:
            return replace(self._latest, **_state(stats))
        before = self._last
        rate = max(0, stats.samples_delivered - before.samples_delivered) / passed if passed else 0.0
        batches = stats.batches_delivered - before.batches_delivered
        self._history.append(rate)
        self._last, self._last_at = stats, now
        self._latest = Snapshot(
            title=f"process {os.getpid()}",
            seconds=now - self._began,
            samples=stats.samples_delivered,
            batches=stats.batches_delivered,
            samples_per_s=rate,
            batches_per_s=batches / passed if passed else 0.0,
            bytes_per_s=(stats.bytes_delivered - before.bytes_delivered) / passed if passed else 0.0,
            wait_share=min(1.0, (stats.wait_seconds - before.wait_seconds) / passed) if passed else 0.0,
            ready_share=1 - (stats.waits - before.waits) / batches if batches > 0 else None,
            history=tuple(self._history),
            **_state(stats),
        )
        return self._latest


def _state(stats: LoaderStats) -> dict[str, Any]:
    """What of a snapshot holds for the moment."""
    queues = {
        "workers": stats.workers,
        "ready": stats.batches_ready,
        "in flight": stats.batches_in_flight,
        "parked": stats.samples_parked,
    }
    return {"queues": queues, "details": _details(stats), "news": stats.decisions[-5:]}


def _details(stats: LoaderStats) -> dict[str, str]:
    found = {"slots": f"{stats.slots_lent} of {stats.slots} with the consumer"} if stats.slots else {}
    if stats.sample_median:
        found["a sample takes"] = (
            f"{milliseconds(stats.sample_median)} (median), P90 {milliseconds(stats.sample_p90)}, "
            f"P99 {milliseconds(stats.sample_p99)}"
        )
    if stats.slow_threshold is not None:
        found["slow from"] = f"{milliseconds(stats.slow_threshold)} on, {stats.slow_share:.0%} of the last samples"
    for name, number in (
        ("workers replaced", stats.worker_restarts),
        ("batches copied", stats.batches_copied),
        ("samples retried", stats.samples_retried),
        ("samples skipped", stats.samples_skipped),
    ):
        if number:
            found[name] = f"{number:,}"
    return found


def milliseconds(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
