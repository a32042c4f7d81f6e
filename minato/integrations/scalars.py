"""Statistics of a loader as scalars, for anything with `add_scalar` (TensorBoard's SummaryWriter) or a function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .._records import LoaderStats

if TYPE_CHECKING:
    from .._dataloader import DataLoader

Log = Callable[[str, float, int], None]
"""Called with name, value and step."""


def scalars(stats: LoaderStats) -> dict[str, float]:
    """The numbers among the fields of `loader.stats()`, by name; durations in seconds, sizes in bytes."""
    found = {}
    for each in fields(stats):
        value = getattr(stats, each.name)
        if isinstance(value, int | float):
            found[each.name] = float(value)
    return found


class StatsLogger:
    """Writes a loader's statistics every so many steps, and two rates that follow from them.

        log = StatsLogger(loader, SummaryWriter())
        for step, batch in enumerate(loader):
            train(batch)
            log(step)

    `writer`: anything with `add_scalar(name, value, step)`, or a function of these three. `every`: steps between two
    records (default 50). `prefix`: put before the names (default "minato/"). `samples_per_s` and `waiting_share` (of
    the time since the record before, what the loop spent waiting for batches) come beside the fields of `LoaderStats`.
    """

    def __init__(self, loader: DataLoader[Any], writer: Any, every: int = 50, prefix: str = "minato/") -> None:
        if every < 1:
            raise ValueError(f"every: needed a number of steps of at least 1, found {every}")
        self._loader = loader
        self._log: Log = getattr(writer, "add_scalar", writer)
        if not callable(self._log):
            found = type(writer).__name__
            raise TypeError(f"writer: needed add_scalar(name, value, step) or a function, found {found}")
        self._every = every
        self._prefix = prefix
        self._moment = time.monotonic()
        self._before = loader.stats()

    def __call__(self, step: int) -> None:
        """Write the statistics if it is time."""
        if step % self._every == 0:
            self.write(step)

    def write(self, step: int) -> None:
        """Write the statistics now."""
        now, stats = time.monotonic(), self._loader.stats()
        seconds = max(now - self._moment, 1e-9)
        delivered = stats.samples_delivered - self._before.samples_delivered
        waited_s = stats.wait_seconds - self._before.wait_seconds
        rates = {"samples_per_s": delivered / seconds, "waiting_share": waited_s / seconds}
        for name, value in {**scalars(stats), **rates}.items():
            self._log(self._prefix + name, value, step)
        self._moment, self._before = now, stats
