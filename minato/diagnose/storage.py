"""How many bytes per second the storage gives, at how many reads at once. Reads only; never writes to the dataset.

Two ways. *By the loader's own reads*: the first stage of samples, in more and more threads, for as long as that gives
more bytes; it sees whatever the reads go through, a network, a throttle, a decryption. If that keeps a core busy, it is
the CPU that was measured, and then *by plain reads* of the dataset's files, with the page cache told to forget them
first.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._pipeline.looking import stages_of
from .._pipeline.sizes import bytes_of

LEVELS = (1, 2, 4, 8, 16, 32)
MORE = 1.08  # times as many bytes as before make another level worth it
LONGER = 1.3  # times as long as before, from which on reads wait for each other; twice as many at once would make it 2
ENOUGH = 0.92  # of the most bytes per second: the least parallelism that gives it is the knee
CPU_BOUND = 0.75  # cores' worth of CPU time from which on it is not the storage that was measured
SETTLE_SHARE = 0.5  # of each level's time, which does not count: what was in a buffer comes faster, and lasts a while
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Level:
    """One parallelism."""

    parallelism: int
    bytes_s: float
    samples_s: float
    cores: float
    """CPU time used, in cores."""
    read_s: float
    """What half of the reads took at most."""


@dataclass(frozen=True, slots=True)
class StorageCurve:
    """Bandwidth by parallelism."""

    levels: tuple[Level, ...]
    by: str
    """"loading" or "plain reads"."""

    @property
    def bytes_s(self) -> float:
        """The most that was reached."""
        return max(level.bytes_s for level in self.levels)

    @property
    def knee(self) -> int:
        """The least parallelism that reaches nearly that."""
        return next(level.parallelism for level in self.levels if level.bytes_s >= ENOUGH * self.bytes_s)

    @property
    def has_plateau(self) -> bool:
        """Whether more reads at once were seen to give no more: each took longer, or a second step gave no more either.
        One step alone may be chance, where some samples are slow by themselves."""
        if self._rises(len(self.levels) - 1):
            return False
        before, last = self.levels[-2:]
        return last.read_s > LONGER * before.read_s or not self._rises(len(self.levels) - 2)

    def _rises(self, number: int) -> bool:
        """Whether a level gave more than all before it."""
        most = max((level.bytes_s for level in self.levels[:number]), default=0.0)
        return number < 1 or self.levels[number].bytes_s >= MORE * most


def probe_storage(
    dataset: Any, indices: Sequence[int], files: Sequence[str], level_s: float, bytes_per_sample: float
) -> StorageCurve | None:
    """The curve; None: nothing is read, or what limits is not the storage. `bytes_per_sample`: what a sample reads, as
    measured before; 0: what it loads counts instead."""
    curve = _sweep(_loading(dataset, indices, bytes_per_sample), level_s, "loading")
    if curve is not None and curve.levels[-1].cores < CPU_BOUND and curve.bytes_s > 0:
        return curve if curve.has_plateau else None
    existing = [path for path in files if os.path.isfile(path)]
    return _sweep(_plain_reads(existing), level_s, "plain reads") if existing else None


Read = Callable[[int], int]
"""Reads something, given a number that grows; returns how many bytes it was."""


def _loading(dataset: Any, indices: Sequence[int], bytes_per_sample: float) -> Read:
    begin = stages_of(dataset)

    def read(number: int) -> int:
        index = indices[number % len(indices)]
        if begin is None:
            made: Any = dataset[index]
        else:
            run = begin(index)
            run.advance()
            made = run.result if run.done else run.call[1:] if run.call is not None else None
            run.close()
        return int(bytes_per_sample) or bytes_of(made)

    return read


def _plain_reads(files: Sequence[str]) -> Read:
    def read(number: int) -> int:
        fd = os.open(files[number % len(files)], os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            done = 0
            while block := os.read(fd, BLOCK_BYTES):
                done += len(block)
            return done
        finally:
            os.close(fd)

    return read


def _sweep(read: Read, level_s: float, by: str) -> StorageCurve | None:
    levels: list[Level] = []
    first = 0
    for parallelism in LEVELS:
        level, first = _measure(read, parallelism, level_s, first)
        if level is None:
            return None
        levels.append(level)
        if StorageCurve(tuple(levels), by).has_plateau:
            break
    return StorageCurve(tuple(levels), by)


def _measure(read: Read, parallelism: int, seconds: float, first: int) -> tuple[Level | None, int]:
    """So many threads reading for so long. Reads that end after the time is up count by their share in it."""
    lock = threading.Lock()
    state = {"next": first, "error": None}
    done: list[tuple[float, float, int]] = []
    began = time.monotonic()
    counted_from, until = began + SETTLE_SHARE * seconds, began + seconds

    def work() -> None:
        while time.monotonic() < until and state["error"] is None:
            with lock:
                number = state["next"]
                state["next"] = number + 1  # type: ignore[operator]
            start = time.monotonic()
            try:
                nbytes = read(int(number or 0))
            except Exception as error:  # the dataset's own: said once, by the probe of the stages
                state["error"] = error  # type: ignore[assignment]
                return
            with lock:
                done.append((start, time.monotonic(), nbytes))

    cpu = time.process_time()
    threads = [threading.Thread(target=work, name="minato-probe", daemon=True) for _ in range(parallelism)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    cores = (time.process_time() - cpu) / elapsed
    if state["error"] is not None or not done:
        return None, int(state["next"] or 0)
    end = max(until, began)
    span = end - counted_from
    shares = [(_overlap(start, stop, counted_from, end), nbytes) for start, stop, nbytes in done]
    total = sum(share * nbytes for share, nbytes in shares)
    read_s = statistics.median(stop - start for start, stop, _ in done)
    level = Level(parallelism, total / span, sum(share for share, _ in shares) / span, cores, read_s)
    return level, int(state["next"] or 0)


def _overlap(start: float, stop: float, first: float, last: float) -> float:
    """The share of a span of time that lies in another."""
    length = max(stop - start, 1e-9)
    return max(0.0, min(stop, last) - max(start, first)) / length
