"""Iterable datasets: the stream of one worker (or of the main process), cut into batches as torch cuts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

MOST_FAILURES = 1000  # in a row; a stream that never gives a sample again must not keep its reader busy for ever


class Stream:
    """Iterates a dataset once. A batch cut short ends the stream; with `drop_last` it is dropped."""

    def __init__(self, dataset: Iterable[Any], batch_size: int | None, drop_last: bool, keeps: bool = False) -> None:
        """`keeps`: when the dataset raises, the samples that came before are kept for the next batch."""
        self._samples: Iterator[Any] = iter(dataset)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._ended = False
        self._keeps = keeps
        self._kept: list[Any] = []
        self._failures = 0
        self._kept_before = -1

    @property
    def is_hopeless(self) -> bool:
        """Whether the dataset raised so often in a row, without a sample in between, that it is of no use to go on."""
        return self._failures >= MOST_FAILURES

    def next_batch(self) -> list[Any]:
        """The next samples: `batch_size` of them, or one if that is None. Empty: the stream has ended."""
        if self._ended:
            return []
        wanted = 1 if self._batch_size is None else self._batch_size
        batch, self._kept = self._kept, []
        for _ in range(wanted - len(batch)):
            try:
                batch.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
            except Exception as error:
                if self._keeps:
                    self._note_failure(batch, error)
                raise
        self._kept_before = -1
        return [] if self._drop_last and len(batch) < wanted else batch

    def _note_failure(self, batch: list[Any], error: Exception) -> None:
        self._failures = self._failures + 1 if len(batch) == self._kept_before else 1
        self._kept, self._kept_before = batch, len(batch)
        if self.is_hopeless:
            error.add_note(f"the dataset's iterator raised {MOST_FAILURES} times in a row")
