"""Running totals of a loader, over all its iterators. Added to by whoever delivers; read by `stats()`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import SampleError
from .._records import QueueMoment

MOST_NAMED = 100  # keys of samples left out that are remembered, the newest


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
    steps: int = 0
    step_seconds: float = 0.0
    worker_restarts: int = 0
    epochs_started_ahead: int = 0
    samples_fast: int = 0
    samples_slow: int = 0
    samples_parked: int = 0
    largest_deferral: int = 0
    decisions: tuple[str, ...] = ()
    history: tuple[QueueMoment, ...] = ()
    samples_retried: int = 0
    samples_skipped: int = 0
    skipped: tuple[Any, ...] = ()

    def count_wait(self, seconds: float) -> None:
        """The consumer has waited for a batch."""
        self.waits += 1
        self.wait_seconds += seconds

    def count_delivered(self, samples: int, nbytes: int, is_copied: bool) -> None:
        """The user has got a batch."""
        self.batches_delivered += 1
        self.samples_delivered += samples
        self.bytes_delivered += nbytes
        self.batches_copied += is_copied
        self.batches_zero_copy += not is_copied

    def count_step(self, seconds: float | None) -> None:
        """The user asks for a batch, so long after the last one; None: it is the first."""
        if seconds is not None:
            self.steps += 1
            self.step_seconds += seconds

    @property
    def samples_finished(self) -> int:
        """Samples that workers have made, delivered or not."""
        return self.samples_fast + self.samples_slow

    def count_skipped(self, count: int, keys: Sequence[Any], failure: SampleError) -> None:
        """Samples were left out. The first time in a loader's life, a warning says so."""
        if not self.samples_skipped:
            warnings.warn(
                f"{_named(failure)} failed ({failure.stage}: {type(failure.error).__name__}: "
                f"{failure.error}) and is left out, as on_error says; loader.stats() counts and names what is left "
                f"out from now on",
                RuntimeWarning,
                stacklevel=2,
            )
        self.samples_skipped += count
        self.skipped = (*self.skipped, *keys)[-MOST_NAMED:]


def _named(failure: SampleError) -> str:
    if failure.position is None:
        return (
            f"a sample of worker {failure.worker}'s stream" if failure.worker is not None else "a sample of the stream"
        )
    return f"sample index {failure.index!r}"
