"""Entries of a cache, one per dataset index, in one file for all workers and epochs: a memfd, or a file on disk.

    header words | table: a record per index | data, appended

- Writing: space is taken under a lock (`fcntl.lockf`, which the kernel releases when its holder dies), the data are
  written, and last of all the record gets its offset. Until then the entry does not exist: whoever dies in between
  leaves nothing that could be served, only space that is not used.
- Reading: record, then data, then a look whether the generation is still the same. Results are private copies.
- No eviction: in random epochs every entry is wanted as soon as any other. When the space is used up, memory runs short
  or the disk is full, nothing is added any more, and a word of the header says why.
- A new generation (the dataset has changed) empties the table and gives the memory back.

Data are read and written by system calls, not through mappings: a full disk or an I/O error is an exception here, and
would be a fatal signal there.
"""

from __future__ import annotations

import enum
import os
import threading
import weakref
import zlib
from contextlib import suppress
from multiprocessing import context
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from .._queues import codec
from .._queues.control import PoolLock
from .._queues.mapping import map_file
from .room import CHECK_EVERY_BYTES, available_bytes, check_every

_MAGIC = 0x6D69_6E61_746F_0001
_PAGE = 4096
_HEADER_WORDS = 16
_MAGIC_AT, _ENTRIES_AT, _CAPACITY_AT, _END_AT, _FULL_AT, _GENERATION_AT, _COUNT_AT, _FLOOR_AT, _UNCHECKED_AT = range(9)
_RECORD_WORDS = 4
_OFFSET, _BYTES, _CHECK = range(3)


class Full(enum.IntEnum):
    """Why nothing is added any more. Kept in files: values stay what they are."""

    NOT = 0
    LIMIT = 1
    MEMORY = 2
    WRITE = 3


