"""The fixed layout of a sample: which leaves it has, and where their rows lie in a slot.

torch's `default_collate` turns a list of samples into the same structure with stacked leaves. A layout does that
without a list of samples: each leaf of the structure is one contiguous, 64-byte aligned column of the slot; workers
write rows of it; the main process puts tensors over the columns. Only structures whose collation is exactly known are
given a layout (plain tensors, arrays, numbers, text, in plain dicts, lists, tuples and namedtuples); everything else
is left to `default_collate` itself.

Covers: learning a layout. `columns.py` writes rows, reads them back and builds the batch.
Does not cover: samples that do not fit (see `codec.py`), and when to use which (see `_workers/writer.py`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from .rows import align, table_bytes

_REGISTRY = torch_collate.default_collate_fn_map
_TORCH_COLLATE = dict(_REGISTRY)  # as torch ships it, before users register types
_TORCH_COLLATE_HERE = dict(_REGISTRY)  # the same in this process, see `stack_in_private_memory`


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column: leaves of this Python type, stored as `dtype` rows of `shape`."""

    type: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    array_dtype: np.dtype[Any] | None = None
    """The dtype of numpy leaves, which must match exactly."""
    row_bytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", math.prod(self.shape) * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Text:
    """A leaf without fixed size (str or bytes); `default_collate` lists such leaves."""

    type: type


@dataclass(frozen=True, slots=True)
class Branch:
    """A container. `type` is exactly dict, list, tuple or a namedtuple class; `keys` only for dict."""

    type: type
    children: tuple[Node, ...]
    keys: tuple[Any, ...] = ()


Node = Leaf | Text | Branch


@dataclass(frozen=True, slots=True)
class Layout:
    """Structure of a sample and its leaves, in depth-first order. Equal layouts are interchangeable."""

    root: Node
    leaves: tuple[Leaf, ...]
    texts: int

    def offsets(self, rows: int) -> list[int]:
        """Where each column begins in a slot of `rows` rows, and last where the heap begins."""
        at, offsets = table_bytes(rows), []
        for leaf in self.leaves:
            offsets.append(at)
            at = align(at + leaf.row_bytes * rows)
        return [*offsets, at]


def learn(sample: Any) -> Layout | None:
    """The layout of `sample`, or None if only `default_collate` itself knows what to do with it."""
    if any(_REGISTRY.get(key) not in (function, _stack) for key, function in _TORCH_COLLATE.items()):
        return None  # the user replaced how one of our leaves is collated
    registered = tuple(key for key in _REGISTRY if key not in _TORCH_COLLATE)
    student = _Student(_flatten_types(registered))
    try:
        root = student.visit(sample)
    except NoLayout:
        return None
    return Layout(root, tuple(student.leaves), student.texts)


def is_of(layout: Layout, sample: Any) -> bool:
    """Whether `learn` would give this layout for `sample`, found out in a third of the time. False may also mean that
    it has to be looked at more closely."""
    return bool(_REGISTRY == _TORCH_COLLATE_HERE) and _fits(layout.root, sample)


def _fits(node: Node, value: Any) -> bool:
    kind: object = type(value)  # a name of its own: a type checker would take the value for a mere object
    if kind is not node.type:
        return False
    if isinstance(node, Branch):
        children, keys = _branch(value, node.type)
        same = children is not None and keys == node.keys and len(children) == len(node.children)
        same = same and all(type(key) is type(known) for key, known in zip(keys, node.keys, strict=True))  # True == 1
        return same and all(map(_fits, node.children, children or ()))
    if isinstance(node, Text) or node.type in (int, float, bool):
        return True
    if node.type is torch.Tensor:
        return bool(value.dtype is node.dtype and value.shape == node.shape and is_plain(value))
    return bool(value.dtype == node.array_dtype and value.shape == node.shape)


# The classes below walk a structure with methods, not with a function that calls itself through its closure: such a
# function is a reference cycle, and would keep samples and leased memory alive until the garbage collector comes.


class _Student:
    """Walks one sample and notes its leaves."""

    def __init__(self, registered: tuple[type, ...]) -> None:
        self._registered = registered
        self.leaves: list[Leaf] = []
        self.texts = 0

    def visit(self, value: Any) -> Node:
        kind = type(value)
        if isinstance(value, self._registered):
            raise NoLayout
        if kind is str or kind is bytes:
            self.texts += 1
            return Text(kind)
        children, keys = _branch(value, kind)
        if children is not None:
            return Branch(kind, tuple(self.visit(child) for child in children), keys)
        self.leaves.append(_leaf(value, kind))
        return self.leaves[-1]


def _flatten_types(registered: tuple[Any, ...]) -> tuple[type, ...]:
    return tuple(t for key in registered for t in (key if isinstance(key, tuple) else (key,)))


def stack_in_private_memory() -> None:
    """Let `default_collate` in this process stack tensors into ordinary memory.

    In a worker, torch stacks into a fresh shared-memory segment per tensor, which it then passes on by file descriptor.
    minato copies results into its arena, so that segment would be one more thing in /dev/shm and nothing else.
    """
    if _REGISTRY[torch.Tensor] is torch_collate.collate_tensor_fn:
        _REGISTRY[torch.Tensor] = _TORCH_COLLATE_HERE[torch.Tensor] = _stack


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """torch's own tensor collation, result and errors alike, but for where the result lies."""
    first = batch[0]
    if not is_plain(first):
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
    numel = sum(x.numel() for x in batch)
    # As large as the samples and not resizable, like torch's segment: unequal samples give the same errors.
    room = torch.frombuffer(np.empty(max(1, numel * first.element_size()), np.uint8), dtype=torch.uint8)
    out = room[: numel * first.element_size()].view(first.dtype).resize_(len(batch), *first.shape)
    # As it is, like torch: a tensor in place of a list of tensors is refused.
    return torch.stack(batch, 0, out=out)  # type: ignore[arg-type]


class NoLayout(Exception):
    """Raised while learning: the sample has a part without fixed layout."""


def _branch(value: Any, kind: type) -> tuple[Sequence[Any] | None, tuple[Any, ...]]:
    if kind is dict:
        return list(value.values()), tuple(value)
    if kind is list or kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return value, ()
    return None, ()


def _leaf(value: Any, kind: type) -> Leaf:
    if kind is torch.Tensor:
        if not is_plain(value):
            raise NoLayout
        return Leaf(kind, value.dtype, tuple(value.shape))
    if kind in (int, float, bool):
        return Leaf(kind, {int: torch.int64, float: torch.float64, bool: torch.bool}[kind], ())
    if kind is np.ndarray or issubclass(kind, (np.number, np.bool_)):
        try:
            with warnings.catch_warnings(action="ignore"):  # of arrays that are read-only; they are copied
                sample = torch.as_tensor(value if kind is np.ndarray else [value])
        except (TypeError, ValueError, RuntimeError) as error:
            raise NoLayout from error  # no torch dtype for it: default_collate's own error is wanted
        return Leaf(kind, sample.dtype, tuple(value.shape), value.dtype)  # shape () for numpy scalars
    raise NoLayout


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether stacking it is a plain copy. `torch.stack` into a column checks the same by itself."""
    odd = tensor.requires_grad or tensor.is_quantized or tensor.is_nested
    return tensor.is_cpu and tensor.layout is torch.strided and not odd
