"""What a worker tells of its stream, so that an interrupted epoch can be resumed, and how it resumes one.

Costs nothing where the dataset cannot save its state: then a resumed stream is replayed, and only the states of the
random generators at its beginning (if it did not begin with its worker) and at its end are told.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from .._errors import CapturedError
from .._fetchers.stream import Stream
from .._records import StreamStart, StreamState
from . import plain
from .generators import all_generators


class Stoppable(Protocol):
    @property
    def stopped(self) -> bool: ...


class StreamAccount:
    """Follows the stream of one worker, epoch after epoch."""

    def __init__(self) -> None:
        self._sources = plain.process_sources()
        self._began: plain.States | None = None
        """The generators when the stream began, if the main process has yet to be told."""
        self._seen: list[object] = []
        """What they looked like then."""
        self._moved = False
        """Whether they have moved since, or began at other than the worker's seed."""
        self._told_end = False

    def begin(self, start: StreamStart | None, is_first: bool) -> None:
        """A stream is about to begin; `is_first`: it is the worker's first."""
        saved = None if start is None else start.saved
        if start is not None and start.generators is not None:
            plain.set_all(self._sources, dict(start.generators))
        if saved is not None and start is not None and start.is_new and saved.generators is not None:
            plain.set_all(self._sources, dict(saved.generators))
        is_known = is_first and (start is None or not start.is_new)
        self._began = None if is_known else plain.read_all(self._sources)
        self._seen = _glances()
        self._told_end = False

    def begun(self, start: StreamStart | None) -> None:
        """It has begun; if it goes on from a state, so do the generators."""
        saved = None if start is None or start.is_new else start.saved
        self._moved = saved is not None and saved.generators is not None
        if saved is not None and saved.generators is not None:
            plain.set_all(self._sources, dict(saved.generators))

    def state_after_batch(self, stream: Stream) -> bytes | None:
        """The pickled StreamState, if there is something to tell."""
        at_end = stream.ended and not self._told_end
        if not stream.is_stateful and self._began is None and not at_end:
            return None
        self._told_end = stream.ended
        self._moved = self._moved or _glances() != self._seen
        packed = packed_state(stream, plain.read_all(self._sources) if self._moved else None, self._began)
        self._began = None
        return packed


def packed_state(stream: Stream, generators: plain.States | None = None, began: plain.States | None = None) -> bytes:
    """The pickled StreamState. An error of the user's `state_dict()` is kept in it for whoever asks."""
    try:
        return pickle.dumps(replace(stream.state(), generators=generators, began=began))
    except Exception as error:
        return pickle.dumps(StreamState(error=CapturedError.capture(error, "saving the state of the dataset")))


def _glances() -> list[object]:
    return [generator.glance() for generator in all_generators()]


def skip_batches(
    stream: Stream, count: int, collate: Callable[[list[Any]], object] | None, worker: Stoppable | None = None
) -> None:
    """Pass over batches that were delivered before. `collate` is called for each: it may draw random numbers too. The
    errors that some of them were delivered as have been raised then."""
    for _ in range(count):
        if worker is not None and worker.stopped:
            return
        try:
            samples = stream.next_batch()
            if samples and collate is not None:
                collate(samples)
        except Exception:
            continue
