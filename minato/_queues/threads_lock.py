"""The pool's lock in a process whose threads all use the board.

A record lock excludes other processes, not threads of its own: here a mutex does that. And taking a record lock the
usual way lets go of the interpreter while the kernel is asked: a thread that has got the lock would then wait for its
turn to run, up to several switch intervals with busy neighbours, while every other process waits for the lock. So the
kernel is asked with the interpreter held, which takes about a microsecond; only a lock that others hold is waited for
in the usual way.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading

from .control import PoolLock

_TRIES = 50  # a microsecond each; whoever holds the lock mostly needs a few


class _Flock(ctypes.Structure):
    """Linux's `struct flock` of 64-bit systems."""

    _fields_ = (
        ("l_type", ctypes.c_short),
        ("l_whence", ctypes.c_short),
        ("l_start", ctypes.c_long),
        ("l_len", ctypes.c_long),
        ("l_pid", ctypes.c_int),
    )


class ThreadsLock(PoolLock):
    """Excludes threads and processes."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._mutex = threading.Lock()
        self._fcntl = ctypes.PyDLL(None).fcntl  # PyDLL: the interpreter is not let go of
        self._take = ctypes.byref(_Flock(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        self._leave = ctypes.byref(_Flock(fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0))

    def __enter__(self) -> None:
        self._mutex.acquire()
        for _ in range(_TRIES):
            if self._fcntl(self._fd, fcntl.F_SETLK, self._take) == 0:
                return
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1)
        except BaseException:
            self._mutex.release()
            raise

    def keep(self) -> PoolLock:
        """Let no thread of this process in any more. Returns a lock for the one that calls this."""
        self._mutex.acquire()
        return PoolLock(self._fd)

    def __exit__(self, *_: object) -> None:
        self._fcntl(self._fd, fcntl.F_SETLK, self._leave)
        self._mutex.release()
