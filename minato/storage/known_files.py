"""Which files of a directory were found whole, so that they need not be verified whenever they are read.

A file is known by inode, size and time of its last change: any write to it, by whatever program, makes it unknown. Only
who sets that time back, or a disk that changes bytes by itself, goes unnoticed until the next job reads the file.

The table is memory, shared with forked processes and gone with the last of them: after a power failure nothing is
known. 64 bits stand for a file, at a place that its name says. A file that finds its place taken replaces the other,
which is verified once more; words are written whole, so readers and writers need no lock.
"""

from __future__ import annotations

import mmap
import os
import time

_PLACES = 1 << 20  # 8 MiB, of which only pages that are used exist
_MASK = (1 << 64) - 1
_SETTLED_NS = 2_000_000_000  # times of change may tick as slowly as this


class KnownFiles:
    """Files that were verified, by the digests of their names."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, 8 * _PLACES)).cast("Q")

    def knows(self, digest: bytes, status: os.stat_result) -> bool:
        """Whether the file is one that was verified, unchanged."""
        number = int.from_bytes(digest[:8], "little")
        return self._words[number % _PLACES] == _word(number, status)

    def add(self, digest: bytes, status: os.stat_result) -> None:
        """The file was found whole. One that has just changed may change again within one tick of the clock, and is
        not believed yet."""
        if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
            self.add_own(digest, status)

    def add_own(self, digest: bytes, status: os.stat_result) -> None:
        """The file was written by this process, and its time set to a moment that no tick falls on."""
        number = int.from_bytes(digest[:8], "little")
        self._words[number % _PLACES] = _word(number, status)


def _word(number: int, status: os.stat_result) -> int:
    """Numbers have the same hash in every process."""
    return hash((number, status.st_ino, status.st_size, status.st_mtime_ns)) & _MASK
