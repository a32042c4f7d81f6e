"""Iterable datasets: the stream of one worker (or of the main process), cut into batches as torch cuts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .._records import StreamStart, StreamState

Take = Callable[[int, Any], Any]
"""Given a sample's number in its batch, and the sample."""
MOST_FAILURES = 1000  # in a row; a stream that never gives a sample again must not keep its reader busy for ever


class Stream:
    """Iterates a dataset once. A batch cut short ends the stream; with `drop_last` it is dropped."""

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int | None,
        drop_last: bool,
        start: StreamStart | None = None,
        keeps: bool = False,
    ) -> None:
        """`start`: where to begin, if not at the beginning. Batches to be skipped are left to the caller. `keeps`: when
        the dataset raises, the samples that came before are kept for the next batch."""
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
        self._keeps = keeps
        self._kept: list[Any] = []
        self._failures = 0
        self._kept_before = -1

    def see(self, view: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        """Take samples from a view of the dataset's iterator from now on, which must give the same ones."""
        self._samples = view(self._samples)

    @property
    def is_hopeless(self) -> bool:
        """Whether the dataset raised so often in a row, without a sample in between, that it is of no use to go on."""
        return self._failures >= MOST_FAILURES

    def next_batch(self, take: Take | None = None) -> list[Any]:
        """The next samples: `batch_size` of them, or one if that is None. Empty: the stream has ended. With `take`,
        what it makes of each, before the next is asked for; not for a stream that keeps samples."""
        if self._ended:
            return []
        wanted = 1 if self._batch_size is None else self._batch_size
        batch, self._kept = self._kept, []
        for _ in range(wanted - len(batch)):
            try:
                sample = next(self._samples)
            except StopIteration:
                self._ended = True
                break
            except Exception as error:
                if self._keeps:
                    self._note_failure(batch, error)
                raise
            batch.append(sample if take is None else take(len(batch), sample))
            del sample  # the next one uses its memory
        self._kept_before = -1
        return [] if self._drop_last and len(batch) < wanted else batch

    def _note_failure(self, batch: list[Any], error: Exception) -> None:
        self._failures = self._failures + 1 if len(batch) == self._kept_before else 1
        self._kept, self._kept_before = batch, len(batch)
        if self.is_hopeless:
            error.add_note(f"the dataset's iterator raised {MOST_FAILURES} times in a row")

    @property
    def ended(self) -> bool:
        """Whether there is nothing left, as far as is known."""
        return self._ended

    @property
    def is_stateful(self) -> bool:
        """Whether dataset or iterator can save their state now. While samples are kept it would be ahead of them."""
        return self._holder is not None and not self._kept

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
