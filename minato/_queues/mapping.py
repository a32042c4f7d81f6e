"""Shared mappings without a file descriptor each.

`mmap.mmap` keeps a duplicate of its file descriptor for as long as the mapping lives (until Python 3.13's `trackfd`).
With a mapping per slot that would be one descriptor per batch a user keeps, which is what minato wants to be rid of;
so the two system calls are made directly.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MADV_POPULATE_READ = 22
_MAP_FAILED = ctypes.c_void_p(-1).value


def map_file(fd: int, nbytes: int, offset: int, private: bool = False) -> Bytes:
    """Map part of a file, writable; `private`: writes stay in this process. Unmapped when the array and all views of it
    are gone."""
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if address == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"mapping {nbytes} bytes of shared memory failed: {os.strerror(error)}")
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    return np.frombuffer(memoryview(memory).cast("B"), np.uint8)


def prefault(view: Bytes, start: int, end: int) -> None:
    """Have the system map the pages of a range in one call, ahead of writing them: a fault for each costs far more.
    Only a hint: kernels before 5.14 do not know it."""
    start = start // mmap.PAGESIZE * mmap.PAGESIZE
    # Not POPULATE_WRITE: a read maps its neighbours too where pages exist, writable as the mapping is, for 0.1 ms
    # instead of 0.4 ms per MB; where they do not exist yet both take 0.9 ms.
    _libc.madvise(view.ctypes.data + start, end - start, _MADV_POPULATE_READ)


def give_back(view: Bytes, start: int) -> None:
    """Return the memory behind `view` from byte `start` on to the system; it reads as zeros afterwards."""
    start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    if start < len(view) and _libc.madvise(view.ctypes.data + start, len(view) - start, mmap.MADV_REMOVE):
        error = ctypes.get_errno()
        raise OSError(error, f"giving back {len(view) - start} bytes of shared memory failed: {os.strerror(error)}")
