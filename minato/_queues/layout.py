"""The fixed layout of a sample: which leaves it has, and where their rows lie in a slot.

torch's `default_collate` turns a list of samples into the same structure with stacked leaves. A layout does that
without a list of samples: each leaf of the structure is one contiguous, 64-byte aligned column of the slot; workers
write rows of it; the main process puts tensors over the columns. Only structures whose collation is exactly known are
given a layout (plain tensors, arrays, numbers, text, in plain dicts, lists, tuples and namedtuples); everything else
is left to `default_collate` itself.

Covers: learning a layout, writing columns, reading rows back, building the batch.
Does not cover: samples that do not fit (see `codec.py`), and when to use which (see `_workers/writer.py`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from .mapping import Bytes, prefault
from .rows import align, table_bytes

_WORTH_MAPPING = 16 * 1024  # bytes; that much of a column is mapped ahead of being written
_REGISTRY = torch_collate.default_collate_fn_map
_TORCH_COLLATE = dict(_REGISTRY)  # as torch ships it, before users register types


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column: leaves of this Python type, stored as `dtype` rows of `shape`."""

    type: type
    dtype: torch.dtype
    shape: tuple[int, ...]
    array_dtype: np.dtype[Any] | None = None
    """The dtype of numpy leaves, which must match exactly."""

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


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
    except _NoLayout:
        return None
    return Layout(root, tuple(student.leaves), student.texts)


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
            raise _NoLayout
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
        _REGISTRY[torch.Tensor] = _stack


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """torch's own tensor collation, result and errors alike, but for where the result lies."""
    first = batch[0]
    if not _is_plain(first):
        return torch_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return]
    numel = sum(x.numel() for x in batch)
    # As large as the samples and not resizable, like torch's segment: unequal samples give the same errors.
    room = torch.frombuffer(np.empty(max(1, numel * first.element_size()), np.uint8), dtype=torch.uint8)
    out = room[: numel * first.element_size()].view(first.dtype).resize_(len(batch), *first.shape)
    return torch.stack(tuple(batch), 0, out=out)


class _NoLayout(Exception):
    """Raised while learning: the sample has a part without fixed layout."""


def _branch(value: Any, kind: type) -> tuple[Sequence[Any] | None, tuple[Any, ...]]:
    if kind is dict:
        return list(value.values()), tuple(value)
    if kind is list or kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return value, ()
    return None, ()


def _leaf(value: Any, kind: type) -> Leaf:
    if kind is torch.Tensor:
        if not _is_plain(value):
            raise _NoLayout
        return Leaf(kind, value.dtype, tuple(value.shape))
    if kind in (int, float, bool):
        return Leaf(kind, {int: torch.int64, float: torch.float64, bool: torch.bool}[kind], ())
    if kind is np.ndarray or issubclass(kind, (np.number, np.bool_)):
        try:
            with warnings.catch_warnings(action="ignore"):  # of arrays that are read-only; they are copied
                sample = torch.as_tensor(value if kind is np.ndarray else [value])
        except (TypeError, ValueError, RuntimeError) as error:
            raise _NoLayout from error  # no torch dtype for it: default_collate's own error is wanted
        return Leaf(kind, sample.dtype, tuple(value.shape), value.dtype)  # shape () for numpy scalars
    raise _NoLayout


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether stacking it is a plain copy. `torch.stack` into a column checks the same by itself."""
    odd = tensor.requires_grad or tensor.is_quantized or tensor.is_nested
    return tensor.is_cpu and tensor.layout is torch.strided and not odd


# ---- workers: writing -----------------------------------------------------------------------------------------------


class Columns:
    """The columns of one slot, ready for writing rows. Views are made once per slot and layout and kept."""

    def __init__(self, layout: Layout, slot: Bytes, rows: int) -> None:
        self._layout = layout
        offsets = layout.offsets(rows)
        self._columns = [_tensor_over(slot, o, leaf, rows) for o, leaf in zip(offsets, layout.leaves, strict=False)]
        self._arrays = [_array_over(column, leaf) for column, leaf in zip(self._columns, layout.leaves, strict=True)]
        self._slot = slot
        self.row_bytes = sum(leaf.row_bytes for leaf in layout.leaves)
        self._sizes = list(zip(offsets, (leaf.row_bytes for leaf in layout.leaves), strict=False))
        self._touched = bytearray(rows)

    def write(self, samples: Sequence[Any], row: int) -> tuple[list[Any], ...] | None:
        """Write `samples` into consecutive rows from `row` on. Returns the lists of text leaves, or None if a sample
        does not fit; then the rows hold nothing of value."""
        if 0 in self._touched[row : row + len(samples)]:
            self._touch(row, row + len(samples))
        pen = _Pen(self._columns, self._arrays, row)
        try:
            fits = pen.write(self._layout.root, samples)
        except (_NoLayout, KeyError, ValueError, RuntimeError, OverflowError, TypeError):
            return None  # default_collate will say what is wrong with it, if anything is
        return tuple(pen.texts) if fits else None

    def _touch(self, first: int, last: int) -> None:
        """This process writes these rows for the first time."""
        for offset, row_bytes in self._sizes:
            if (last - first) * row_bytes >= _WORTH_MAPPING:
                prefault(self._slot, offset + first * row_bytes, offset + last * row_bytes)
        self._touched[first:last] = b"\1" * (last - first)

    def read(self, row: int, texts: Sequence[Any]) -> Any:
        """The sample in `row` as it was before it was written, sharing no memory with the slot."""
        return _Reader(self._columns, self._arrays, row, texts).read(self._layout.root)


class _Pen:
    """Writes a list of samples, column by column."""

    def __init__(self, columns: list[torch.Tensor], arrays: list[Any], row: int) -> None:
        self._places = zip(columns, arrays, strict=True)
        self._row = row
        self.texts: list[list[Any]] = []

    def write(self, node: Node, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != {node.type}:
            return False
        if isinstance(node, Leaf):
            column, array = next(self._places)
            return _write_leaf(node, values, column, array, self._row)
        if isinstance(node, Text):
            self.texts.append(list(values))
            return True
        return all(self.write(child, part) for child, part in zip(node.children, _split(node, values), strict=True))


class _Reader:
    """Reads one sample back."""

    def __init__(self, columns: list[torch.Tensor], arrays: list[Any], row: int, texts: Sequence[Any]) -> None:
        self._places = zip(columns, arrays, strict=True)
        self._row = row
        self._texts = iter(texts)

    def read(self, node: Node) -> Any:
        if isinstance(node, Leaf):
            column, array = next(self._places)
            return _read_leaf(node, column, array, self._row)
        if isinstance(node, Text):
            return next(self._texts)
        return assemble(node, [self.read(child) for child in node.children], collated=False)


def _split(node: Branch, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """A container's columns: for each child, its value in every sample."""
    if node.type is dict:
        if set(map(tuple, values)) != {node.keys}:  # default_collate keeps the first sample's order
            raise _NoLayout
        return [[value[key] for value in values] for key in node.keys]
    if set(map(len, values)) != {len(node.children)}:
        raise _NoLayout
    return list(zip(*values, strict=True))


