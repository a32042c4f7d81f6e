"""Counters of what stages used, in shared memory: a row for each process, so that nobody waits for anybody to count."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from multiprocessing import context
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from .._queues.control import PoolLock
from .._queues.mapping import map_file

MOST_STAGES = 64
MOST_PROCESSES = 256
FIELDS = ("completions", "cpu_ns", "wall_ns", "square_us", "bytes_out", "bytes_read")
_NAME_BYTES = 64
_NAMES_AT = 64
_ROWS_AT = _NAMES_AT + MOST_STAGES * _NAME_BYTES
_ROW_WORDS = MOST_STAGES * len(FIELDS)
_TOTAL = _ROWS_AT + MOST_PROCESSES * _ROW_WORDS * 8


class Counters:
    """The table of counters. Travels to workers with their start."""

    def __init__(self) -> None:
        self._attach(os.memfd_create("minato-watch", os.MFD_CLOEXEC))
        os.posix_fallocate(self._fd, 0, _TOTAL)
        self._map()

    def _attach(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False
        self._lock = PoolLock(fd)
        self._threads = threading.Lock()
        self._row: Any = None
        self._owner = 0
        self._known: dict[str, int] = {}

    def _map(self) -> None:
        memory = map_file(self._fd, _TOTAL, 0)
        self._head = memory[:_NAMES_AT].view(np.int64)
        self._names = memory[_NAMES_AT:_ROWS_AT].reshape(MOST_STAGES, _NAME_BYTES)
        self._rows = memory[_ROWS_AT:].view(np.int64).reshape(MOST_PROCESSES, _ROW_WORDS)

    def __getstate__(self) -> Any:
        context.assert_spawning(self)
        return DupFd(self._fd)

    def __setstate__(self, state: Any) -> None:
        self._attach(state.detach())
        self._map()

    def add(self, name: str, values: Sequence[int]) -> None:
        """Count one completion of a stage, in this process's own row."""
        with self._threads:
            if self._owner != os.getpid():
                self._take_row()
            number = self._known.get(name)
            if number is None:
                number = self._known[name] = self._number(name)
            if number >= 0:
                row, at = self._row, number * len(FIELDS)
                for place, value in enumerate(values, at):  # plain words: an array would take ten times as long
                    row[place] += value

    def _take_row(self) -> None:
        with self._lock:
            row = int(self._head[1]) % MOST_PROCESSES
            self._head[1] += 1
        self._row, self._owner = memoryview(self._rows[row]), os.getpid()

    def _number(self, name: str) -> int:
        data = name.encode()[: _NAME_BYTES - 1]
        with self._lock:
            names = self.names
            if data.decode(errors="replace") in names:
                return names.index(data.decode(errors="replace"))
            if len(names) == MOST_STAGES:
                return -1
            self._names[len(names), : len(data)] = np.frombuffer(data, np.uint8)
            self._head[0] += 1
            return len(names)

    @property
    def names(self) -> list[str]:
        """Stages, in the order they were met."""
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in self._names[: int(self._head[0])]]

    def totals(self) -> dict[str, dict[str, int]]:
        """Over all processes."""
        sums = self._rows.sum(axis=0).reshape(MOST_STAGES, len(FIELDS))
        return {name: dict(zip(FIELDS, map(int, sums[number]), strict=True)) for number, name in enumerate(self.names)}
