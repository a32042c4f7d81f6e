"""Running totals of a loader, over all its iterators. Added to by whoever delivers; read by `stats()`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Fields as in `LoaderStats`."""

    batches_delivered: int = 0
    samples_delivered: int = 0
    bytes_delivered: int = 0
    batches_zero_copy: int = 0
    batches_copied: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    worker_restarts: int = 0
    epochs_started_ahead: int = 0
    samples_fast: int = 0
    samples_slow: int = 0
