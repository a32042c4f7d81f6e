"""The keys of a batch's tickets in shared memory: plain ints as words, anything else pickled, to keep its type."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .._records import Asked
from .arena import Arena, Stretch


class Indices(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """Keys that are plain ints, as an array of minato's own: a user's array has keys of numpy's types."""


Keys = Sequence[object] | Indices


@dataclass(frozen=True, slots=True)
class Placed:
    """A key and the position it had in its epoch, where that cannot be told from its ticket: what is left of an
    interrupted epoch."""

    key: object
    origin: int


def write_keys(arena: Arena, record: int, keys: Keys) -> int:
    """Write the keys of the batch with that record. Returns their pickled length; 0: they are words."""
    if isinstance(keys, Indices) or (type(keys) is not Asked and set(map(type, keys)) <= {int}):
        try:
            values = np.array(keys, np.int64)
        except OverflowError:
            pass  # beyond 64 bits: pickled below
        else:
            arena.view(Stretch.KEYS, record, values.nbytes)[: values.nbytes].view(np.int64)[:] = values
            return 0
    data = pickle.dumps(keys if type(keys) is Asked else list(keys), protocol=5)
    arena.view(Stretch.KEYS, record, len(data))[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def read_keys(arena: Arena, record: int, nbytes: int, first: int, count: int) -> list[object]:
    """Keys `first` to `first + count`, to be passed through `unpickled`. Under the lock: the main process may reuse the
    record as soon as the run is not in anybody's hand."""
    if nbytes:
        return [arena.view(Stretch.KEYS, record, nbytes)[:nbytes].tobytes(), first, count]
    last = (first + count) * 8
    values: list[object] = arena.view(Stretch.KEYS, record, last)[first * 8 : last].view(np.int64).tolist()
    return values


def unpickled(keys: list[object]) -> list[object]:
    """Keys as the sampler gave them. Outside the lock: unpickling runs the user's code."""
    match keys:
        case [bytes() as data, int(first), int(count)]:
            stored: list[object] = pickle.loads(data)
            return stored if count == len(stored) else stored[first : first + count]
    return keys


def bare(keys: list[object]) -> list[object]:
    """Keys as the dataset is asked for them."""
    return [key.key if type(key) is Placed else key for key in keys]
