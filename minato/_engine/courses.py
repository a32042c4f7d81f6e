"""An epoch's order, and how to come by it again.

torch's sequential sampler needs nothing, its plain random sampler one seed. Any other sampler is asked again from the
epoch's beginning, with all it may depend on as it was then: the generators it may draw from, its `epoch`, its own
`state_dict()`. It is not asked for its state as it is: it runs ahead of delivery by the batches in flight. A checksum
of what it gave tells whether it gives the same again.
"""

from __future__ import annotations

import copy
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from .._queues.keys import Indices, Keys
from .._workers import plain
from .remainder import Delivered, Portion, Rest, single
from .sampling import DrawnSeed, batches_of, is_cut

# They draw from nothing but their own generator, or torch's default one, and not before their first element is asked.
_TORCHS_OWN = (BatchSampler, SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

_END = object()


class Pulls(Iterator[Any]):
    """Counts and sums up what a sampler gives."""

    def __init__(self, batches: Iterator[Any], before_first: Callable[[], object] | None = None) -> None:
        self._batches = batches
        self._before_first = before_first
        self.count = 0
        """Times the sampler was asked, the last time included, when it had no more."""
        self.checksum = 0

    def __next__(self) -> Any:
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self.count += 1
        keys = next(self._batches)
        if isinstance(keys, Iterator):  # can be read once only
            keys = list(keys)
        self.checksum = _summed(keys, self.checksum)
        return keys


def _summed(keys: Any, checksum: int) -> int:
    if type(keys) is list:
        try:
            return zlib.crc32(array("q", keys), checksum)
        except (TypeError, OverflowError):
            pass  # not plain indices
    return zlib.crc32(_spelled(keys).encode(), checksum)


def _spelled(key: Any) -> str:
    """A text for a key that another process would give too: an object's own text may have its address in it."""
    if type(key) in (list, tuple):
        return f"({','.join(map(_spelled, key))})"
    if isinstance(key, (np.ndarray, np.generic, torch.Tensor)):
        return repr(key.tolist())
    return repr(key) if type(key) in (int, float, bool, str, bytes, type(None)) else type(key).__name__


@dataclass(slots=True)
class Origin:
    """All that is needed to have an epoch's order again."""

    seed: DrawnSeed
    sources: plain.Sources = field(default_factory=dict)
    """The generators the sampler may draw from."""
    at_iter: plain.States | None = None
    """Their states before `iter()`, if that drew from them."""
    at_first: plain.States | None = None
    """Their states before the first batch was asked for; None: it was not yet."""
    pulls: Pulls | None = None
    """None: torch's own, which need not be asked again."""
    epochs: dict[str, int] = field(default_factory=dict)
    """`epoch` of each part of the sampler that has `set_epoch`."""
    own_states: dict[str, Any] = field(default_factory=dict)
    """What `state_dict()` of each part of the sampler gave, or raised."""

    def note_first(self) -> None:
        """The first batch is about to be asked for."""
        self.at_first = plain.read_all(self.sources)


@dataclass(frozen=True, slots=True)
class Course:
    """The batches of one epoch that are to be delivered, in order."""

    batches: Iterator[Any]
    origin: Origin
    before: Delivered = field(default_factory=Delivered)
    """What was delivered before this course began."""

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    @property
    def is_drawn(self) -> bool:
        """Whether its order is known from the first batch on: no sampler's code runs for the others."""
        return self.origin.pulls is None

    def retold(self, batches: Iterator[Any]) -> Course:
        """The same course, told by another iterator."""
        if self.origin.pulls is None:
            return Course(batches, self.origin, self.before)
        self.origin.pulls = Pulls(batches)
        return Course(self.origin.pulls, self.origin, self.before)


def parts_of(sampler: Any) -> dict[str, Any]:
    """A sampler, and the one it takes its samples from."""
    inner = getattr(sampler, "sampler", None)
    return {"sampler": sampler} if inner is None else {"batch_sampler": sampler, "sampler": inner}


def sources_of(sampler: Any) -> plain.Sources:
    """The generators a sampler may draw from."""
    parts = parts_of(sampler)
    found: dict[str, plain.Source] = {}
    if any(type(part) not in (*_TORCHS_OWN, DistributedSampler) for part in parts.values()):
        found = plain.process_sources()
    elif any(hasattr(part, "generator") and part.generator is None for part in parts.values()):
        found = {"torch": plain.torch_source(torch.default_generator)}
    for name, part in parts.items():
        for attribute, value in getattr(part, "__dict__", {}).items():
            source = plain.source_of(value)
            if source is not None:
                found[f"{name}.{attribute}"] = source
    return found


def begin_course(sampler: Iterable[Any]) -> Course:
    """An epoch from its beginning. `iter(sampler)` is called now; nothing is asked of it yet."""
    origin = Origin(DrawnSeed())
    if is_cut(sampler):
        return Course(batches_of(sampler, origin.seed), origin)
    parts = parts_of(sampler)
    origin.sources = sources_of(sampler)
    origin.epochs = {name: part.epoch for name, part in parts.items() if _has_epoch(part)}
    origin.own_states = {name: _own_state(part) for name, part in parts.items() if is_stateful(part)}
    torchs_own = all(type(part) in _TORCHS_OWN for part in parts.values())
    before = None if torchs_own else plain.read_all(origin.sources)
    batches = iter(sampler)
    if before is not None and not plain.same_states(before, plain.read_all(origin.sources)):
        origin.at_iter = before
    origin.pulls = Pulls(batches, origin.note_first)
    return Course(origin.pulls, origin)


def _has_epoch(part: Any) -> bool:
    return callable(getattr(part, "set_epoch", None)) and type(getattr(part, "epoch", None)) is int


def is_stateful(part: Any) -> bool:
    """Whether something can save its state and take it back."""
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


def _own_state(part: Any) -> Any:
    """An error is kept for whoever asks for the state: nobody may."""
    try:
        return copy.deepcopy(part.state_dict())
    except Exception as error:
        return error


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An epoch of a map-style dataset, as read from a state."""

    delivered: Delivered
    seed: int | None
    at_iter: plain.States | None
    at_first: plain.States | None
    pulled: int
    checksum: int
    epochs: dict[str, int]
    own_states: dict[str, Any]


def resume_course(
    sampler: Any, interrupted: Interrupted, batch_size: int | None, drop_last: bool, is_single: bool
) -> Course:
    """What is left of an epoch. Leaves generators where replaying the sampler brings them.

    Args:
        batch_size: of torch's own batching; None: the sampler's batches keep their members.
        is_single: the sampler gives keys, not batches of them.
    """
    rest = Rest(interrupted.delivered, batch_size, drop_last)
    if is_cut(sampler):
        origin = Origin(DrawnSeed(interrupted.seed))
        batches: Iterator[Any] = batches_of(sampler, origin.seed)
        return Course(_portions(batches, rest, [], False, is_single), origin, interrupted.delivered)
    origin = _put_back(sampler, interrupted)
    batches = iter(sampler)
    if interrupted.at_first is not None:
        plain.set_all(origin.sources, interrupted.at_first)
    origin.pulls = Pulls(batches, origin.note_first if interrupted.at_first is None else None)
    ready: list[Portion] = []
    ended = False
    while not ended and origin.pulls.count < interrupted.pulled:
        keys = next(origin.pulls, _END)
        ended = keys is _END
        ready += rest.end() if ended else rest.add(_keys(keys, is_single))
    if origin.pulls.checksum != interrupted.checksum or rest.units_seen < interrupted.delivered.frontier:
        raise ValueError(
            f"{_names(sampler)} gives another order than in the interrupted run, so the epoch cannot be resumed. "
            f"Give it a state_dict() and load_state_dict(), or let it draw from a seeded generator"
        )
    return Course(_portions(origin.pulls, rest, ready, ended, is_single), origin, interrupted.delivered)


def _put_back(sampler: Any, interrupted: Interrupted) -> Origin:
    """Make the sampler what it was when the epoch began."""
    parts = parts_of(sampler)
    for name, state in interrupted.own_states.items():
        parts[name].load_state_dict(copy.deepcopy(state))
    for name, epoch in interrupted.epochs.items():
        parts[name].set_epoch(epoch)
    sources = sources_of(sampler)
    if interrupted.at_iter is not None:
        plain.set_all(sources, interrupted.at_iter)
    return Origin(
        DrawnSeed(),
        sources,
        interrupted.at_iter,
        interrupted.at_first,
        epochs=interrupted.epochs,
        own_states=interrupted.own_states,
    )


def _portions(
    batches: Iterator[Any], rest: Rest, ready: list[Portion], ended: bool, is_single: bool
) -> Iterator[Portion]:
    yield from ready
    if not ended:
        for keys in batches:
            yield from rest.add(_keys(keys, is_single))
        yield from rest.end()


def _keys(keys: Any, is_single: bool) -> Keys:
    if is_single:
        return single(keys)
    return keys if isinstance(keys, Indices) else list(keys)


def _names(sampler: Any) -> str:
    return " over ".join(type(part).__name__ for part in parts_of(sampler).values())
