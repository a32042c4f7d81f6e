"""Iterable datasets: the stream of one worker (or of the main process), cut into batches as torch cuts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .._records import StreamStart, StreamState


class Stream:
    """Iterates a dataset once. A batch cut short ends the stream; with `drop_last` it is dropped."""

    def __init__(
        self, dataset: Iterable[Any], batch_size: int | None, drop_last: bool, start: StreamStart | None = None
    ) -> None:
        """`start`: where to begin, if not at the beginning. Batches to be skipped are left to the caller."""
        saved = None if start is None else start.saved
        self._ended = start is not None and start.ended
        if saved is not None and saved.of == "dataset":
            dataset.load_state_dict(saved.state)  # type: ignore[attr-defined]
        self._samples: Iterator[Any] = iter(()) if self._ended else iter(dataset)
        if saved is not None and start is not None and saved.of == "iterator" and not (start.ended or start.is_new):
            self._samples.load_state_dict(saved.state)  # type: ignore[attr-defined]
        self._holder, self._holder_is = _holder(dataset, self._samples)
        self._batch_size = batch_size
        self._drop_last = drop_last

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

    @property
    def ended(self) -> bool:
        """Whether there is nothing left, as far as is known."""
        return self._ended

    @property
    def is_stateful(self) -> bool:
        """Whether dataset or iterator can save their state."""
        return self._holder is not None

    def state(self) -> StreamState:
        """The state after the last batch. Raises what the user's `state_dict()` raises."""
        state = None if self._holder is None else self._holder.state_dict()
        return StreamState(self._holder_is, state, ended=self._ended)


def _holder(dataset: Any, iterator: Any) -> tuple[Any, str]:
    """Who of the two can save its state."""
    for candidate, name in ((iterator, "iterator"), (dataset, "dataset")):
        if name == "iterator" and iterator is dataset:
            continue
        if callable(getattr(candidate, "state_dict", None)) and callable(getattr(candidate, "load_state_dict", None)):
            return candidate, name
    return None, ""
