"""The cases of scheduling.py that are not about one epoch's utilisation: the number of workers, epoch ends, overhead.

Each case is a function from the number of repeats to rows of figures; its targets are ratios of rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import minato
from benchmarks import harness
from benchmarks.workloads import SlowSamples, WrongBatchError

BATCH = 16
Results = dict[str, list[float]]


class Burning(Dataset[tuple[Tensor, int]]):
    """Samples that take `seconds` of CPU time each."""

    def __init__(self, length: int, seconds: float = 0.004) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return torch.full((16,), float(index)), index


@dataclass(frozen=True)
class Steady:
    """What a loader delivered in the steady part of a run."""

    rate: float
    """Samples per second."""
    workers: float
    """Mean number of workers; 0 for torch's loader."""


def steady_rate(loader: Any, skip_s: float, measure_s: float) -> Steady:
    """Iterate for a while, then measure. Every index that comes is checked to come once."""
    seen: list[Tensor] = []
    began = time.perf_counter()
    started = counted = 0.0
    workers: list[int] = []
    for values, indices in loader:
        if not bool((values[:, 0] == indices).all()):
            raise WrongBatchError("a row does not belong to its index")
        now = time.perf_counter()
        if started:
            counted += len(indices)
            workers.append(loader.stats().workers if hasattr(loader, "stats") and len(workers) % 50 == 0 else -1)
            if now - started >= measure_s:
                break
        elif now - began >= skip_s:
            started = now
        seen.append(indices.clone())
    ended = time.perf_counter()
    harness.close(loader)
    counts = torch.bincount(torch.cat(seen))
    if int(counts.max()) > 1:
        raise WrongBatchError("an index came twice")
    known = [count for count in workers if count >= 0]
    return Steady(counted / (ended - started), sum(known) / len(known) if known else 0.0)


def _rates(arms: dict[str, Callable[[], Any]], repeats: int, skip_s: float, measure_s: float) -> Results:
    results: Results = {name: [] for name in arms}
    names = list(arms)
    for repeat in range(repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            skip = skip_s if "adaptive" in name else 5.0  # seconds until so many workers are up
            steady = steady_rate(arms[name](), skip, measure_s)
            results[name].append(steady.rate)
            if "adaptive" in name:
                results.setdefault(f"{name}: workers", []).append(steady.workers)
    return results


def adaptive_sleep(repeats: int) -> Results:
    """Samples that wait 20 ms; adaptive up to 64 workers against torch with 12 and against fixed numbers."""
    dataset = SlowSamples(1_000_000)

    def ours(workers: Any, **options: Any) -> Callable[[], Any]:
        return lambda: minato.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)

    arms: dict[str, Callable[[], Any]] = {
        "torch, 12 workers": lambda: TorchLoader(dataset, BATCH, shuffle=True, num_workers=12),
        "minato, 12 workers": ours(12),
        "minato, 32 workers": ours(32),
        "minato, 64 workers": ours(64),
        "minato, adaptive": ours("auto", max_workers=64),
    }
    return _rates(arms, repeats, skip_s=12.0, measure_s=6.0)


def adaptive_cpu(repeats: int) -> Results:
    """Samples that compute for 4 ms; adaptive up to 16 workers against fixed numbers."""
    dataset = Burning(1_000_000)

    def ours(workers: Any, **options: Any) -> Callable[[], Any]:
        return lambda: minato.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)

    arms = {f"minato, {workers} workers": ours(workers) for workers in (1, 2, 3, 4)}
    arms["minato, adaptive"] = ours(4, adaptive=True, max_workers=16)
    return _rates(arms, repeats, skip_s=10.0, measure_s=8.0)


def epoch_ends(repeats: int) -> Results:
    """20 epochs of about half a second, and one that is as long: the share of the time that the ends cost."""
    from benchmarks.scheduling import Uneven, by_quantiles, real_cost

    shares, milliseconds = [0, 0.25, 0.5, 0.75, 0.9, 1], [10, 340, 470, 630, 750, 2230]
    epochs, batches, batch, workers = 20, 75, 3, 12
    results: Results = {}
    for length, rounds, name in (
        (batches * batch, epochs, "20 short epochs"),
        (epochs * batches * batch, 1, "one long epoch"),
    ):
        dataset = Uneven(by_quantiles(length, shares, [float(one) for one in milliseconds]))
        step = batch * float(dataset.costs.mean()) * real_cost(dataset, workers) / workers / 0.9
        for loader_name, make in (("minato", minato.DataLoader), ("torch", TorchLoader)):
            for _ in range(repeats):
                loader = make(dataset, batch, shuffle=True, num_workers=workers, persistent_workers=True)
                results.setdefault(f"{loader_name}, {name}", []).append(_busy_share(loader, rounds, step, length))
    for name in ("minato", "torch"):
        short, long = results[f"{name}, 20 short epochs"], results[f"{name}, one long epoch"]
        results[f"{name}: lost at epoch ends"] = [max(0.0, 1 - s / g) for s, g in zip(short, long, strict=True)]
    return results


