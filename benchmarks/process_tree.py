"""Measurements that need a process of their own: first batch, peak memory, idle CPU.

The arm runs in a fresh interpreter (`transport.py --child`), in a session of its own. The process that started it looks
at the whole session from outside, so the sampling costs the arm nothing but what reading /proc costs the kernel, and
workers whose parent has died are still counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from benchmarks.harness import Arm, Case, Results, close, rotations
from benchmarks.workloads import Reader, WrongBatchError, check_exactly_once
from minato.bench.memory import private_bytes, shared_memory_bytes

SAMPLE_SECONDS = 0.020
SETTLE_SECONDS = 1.0
"""Between the first batch and the idle window: prefetching may fill up in this time."""
IDLE_SECONDS = 3.0
CHILD_SECONDS = 180.0
WRONG_BATCH_STATUS = 2


class ChildError(Exception):
    """The interpreter that ran an arm failed; its output is in the message."""


@dataclass(frozen=True)
class ChildCommand:
    """How `transport.py` starts itself for one arm; `options` are those of the run (class, quick)."""

    script: str
    options: tuple[str, ...]

    def arguments(self, case: Case, arm: Arm) -> list[str]:
        """The command line of the child."""
        return [sys.executable, self.script, "--child", case.name, arm.name, *self.options]


# Seen from outside ---------------------------------------------------------------------------------------------------


def session_members(session: int) -> Iterator[int]:
    """Process ids in a session; those that end while we look may be missing or stale."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            yield int(name)


def cpu_seconds(session: int) -> float:
    """CPU time used so far by all threads of all processes of a session."""
    nanoseconds = 0
    for pid in session_members(session):
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                    nanoseconds += int(file.read().split()[0])
        except OSError:
            continue
    return nanoseconds / 1e9


def peak_bytes(session: int, done: threading.Event, shared_before: int) -> int:
    """Highest memory of a session until `done`, looked at every 20 ms: private memory, and what shared memory grew."""
    peak = 0
    while not done.wait(SAMPLE_SECONDS):
        private = sum(private_bytes(pid) for pid in session_members(session))
        peak = max(peak, private + shared_memory_bytes() - shared_before)
    return peak


def _lines(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """The JSON messages of a child; anything else it prints is passed on."""
    for line in stream:
        if line.startswith("{"):
            yield json.loads(line)
        else:
            sys.stderr.write(line)


def run_child(command: list[str], measure: str) -> float:
    """Start one child and return its figure in the unit of the measure: ms, MB or % of a core."""
    shared_before = shared_memory_bytes()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    guard = threading.Timer(CHILD_SECONDS, os.killpg, (child.pid, signal.SIGKILL))
    guard.start()
    done = threading.Event()
    peak = [0]
    sampler = threading.Thread(target=lambda: peak.__setitem__(0, peak_bytes(child.pid, done, shared_before)))
    if measure == "memory":
        sampler.start()
    figure: float | None = None
    cpu = wall = 0.0
    try:
        for message in _lines(child.stdout):
            if message["event"] == "idle begins":
                cpu, wall = cpu_seconds(child.pid), time.perf_counter()
            elif message["event"] == "idle ends":
                figure = 100 * (cpu_seconds(child.pid) - cpu) / (time.perf_counter() - wall)
            elif message["event"] == "first batch":
                figure = 1000 * float(message["seconds"])
            elif message["event"] == "epoch ended":
                done.set()
        status = child.wait()
    finally:
        done.set()
        guard.cancel()
        if sampler.ident is not None:
            sampler.join()
    if status == WRONG_BATCH_STATUS:
        raise WrongBatchError(f"in {' '.join(command[2:])}, see above")
    if measure == "memory":
        figure = peak[0] / 1e6
    if status != 0 or (not figure and measure != "idle"):
        raise ChildError(f"{' '.join(command)} ended with status {status} and gave {figure}")
    return float(figure or 0.0)


def run_fresh(case: Case, repeats: int, command: ChildCommand) -> Results:
    """One figure per arm and repeat, each from a fresh interpreter."""
    results: Results = {arm.name: [] for arm in case.arms}
    for arm in rotations(case.arms, repeats):
        results[arm.name].append(run_child(command.arguments(case, arm), case.measure))
    return results


# Inside the child ----------------------------------------------------------------------------------------------------


def _say(event: str, **more: float) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def child_main(case: Case, arm_name: str, quick: bool) -> None:
    """Run one arm and tell the parent, on stdout, where we are."""
    arm = next(arm for arm in case.arms if arm.name == arm_name)
    dataset = case.workload.build(quick)
    reader: Reader = getattr(dataset, case.workload.reader)
    loader = arm.make_loader(dataset)

    began = time.perf_counter()
    iterator = iter(loader)
    delivered = [reader(next(iterator))]
    _say("first batch", seconds=time.perf_counter() - began)
    if case.measure == "idle":
        time.sleep(SETTLE_SECONDS)
        _say("idle begins")
        time.sleep(IDLE_SECONDS)
        _say("idle ends")
        time.sleep(0.2)  # so that the parent has read the clocks before we go on
    for batch in iterator:
        delivered.append(reader(batch))
    check_exactly_once(delivered, case.workload.length(quick))
    _say("epoch ended")
    del iterator
    close(loader)
