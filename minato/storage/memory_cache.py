"""Bytes in memory, one copy for all workers.

    ┌ header ┬ table of entries ─────────────┬ data, appended ───────────────────────────────────┐
    │ 64 B   │ hash, place, length, checksum │ object, object, object, …                         │   one memfd
    └────────┴───────────────────────────────┴───────────────────────────────────────────────────┘

A memfd has no name, so nothing is left behind however processes end, and its pages exist only once written. Forked
workers inherit it; others open it through /proc of the process that made it.

Who writes what: space and table places are given out under an `fcntl` lock, which the kernel releases when its holder
dies. Data are written before their entry, and an entry's hash after the rest of it, so that a reader, who takes no
lock, sees a whole entry or none. A writer that dies midway costs the space of one object.

Data are written by system calls and mapped for reading only, and the memfd is sealed against shrinking: once they are
written nothing can change them or take them away. So an object's checksum is verified by whoever reads it first, and
not again; and a read is one copy out of the mapping, less than half of what reading a file takes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import struct
import warnings
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from .._pipeline.room import available_bytes, check_every, kept_free
from .._queues.mapping import map_file
from .cache import Bytes, CacheStats, checksum, digest_of, parse_bytes
from .locks import exclusive, thread_lock

_HEADER_BYTES = 64
_TOKEN, _USED, _ENTRIES, _UNCHECKED, _SHORT = 0, 2, 3, 4, 5  # words of the header; the token takes two
_SHORT_OF_MEMORY = "memory runs short: nothing is added any more"
_ENTRY_WORDS = 6  # hash (2), place, length, checksum, whether that was verified
_ENTRY = struct.Struct(f"={_ENTRY_WORDS}Q")
_HASH, _VERIFIED = 0, 5
_BYTES_PER_ENTRY = 4096  # the table has a place for each so many bytes; its unused pages take no memory
_LEAST_ENTRIES = 1024
_FULLEST = 0.8  # share of the table in use, beyond which looking up takes long
_PAGE = 4096
_THERE_ALREADY = -1


class MemoryCache:
    """At most `max_bytes` (a number, or a text such as "2GB") of objects in shared memory, less where that runs short.

    One copy serves this process and all workers that get the cache with their dataset, by whatever start method. It
    lives as long as the process that made it keeps it.
    """

    def __init__(self, max_bytes: int | str) -> None:
        self.max_bytes = parse_bytes(max_bytes, "max_bytes")
        entries = max(_LEAST_ENTRIES, self.max_bytes // _BYTES_PER_ENTRY)
        self._places = 1 << (entries - 1).bit_length()
        self._data_start = -(-(_HEADER_BYTES + self._places * _ENTRY_WORDS * 8) // _PAGE) * _PAGE
        self._token = secrets.token_bytes(16)
        self._owner = os.getpid()
        self._floor = kept_free(available_bytes())
        fd = os.memfd_create("minato-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._owner_fd = fd
        segment = _Segment(fd)
        os.ftruncate(fd, self._data_start + self.max_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        os.pwrite(fd, self._token, 0)
        _segments[self._token] = segment
        try:
            self._attach(segment)
        except OSError as error:
            raise ValueError(f"cache: {self.max_bytes} bytes of address space were needed ({error})") from None

    def _attach(self, segment: _Segment | None) -> None:
        """Use the memory; None: it is out of reach, and the cache is always empty."""
        self._segment = segment
        if segment is None:
            return
        self._mapped = segment.mapped
        words = segment.words(self._data_start)
        self._header = words[: _HEADER_BYTES // 8]
        end = _HEADER_BYTES // 8 + self._places * _ENTRY_WORDS
        self._table = words[_HEADER_BYTES // 8 : end].reshape(self._places, _ENTRY_WORDS)

    def get(self, name: str) -> bytes | None:
        """The bytes put under `name`, or None."""
        found = self._kept(name)
        return None if found is None else bytes(found)

    def get_writable(self, name: str) -> Bytes | None:
        """As `get`, in memory of the caller's own."""
        found = self._kept(name)
        return None if found is None else np.frombuffer(found, np.uint8).copy()

    def _kept(self, name: str) -> memoryview | None:
        """Where the bytes put under `name` are, verified."""
        if self._segment is None:
            return None
        digest, mapped = digest_of(name), self._mapped
        place = self._find(digest)
        if place is None:
            return None
        found = _ENTRY.unpack_from(mapped, _HEADER_BYTES + place * _ENTRY.size)
        first, second, start, length, expected, verified = found
        if (first, second) != _words_of(digest):  # empty, or taken by another name since it was found empty
            return None
        data = mapped[start : start + length]
        if not verified:
            if checksum(data) != expected:
                return None
            self._table[place, _VERIFIED] = 1
        return data

    def put(self, name: str, data: bytes) -> bool:
        """Keep the bytes, unless there is no room for them."""
        if self._segment is None:
            return False
        digest = digest_of(name)
        start = self._reserve(self._segment, digest, len(data))
        if start is None:
            return False
        if start != _THERE_ALREADY:
            if not _write(self._segment.fd, data, start):
                self._header[_SHORT] = 1
                return False
            self._commit(self._segment, digest, start, len(data), checksum(data))
        return True

    def stats(self) -> CacheStats:
        """How full it is."""
        if self._segment is None:
            return CacheStats(0, 0, self.max_bytes)
        note = _SHORT_OF_MEMORY if self._header[_SHORT] else ""
        return CacheStats(int(self._header[_ENTRIES]), int(self._header[_USED]), self.max_bytes, note)

    def _find(self, digest: bytes) -> int | None:
        """The table place of an entry, or the empty one where it would go; None if the table has neither."""
        first, second = _words_of(digest)
        place, item = second & (self._places - 1), self._table.item
        for _ in range(self._places):
            found = item(place, _HASH)
            if found == 0 or (found == first and item(place, _HASH + 1) == second):
                return place
            place = (place + 1) & (self._places - 1)
        return None

    def _reserve(self, segment: _Segment, digest: bytes, length: int) -> int | None:
        """Where to write `length` bytes; _THERE_ALREADY; or None if there is no room."""
        if self._header[_SHORT] or int(self._header[_USED]) + length > self.max_bytes:
            return None  # no need to lock: it is never emptied
        with exclusive(self._token, segment.fd):
            place = self._find(digest)
            if place is None or int(self._header[_ENTRIES]) > _FULLEST * self._places:
                return None
            if self._table[place, _HASH]:
                return _THERE_ALREADY
            used = int(self._header[_USED])
            if used + length > self.max_bytes or not self._is_memory_left(length):
                return None
            self._header[_USED] = used + length
            return self._data_start + used

    def _is_memory_left(self, length: int) -> bool:
        """Called under the lock: what all processes together have added since the last look counts."""
        unchecked = int(self._header[_UNCHECKED]) + length
        if unchecked < check_every(self._floor) and self._header[_ENTRIES]:
            self._header[_UNCHECKED] = unchecked
            return True
        self._header[_UNCHECKED] = 0
        if available_bytes() - length > self._floor:
            return True
        self._header[_SHORT] = 1
        warnings.warn(f"cache of {self.max_bytes} bytes: {_SHORT_OF_MEMORY}", RuntimeWarning, stacklevel=5)
        return False

    def _commit(self, segment: _Segment, digest: bytes, start: int, length: int, check: int) -> None:
        first, second = _words_of(digest)
        with exclusive(self._token, segment.fd):
            place = self._find(digest)
            if place is None or self._table[place, _HASH]:
                return  # somebody else was first with the same object; our copy is never looked at
            self._table[place, _HASH + 1 :] = (second, start, length, check, 0)
            self._table[place, _HASH] = first
            self._header[_ENTRIES] += np.uint64(1)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("max_bytes", "_places", "_data_start", "_token", "_owner", "_owner_fd", "_floor")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        try:
            self._attach(_segment_of(self._owner, self._owner_fd, self._token))
        except OSError:  # too much for this process's address space
            self._attach(None)


