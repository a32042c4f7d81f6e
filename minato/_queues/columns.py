"""The columns of a slot: rows written and read back by workers, tensors put over them by the main process.

A layout (`layout.py`) says which columns there are. Nothing here takes a lock: a row belongs to the worker that claimed
it, a batch that is ready to the main process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .layout import Branch, Layout, Leaf, Node, NoLayout, Text, is_plain
from .mapping import Bytes, prefault

WORTH_MAPPING = 16 * 1024  # bytes; that much of a column is mapped ahead of being written
_LARGE_LEAF = 64 * 1024  # bytes; from here on it costs more to fetch a leaf into the cache again than to write it alone
_dtype_of = attrgetter("dtype")
_UNFIT = (NoLayout, KeyError, ValueError, RuntimeError, OverflowError, TypeError)
"""What writing a sample raises that is not of its layout: `default_collate` will say what is wrong, if anything is."""
_NUMPY_DTYPES = {
    torch.from_numpy(np.empty(0, name)).dtype: np.dtype(name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""Those that both libraries know."""


# The classes below walk a structure with methods, not with a function that calls itself through its closure: such a
# function is a reference cycle, and would keep samples and leased memory alive until the garbage collector comes.


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
        arrays = sum(leaf.shape != () for leaf in layout.leaves)
        self.goes_singly = self.row_bytes >= _LARGE_LEAF * max(1, arrays) and not layout.texts
        """Whether a sample is better written as soon as it is made than with others: it will leave the processor's
        cache."""
        self._touched = bytearray(rows)

    def write(self, samples: Sequence[Any], row: int) -> tuple[list[Any], ...] | None:
        """Write `samples` into consecutive rows from `row` on. Returns the lists of text leaves, or None if a sample
        does not fit; then the rows hold nothing of value."""
        self.prepare(row, len(samples))
        if len(samples) == 1:
            texts: list[list[Any]] = []
            return tuple(texts) if self.write_one(samples[0], row, texts) else None
        pen = _Pen(self._columns, self._arrays, row)
        try:
            fits = pen.write(self._layout.root, samples)
        except _UNFIT:
            return None
        return tuple(pen.texts) if fits else None

    def write_one(self, sample: Any, row: int, texts: list[list[Any]]) -> bool:
        """Write `sample` into `row`, one of those prepared; its text leaves are added to `texts`. False: it does not
        fit, and the row holds nothing of value."""
        try:
            return _RowPen(self._columns, self._arrays, row, texts).write(self._layout.root, sample)
        except _UNFIT:
            return False

    def prepare(self, row: int, count: int) -> None:
        """So many rows from `row` on are about to be written by this process."""
        if 0 in self._touched[row : row + count]:
            self._touch(row, row + count)

    def _touch(self, first: int, last: int) -> None:
        """This process writes these rows for the first time."""
        for offset, row_bytes in self._sizes:
            if (last - first) * row_bytes >= WORTH_MAPPING:
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


class _RowPen:
    """Writes one sample, leaf by leaf: in a fraction of the time that a list of one takes."""

    __slots__ = ("_places", "_row", "_texts")

    def __init__(self, columns: list[torch.Tensor], arrays: list[Any], row: int, texts: list[list[Any]]) -> None:
        self._places = zip(columns, arrays, strict=True)
        self._row = row
        self._texts = texts

    def write(self, node: Node, value: Any) -> bool:
        kind: object = type(value)  # a name of its own: a type checker would take the value for a mere object
        if kind is not node.type:
            return False
        if isinstance(node, Leaf):
            column, array = next(self._places)
            return _write_value(node, value, column, array, self._row)
        if isinstance(node, Text):
            self._texts.append([value])
            return True
        if node.type is dict:
            return tuple(value) == node.keys and all(map(self.write, node.children, value.values()))
        return len(value) == len(node.children) and all(map(self.write, node.children, value))


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
            raise NoLayout
        return [[value[key] for value in values] for key in node.keys]
    if len(values[0]) != len(node.children):
        raise NoLayout
    return list(zip(*values, strict=True))  # raises if another is longer or shorter


def _write_leaf(leaf: Leaf, values: Sequence[Any], column: torch.Tensor, array: Any, row: int) -> bool:
    if leaf.type is torch.Tensor:
        if values[0].shape != leaf.shape or set(map(_dtype_of, values)) != {leaf.dtype}:
            return False
        # Raises on unequal shapes and on tensors that require a gradient.
        torch.stack(tuple(values), 0, out=column[row : row + len(values)])
        return True
    if leaf.array_dtype is not None:
        return all(_write_value(leaf, value, column, array, i) for i, value in enumerate(values, row))
    array[row : row + len(values)] = values
    return True


def _write_value(leaf: Leaf, value: Any, column: torch.Tensor, array: Any, row: int) -> bool:
    """The same for a single one, whose type is the leaf's."""
    if leaf.type is torch.Tensor:
        if value.shape != leaf.shape or value.dtype is not leaf.dtype or not is_plain(value):
            return False
        if array is None or value.is_neg() or value.is_conj():
            column[row].copy_(value)
        else:
            array[row] = value.numpy()  # a third of the time, where nothing of torch's is in a cache
        return True
    if leaf.array_dtype is not None and (
        value.dtype != leaf.array_dtype or value.shape != leaf.shape or min(value.strides, default=0) < 0
    ):
        return False
    array[row] = value
    return True


def _read_leaf(leaf: Leaf, column: torch.Tensor, array: Any, row: int) -> Any:
    if leaf.type is torch.Tensor:
        return column[row].clone()
    if leaf.type is np.ndarray:
        return array[row].copy() if leaf.shape else np.array(array[row])
    return array[row] if leaf.array_dtype is not None else array[row].item()


# ---- main process: building the batch -------------------------------------------------------------------------------


def build(
    layout: Layout, memory: Bytes, offsets: list[int], filled: int, texts: Sequence[Any], keep: Callable[[int], bool]
) -> Any:
    """The batch of `filled` samples over a slot, whose columns begin at `offsets`. Columns for whose size in bytes
    `keep` says no are copied, so that a label the user keeps does not hold on to the images beside it."""
    return _Builder(memory, offsets, filled, texts, keep).build(layout.root, in_sequence=False)


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
            copied = not self._keep(node.row_bytes * self._filled)
            return _tensor_over(self._memory, next(self._offsets), node, self._filled, copied)
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


def _tensor_over(memory: Bytes, offset: int, leaf: Leaf, rows: int, copied: bool = False) -> torch.Tensor:
    """The first rows of a column, where they are, or `copied`."""
    count = rows * leaf.row_bytes // leaf.dtype.itemsize
    if count == 0:
        return torch.empty((rows, *leaf.shape), dtype=leaf.dtype)
    dtype = _NUMPY_DTYPES.get(leaf.dtype)
    if dtype is not None:  # in numpy's terms as far as possible: torch takes twice the time, and more when it is cold
        column: npt.NDArray[Any] = np.ndarray((rows, *leaf.shape), dtype, memory, offset)
        return torch.from_numpy(column.copy() if copied else column)
    tensor = torch.frombuffer(memory, dtype=leaf.dtype, count=count, offset=offset).view(rows, *leaf.shape)
    return tensor.clone() if copied else tensor.detach()  # to torch it is nobody's view


def _array_over(column: torch.Tensor, leaf: Leaf) -> Any:
    """The column in numpy's terms; None: numpy does not know its dtype."""
    return column.numpy() if leaf.dtype in _NUMPY_DTYPES else None
