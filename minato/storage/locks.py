"""A lock over threads and processes that no death and no fork can leave locked.

Among processes it is `fcntl.lockf`, which the kernel releases when the holder dies and which forked processes do not
inherit. A process's threads share such locks, so each name also has a lock among threads; a forked process starts with
new ones, since the thread that held one did not come along.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_of_threads: dict[object, threading.Lock] = {}


def _start_anew() -> None:
    global _of_threads
    _of_threads = {}


os.register_at_fork(after_in_child=_start_anew)


def thread_lock(name: object) -> threading.Lock:
    """This process's lock of that name."""
    return _of_threads.get(name) or _of_threads.setdefault(name, threading.Lock())


@contextmanager
def exclusive(name: object, fd: int) -> Iterator[None]:
    """Alone among all threads and processes that lock the file under this name."""
    with thread_lock(name):
        fcntl.lockf(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN)


@contextmanager
def locked_file(path: str) -> Iterator[int]:
    """A file, opened and locked, and made if it is not there. Whoever closes a file loses all locks that this process
    has on it, those of other threads too: so it is opened and closed by the thread whose turn it is."""
    with thread_lock(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)
