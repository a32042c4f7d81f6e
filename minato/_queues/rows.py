"""Geometry of a slot:  row table | fixed rows | heap.

The row table has one entry of four words per row. A row is done when its OWNER word says which ticket filled it; that
word is stored last, in one piece, so a reader (and a recovery after a kill) can trust it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .mapping import Bytes

ALIGNMENT = 64  # bytes; a cache line, and enough for any vector load
_ENTRY_WORDS = 4
_ENTRY_BYTES = _ENTRY_WORDS * 8

Words = npt.NDArray[np.int64]


class Column:
    """Words of a row-table entry."""

    OWNER = 0
    """Position in the epoch of the sample in this row, plus one; 0 while the row is not done."""
    KIND = 1
    OFFSET = 2
    """Heap offset of the row's pickled part; 0 if it has none."""
    LATE = 3
    """1: the sample took longer than the threshold."""


class Kind:
    """How a row holds its sample."""

    FIXED = 0
    """In the fixed rows; if the layout has texts, those of this and the following rows are at OFFSET."""
    PICKLED = 1
    """Whole sample pickled at OFFSET: it has another layout than its batch, or the batch has none."""
    FAILED = 2
    """A captured error pickled at OFFSET."""
    UNSENT = 3
    """Nowhere: it cannot be pickled. Whoever collates the batch makes it again."""


def align(offset: int) -> int:
    """The next offset at which a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def table_bytes(rows: int) -> int:
    """Length of the row table, which is also where the fixed rows begin."""
    return align(rows * _ENTRY_BYTES)


def table(slot: Bytes, rows: int) -> Words:
    """The row table of a slot, as an array of shape (rows, words)."""
    return slot[: rows * _ENTRY_BYTES].view(np.int64).reshape(rows, _ENTRY_WORDS)
