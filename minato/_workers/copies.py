"""How much memory forked workers copy by merely reading the dataset, told in one warning where it is a lot.

A forked worker shares the pages of its parent until it writes to them. Python writes to an object each time it is
used: its reference count. So a list of a million paths, which nobody changes, is copied page by page into every worker
that reads from it. `gc.freeze()` (see `worker_main`) keeps the collector from doing the same to objects that are not
even read; nothing but packing keeps reference counts from it. Numbers in an array or a tensor have none.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._errors import CopyOnWriteWarning
from .program import Program
from .walk import SAMPLED, parts, sample_items, search

BYTES_PER_WORKER = 200 << 20  # estimated copies in one worker, from which on they are worth a word
SMALL_CONTAINER = 64  # items up to which a container is not weighed as a whole, but looked into
_MOST_NAMED = 8
_WORTH_NAMING = 0.05  # share of the whole
_PAGE = 4096  # bytes; of a large object only the page with its reference count is copied
_GC_HEAD = 16  # bytes in front of an object that can be part of a cycle
_ARRAY_HEAD = 128  # bytes of an array's or tensor's Python object, about
_UNKNOWN = 64  # bytes of an object that does not tell its size
_DEPTH = 4  # levels of items within items that are weighed
_CONTAINERS = (list, tuple, deque, dict, set, frozenset)


@dataclass(frozen=True, slots=True)
class Weight:
    """An estimate from a sample of the items."""

    items: int
    bytes: int
    """Pages that one worker copies if it reads every item, or its neighbours."""


def warn_of_copies(
    program: Program,
    workers: int,
    room: int,
    stacklevel: int,
    bytes_per_worker: int = BYTES_PER_WORKER,
) -> None:
    """A `CopyOnWriteWarning` that names the large containers of the dataset, if their copies pass `bytes_per_worker` in
    each worker, or `room` in all of them. One worker copies at most what is there anyway: nothing is said of that."""
    if workers < 2:
        return
    weighed = [(found.path, weight) for found, weight in search(program.dataset, "dataset", _weigh_if_large)]
    total = sum(weight.bytes for _, weight in weighed)
    if total <= min(bytes_per_worker, room // workers):
        return
    weighed.sort(key=lambda named: -named[1].bytes)
    lines = "".join(
        f"  - {path}: {weight.items:,} items, about {_mib(weight.bytes)} in each worker, "
        f"{_mib(weight.bytes * workers)} in {workers}\n"
        for path, weight in weighed[:_MOST_NAMED]
        if weight.bytes >= _WORTH_NAMING * total
    )
    warnings.warn(
        f"forked workers copy Python objects by reading them (every use writes their reference count):\n{lines}"
        "Keep such data in a numpy array or torch tensor (strings: one array of bytes and one of offsets, or a numpy "
        "array of fixed-width strings), which workers share. spawn and forkserver do not help: there every worker has "
        "its own copy from the start. Or ignore minato.errors.CopyOnWriteWarning.",
        CopyOnWriteWarning,
        stacklevel=stacklevel + 1,
    )


def _weigh_if_large(value: Any) -> Weight | None:
    if not issubclass(type(value), _CONTAINERS) or len(value) <= SMALL_CONTAINER:
        return None
    return Weight(len(value), _weigh_items(value, _DEPTH, set()))


def _weigh_items(container: Any, depth: int, weighed: set[int]) -> int:
    """Bytes of all items of a container, by a sample of them; of a dict, of keys and values."""
    if isinstance(container, dict):
        keys, values = (list(itertools.islice(part, SAMPLED)) for part in (container, container.values()))
        samples = [keys, values]
    elif isinstance(container, (set, frozenset)):
        samples = [list(itertools.islice(container, SAMPLED))]
    else:
        samples = [[item for _, item in sample_items(container)]]
    return sum(_weigh_sample(sample, len(container), depth, weighed) for sample in samples if sample)


def _weigh_sample(sample: list[Any], total: int, depth: int, weighed: set[int]) -> int:
    distinct = len({id(item) for item in sample})
    weight = sum(_weigh(item, depth, weighed) for item in sample)
    if 2 * distinct <= len(sample):  # labels and the like: a few objects that many items refer to
        return weight
    return total * weight // len(sample)


def _weigh(value: Any, depth: int, weighed: set[int]) -> int:
    """Bytes that are copied when an object and what it refers to are used; nothing for one that was weighed before, as
    the keys that all dicts of a list have in common."""
    kind = type(value)
    if id(value) in weighed or value is None or kind is bool or (kind is int and -5 <= value <= 256):
        return 0
    weighed.add(id(value))
    if issubclass(kind, (np.ndarray, torch.Tensor)):
        is_dense = kind is np.ndarray or (kind is torch.Tensor and value.layout is torch.strided)
        return _ARRAY_HEAD + (min(int(value.nbytes), _PAGE) if is_dense else _PAGE)  # others may not know their size
    if not issubclass(kind, _CONTAINERS):
        own = min(sys.getsizeof(value, _UNKNOWN), _PAGE)
        attributes = parts(value) if depth and hasattr(value, "__dict__") else ()
        return own + sum(_weigh(part, depth - 1, weighed) for _, part in attributes)
    # Tuples hold their references themselves; all others in a table apart, which is only read.
    own = sys.getsizeof(value) if issubclass(kind, tuple) else kind.__basicsize__ + _GC_HEAD
    return min(own, _PAGE) + (_weigh_items(value, depth - 1, weighed) if depth else 0)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
