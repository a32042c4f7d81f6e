"""Runs operations one at a time in a process of their own, with `perf` collecting during each run and at no other time.

    this process                      child process                            perf record -p child
    start child ────────────────────► waits
    start perf ─────────────────────────────────────────────────────────────► attached, collects nothing
    say go ─────────────────────────► per operation: warm-up, gap
                                      per run: prepare; enable ─────────────► collects
                                               the operation; disable ──────► collects nothing
    windows ◄──────────────────────── ends ─────────────────────────────────► writes its file, ends

Samples carry the same clock (CLOCK_MONOTONIC) as the windows, so a sample belongs to a run by its time, and what falls
between enabling and the operation belongs to none.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ..._errors import CapturedError
from .errors import PerfFailed
from .ops import Op
from .perf import Control, failure, finish, recording, script
from .runs import runs_needed
from .samples import Sample

FULL_RUN_S = 0.005
"""Operations shorter than this are called several times in one run, so that a run has something to sample."""
MOST_CALLS = 256
"""Bound of that: each call may need an input of its own, and all lie in memory at once."""
LEAST_RUNS = 10
"""Also where fewer would do to see each function: shares of samples need some samples."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How operations are run. See `map_ops` for the meaning of each."""

    warmup: int
    gap_s: float
    runs: int | None
    calls: int | None
    shortest_s: float
    confidence: float
    interval_s: float

    def calls_for(self, duration_s: float) -> int:
        """Calls in one run, of an operation that takes `duration_s`."""
        if self.calls is not None:
            return self.calls
        return max(1, min(MOST_CALLS, math.ceil(FULL_RUN_S / max(duration_s, 1e-9))))

    def runs_for(self, calls: int) -> int:
        """Runs of an operation that is called `calls` times in each."""
        if self.runs is not None:
            return self.runs
        span_s = min(self.interval_s, self.shortest_s * calls)
        return max(LEAST_RUNS, runs_needed(span_s, self.interval_s, self.confidence))


@dataclass(frozen=True, slots=True)
class Window:
    """One run of one operation: when, on CLOCK_MONOTONIC, and how many calls."""

    op: str
    begin_ns: int
    end_ns: int
    calls: int


@dataclass(frozen=True, slots=True)
class Isolated:
    """What came out of running operations alone: their windows, and for each the samples that fell into it."""

    windows: tuple[Window, ...]
    samples: tuple[tuple[Sample, ...], ...]


def run_isolated(
    ops: Sequence[Op],
    schedule: Schedule,
    perf: str,
    event: str,
    frequency_hz: int,
    start_method: str,
    progress: Callable[[str], None],
) -> Isolated:
    """Run all operations under `perf`. What an operation raises is raised here."""
    with tempfile.TemporaryDirectory(prefix="minato-map-") as name:
        directory = Path(name)
        with _child(ops, schedule, directory, start_method) as (process, pipe):
            pid = process.pid
            assert pid is not None
            with recording(perf, pid, directory, event, frequency_hz) as recorder:
                pipe.send("go")
                windows = _windows(pipe, process, recorder, directory, progress)
                process.join()
                data = finish(recorder, directory)
        return Isolated(windows, _by_window(windows, script(perf, data)))


@contextmanager
def _child(
    ops: Sequence[Op], schedule: Schedule, directory: Path, start_method: str
) -> Iterator[tuple[multiprocessing.process.BaseProcess, Connection]]:
    context = multiprocessing.get_context(start_method)
    ours, theirs = context.Pipe()
    process = context.Process(  # type: ignore[attr-defined]
        target=_child_main, args=(ops, schedule, directory, theirs), daemon=True, name="minato-map"
    )
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def _windows(
    pipe: Connection,
    process: multiprocessing.process.BaseProcess,
    recorder: subprocess.Popen[bytes],
    directory: Path,
    progress: Callable[[str], None],
) -> tuple[Window, ...]:
    """Wait for the child's account; whoever ends too early is told."""
    while True:
        if wait([pipe, process.sentinel], timeout=0.2) and pipe.poll():
            try:
                message = pipe.recv()
            except EOFError:
                raise _ended(process) from None
            if isinstance(message, CapturedError):
                raise message.rebuild()
            if isinstance(message, tuple):
                return message
            progress(message)
        elif process.exitcode is not None:
            raise _ended(process)
        elif recorder.poll() is not None:
            if wait([process.sentinel], timeout=1.0):  # perf ends as well when its process does
                raise _ended(process)
            raise failure(directory, recorder.returncode)


def _ended(process: multiprocessing.process.BaseProcess) -> PerfFailed:
    process.join()
    return PerfFailed(f"the process of the operations ended with code {process.exitcode}")


def _child_main(ops: Sequence[Op], schedule: Schedule, directory: Path, pipe: Connection) -> None:
    """Life of the child. Its account, or what was raised, goes through the pipe."""
    try:
        pipe.recv()  # perf is being attached
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # as in a worker; a forked pool of threads would not work at all
        control = Control(directory)
        control("ping")
        windows: list[Window] = []
        for op in ops:
            pipe.send(op.name)
            windows += _run_one(op, schedule, control)
        control.close()
        pipe.send(tuple(windows))
    except BaseException as error:
        pipe.send(CapturedError.capture(error, "while an operation was being mapped"))
    finally:
        pipe.close()
        # No handlers of the process this one was forked from.
        os._exit(0)


def _run_one(op: Op, schedule: Schedule, control: Control) -> Iterator[Window]:
    duration_s = _warm_up(op, schedule.warmup)
    calls = schedule.calls_for(duration_s)
    time.sleep(schedule.gap_s)
    gc.collect()
    gc.disable()  # a collection belongs to no operation
    for _ in range(schedule.runs_for(calls)):
        prepared = [op.prepare() for _ in range(calls)]
        control("enable")
        begin_ns = time.monotonic_ns()
        for call in prepared:
            call()
        end_ns = time.monotonic_ns()
        control("disable")
        yield Window(op.name, begin_ns, end_ns, calls)
    gc.enable()


def _warm_up(op: Op, times: int) -> float:
    """Call the operation `times` times, once at least; the shortest duration in seconds."""
    shortest_s = math.inf
    for _ in range(max(1, times)):
        call = op.prepare()
        begin = time.perf_counter()
        call()
        shortest_s = min(shortest_s, time.perf_counter() - begin)
    return shortest_s


def _by_window(windows: Sequence[Window], samples: Iterator[Sample]) -> tuple[tuple[Sample, ...], ...]:
    """Samples of each window. Both are in order of time."""
    found: list[list[Sample]] = [[] for _ in windows]
    number = 0
    for sample in sorted(samples, key=lambda sample: sample.time_ns):
        while number < len(windows) and windows[number].end_ns < sample.time_ns:
            number += 1
        if number < len(windows) and windows[number].begin_ns <= sample.time_ns:
            found[number].append(sample)
    return tuple(tuple(part) for part in found)