class CacheStore:
    """The file, as one process sees it. Safe for several threads."""

    def __init__(self, fd: int, entries: int, on_disk: bool) -> None:
        self._fd = fd
        self.entries = entries
        self._on_disk = on_disk
        self._attach()

    def _attach(self) -> None:
        self._data_at = _data_at(self.entries)
        words = map_file(self._fd, self._data_at, 0).view(np.int64)
        self._words = memoryview(words)  # type: ignore[arg-type]
        self._lock = PoolLock(self._fd)
        self._threads = threading.Lock()
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        self._finalizer.atexit = False

    # ---- making one --------------------------------------------------------------------------------------------------

    @classmethod
    def in_memory(cls, entries: int, capacity_bytes: int, floor_bytes: int) -> CacheStore:
        """In shared memory. `floor_bytes`: when less memory than this is available, nothing is added."""
        fd = os.memfd_create("minato-cache", os.MFD_CLOEXEC)
        return cls._made(fd, entries, capacity_bytes, floor_bytes, on_disk=False)

    @classmethod
    def on_disk(cls, path: str, entries: int, capacity_bytes: int) -> CacheStore:
        """In a file, which is used again if it is there and fits."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return cls._made(fd, entries, capacity_bytes, 0, on_disk=True)
        except OSError:
            with suppress(FileNotFoundError):  # another process has met the same, and was quicker
                if os.stat(path).st_size == 0:  # ours, and of no use
                    os.unlink(path)
            raise

    @classmethod
    def _made(cls, fd: int, entries: int, capacity_bytes: int, floor_bytes: int, on_disk: bool) -> CacheStore:
        try:
            os.posix_fallocate(fd, 0, _data_at(entries))  # pages that exist: no signal when they are written
            store = cls(fd, entries, on_disk)
        except BaseException:
            os.close(fd)
            raise
        words = store._words
        with PoolLock(fd):
            if words[_MAGIC_AT] != _MAGIC or words[_ENTRIES_AT] != entries:
                words[_HEADER_WORDS:] = memoryview(np.zeros(len(words) - _HEADER_WORDS, np.int64))  # type: ignore[arg-type]
                words[_END_AT], words[_COUNT_AT], words[_GENERATION_AT] = store._data_at, 0, 1
                words[_ENTRIES_AT] = entries
                words[_MAGIC_AT] = _MAGIC
            words[_CAPACITY_AT], words[_FLOOR_AT], words[_FULL_AT] = capacity_bytes, floor_bytes, Full.NOT
            words[_UNCHECKED_AT] = CHECK_EVERY_BYTES  # the first entry looks
        return store

    def __getstate__(self) -> dict[str, Any]:
        context.assert_spawning(self)  # a descriptor goes along with a worker's start, and only with that
        return {"fd": DupFd(self._fd), "entries": self.entries, "on_disk": self._on_disk}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd, self.entries, self._on_disk = state["fd"].detach(), state["entries"], state["on_disk"]
        self._attach()

    # ---- what is in it -----------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._words[_GENERATION_AT]

    @property
    def count(self) -> int:
        """Entries that can be served."""
        return self._words[_COUNT_AT]

    @property
    def used_bytes(self) -> int:
        """Of data."""
        return self._words[_END_AT] - self._data_at

    @property
    def is_full(self) -> bool:
        """Whether nothing is added any more."""
        return self._words[_FULL_AT] != Full.NOT

    @property
    def floor_bytes(self) -> int:
        """Memory that is to be left to others."""
        return self._words[_FLOOR_AT]

    @property
    def full(self) -> Full:
        """Why nothing is added any more."""
        return Full(self._words[_FULL_AT])

    # ---- reading and writing -----------------------------------------------------------------------------------------

    def get(self, index: int, generation: int) -> Any:
        """The entry, or None if there is none, or another generation."""
        words, at = self._words, _HEADER_WORDS + index * _RECORD_WORDS
        offset = words[at + _OFFSET]
        if not offset or words[_GENERATION_AT] != generation:
            return None
        nbytes, check = words[at + _BYTES], words[at + _CHECK]
        data = np.empty(nbytes, np.uint8)
        try:
            read = os.preadv(self._fd, [data.data], offset)
        except OSError:
            return None
        if read != nbytes or words[_GENERATION_AT] != generation:
            return None
        if self._on_disk and zlib.crc32(data.data) != check:
            return None
        return codec.read(data, 0, _keep_all)

    def put(self, index: int, generation: int, value: Any) -> bool:
        """Add an entry, unless there is one, or no room. Raises if the value cannot be pickled."""
        if self.is_full or self._words[_HEADER_WORDS + index * _RECORD_WORDS + _OFFSET]:
            return False
        packed = codec.pack(value)
        try:
            data = np.empty(packed.nbytes, np.uint8)
        except MemoryError:  # of this process, by a limit of its own
            self._words[_FULL_AT] = Full.MEMORY
            return False
        codec.write(packed, data, 0)
        offset = self._take(len(data), generation)
        if offset is None:
            return False
        try:
            done = os.pwritev(self._fd, [data.data], offset)
        except OSError:
            done = 0
        if done != len(data):  # the disk is full, or memory
            self._words[_FULL_AT] = Full.WRITE
            return False
        return self._commit(index, generation, offset, data)

    def _take(self, nbytes: int, generation: int) -> int | None:
        """Space for an entry; None: there is none."""
        words = self._words
        with self._threads, self._lock:
            offset = words[_END_AT]
            if words[_GENERATION_AT] != generation:
                return None
            over = offset + nbytes > self._data_at + words[_CAPACITY_AT]
            if over or not self._is_memory_left(nbytes):
                words[_FULL_AT] = Full.LIMIT if over else Full.MEMORY
                return None
            words[_END_AT] = offset + -(-nbytes // 64) * 64
            return offset

    def _commit(self, index: int, generation: int, offset: int, data: Any) -> bool:
        words, at = self._words, _HEADER_WORDS + index * _RECORD_WORDS
        with self._threads, self._lock:
            if words[_GENERATION_AT] != generation or words[at + _OFFSET]:
                return False
            words[at + _BYTES] = len(data)
            words[at + _CHECK] = zlib.crc32(data.data) if self._on_disk else 0
            words[at + _OFFSET] = offset  # from here on it exists
            words[_COUNT_AT] += 1
        return True

    def _is_memory_left(self, nbytes: int) -> bool:
        """Called under the lock: what all workers together have added since the last look counts."""
        if self._on_disk:
            return True
        words = self._words
        words[_UNCHECKED_AT] += nbytes
        if words[_UNCHECKED_AT] < check_every(words[_FLOOR_AT]):
            return True
        words[_UNCHECKED_AT] = 0
        return available_bytes() - nbytes > words[_FLOOR_AT]

    def begin_generation(self) -> int:
        """Forget all entries: the dataset is not what it was. Returns the new generation's number."""
        with self._threads, self._lock:
            words = self._words
            words[_GENERATION_AT] += 1
            table = np.zeros(len(words) - _HEADER_WORDS, np.int64)
            words[_HEADER_WORDS:] = memoryview(table)  # type: ignore[arg-type]
            words[_END_AT], words[_COUNT_AT], words[_FULL_AT] = self._data_at, 0, Full.NOT
            os.ftruncate(self._fd, self._data_at)  # readers of the old generation get less than they asked for
            return self.generation

    def close(self) -> None:
        """Give the file up. Idempotent."""
        self._finalizer()


def _data_at(entries: int) -> int:
    return -(-8 * (_HEADER_WORDS + entries * _RECORD_WORDS) // _PAGE) * _PAGE


def _keep_all(_nbytes: int) -> bool:
    return True
