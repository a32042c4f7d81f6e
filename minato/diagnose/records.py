"""What was measured of a pipeline, as frozen records. Every unit is in the field's name or note."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LOAD, TRANSFORM, COLLATE, TRANSFER, CACHE = "load", "transform", "collate", "transfer", "(cache)"
"""Kinds of stages."""
OTHERS_SHARE = 0.1  # of the cores' time, below which it is not worth a word that others use it
LEAST_CORES = 0.1  # to count on, however busy others are: they end some time


@dataclass(frozen=True, slots=True)
class StageMeasurement:
    """One stage of the pipeline. All numbers are totals over the measurement."""

    name: str
    kind: str
    completions: int
    """Samples, or batches, that it finished."""
    cpu_s: float
    """CPU time of the thread that ran it: waiting for a disk or sleeping is not in it."""
    wall_s: float
    bytes_in: int = 0
    bytes_out: int = 0
    """Bytes of what it was given and what it made, as far as these are arrays, tensors, images, bytes and strings."""
    bytes_read: int = 0
    """Bytes that it read from files, and that `count_bytes` was told."""
    is_sequential: bool = False
    """It runs in the main process: a second worker does not make it faster."""
    randomness: str = "unknown"
    """"deterministic", "random" or "unknown", which counts as random."""
    reason: str = ""
    """Why that is thought so."""
    cpu_least_s: float | None = None
    """The same work in CPU seconds without what the machine's other work added to it; None: not known."""
    wall_std_s: float = 0.0
    """Standard deviation of one completion's time."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """The loader as it was run with a cache that it does not have yet, filled, and all cores busy."""

    stages: tuple[str, ...]
    """Those whose result was kept."""
    workers: int
    rate: float
    """Batches per second."""
    workers_cpu_s: float | None
    """CPU seconds of all workers per batch; None: not known."""
    main_cpu_s: float
    """CPU seconds of the main process per batch."""
    first_s: float = 0.0
    """Seconds from the start of an epoch to its first batch."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A pipeline as it was measured."""

    stages: tuple[StageMeasurement, ...]
    samples: int
    """Samples of which the stages' costs were measured."""
    batch_size: int
    dataset_samples: int | None
    """Length of the dataset; None: not known."""
    workers: int
    concurrency: int
    """Fetches at once in a worker."""
    prefetch: int
    """Batches in flight for each worker."""
    cores: float
    """Cores' worth of time that this process and its workers may use."""
    rate: float | None
    """Batches per second that the loader gave, when nothing but the loader, and the consumer's step if that is known,
    held it up; None: not measured."""
    rate_change: float
    """By which share the rate still changed when the measurement ended."""
    step_s: float | None = None
    """Seconds per batch that the consumer takes by itself; None: not known."""
    wait_share: float | None = None
    """Share of its time that the consumer waited for batches; None: not known."""
    storage_bytes_s: float | None = None
    """Bytes per second that the storage gives at best; None: not probed."""
    storage_parallelism: int | None = None
    """Reads at once from which on the storage gives no more."""
    memory_bytes: int | None = None
    """Memory that is available."""
    crowding: float = 1.0
    """Times as much CPU time as alone that a batch takes when all cores are busy."""
    free_cores: float | None = None
    """Of `cores`, what other programs and the host's other guests left while it was measured; None: not known."""
    cached: CachedRun | None = None
    """With the cache that would be proposed; None: there is none to propose, or it was not tried."""
    inline_rate: float | None = None
    """Batches per second without workers; None: not measured."""
    epoch_batches: int | None = None
    """Batches of an epoch that begins with the start of workers; None: not known, or workers are kept."""
    first_s: float = 0.0
    """Seconds from the start of an epoch with workers to its first batch."""
    is_live: bool = False
    """Measured while training, in the loader's own workers."""

    @property
    def batches(self) -> float:
        """Batches that the measured samples make."""
        return self.samples / self.batch_size

    @property
    def usable_cores(self) -> float:
        """Cores' worth of time that there is for the loader."""
        return self.cores if self.free_cores is None else min(self.cores, max(LEAST_CORES, self.free_cores))

    @property
    def others_cores(self) -> float:
        """Cores' worth of time that others use; 0 where that is too little to matter."""
        used = self.cores - self.usable_cores
        return used if used > OTHERS_SHARE * self.cores else 0.0

    @property
    def slots(self) -> int:
        """Samples that are worked on at once."""
        return max(1, self.workers) * max(1, self.concurrency)


@dataclass(frozen=True, slots=True)
class Advice:
    """One change."""

    what: str
    """In words."""
    reason: str
    rate: float | None
    """Predicted batches per second, with this and the changes before it; None: it is not about the rate."""
    confidence: str
    """"high", "medium" or "low"."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Arguments of the loader to change; empty: it is to be changed elsewhere."""
    is_urgent: bool = False
    """It makes all else slow, by how much is not predicted."""
    was_tried: bool = False
    """The rate was measured, not predicted."""

    @property
    def in_full(self) -> str:
        """In words, with the arguments that it takes."""
        given = [f"{name}={value!r}" for name, value in self.changes.items()]
        changes = ", ".join(change for change in given if change not in self.what)
        return f"{self.what} ({changes})" if changes else self.what

    @property
    def rate_in_words(self) -> str:
        """What it would bring; empty: it is not about the rate."""
        if self.rate is None:
            return ""
        how = "Measured when it was tried" if self.was_tried else "Predicted"
        return f"{how}: {self.rate:,.1f} batches/s ({self.confidence} confidence)."
