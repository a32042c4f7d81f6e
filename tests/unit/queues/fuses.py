"""Fuses: a worker with one dies in the middle of what it does, before the store at which its fuse has burnt down."""

from __future__ import annotations

from typing import Any

import numpy as np

from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.remote import RemoteBoard


class Killed(BaseException):
    """A worker's process ended here."""


class Fuse:
    """Burns down by one with each store of a worker; at its end the worker dies before the store happens."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            raise Killed
        self.left -= 1


class FusedWords:
    """The words of a control block, as a worker with a fuse sees them."""

    def __init__(self, words: memoryview, fuse: Fuse) -> None:
        self._words = words
        self._fuse = fuse

    def __getitem__(self, key: Any) -> Any:
        return self._words[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        assert isinstance(key, int), "a slice is not stored in one piece"
        self._fuse.burn()
        self._words[key] = value


class FusedTable(np.ndarray):
    """A row table, as a worker with a fuse sees it: stored word by word."""

    fuse: Fuse

    def __array_finalize__(self, source: Any) -> None:
        self.fuse = getattr(source, "fuse", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self.view(np.ndarray)[key]
        values = np.broadcast_to(np.asarray(value), part.shape)
        for place in np.ndindex(part.shape):
            self.fuse.burn()
            part[place] = values[place]


class FusedBoard(RemoteBoard):
    """A worker's board on which it may die in the middle of any operation."""

    def __init__(self, control: ControlBlock, arena: Arena, worker: int) -> None:
        super().__init__(control, arena, worker)
        self.fuse = Fuse()
        self._words = FusedWords(control.words, self.fuse)  # type: ignore[assignment]

    def row_table(self, slot: int, rows: int) -> Any:
        plain = super().row_table(slot, rows)
        fused = plain.view(FusedTable)
        fused.fuse = self.fuse
        return fused