class _Segment:
    """A memfd that this process has open, once however many caches use it: closing a second descriptor of it would
    drop the locks held by the first."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False
        self._words: npt.NDArray[np.uint64] | None = None
        self._mapped: memoryview | None = None

    def words(self, nbytes: int) -> npt.NDArray[np.uint64]:
        """Header and table, mapped for reading and writing."""
        if self._words is None:
            self._words = map_file(self.fd, nbytes, 0).view(np.uint64)
        return self._words

    @property
    def mapped(self) -> memoryview:
        """All of it, mapped for reading."""
        if self._mapped is None:
            self._mapped = memoryview(mmap.mmap(self.fd, 0, prot=mmap.PROT_READ))
        return self._mapped


_segments: weakref.WeakValueDictionary[bytes, _Segment] = weakref.WeakValueDictionary()


def _segment_of(owner: int, owner_fd: int, token: bytes) -> _Segment | None:
    """The memory that another process of this user made, if it can be had."""
    with thread_lock(_Segment):
        found = _segments.get(token)
        if found is not None:
            return found
        try:
            fd = os.open(f"/proc/{owner}/fd/{owner_fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        segment = _Segment(fd)
        if os.pread(fd, len(token), 0) != token:  # the number has come to mean another process or file
            return None
        _segments[token] = segment
        return segment


def _write(fd: int, data: bytes, start: int) -> bool:
    """By a system call, not through a mapping: where memory is short that is an error and not a deadly signal."""
    view = memoryview(data)
    while view:
        try:
            written = os.pwrite(fd, view, start)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                return False
            raise
        view, start = view[written:], start + written
    return True


def _words_of(digest: bytes) -> tuple[int, int]:
    """Two words; the first is never 0, which marks an empty place."""
    return int.from_bytes(digest[:8], "little") | 1, int.from_bytes(digest[8:], "little")
