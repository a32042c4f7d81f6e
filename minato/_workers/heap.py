"""What a worker's malloc does with memory that samples and batches have freed: it keeps it for the next ones.

By default glibc returns large pieces to the system at once, and whoever needs one again pays a page fault for every
4 KiB he touches: that can cost more than making the sample. Pieces up to 32 MiB stay on the heap at once; larger ones
only in a worker that makes samples or batches of that order, as far as its share of memory allows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

LARGE = 16 << 20  # bytes; who makes samples or batches of this size has pieces beyond `_LARGEST_ON_HEAP` soon
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # glibc's mallopt
_LARGEST_ON_HEAP = 32 << 20  # bytes; glibc's own upper limit for the size from which on a piece is mapped by itself
_KEPT = 64 << 20  # bytes of free memory at the heap's end; more would show as the worker's memory
_LARGE_PIECES = 1.5  # free memory beside a large sample or batch, in such: what its making takes
_MEMORY = 0.9  # weight of the past in the size of the largest piece, per piece
_MOST = (1 << 31) - 1  # mallopt takes an int
_MAPPINGS = 65536  # glibc's default for the most pieces that are mapped by themselves


class _Mallinfo(ctypes.Structure):
    """What `mallinfo2` tells, by glibc's names."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    )


class Heap:
    """The heap of this process. One for all its threads, as malloc is."""

    def __init__(self, spare_bytes: int) -> None:
        """`spare_bytes`: most free memory that is kept for large samples and batches."""
        self._spare_bytes = min(spare_bytes, _MOST)
        libc = ctypes.CDLL(None)
        self._set: Callable[[int, int], int] | None = getattr(libc, "mallopt", None)  # glibc
        self._look: Any = getattr(libc, "mallinfo2", None)  # from glibc 2.33 on
        if self._look is not None:
            self._look.restype = _Mallinfo
        self._trim: Callable[[int], int] | None = getattr(libc, "malloc_trim", None)
        self._largest = 0.0
        """Bytes of the largest sample or batch of late."""
        self._keeps = False
        """Whether large pieces are kept, too."""
        self.told_from = LARGE
        """Samples and batches of so many bytes are to be told of."""

    def keep_freed(self) -> None:
        """Keep what is freed, but for pieces beyond what glibc has on its heap."""
        if self._set is not None:
            self._set(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
            self._set(_M_TRIM_THRESHOLD, _KEPT)

    def made(self, nbytes: int) -> None:
        """A sample or batch of that size was made, and is still there: the next one is to find memory of its size. What
        is free beside it beyond measure goes back to the system."""
        if self._set is None or self._look is None or self._trim is None:
            return
        self._largest = max(float(nbytes), _MEMORY * self._largest)
        most_free = _KEPT + int(_LARGE_PIECES * self._largest)
        kept, self._keeps = self._keeps, self._largest >= LARGE and most_free <= self._spare_bytes
        if not kept and not self._keeps:
            return
        self.told_from = 0 if self._keeps else LARGE  # what becomes of the memory is to be seen to with small ones, too
        self._set(_M_MMAP_MAX, 0 if self._keeps else _MAPPINGS)
        self._set(_M_TRIM_THRESHOLD, most_free if self._keeps else _KEPT)
        if not self._keeps or self.free_bytes > most_free:
            self._trim(_KEPT)

    @property
    def free_bytes(self) -> int:
        """Bytes that the heap holds and nobody uses. Needs glibc 2.33."""
        return int(self._look().fordblks)
