"""What a thread has used until now: CPU time, wall time, and bytes read from files."""

from __future__ import annotations

import os
import time
import weakref
from dataclasses import dataclass

_TRIALS = 16
_SLACK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Used:
    """Counters that only grow; differences of two tell what was used in between."""

    cpu_ns: int
    wall_ns: int
    """Without the time that the thread was ready to run and had no core: that is other programs' doing."""
    bytes_read: int


class UsageMeter:
    """Reads the counters of the thread that made it. Takes about 5 µs a time."""

    def __init__(self) -> None:
        self._bytes = _open("/proc/self/io")  # what the process read by `read` calls, page cache included
        self._delays = _open("/proc/thread-self/schedstat")
        for fd in (self._bytes, self._delays):
            if fd >= 0:
                weakref.finalize(self, os.close, fd).atexit = False

        pairs = [(self.now(), self.now()) for _ in range(_TRIALS)]
        self._own = Used(
            min(after.cpu_ns - before.cpu_ns for before, after in pairs),
            min(after.wall_ns - before.wall_ns for before, after in pairs),
            min(after.bytes_read - before.bytes_read for before, after in pairs),
        )
        """What is used between two looks in a row: by looking."""

    def since(self, before: Used) -> Used:
        """What was used since a look, without what looking itself takes. No less wall than CPU time."""
        return self.between(before, self.now())

    def between(self, before: Used, now: Used) -> Used:
        """The same between two looks."""
        own = self._own
        cpu_ns = max(0, now.cpu_ns - before.cpu_ns - own.cpu_ns)
        wall_ns = max(cpu_ns, now.wall_ns - before.wall_ns - own.wall_ns)
        # The account of bytes grows by looking as well, by a few more or less.
        return Used(cpu_ns, wall_ns, max(0, now.bytes_read - before.bytes_read - own.bytes_read - _SLACK_BYTES))

    def now(self) -> Used:
        """The counters."""
        nbytes = _number(os.pread(self._bytes, 64, 0)) if self._bytes >= 0 else 0
        delay_ns = _number(os.pread(self._delays, 64, 0)) if self._delays >= 0 else 0
        return Used(time.thread_time_ns(), time.perf_counter_ns() - delay_ns, nbytes)


def _open(path: str) -> int:
    """A descriptor; -1: this system has no such account."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _number(text: bytes) -> int:
    """The second word: of "rchar: 123" and of "cpu delay slices"."""
    return int(text.split(None, 2)[1])
