"""Whole programs under profilers, for `tracing.py`: what each adds to the time and the CPU of one and the same epoch.

An arm is a program of its own that runs one epoch (`run_epoch`), alone or under a profiler that started it. So nobody
looks at another arm's processes, and a profiler that must be there from the start can take part. Profilers look a
hundred times a second, at worker processes too; torch.profiler sees the main process only.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minato import DataLoader
from minato.trace import TraceOptions

UNTRACED = "untraced"
INSIDE = (UNTRACED, "traced, batch", "traced, auto", "traced, op", "torch.profiler")
"""Arms whose program does all of it itself."""

OUTSIDE = {
    "py-spy": "py-spy record --subprocesses --rate 100 --format raw --output {out}/spy --",
    "austin": "austin --children --interval 10ms --output {out}/austin",
    "scalene": "scalene run --cpu-only --outfile {out}/scalene.json",
}
"""Profilers that start the program, and how; `{out}` is a directory for what they write."""

MOST_S = 300  # seconds that a program may take


@dataclass(frozen=True)
class Epoch:
    """What one program did. Seconds."""

    wall_s: float
    """Of the epoch."""
    epoch_cpu_s: float
    """Of the program and its workers, during the epoch."""
    tree_cpu_s: float
    """Of all processes from start to end, the profiler's included."""
    written: int
    """Bytes of traces and profiles."""


def usable() -> list[str]:
    """The profilers that are installed and run here."""
    return [name for name in OUTSIDE if shutil.which(name) and _runs(name)]


def missing() -> list[str]:
    here = usable()
    return [name for name in OUTSIDE if name not in here]


def _runs(name: str) -> bool:
    return subprocess.run([name, "--version"], capture_output=True, check=False).returncode == 0


def added(cost_s: float, samples: int, rounds: int, tell: Callable[[str], object]) -> dict[str, list[Epoch]]:
    """Run all arms in turn, so many rounds, and give what each program did."""
    arms = [*INSIDE, *usable()]
    done: dict[str, list[Epoch]] = {name: [] for name in arms}
    for number in range(rounds):
        shift = number % len(arms)
        for name in arms[shift:] + arms[:shift]:
            done[name].append(_run(name, cost_s, samples))
            tell(f"round {number + 1} of {rounds}: {name}, {done[name][-1].wall_s:.2f} s")
    return done


def shares(done: dict[str, list[Epoch]], name: str) -> tuple[list[float], list[float]]:
    """What an arm added, over the untraced epoch of its round: of wall time, and of CPU time.

    CPU time is that of the whole program, since profilers start before the epoch and write after it. Tracing does
    neither, and counts by the epoch: what importing takes is not the same twice, by more than tracing adds.
    """
    walls, cpus = [], []
    for mine, base in zip(done[name], done[UNTRACED], strict=True):
        walls.append(mine.wall_s / base.wall_s - 1)
        more_s = mine.tree_cpu_s - base.tree_cpu_s
        if name.startswith("traced"):
            more_s = mine.epoch_cpu_s - base.epoch_cpu_s
        cpus.append(more_s / base.epoch_cpu_s)
    return walls, cpus


def bytes_per_sample(done: dict[str, list[Epoch]], name: str, samples: int) -> float:
    return statistics.median(epoch.written for epoch in done[name]) / samples


def _run(name: str, cost_s: float, samples: int) -> Epoch:
    """One program from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        inside = name if name in INSIDE else UNTRACED
        program = [str(Path(__file__).with_name("tracing.py"))]
        arguments = ["--epoch-of", json.dumps([inside, cost_s, samples, folder])]
        if name == "scalene":  # it takes a program of Python, and its arguments after three dashes
            command = [*OUTSIDE[name].format(out=folder).split(), *program, "---", *arguments]
        else:
            command = [*OUTSIDE.get(name, "").format(out=folder).split(), sys.executable, *program, *arguments]
        tree_cpu_s = _cpu_of(command, name)
        told = json.loads((Path(folder) / "epoch.json").read_text())
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        return Epoch(told["wall_s"], told["cpu_s"], tree_cpu_s, written - (Path(folder) / "epoch.json").stat().st_size)


def _cpu_of(command: list[str], name: str) -> float:
    """Run a command; the CPU seconds of it and all processes below it that were waited for."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + MOST_S
        while True:  # `wait4`, not `wait`: it tells what the whole tree used
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"{name}: the program took more than {MOST_S} s")
            time.sleep(0.05)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{name} ended with {process.returncode}: {said.read()[-2000:].decode(errors='replace')}"
            )
    return usage.ru_utime + usage.ru_stime


# ---- the program ---------------------------------------------------------------------------------------------------


def run_epoch(arm: str, dataset: Any, batch: int, workers: int, folder: Path) -> None:
    """One epoch, as a program under a profiler runs it. What it took goes to a file, since profilers print, too."""
    granularity = arm.removeprefix("traced, ") if arm.startswith("traced, ") else None
    trace = None if granularity is None else TraceOptions(folder / "trace", granularity)
    profiler = None
    if arm == "torch.profiler":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profiler or nullcontext():
        loader = DataLoader(dataset, batch, shuffle=True, num_workers=workers, trace=trace)
        started, used = time.perf_counter(), _own_cpu_s()
        seen = [rows[:, 0] for rows in loader]
        wall_s = time.perf_counter() - started
        loader.close()  # workers are waited for: now their CPU time counts as this process's children's
        cpu_s = _own_cpu_s() - used
    _check(seen, len(dataset))
    if profiler is not None:
        profiler.export_chrome_trace(str(folder / "profile.json"))
    (folder / "epoch.json").write_text(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s}))


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _check(seen: Iterable[torch.Tensor], count: int) -> None:
    if sorted(torch.cat(list(seen)).tolist()) != list(map(float, range(count))):
        print("a sample was lost or doubled", file=sys.stderr)
        raise SystemExit(2)
