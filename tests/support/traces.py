"""Traces with known contents, written by the real recorder at made-up times."""

from __future__ import annotations

from pathlib import Path

from minato._instrument import NONE, Flag, Kind, TraceSpec
from minato._recording import Recorder

MS = 1_000_000  # nanoseconds
WALL_OFFSET_NS = 1_700_000_000_000_000_000


class SyntheticRun:
    """A run directory with a main process and workers. Times are given in milliseconds from the start."""

    def __init__(self, directory: Path, rank: int = 0, session: str = "20260101T000000.000-1-aaaa") -> None:
        self._spec = TraceSpec(str(directory), session, rank, WALL_OFFSET_NS, "op", 64 << 20, 1 << 30)
        self.main_pid = 1000 * (1 + rank)
        self.main = Recorder(self._spec, "main", pid=self.main_pid)
        self._workers: dict[int, Recorder] = {}

    def worker(self, number: int) -> Recorder:
        if number not in self._workers:
            pid = self.main_pid + 1 + number
            self._workers[number] = recorder = Recorder(self._spec, "worker", number, pid)
            recorder.record(Kind.WORKER, 0, name="start", index=number, nbytes=pid)
        return self._workers[number]

    def made(
        self, batch: int, worker: int, start_ms: float, ms: float, samples: int = 1, cpu_share: float = 1.0
    ) -> None:
        """A worker makes samples of a batch."""
        start, duration = int(start_ms * MS), int(ms * MS)
        recorder = self.worker(worker)
        recorder.record(Kind.RUN, start, duration, batch=batch, count=samples, cpu_ns=int(duration * cpu_share))

    def op(
        self,
        name: str,
        worker: int,
        start_ms: float,
        ms: float,
        index: int = NONE,
        batch: int = NONE,
        kind: Kind = Kind.OP,
        cpu_share: float = 1.0,
    ) -> None:
        """An operation on a sample, or with another kind the loading or the whole of it."""
        duration = int(ms * MS)
        self.worker(worker).record(
            kind,
            int(start_ms * MS),
            duration,
            name=name,
            batch=batch,
            index=index,
            cpu_ns=int(duration * cpu_share),
        )

    def taken(self, batch: int, asked_ms: float, wait_ms: float, ready: bool = False, samples: int = 1) -> None:
        """The consumer asks for a batch, waits and takes it."""
        asked, wait = int(asked_ms * MS), int(wait_ms * MS)
        self.main.record(Kind.WAIT, asked, wait, batch=batch, flags=Flag.READY if ready else 0)
        self.main.record(Kind.CONSUMED, asked + wait, batch=batch, count=samples, nbytes=100 * samples)

    def queue(self, name: str, at_ms: float, length: int) -> None:
        self.main.record(Kind.QUEUE, int(at_ms * MS), name=name, count=length)

    def write(self) -> None:
        """Write the files."""
        for recorder in (self.main, *self._workers.values()):
            recorder.flush()