def _busy_share(loader: Any, rounds: int, step: float, length: int) -> float:
    """Utilisation over all epochs, from one second after the first batch on: workers are up by then."""
    waited = first = started = 0.0
    for _ in range(rounds):
        seen = 0
        asked = time.perf_counter()
        for _values, indices in loader:
            got = time.perf_counter()
            waited += got - asked
            first = first or got
            if not started and got - first >= 1.0:
                started, waited = got, 0.0
            seen += len(indices)
            time.sleep(step)
            asked = time.perf_counter()
        waited += time.perf_counter() - asked
        if seen != length:
            raise WrongBatchError(f"{seen} of {length} samples came")
    ended = time.perf_counter()
    harness.close(loader)
    return 1 - waited / (ended - started)


def overhead(repeats: int) -> Results:
    """What noting and reading the time of a sample costs, as a share of a sample of 1 ms."""
    from minato._engine.observing import SampleTimes, make_profile
    from minato._engine.totals import Totals
    from minato._queues.arena import Arena
    from minato._queues.control import ControlBlock
    from minato._queues.posting import PostingBoard
    from minato._queues.taking import TakingBoard
    from minato._records import Run
    from minato._workers.costs import CostNotes

    control, arena = ControlBlock.create(64, 1), Arena.create()
    board, worker = PostingBoard(control, arena), TakingBoard(control, arena)
    board.set_threshold(0.002)
    notes, looks = CostNotes(worker), iter(range(1 << 40))
    times = SampleTimes(board, make_profile(("p75", "p90", 64)), Totals(), clock=lambda: 0.02 * next(looks))
    run = Run(0, 0, 0, 0, 0, [7])
    costs = np.random.default_rng(1).exponential(0.001, 4096)
    per_run = []
    for _ in range(repeats):
        began = time.perf_counter()
        for number, seconds in enumerate(costs.tolist()):
            current = notes.watch(run)
            current[0] = 0
            worker.note_time(1, seconds)
            notes.note(run, seconds)
            if number % 20 == 0:  # as often as the consumer looks, at a sample per millisecond
                times.look([])
        per_run.append((time.perf_counter() - began) / len(costs) / 0.001)
    control.close()
    arena.close()
    return {"share of a 1 ms sample": per_run}


@dataclass(frozen=True)
class Bound:
    """What a row has to reach: a number, or a multiple of the best of other rows."""

    row: str
    bound: float
    of_best: tuple[str, ...] = ()
    at_most: bool = False

    def judge(self, results: Results) -> tuple[str, bool]:
        """What was wanted, and whether it was reached."""
        reached = statistics.median(results[self.row])
        best = max((statistics.median(results[row]) for row in self.of_best), default=1.0)
        good = reached <= self.bound * best if self.at_most else reached >= self.bound * best
        against = f" x {' or '.join(self.of_best)}" if self.of_best else ""
        sign = "<=" if self.at_most else ">="
        return f"{self.row}: {sign} {self.bound:g}{against}: reached {reached / best:.3f}", good


@dataclass(frozen=True)
class SpecialCase:
    """A case with a way of measuring of its own."""

    name: str
    title: str
    run: Callable[[int], Results]
    targets: tuple[Bound, ...]


def special_cases() -> list[SpecialCase]:
    """All of them."""
    fixed = ("minato, 12 workers", "minato, 32 workers", "minato, 64 workers")
    few = tuple(f"minato, {workers} workers" for workers in (1, 2, 3, 4))
    return [
        SpecialCase(
            "adaptive-sleep",
            "samples/s of samples that wait 20 ms, at most 64 workers",
            adaptive_sleep,
            (Bound("minato, adaptive", 4.0, ("torch, 12 workers",)), Bound("minato, adaptive", 0.9, fixed)),
        ),
        SpecialCase(
            "adaptive-cpu",
            "samples/s of samples that compute for 4 ms, at most 16 workers",
            adaptive_cpu,
            (Bound("minato, adaptive", 0.95, few),),
        ),
        SpecialCase(
            "epoch-ends",
            "20 epochs of half a second, image segmentation, 12 persistent workers, load 90 %",
            epoch_ends,
            (Bound("minato: lost at epoch ends", 0.03, at_most=True),),
        ),
        SpecialCase(
            "overhead",
            "profiling and classification, samples of 1 ms taken one by one",
            overhead,
            (Bound("share of a 1 ms sample", 0.01, at_most=True),),
        ),
    ]
