"""What tracing costs, how exact it is, and how long its tables take.

    python benchmarks/tracing.py                  # all cases; estimate: 12 minutes on two idle cores
    python benchmarks/tracing.py --quick          # fewer samples and repeats; about two minutes
    python benchmarks/tracing.py --only parts exactness million
    python benchmarks/tracing.py --json out.json

overhead    Epochs of samples that take a fixed CPU time (1 ms, 100 µs), batch 32, 2 workers, in re-ordered mode.
            Slices of a quarter of a second are taken of the arms in turn, their order rotating: untraced; traced with
            granularity "batch", "auto" and "op". Figures are CPU time of all processes, and wall time, over those of
            the untraced arm's slice beside it: the median and its standard error. Every epoch must deliver every
            sample once.
profilers   The same epochs as programs of their own, from start to end: untraced, traced, with torch.profiler (which
            sees the main process only), and under py-spy, austin and scalene, those that are installed. CPU added is
            that of all processes, a profiler's start and end included, over that of the untraced epoch.
parts       The same from below: CPU time that tracing adds to a batch of 32 in workers (two runs taken and handed in)
            and in the main process (`next` of a batch that is ready), medians of many short repeats. On a machine
            whose noise hides one percent of an epoch this is the figure to go by.
exactness   Operations that spin for a known time; the span's median against that time.
verdicts    Faults that are planted, and what the verdict says of them: planted.py; not part of all cases.
million     Tables, text, Chrome JSON (and the HTML report, where there is one) of a million events.

Exit status: 0 all targets met, 1 one missed, 2 a sample lost or doubled.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import planted, profilers
from minato import DataLoader, StagedDataset
from minato._instrument import Kind, TraceSpec, activate
from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.posting import PostingBoard
from minato._queues.taking import TakingBoard
from minato._recording import Recorder
from minato._records import Place, Run
from minato._workers.tracing import WorkerTrace
from minato.trace import TraceOptions, chrome, read_run
from minato.trace.summary import summarize, to_text

BATCH, WORKERS = 32, 2
SLICE_S = 0.25  # seconds that one slice of an epoch should take
TARGETS = {1e-3: 0.01, 100e-6: 0.03}  # sample cost, and the share of it that tracing batches may add
MOST_SPAN_ERROR = 0.02
MOST_REPORT_S = 30.0
CASES = ("overhead", "profilers", "parts", "exactness", "million")


@dataclass(frozen=True)
class Figure:
    """One line of the outcome."""

    case: str
    name: str
    value: float
    unit: str
    target: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    """Standard error."""

    @property
    def met(self) -> bool:
        return self.target is None or self.value <= self.target

    def __str__(self) -> str:
        spread = "" if self.low is None else f"  [{self.low:.4g} .. {self.high:.4g}]"
        spread = f"  ± {self.error:.2g}" if self.error is not None else spread
        goal = "" if self.target is None else f"  target <= {self.target:g}: {'met' if self.met else 'MISSED'}"
        return f"{self.case:<22}{self.name:<34}{self.value:>10.4g} {self.unit}{spread}{goal}"


# ---- overhead ------------------------------------------------------------------------------------------------------


class Work:
    """Takes `seconds` of CPU time, by the clock of its thread.

    Not a fixed amount of work: what that takes changes by a tenth and more from one slice to the next, with what the
    other core and the machine's other guests do, and would hide what is looked for.
    """

    def __init__(self, seconds: float) -> None:
        self._data = os.urandom(4096)
        self._ns = int(seconds * 1e9)

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        end_ns, value = time.thread_time_ns() + self._ns, 0
        while time.thread_time_ns() < end_ns:
            value = zlib.crc32(self._data, value)
        return sample


class FirstHalf(Work):
    pass


class SecondHalf(Work):
    pass


def load(index: int) -> torch.Tensor:
    return torch.full((16,), float(index))


class Contender:
    """A loader in the middle of an epoch, of which slices of batches are taken.

    Before and after a slice its workers are idle, with as many batches ready as may be: so the work of a slice is that
    of as many batches as were taken, and nothing else runs meanwhile.
    """

    def __init__(self, data: StagedDataset, trace: TraceOptions | None) -> None:
        self._loader = DataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, trace=trace)
        self._iterator: Any = iter(self._loader)
        self._seen: list[torch.Tensor] = []
        self._settle()

    def slice(self, batches: int) -> tuple[float, float]:
        """Seconds of wall clock and of CPU, of all processes, for so many batches."""
        started, used = time.perf_counter(), self._cpu_s()
        for _ in range(batches):
            self._seen.append(next(self._iterator)[:, 0])
        wall_s = time.perf_counter() - started
        self._settle()
        return wall_s, self._cpu_s() - used

    def _settle(self) -> None:
        """Wait until the workers have nothing to do."""
        before, now = -1.0, self._workers_cpu_s()
        while now - before > 1e-4:
            time.sleep(0.02)
            before, now = now, self._workers_cpu_s()

    def _cpu_s(self) -> float:
        return time.process_time() + self._workers_cpu_s()

    def _workers_cpu_s(self) -> float:
        files = (Path(f"/proc/{pid}/schedstat") for pid in self._iterator.worker_pids.values())
        return sum(int(file.read_text().split()[0]) * 1e-9 for file in files)

    def close(self) -> None:
        """Take what is left. Exits if it was not every sample once."""
        self._seen += [batch[:, 0] for batch in self._iterator]
        self._loader.close()
        if sorted(torch.cat(self._seen).tolist()) != list(map(float, range(len(self._loader.dataset)))):
            print("a sample was lost or doubled", file=sys.stderr)
            raise SystemExit(2)


GRANULARITIES = ("batch", "auto", "op")


def overhead(quick: bool) -> list[Figure]:
    """Traced against untraced."""
    figures = []
    for cost_s, target in TARGETS.items():
        slices = 8 if quick else 96
        batches = max(4, round(SLICE_S * WORKERS / cost_s / BATCH))
        data = staged(cost_s, (slices + 1) * batches * BATCH)
        figures += _compare(f"{cost_s * 1e6:.0f} µs samples", data, target, slices, batches)
    return figures


def staged(cost_s: float, count: int) -> StagedDataset:
    return StagedDataset(load, [FirstHalf(cost_s / 2), SecondHalf(cost_s / 2)], count)


def _compare(case: str, data: StagedDataset, target: float, slices: int, batches: int) -> list[Figure]:
    arms: dict[str, str | None] = {"untraced": None} | {f"traced, {name}": name for name in GRANULARITIES}
    names = list(arms)
    walls: dict[str, list[float]] = {name: [] for name in arms}
    cpus: dict[str, list[float]] = {name: [] for name in arms}
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / str(number) for number, name in enumerate(names)}
        contenders = {}
        for name, granularity in arms.items():
            trace = None if granularity is None else TraceOptions(paths[name], granularity)
            contenders[name] = Contender(data, trace)
        for number in range(slices):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                wall_s, cpu_s = contenders[name].slice(batches)
                if number:  # the first warms everything up
                    walls[name].append(wall_s)
                    cpus[name].append(cpu_s)
        for name, contender in contenders.items():
            contender.close()
            if arms[name] is not None:
                size = sum(file.stat().st_size for file in paths[name].iterdir()) / len(data)
                figures.append(Figure(case, f"{name}: file", size, "bytes/sample"))
    for name in reversed(names[1:]):
        bound = target if name == "traced, batch" else None
        figures.insert(0, _ratio(case, f"{name}: wall added", walls[name], walls["untraced"], None))
        figures.insert(0, _ratio(case, f"{name}: CPU added", cpus[name], cpus["untraced"], bound))
    return figures


def _ratio(case: str, name: str, values: list[float], base: list[float], target: float | None) -> Figure:
    """The median over slices of what was added, slice by slice; its quartiles, and its standard error."""
    added = sorted(value / under - 1 for value, under in zip(values, base, strict=True))
    quarter = len(added) // 4
    low, high = added[quarter], added[-1 - quarter]
    error = 0.93 * (high - low) / len(added) ** 0.5  # of a median, by the quartiles: outliers count little
    return Figure(case, name, statistics.median(added), "of untraced", target, low, high, error)


# ---- other profilers -----------------------------------------------------------------------------------------------


def beside_profilers(quick: bool) -> list[Figure]:
    """Whole programs, traced, profiled, and neither."""
    figures = []
    rounds, epoch_s = (1, 1.0) if quick else (3, 4.0)
    for cost_s in TARGETS:
        case, samples = f"{cost_s * 1e6:.0f} µs, programs", round(epoch_s * WORKERS / cost_s)
        done = profilers.added(cost_s, samples, rounds, lambda line: print(f"  {line}", file=sys.stderr))
        for name in done:
            if name != profilers.UNTRACED:
                walls, cpus = profilers.shares(done, name)
                for what, values in (("CPU", cpus), ("wall", walls)):
                    middle, low, high = statistics.median(values), min(values), max(values)
                    figures.append(Figure(case, f"{name}: {what} added", middle, "of untraced", None, low, high))
                size = profilers.bytes_per_sample(done, name, samples)
                figures.append(Figure(case, f"{name}: written", size, "bytes/sample"))
    return figures


# ---- the parts -----------------------------------------------------------------------------------------------------


def parts(quick: bool) -> list[Figure]:
    """What tracing adds in each process, in CPU time, from many short repeats: the machine's noise is longer than they
    are. The sum over what a batch of samples costs is the overhead that `overhead` looks for in whole epochs."""
    repeats = 300 if quick else 1500
    with tempfile.TemporaryDirectory() as folder:
        worker_s = _added_s(_BoardParts(None), _BoardParts(Path(folder) / "w"), repeats)
        main_s = _added_s(_MainParts(None, repeats), _MainParts(Path(folder) / "m", repeats), repeats)
    figures = [
        Figure("parts", "added in workers", worker_s * 1e6, "µs/batch"),
        Figure("parts", "added in the main process", main_s * 1e6, "µs/batch"),
    ]
    for cost_s, target in TARGETS.items():
        share = (worker_s + main_s) / (BATCH * cost_s)
        figures.append(Figure("parts", f"{cost_s * 1e6:.0f} µs samples: CPU added", share, "of untraced", target))
    return figures


class _BoardParts:
    """Taking and handing in a batch in two runs, on a board of its own."""

    def __init__(self, folder: Path | None) -> None:
        self._control, self._arena = ControlBlock.create(4, 1), Arena.create()
        self._posting = PostingBoard(self._control, self._arena)
        self._posting.set_active(WORKERS)
        self._trace = None
        if folder is not None:
            self._trace = WorkerTrace(TraceSpec(str(folder), "parts", 0, 0, "batch", 64 << 20, 1 << 30), 0)
        make = TakingBoard if self._trace is None else self._trace.board
        self._board = make(self._control, self._arena, 0, lambda: None)
        self._number = 0

    def batch_ns(self) -> int:
        """CPU time for one batch."""
        number, half = self._number, BATCH // 2
        self._posting.publish(
            epoch=0,
            seed=1,
            position=number * BATCH,
            keys=list(range(BATCH)),
            rows=BATCH,
            slot=number % 2,
            flags=0,
            first=number == 0,
        )
        started = time.thread_time_ns()
        for row in (0, half):
            run = self._board.pull(half)
            assert isinstance(run, Run)
            self._board.bind_slot(number)
            self._board.commit(Place(number, row, half), range(run.position, run.position + half))
        spent = time.thread_time_ns() - started
        self._posting.take_slot(number)
        self._number += 1
        return spent

    def close(self) -> None:
        if self._trace is not None:
            self._trace.stop()
        self._control.close()
        self._arena.close()


class _MainParts:
    """`next` for a batch that is ready."""

    def __init__(self, folder: Path | None, repeats: int) -> None:
        trace = None if folder is None else TraceOptions(folder, "batch")
        data = StagedDataset(load, [], (repeats + 1) * BATCH)
        self._loader = DataLoader(data, BATCH, num_workers=1, prefetch_factor=8, trace=trace)
        self._iterator = iter(self._loader)

    def batch_ns(self) -> int:
        """CPU time for one batch."""
        while not self._loader.stats().batches_ready:
            time.sleep(0.0002)
        started = time.thread_time_ns()
        next(self._iterator)
        return time.thread_time_ns() - started

    def close(self) -> None:
        self._loader.close()


def _added_s(plain: _BoardParts | _MainParts, traced: _BoardParts | _MainParts, repeats: int) -> float:
    """The median of what the traced one takes more, batch by batch in turn."""
    added = sorted(traced.batch_ns() - plain.batch_ns() for _ in range(repeats))
    for one in (plain, traced):
        one.close()
    activate(None)
    return added[len(added) // 2] * 1e-9


# ---- exactness -----------------------------------------------------------------------------------------------------


class Spin:
    """Takes `seconds` by the clock, or more if it is kept from the CPU; what it took goes into the sample."""

    def __init__(self, seconds: float) -> None:
        self.__name__ = f"spin {seconds * 1e3:g} ms"
        self._ns = int(seconds * 1e9)

    def __call__(self, sample: list[int]) -> list[int]:
        start = now = time.monotonic_ns()
        while now < start + self._ns:
            now = time.monotonic_ns()
        sample.append(now - start)
        return sample


def load_list(index: int) -> list[int]:
    return [index]


def exactness(quick: bool) -> list[Figure]:
    """Spans against planted costs, sample by sample."""
    spins = [Spin(cost_s) for cost_s in (0.2e-3, 1e-3, 5e-3)]
    data = StagedDataset(load_list, [*spins, torch.tensor], 96 if quick else 320)
    with tempfile.TemporaryDirectory() as folder:
        with DataLoader(data, BATCH, num_workers=WORKERS, trace=TraceOptions(folder, "op")) as loader:
            took = {int(row[0]): row.tolist() for batch in loader for row in batch}
        spans = [event for process in read_run(folder).workers for event in process.events(Kind.OP)]
    figures = []
    for place, spin in enumerate(spins, 1):
        errors = [abs(e.duration_ns / took[e.index][place] - 1) for e in spans if e.name == spin.__name__]
        name = f"{spin.__name__}: error of the span"
        figures.append(Figure("exactness", name, statistics.median(errors), "of its cost", MOST_SPAN_ERROR))
    return figures


# ---- a million events ----------------------------------------------------------------------------------------------


def million(quick: bool) -> list[Figure]:
    """Tables and files of a long run: 4 workers, batches of 32 samples, 4 operations each."""
    events = 200_000 if quick else 1_000_000
    scale = 1_000_000 / events
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        _write_long_run(run, events)
        steps: dict[str, Callable[[], object]] = {
            "tables and verdict": lambda: to_text(summarize(run)),
            "Chrome JSON": lambda: chrome.export(read_run(run), Path(folder) / "out.json"),
        }
        if importlib.util.find_spec("minato.trace.report") is not None:
            report = importlib.import_module("minato.trace.report")
            steps["HTML report"] = lambda: report.write_html(run, Path(folder) / "out.html")
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds = (time.perf_counter() - started) * scale
            figures.append(Figure("a million events", name, seconds, "s", MOST_REPORT_S))
    return figures


def _write_long_run(path: Path, events: int) -> None:
    spec = TraceSpec(str(path), "bench", 0, time.time_ns() - time.monotonic_ns(), "op", 1 << 30, 2 << 30)
    main = Recorder(spec, "main", pid=1)
    workers = [Recorder(spec, "worker", number, pid=2 + number) for number in range(4)]
    ops = ("Loader", "Decode", "Crop", "Flip", "Normalize")
    per_batch = BATCH * (1 + len(ops)) + 4
    for batch in range(events // per_batch):
        worker, start = workers[batch % 4], batch * 8_000_000
        for sample in range(BATCH):
            at = start + sample * 1_000_000
            for number, op in enumerate(ops):
                kind = Kind.OP if number else Kind.LOADER
                worker.record(kind, at + number * 150_000, 140_000, name=op, batch=batch, index=sample, cpu_ns=130_000)
            worker.record(Kind.SAMPLE, at, 900_000, name="Sample", batch=batch, index=sample, nbytes=1000)
        worker.record(Kind.RUN, start, 32_000_000, batch=batch, count=BATCH, cpu_ns=30_000_000)
        main.record(Kind.WAIT, start + 30_000_000, 2_500_000, batch=batch)
        main.record(Kind.CONSUMED, start + 33_000_000, batch=batch, count=BATCH)
        main.record(Kind.QUEUE, start + 33_000_000, name="ready", count=batch % 5)
    for recorder in (main, *workers):
        recorder.flush()


# ---- planted faults ------------------------------------------------------------------------------------------------


def verdicts(quick: bool) -> list[Figure]:
    """How many of the planted faults are named wrongly; in two modes only, if `quick`."""
    modes = [mode for mode in planted.MODES if not quick or mode.name in ("map, re-ordered", "stream, in order")]
    done = [planted.outcome(fault, mode, 1) for fault in planted.FAULTS for mode in modes]
    for one in done:
        print(one)
    wrong = sum(one.is_wrong for one in done)
    return [Figure("verdicts", f"wrong of {len(done)} planted", wrong, "", 0)]


# ---- the command ---------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="What tracing costs.")
    parser.add_argument("--only", nargs="+", choices=(*CASES, "verdicts"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epoch-of", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.epoch_of is not None:  # a program of the case "profilers"
        arm, cost_s, samples, folder = arguments.epoch_of
        profilers.run_epoch(arm, staged(cost_s, samples), BATCH, WORKERS, Path(folder))
        return 0
    chosen = arguments.only or CASES
    figures: list[Figure] = []
    if "overhead" in chosen:
        figures += overhead(arguments.quick)
    if "profilers" in chosen:
        figures += beside_profilers(arguments.quick)
    if "parts" in chosen:
        figures += parts(arguments.quick)
    if "exactness" in chosen:
        figures += exactness(arguments.quick)
    if "million" in chosen:
        figures += million(arguments.quick)
    if "verdicts" in chosen:
        figures += verdicts(arguments.quick)
    for figure in figures:
        print(figure)
    if "profilers" in chosen:
        print(f"not installed, so not compared: {', '.join(profilers.missing()) or 'nothing'}")
    if arguments.json is not None:
        whole = {"figures": [asdict(figure) for figure in figures], "torch": torch.__version__, "cores": os.cpu_count()}
        arguments.json.write_text(json.dumps(whole, indent=1))
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
