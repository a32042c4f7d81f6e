"""What a thread has used until now: CPU time, wall time, and bytes read from files."""

from __future__ import annotations

import os
import time
import weakref
from dataclasses import dataclass
from typing import NamedTuple

_TRIALS = 16
_SLACK_BYTES = 16
_AT_ONCE_NS = 100_000  # a look takes 5 µs; in one that took longer, the thread was put aside between two counters
_MOST_LOOKS = 4


class Mark(NamedTuple):
    """The counters of a thread at a moment, as the system tells them: what they say is read when it is wanted."""

    cpu_ns: int
    seen_ns: int
    delays: bytes
    bytes_read: bytes


@dataclass(frozen=True, slots=True)
class Used:
    """What was used between two moments."""

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

        self.own = Used(0, 0, 0)
        """What is used between two looks in a row: by looking."""
        pairs = [self._differ(self.mark(), self.mark()) for _ in range(_TRIALS)]
        self.own = Used(*map(min, zip(*pairs, strict=True)))

    def mark(self) -> Mark:
        """A look at the counters, all at once: a delay that one knows of and another does not would be taken for work,
        or work for a delay."""
        for _ in range(_MOST_LOOKS):
            began = time.perf_counter_ns()
            mark = self._look()
            if mark.seen_ns - began <= _AT_ONCE_NS:
                break
        return mark

    def _look(self) -> Mark:
        nbytes = os.pread(self._bytes, 64, 0) if self._bytes >= 0 else b""
        delays = os.pread(self._delays, 64, 0) if self._delays >= 0 else b""
        return Mark(time.thread_time_ns(), time.perf_counter_ns(), delays, nbytes)

    def since(self, before: Mark) -> Used:
        """What was used since a look, without what looking itself takes. No less wall than CPU time."""
        return self.between(before, self.mark())

    def between(self, before: Mark, after: Mark) -> Used:
        """The same between two looks."""
        own, (cpu_ns, wall_ns, nbytes) = self.own, self._differ(before, after)
        cpu_ns = max(0, cpu_ns - own.cpu_ns)
        # The account of bytes grows by looking as well, by a few more or less.
        return Used(cpu_ns, max(cpu_ns, wall_ns - own.wall_ns), max(0, nbytes - own.bytes_read - _SLACK_BYTES))

    def _differ(self, before: Mark, after: Mark) -> tuple[int, int, int]:
        delay_ns = _number(after.delays) - _number(before.delays)
        nbytes = _number(after.bytes_read) - _number(before.bytes_read)
        return after.cpu_ns - before.cpu_ns, after.seen_ns - before.seen_ns - delay_ns, nbytes


def _open(path: str) -> int:
    """A descriptor; -1: this system has no such account."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _number(text: bytes) -> int:
    """The second word: of "rchar: 123" and of "cpu delay slices"; 0 if there is no such account."""
    return int(text.split(None, 2)[1]) if text else 0
