"""Kill workers all the time and see whether anything is lost.

    python benchmarks/chaos.py                           # a minute over all arms
    python benchmarks/chaos.py --seconds 300 --json out.json
    python benchmarks/chaos.py --only in-order spawn --workers 4

Every 50 to 200 ms one worker is killed, now and then several at once, now and then one that is just starting. (Under
spawn the pauses are 0.5 to 1.5 times as long as a start, or no worker would ever come up.) After every epoch the
indices delivered must be all of them, each once, in order where that was asked for, each row whole. After every arm no
process, thread, descriptor or mapping may be left.

Exit status: 0 nothing lost, 2 a sample lost, repeated, mixed up or out of order, or something left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import random
import signal
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

from benchmarks.harness import children, machine
from minato import DataLoader

LENGTH, BATCH = 1200, 8
SAMPLE_S = 0.001  # mean; what a sample costs, asleep
PAUSE_S = (0.05, 0.2)
HANG_S = 120.0  # after this long without a batch, print the stacks and give up
SEVERAL, STARTING = 0.2, 0.2  # shares of attacks on several workers at once, and on one that is just starting
WITHOUT_END = 10**9


class Rows(Dataset[Tensor]):
    """Sample i: a kilobyte of i, and the process that made it."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(SAMPLE_S * (0.5 + index % 3 / 2))
        row = torch.full((128,), index)
        row[0] = os.getpid()
        return row


def stack(samples: list[Tensor]) -> Tensor:
    """A collate function that is not torch's."""
    return torch.stack(samples)


@dataclass(frozen=True)
class Arm:
    """One way of making the loader."""

    name: str
    in_order: bool
    start_method: str = "fork"
    options: dict[str, Any] = field(default_factory=dict)

    def make_loader(self, workers: int) -> DataLoader[Tensor]:
        dataset = Rows()
        batching = {} if "batch_sampler" in self.options else {"batch_size": BATCH}
        return DataLoader(
            dataset,
            num_workers=workers,
            in_order=self.in_order,
            multiprocessing_context=self.start_method,
            max_worker_restarts=WITHOUT_END,
            sample_retries=WITHOUT_END,
            **batching,
            **self.options,
        )


ARMS = (
    Arm("in-order", True),
    Arm("re-ordered", False),
    Arm("in-order, persistent", True, options={"persistent_workers": True}),
    Arm("re-ordered, persistent", False, options={"persistent_workers": True}),
    Arm("custom collate", True, options={"collate_fn": stack}),
    Arm("custom collate, re-ordered", False, options={"collate_fn": stack}),
    Arm(
        "batches overtake",
        False,
        options={"batch_sampler": BatchSampler(SequentialSampler(range(LENGTH)), BATCH, False)},
    ),
    Arm("spawn", True, "spawn", {"persistent_workers": True}),
)


# Killing -------------------------------------------------------------------------------------------------------------


