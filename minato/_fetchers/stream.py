"""Iterable datasets: the stream of one worker (or of the main process), cut into batches as torch cuts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Stream:
    """Iterates a dataset once. A batch cut short ends the stream; with `drop_last` it is dropped."""

    def __init__(self, dataset: Iterable[Any], batch_size: int | None, drop_last: bool) -> None:
        self._samples: Iterator[Any] = iter(dataset)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._ended = False

    def next_batch(self) -> list[Any]:
        """The next samples: `batch_size` of them, or one if that is None. Empty: the stream has ended."""
        if self._ended:
            return []
        wanted = 1 if self._batch_size is None else self._batch_size
        batch: list[Any] = []
        for _ in range(wanted):
            try:
                batch.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
        return [] if self._drop_last and len(batch) < wanted else batch