def _write_leaf(leaf: Leaf, values: Sequence[Any], column: torch.Tensor, array: Any, row: int) -> bool:
    if leaf.type is torch.Tensor:
        if values[0].shape != column.shape[1:] or {v.dtype for v in values} != {leaf.dtype}:
            return False
        if len(values) == 1:
            if not _is_plain(values[0]):
                return False
            column[row].copy_(values[0])
        else:  # raises on unequal shapes and on tensors that require a gradient
            torch.stack(tuple(values), 0, out=column[row : row + len(values)])
        return True
    if leaf.array_dtype is not None:
        for i, value in enumerate(values, row):
            if value.dtype != leaf.array_dtype or value.shape != leaf.shape or min(value.strides, default=0) < 0:
                return False
            array[i] = value
        return True
    array[row : row + len(values)] = values
    return True


def _read_leaf(leaf: Leaf, column: torch.Tensor, array: Any, row: int) -> Any:
    if leaf.type is torch.Tensor:
        return column[row].clone()
    if leaf.type is np.ndarray:
        return array[row].copy() if leaf.shape else np.array(array[row])
    return array[row] if leaf.array_dtype is not None else array[row].item()


# ---- main process: building the batch -------------------------------------------------------------------------------


def build(
    layout: Layout, memory: Bytes, rows: int, filled: int, texts: Sequence[Any], keep: Callable[[int], bool]
) -> Any:
    """The batch of `filled` samples over a slot of `rows` rows. Columns for whose size in bytes `keep` says no are
    copied, so that a label the user keeps does not hold on to the images beside it."""
    return _Builder(memory, layout.offsets(rows), filled, texts, keep).build(layout.root, in_sequence=False)


class _Builder:
    """Puts tensors over columns, and containers around them."""

    def __init__(
        self, memory: Bytes, offsets: list[int], filled: int, texts: Sequence[Any], keep: Callable[[int], bool]
    ) -> None:
        self._memory = memory
        self._offsets = iter(offsets)
        self._filled = filled
        self._texts = iter(texts)
        self._keep = keep

    def build(self, node: Node, in_sequence: bool) -> Any:
        if isinstance(node, Leaf):
            column = _tensor_over(self._memory, next(self._offsets), node, self._filled)
            return column if self._keep(node.row_bytes * self._filled) else column.clone()
        if isinstance(node, Text):  # default_collate passes on what it transposed: tuples below a sequence
            return tuple(next(self._texts)) if in_sequence else next(self._texts)
        children = [self.build(child, node.type is not dict) for child in node.children]
        return assemble(node, children, collated=True)


def assemble(node: Branch, children: list[Any], collated: bool) -> Any:
    """Put children into a container; `collated` as `default_collate` does, which turns tuples into lists."""
    if node.type is dict:
        return dict(zip(node.keys, children, strict=True))
    if node.type is list or (node.type is tuple and collated):
        return children
    return tuple(children) if node.type is tuple else node.type(*children)


def _tensor_over(memory: Bytes, offset: int, leaf: Leaf, rows: int) -> torch.Tensor:
    count = rows * leaf.row_bytes // leaf.dtype.itemsize
    if count == 0:
        return torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
    return torch.frombuffer(memory, dtype=leaf.dtype, count=count, offset=offset).view(rows, *leaf.shape)


def _array_over(column: torch.Tensor, leaf: Leaf) -> Any:
    return None if leaf.type is torch.Tensor else column.numpy()
