"""Text leaves of fixed rows: each run of rows keeps its strings and bytes as one pickled tuple of lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import codec
from .mapping import Bytes
from .rows import Column, Words


def texts_of_row(table: Words, row: int, memory: Bytes) -> list[Any]:
    """The text leaves of one fixed row, in the layout's order."""
    first = row
    while table[first, Column.OFFSET] == 0:  # the run's first row has it for all
        first -= 1
    return [column[row - first] for column in codec.read(memory, int(table[first, Column.OFFSET]), codec.copy_all)]


def texts_of_batch(table: Words, memory: Bytes) -> list[list[Any]]:
    """For each text leaf, its values in all rows. A run that was cut short by a later run counts up to it."""
    starts = np.flatnonzero(table[:, Column.OFFSET]).tolist()
    columns: list[list[Any]] = []
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        run = codec.read(memory, int(table[start, Column.OFFSET]), codec.copy_all)
        columns = columns or [[] for _ in run]
        for column, values in zip(columns, run, strict=True):
            column.extend(values[: end - start])
    return columns
