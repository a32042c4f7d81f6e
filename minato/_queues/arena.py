"""The arena: one sparse shared-memory file in which batches, ticket keys and messages live.

The file (a memfd: no name, nothing to leak in /dev/shm, not bound by its size) is given an enormous logical length
once. Every slot owns a fixed stretch of that address space, far larger than any batch, and takes real memory only
where it was written. So a slot never has to be moved or enlarged, no process has to be told of a new segment, and one
file descriptor serves for the life of the pool.

Each process maps the part of a stretch it needs, when it needs it, and keeps the mapping. A longer mapping of the same
stretch shows the same pages, so older views stay valid.
"""

from __future__ import annotations

import os
import weakref

from .mapping import Bytes, give_back, map_file

_GIB = 1 << 30
_FILE_BYTES = 1 << 60  # logical; the kernel's limit for a memfd is 2**63 - 1
_SMALLEST_MAPPING = 1 << 20  # bytes; a mapping costs address space only, a remapping costs page faults


class Stretch:
    """What the address space is divided into; the value is the stretch's base as a multiple of 2**56 bytes."""

    SLOT = 0
    """One batch: row table, fixed rows, heap."""
    KEYS = 1
    """The keys of one batch's tickets."""
    LAYOUT = 2
    """One pickled sample layout."""
    WORKER = 3
    """A worker's message to the main process: an error at its start."""
    UPDATE = 4
    """Changed attributes of the dataset, for persistent workers."""
    PROGRAM = 5
    """The pickled dataset and functions, for workers that do not inherit them."""


_SPAN_BYTES = {
    Stretch.SLOT: 1024 * _GIB,
    Stretch.KEYS: 64 * _GIB,
    Stretch.LAYOUT: _GIB,
    Stretch.WORKER: _GIB,
    Stretch.UPDATE: 64 * _GIB,
    Stretch.PROGRAM: 16 * 1024 * _GIB,
}


class Arena:
    """Maps pieces of the shared file into this process. Not thread-safe; each process and thread role owns one."""

    def __init__(self, fd: int, is_worker: bool = False) -> None:
        self.fd = fd
        self._closer = weakref.finalize(self, os.close, fd)
        self._closer.atexit = False
        self._is_worker = is_worker
        self._views: dict[tuple[int, int], Bytes] = {}

    @classmethod
    def create(cls) -> Arena:
        arena = cls(os.memfd_create("minato-arena", os.MFD_CLOEXEC))
        try:
            os.ftruncate(arena.fd, _FILE_BYTES)
        except OSError as error:
            arena.close()
            error.add_note("minato reserves address space in a sparse file, not memory: it needs `ulimit -f unlimited`")
            raise
        return arena

    def view(self, stretch: int, number: int, nbytes: int) -> Bytes:
        """A writable view of at least the first `nbytes` bytes of piece `number` of a stretch."""
        view = self._views.get((stretch, number))
        if view is None or len(view) < nbytes:
            view = self._map(stretch, number, nbytes)
        return view

    def _map(self, stretch: int, number: int, nbytes: int) -> Bytes:
        if nbytes > _SPAN_BYTES[stretch]:
            most = _SPAN_BYTES[stretch]
            raise MemoryError(f"a piece of the arena has at most {most} bytes, {nbytes} were needed")
        length = max(_SMALLEST_MAPPING, 1 << (nbytes - 1).bit_length()) if nbytes else _SMALLEST_MAPPING
        offset = (stretch << 56) + number * _SPAN_BYTES[stretch]
        # Workers may write into their own copy of the dataset; nobody else must see it.
        view = map_file(self.fd, length, offset, private=stretch is Stretch.PROGRAM and self._is_worker)
        self._views[stretch, number] = view
        return view

    def discard(self, stretch: int, number: int, keep: int = 0) -> None:
        """Give the memory of a piece back to the system, but for its first `keep` bytes."""
        view = self._views.get((stretch, number))
        if view is not None:
            give_back(view, keep)

    def close(self) -> None:
        """Forget all mappings (each ends with the last tensor over it) and close the file descriptor."""
        self._views.clear()
        self._closer()
        self.fd = -1
