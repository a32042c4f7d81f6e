"""Records that cross threads, processes and the public surface. Frozen; every unit is in its field's note."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Run:
    """Tickets that a worker took from the board: consecutive places of one batch."""

    batch: int
    """Number of the batch the tickets belong to, counted from the pool's start."""
    first: int
    """First row of the run within that batch."""
    epoch: int
    seed: int
    """Seed of the epoch, from which each sample's own seed is derived."""
    position: int
    """Position in the epoch of the first ticket of the run."""
    keys: list[object]
    place: Place | None = None
    """Rows for all samples of the run, if they were claimed with the tickets."""


@dataclass(frozen=True, slots=True)
class Hand:
    """Tickets a worker has in hand: `count` of them, from place `first` of `batch` on."""

    batch: int
    first: int
    count: int
    keys: list[object]


@dataclass(frozen=True, slots=True)
class Place:
    """Consecutive rows of one batch that a worker may write."""

    batch: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class CollateTask:
    """All rows of `batch` are there, but the worker that should have collated them is gone."""

    batch: int


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What `loader.stats()` returns: counters since the loader was made, and the state right now."""

    STATE: ClassVar[tuple[str, ...]] = (
        "workers",
        "batches_in_flight",
        "batches_ready",
        "slots",
        "slots_lent",
        "window",
        "memory_budget",
    )
    """Fields that tell the state of running iterators; the others count."""

    workers: int = 0
    """Worker processes alive now."""
    worker_restarts: int = 0
    """Workers that died and were replaced."""
    batches_delivered: int = 0
    samples_delivered: int = 0
    bytes_delivered: int = 0
    """Bytes of shared memory that delivered batches took."""
    batches_in_flight: int = 0
    """Dispatched to workers and not yet delivered."""
    batches_ready: int = 0
    """Complete and waiting for the consumer. Near zero while the consumer waits: the workers are the bottleneck."""
    batches_zero_copy: int = 0
    """Delivered from a lent slot: large tensors are views of it, small ones (16 KiB or less) copies."""
    batches_copied: int = 0
    """Copied out because the consumer still held earlier batches and no slot was free for lending."""
    slots: int = 0
    """Batch-sized pieces of the arena in existence; grows to what is in flight plus what the consumer holds."""
    slots_lent: int = 0
    """Slots under tensors that the consumer still holds."""
    waits: int = 0
    """Times the consumer found no batch ready."""
    wait_seconds: float = 0.0
    """Seconds the consumer spent waiting for batches."""
    window: int = 0
    """Batches the loader currently keeps in flight; below the plan's when the memory budget is near."""
    memory_budget: int = 0
    """Bytes that batches in flight may take."""
    epochs_started_ahead: int = 0
    """Epochs whose first samples were under way before the consumer asked for them."""
    samples_fast: int = 0
    """Samples that workers finished within the threshold, or while there was none."""
    samples_slow: int = 0
    """Samples that took longer than the threshold of their time."""