class Killer(threading.Thread):
    """Attacks the workers of the iterator it is given, until told to stop."""

    def __init__(self, pause_s: tuple[float, float], seed: int) -> None:
        super().__init__(name="killer", daemon=True)
        self.iterator: Any = None
        self.attacks: list[tuple[float, frozenset[int]]] = []
        """When, and which processes were there just before."""
        self.kills = 0
        self._pause_s = pause_s
        self._random = random.Random(seed)
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(self._random.uniform(*self._pause_s)):
            before = frozenset(self._pids())
            kind = self._random.random()
            if kind < SEVERAL:
                victims = self._random.sample(sorted(before), min(len(before), self._random.randint(2, 4)))
            elif kind < SEVERAL + STARTING and before:
                victims = [self._random.choice(sorted(before))]
            else:
                victims = self._random.sample(sorted(before), min(len(before), 1))
            killed = sum(self._kill(pid) for pid in victims)
            if killed:
                self.attacks.append((time.monotonic(), before))
            if SEVERAL <= kind < SEVERAL + STARTING:
                self._kill_newcomer(before)

    def stop(self) -> None:
        self._end.set()
        self.join()

    def _kill_newcomer(self, before: frozenset[int]) -> None:
        """Kill the process that takes a dead one's place, at some instant of its first milliseconds."""
        until = time.monotonic() + 1.0
        while time.monotonic() < until and not self._end.is_set():
            newcomers = set(self._pids()) - before
            if newcomers:
                time.sleep(self._random.random() * 0.01)
                self._kill(newcomers.pop())
                return
            time.sleep(0.0005)

    def _pids(self) -> list[int]:
        iterator = self.iterator
        return [] if iterator is None else list(iterator.worker_pids.values())

    def _kill(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state == "Z" or int(parent) != os.getpid():  # dead already; the number may be another's by now
                return False
            os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            return False
        self.kills += 1
        return True


# Measuring -----------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What one arm came to."""

    arm: str
    start_method: str
    process_start_ms: float
    """Median, from `Process.start()` until the process runs its first line; for spawn with torch imported."""
    calm_rate: float
    """Samples per second without kills; workers started and stopped included."""
    chaos_rate: float = 0.0
    rate_afterwards: float = 0.0
    """Of an epoch without kills after them, with the same loader."""
    epochs: int = 0
    samples: int = 0
    kills: int = 0
    restarts: int = 0
    lost: int = 0
    doubled: int = 0
    mixed: int = 0
    misplaced: int = 0
    left_behind: list[str] = field(default_factory=list)
    next_batch_ms: list[float] = field(default_factory=list)
    """From an attack to the next batch delivered."""
    newcomer_ms: list[float] = field(default_factory=list)
    """From an attack to the first batch delivered with a sample from a process started since."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.doubled or self.mixed or self.misplaced or self.left_behind)


class Epoch:
    """Reads one epoch, and notes when which process's samples arrived."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.mixed = 0
        self.arrivals: list[tuple[float, frozenset[int]]] = []

    def read(self, iterator: Any) -> float:
        began = time.monotonic()
        for batch in iterator:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            self.arrivals.append((time.monotonic(), frozenset(batch[:, 0].tolist())))
            self.indices += batch[:, 1].tolist()
            self.mixed += int((batch[:, 1:] != batch[:, 1:2]).any(dim=1).sum())
        faulthandler.cancel_dump_traceback_later()
        return LENGTH / (time.monotonic() - began)


def account(epoch: Epoch, arm: Arm, report: Report) -> None:
    """Every index once, and in its place where that was asked for."""
    counts = Counter(epoch.indices)
    report.epochs += 1
    report.samples += len(epoch.indices)
    report.lost += sum(index not in counts for index in range(LENGTH))
    report.doubled += sum(count - 1 for count in counts.values())
    report.mixed += epoch.mixed
    if arm.in_order:
        report.misplaced += sum(index != place for place, index in enumerate(epoch.indices))


def time_recovery(attacks: list[tuple[float, frozenset[int]]], arrivals: list[Any], report: Report) -> None:
    """Attacks at the end of an epoch, which no batch follows, do not count."""
    for at, there_before in attacks:
        later = [(when, pids) for when, pids in arrivals if when > at]
        if later:
            report.next_batch_ms.append(1000 * (later[0][0] - at))
        newcomer = next((when for when, pids in later if pids - there_before), None)
        if newcomer is not None:
            report.newcomer_ms.append(1000 * (newcomer - at))


def run_arm(arm: Arm, workers: int, seconds: float, seed: int) -> Report:
    before = holdings()
    start_ms = process_start_ms(arm.start_method)
    loader = arm.make_loader(workers)
    report = Report(arm.name, arm.start_method, start_ms, calm_rate=Epoch().read(iter(loader)))
    pause_s = PAUSE_S if arm.start_method == "fork" else (0.5 * start_ms / 1000, 1.5 * start_ms / 1000)
    killer = Killer(pause_s, seed)
    killer.start()
    rates, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        epoch, attacked = Epoch(), len(killer.attacks)
        iterator: Any = iter(loader)
        killer.iterator = iterator
        rates.append(epoch.read(iterator))
        killer.iterator = None
        account(epoch, arm, report)
        time_recovery(killer.attacks[attacked:], epoch.arrivals, report)
        del iterator
    killer.stop()
    report.kills = killer.kills
    report.chaos_rate = statistics.median(rates)
    report.rate_afterwards = Epoch().read(iter(loader))
    report.restarts = loader.stats().worker_restarts
    loader.close()
    del loader
    report.left_behind = left_behind(before)
    return report


def process_start_ms(start_method: str, repeats: int = 3) -> float:
    """Median time until a process runs its first line."""
    context: Any = multiprocessing.get_context(start_method)
    took = []
    for _ in range(repeats):
        ours, theirs = context.Pipe()
        process = context.Process(target=say_hello, args=(theirs,))
        began = time.monotonic()
        process.start()
        ours.recv()
        took.append(1000 * (time.monotonic() - began))
        process.join()
        ours.close()
        theirs.close()
    return statistics.median(took)


def say_hello(pipe: Any) -> None:
    pipe.send(None)


# Leaks ---------------------------------------------------------------------------------------------------------------


def holdings() -> Counter[str]:
    """Children, threads, descriptors and shared mappings of this process."""
    gc.collect()
    found = Counter(f"process {pid}" for pid in children())
    found.update(f"thread {thread.name}" for thread in threading.enumerate())
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[f"descriptor {os.readlink(f'/proc/self/fd/{fd}')}"] += 1
    with open("/proc/self/maps") as maps:
        found.update(f"mapping {line.split()[5]}" for line in maps if "memfd:" in line or "/dev/shm/" in line)
    return found


def left_behind(before: Counter[str], within_s: float = 2.0) -> list[str]:
    """What is there now and was not before; things may take a moment to go."""
    until = time.monotonic() + within_s
    while (more := holdings() - before) and time.monotonic() < until:
        time.sleep(0.05)
    return sorted(more)


# Telling -------------------------------------------------------------------------------------------------------------


def spread(values: list[float]) -> str:
    """Median and 95th percentile."""
    if len(values) < 2:
        return "-"
    return f"{statistics.median(values):.0f} / {statistics.quantiles(values, n=20)[-1]:.0f}"


def format_reports(reports: list[Report]) -> Iterator[str]:
    header = (
        f"{'arm':28} {'kills':>6} {'samples':>8} {'lost':>5} {'twice':>5} {'wrong':>5}  {'next batch':>12} "
        f"{'newcomer':>12} {'start':>6}   samples/s calm, chaos, after"
    )
    yield header
    yield "-" * len(header)
    for one in reports:
        yield (
            f"{one.arm:28} {one.kills:6} {one.samples:8} {one.lost:5} {one.doubled:5} {one.mixed + one.misplaced:5}  "
            f"{spread(one.next_batch_ms):>12} {spread(one.newcomer_ms):>12} {one.process_start_ms:6.0f}   "
            f"{one.calm_rate:6.0f} {one.chaos_rate:6.0f} {one.rate_afterwards:6.0f}"
        )
        yield from (f"    left behind: {leak}" for leak in one.left_behind)
    kills, samples = sum(one.kills for one in reports), sum(one.samples for one in reports)
    wrong = sum(one.lost + one.doubled + one.mixed + one.misplaced for one in reports)
    yield f"{kills} kills, {samples} samples, {wrong} of them lost, doubled, mixed up or misplaced."
    yield "next batch, newcomer: ms from a kill, median / 95 %. start: ms for a process to run its first line."


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos, over all arms (default 60)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="ARM", choices=[arm.name for arm in ARMS], help="these arms only")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything measured here")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    warnings.filterwarnings("ignore", message="DataLoader worker .* its samples go to other workers")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    multiprocessing.resource_tracker.ensure_running()
    arms = [arm for arm in ARMS if not options.only or arm.name in options.only]
    reports = []
    for arm in arms:
        reports.append(run_arm(arm, options.workers, options.seconds / len(arms), options.seed))
        print(f"{arm.name}: {reports[-1].kills} kills, {'clean' if reports[-1].is_clean else 'NOT CLEAN'}", flush=True)
    print("\n".join(format_reports(reports)))
    if options.json:
        document = {"machine": machine(), "workers": options.workers, "arms": [asdict(report) for report in reports]}
        options.json.write_text(json.dumps(document, indent=1))
    return 0 if all(report.is_clean for report in reports) else 2


if __name__ == "__main__":
    sys.exit(main())
