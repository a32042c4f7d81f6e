"""How far an epoch has come: what a state is made of, and what a resumed epoch begins with."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from .._errors import CapturedError
from .._records import StreamStart, StreamState
from .courses import Origin
from .remainder import Delivered


@dataclass(frozen=True, slots=True)
class MapProgress:
    """Of a map-style dataset."""

    origin: Origin
    delivered: Delivered


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """One worker's stream. Its states stay pickled until somebody asks."""

    batches: int = 0
    """Delivered."""
    ended: bool = False
    packed: bytes | None = None
    """StreamState after the last delivered batch or after the end, if the worker sent one."""
    first: bytes | None = None
    """The first that the worker sent."""
    generators: Mapping[str, Any] | None = None
    """States of the generators it began with, in an epoch that was resumed; None: as the worker has them."""
    left: bytes | None = None
    """StreamState in which the epoch before left the worker; it counts until the worker sends word of this one."""

    def advanced(self, packed: bytes | None) -> StreamPlace:
        """After one more batch."""
        return replace(self, batches=self.batches + 1, packed=packed, first=self.first or packed)

    def over(self, packed: bytes | None) -> StreamPlace:
        """After its end, which may be told more than once."""
        return replace(self, ended=True, packed=packed or self.packed, first=self.first or packed)

    @property
    def is_untouched(self) -> bool:
        """Whether the stream begins where the epoch before has left its worker."""
        return self.left is not None and self.batches == 0 and self.first is None and not self.ended

    def following(self) -> StreamPlace:
        """The stream of the next epoch."""
        return StreamPlace(left=self.packed if self.ended else None)

    @property
    def saved(self) -> StreamState | None:
        """Raises what the user's `state_dict()` raised."""
        packed = self.left if self.is_untouched else self.packed
        if packed is None:
            return None
        state: StreamState = pickle.loads(packed)
        if state.error is not None:
            assert isinstance(state.error, CapturedError)
            raise state.error.rebuild()
        return state

    @property
    def began(self) -> Mapping[str, Any] | None:
        """States of the generators it began with; None: as the worker's seed has them."""
        first: StreamState | None = None if self.first is None else pickle.loads(self.first)
        return self.generators if first is None or first.began is None else first.began

    def start(self) -> StreamStart:
        """What its worker is told to go on from here."""
        saved = self.saved
        if self.is_untouched:
            return StreamStart(0, saved, None, is_new=True)
        replayed = saved is None or not saved.of
        ended = self.ended or (saved is not None and saved.ended)
        return StreamStart(self.batches if replayed and not ended else 0, saved, self.generators, ended)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Of an iterable dataset."""

    workers: int
    """0: the stream is in the main process."""
    turn: int
    """The worker whose batch comes next."""
    streams: tuple[StreamPlace, ...]


class Handover:
    """Batches on their way to the user: delivered here, and not returned by `next` yet.

    On the way they may be waiting for a device, or be lost to an interrupt. In a state they count as not delivered.
    """

    def __init__(self) -> None:
        self._on_the_way: deque[Any] = deque()
        self._lost = 0
        """Of these, the first ones that will not arrive any more."""

    def add(self, batch: Any) -> None:
        """A batch has set out."""
        self._on_the_way.append(batch)

    def take_back(self) -> None:
        """The one that set out last is not to be delivered after all."""
        self._on_the_way.pop()

    def arrived(self) -> None:
        """The last one has arrived, if one has set out at all: there may have been an error without a batch."""
        if len(self._on_the_way) > self._lost:
            self._on_the_way.pop()

    def arrived_in_turn(self) -> None:
        """The first one has arrived."""
        if self._on_the_way:
            self._on_the_way.popleft()

    def interrupted(self, still_here: int = 0) -> None:
        """Whoever waited for a batch does so no more. `still_here`: the last ones, which the next to ask will get."""
        self._lost = len(self._on_the_way) - still_here

    def forget_lost(self) -> None:
        """What is lost cannot be had again: later ones have arrived."""
        while self._lost:
            self._on_the_way.popleft()
            self._lost -= 1

    @property
    def batches(self) -> Sequence[Any]:
        """On their way or lost, in the order in which they set out."""
        return tuple(self._on_the_way)


class Progressing(Protocol):
    handover: Handover

    def progress(self) -> MapProgress | StreamProgress: ...


@dataclass(slots=True)
class Track:
    """One epoch of a loader, watched: outlives its iterator and its workers."""

    source: Progressing
    base_seed: int
    epoch: int
    pipe_seed: int | None = None
    """Of a data pipe: the seed it was shuffled by."""
    finished: bool = False
    """Whether the user was told that there are no more batches."""
    lock: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    """Held while a batch is delivered."""
    following: int = 1
    """Number of the next epoch, as it was when this was made, if it is not one that is under way ahead."""

    def progress(self) -> MapProgress | StreamProgress:
        with self.lock:
            return self.source.progress()
