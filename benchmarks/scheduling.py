"""Does a slow sample hold up the accelerator? minato's loader against torch's with equal workers, on uneven costs.

    python benchmarks/scheduling.py                    # everything, 3 repeats, about an hour
    python benchmarks/scheduling.py --only unet3d tail # some cases; --list names them
    python benchmarks/scheduling.py --json out.json

Samples sleep, as remote reads do, for a time that depends on their index alone; an accelerator is a consumer that
sleeps `step` per batch. Load is the share of the workers' capacity that the consumer asks for. Sleeps take longer than
asked for, the more so the more processes sleep: how much longer is measured first (`real_cost`), with processes that do
nothing else, and counts as work. Utilisation is the share of the wall time that the consumer spent outside `next()`,
from one second after the first batch, when all workers are up, to the end of the epoch.

An epoch ends with waiting for the slow sample that was begun last: nobody can know in a first epoch that it is one, and
nothing is left to be done beside it. That costs at most one slow sample's time, however long the epoch is, so epochs
have to be long beside it if the figure is to be about the rest: those of the heavy tail take 90 times as long as one of
its slow samples, those of the papers' workloads 20 to 800 times. `epoch-ends` measures what ends of short ones cost.

Rows named "epoch 2" are the second epoch of the same loader, which knows by then which samples are slow. Cases named
`-work` have no step: their figure is the bound, total cost / workers, over the wall time, start and end included, which
no order of delivery can bring above 1. Cases of the worker count and of epoch ends: `adaptation.py`.

Exit status: 0 all targets met, 1 a target missed, 2 a sample lost or repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import minato
from benchmarks import harness
from benchmarks.adaptation import Bound, SpecialCase, special_cases
from benchmarks.workloads import WrongBatchError, check_exactly_once

SCALE = 1 / 20  # of the published times
SEED = 7
WARM_S = 1.0  # after the first batch: workers are still being started


class Uneven(Dataset[tuple[Tensor, int]]):
    """Sample k sleeps `costs[k]` seconds."""

    def __init__(self, costs: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        self.costs = costs

    def __len__(self) -> int:
        return len(self.costs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(float(self.costs[index]))
        return torch.full((8,), float(index)), index


def real_cost(dataset: Uneven, workers: int, seconds: float = 2.0) -> float:
    """What samples really take when so many processes make them side by side and do nothing else, as a multiple of what
    their costs say: the work that there is on this machine, whoever schedules it.

    A sleep takes longer than asked for by about the same time, however long it is. So that time is what is measured,
    per sample: the samples that are made here may have more or fewer slow ones among them than the others.
    """
    beyond = torch.zeros(workers, 2, dtype=torch.float64).share_memory_()  # seconds, samples

    def make_some(worker: int) -> None:
        mine = np.arange(worker, len(dataset), workers)
        mine = mine[: int(np.searchsorted(np.cumsum(dataset.costs[mine]), seconds)) + 1]
        began = time.perf_counter()
        for index in mine.tolist():
            dataset[index]
        beyond[worker, 0] = time.perf_counter() - began - float(dataset.costs[mine].sum())
        beyond[worker, 1] = len(mine)

    processes = [torch.multiprocessing.Process(target=make_some, args=(worker,)) for worker in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process that measures what samples take ended with status {process.exitcode}")
    per_sample = float(beyond[:, 0].sum() / beyond[:, 1].sum())
    return 1 + per_sample / float(dataset.costs.mean())


Costs = Callable[[int], np.ndarray[Any, np.dtype[np.float64]]]


def by_quantiles(length: int, shares: list[float], milliseconds: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Costs in seconds whose quantiles are those published (linear in between), in an order of their own."""
    random = np.random.default_rng(SEED)
    return random.permutation(np.interp((np.arange(length) + 0.5) / length, shares, milliseconds)) * 1e-3 * SCALE


def every_fifth(length: int, milliseconds: float, heavy: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Every fifth sample is heavy: by its index, so by chance in a shuffled epoch."""
    return np.where(np.arange(length) % 5 == 0, heavy, milliseconds) * 1e-3 * SCALE


def heavy_tail(length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One sample in a hundred is 150 times slower than the others, which take 2 ms."""
    random = np.random.default_rng(SEED)
    return np.where(random.permutation(length) < length // 100, 0.300, 0.002)


@dataclass(frozen=True)
class Arm:
    """One way of making the loader."""

    name: str
    torchs: bool
    in_order: bool | None
    prefetch_factor: int = 2
    epochs: int = 1
    """The last one is measured."""

    def loader(self, dataset: Any, case: Case) -> Any:
        arguments: dict[str, Any] = {
            "batch_size": case.batch,
            "shuffle": True,
            "num_workers": case.workers,
            "prefetch_factor": self.prefetch_factor,
        }
        if self.torchs:
            in_order = True if self.in_order is None else self.in_order
            return TorchLoader(dataset, **arguments, in_order=in_order)
        return minato.DataLoader(dataset, **arguments, in_order=self.in_order)


TORCH = Arm("torch", True, True)
TORCH_FREE = Arm("torch in_order=False", True, False)
OURS = Arm("minato", False, None)
OURS_IN_ORDER = Arm("minato in_order=True", False, True)
OURS_KNOWING = Arm("minato, epoch 2", False, None, epochs=2)
OURS_IN_ORDER_KNOWING = Arm("minato in_order=True, epoch 2", False, True, epochs=2)


@dataclass(frozen=True)
class Target:
    """What an arm has to reach: `at_least`, and more than `above` by `margin` if that is given."""

    arm: str
    at_least: float = 0.0
    above: str | None = None
    margin: float = 0.0


@dataclass(frozen=True)
class Case:
    """One cost distribution under one load."""

    name: str
    title: str
    costs: Costs
    batches: int
    batch: int
    workers: int
    load: float
    """0: the consumer takes no time, and the figure is the bound over the wall time."""
    arms: tuple[Arm, ...] = (TORCH, TORCH_FREE, OURS, OURS_IN_ORDER, OURS_IN_ORDER_KNOWING)
    targets: tuple[Target, ...] = ()


PAPER = (Target(OURS.name, 0.98, TORCH.name), Target(OURS_IN_ORDER.name, 0.97, TORCH.name))


def paper_case(name: str, title: str, costs: Costs, batches: int, batch: int) -> Case:
    return Case(name, f"{title}, 12 workers, load 90 %", costs, batches, batch, 12, 0.9, targets=PAPER)


def all_cases() -> list[Case]:
    """Table 2 of the MinatoLoader paper at a twentieth of its times, a heavier tail, and the work alone."""
    detection = partial(
        by_quantiles, shares=[0, 0.25, 0.5, 0.75, 0.9, 0.97, 1], milliseconds=[11, 24, 28, 30, 35, 90, 176]
    )
    segmentation = partial(
        by_quantiles, shares=[0, 0.25, 0.5, 0.75, 0.9, 1], milliseconds=[10, 340, 470, 630, 750, 2230]
    )
    speech_3s = partial(every_fifth, milliseconds=508, heavy=3008)
    speech_10s = partial(every_fifth, milliseconds=508, heavy=10008)
    tail = Case(
        "tail",
        "1 % of samples 150 times slower, 8 workers, load 90 %",
        heavy_tail,
        2700,
        16,
        8,
        0.9,
        targets=(Target(OURS.name, 0.97), Target(OURS_IN_ORDER.name, 0.0, TORCH.name, 0.10)),
    )
    thrifty = replace(
        tail,
        name="few-in-flight",
        title="the same with a third of torch's batches in flight (prefetch_factor 2 against 6)",
        arms=(replace(TORCH, prefetch_factor=6), OURS),
        targets=(Target(OURS.name, 0.97, TORCH.name),),
    )
    work = [
        replace(
            case,
            name=f"{case.name}-work",
            title=f"{case.title.split(',')[0]}, no step: bound over wall",
            load=0.0,
            arms=(TORCH, OURS, OURS_KNOWING, OURS_IN_ORDER),
            targets=(Target(OURS.name, 1 / 1.05),),
        )
        for case in (tail, paper_case("unet3d", "image segmentation", segmentation, 1200, 3))
    ]
    return [
        paper_case("detection", "object detection", detection, 1200, 48),
        paper_case("unet3d", "image segmentation", segmentation, 1200, 3),
        paper_case("speech-3s", "speech, heavy 3 s", speech_3s, 75, 24),
        paper_case("speech-10s", "speech, heavy 10 s", speech_10s, 45, 24),
        tail,
        thrifty,
        *work,
    ]


def run_arm(arm: Arm, case: Case, dataset: Uneven, bound: float) -> float:
    """Utilisation of one epoch (or, without a step, the bound over the wall time). `bound`: seconds that the workers
    need for an epoch at least."""
    step = bound / case.batches / case.load if case.load else 0.0
    loader = arm.loader(dataset, case)
    for _ in range(arm.epochs):
        reached = run_epoch(loader, len(dataset), step, bound)
    harness.close(loader)
    return reached


def run_epoch(loader: Any, length: int, step: float, bound: float) -> float:
    """The figure of one epoch, checked for exactly-once delivery."""
    seen: list[Tensor] = []
    began = time.perf_counter()
    warm_at = first = waited = 0.0
    iterator = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        got = time.perf_counter()
        waited += got - asked
        if batch is None:
            break
        first = first or got
        if not warm_at and got - first >= WARM_S:
            warm_at, waited = got, 0.0
        values, indices = batch
        if not bool((values[:, 0] == indices).all()):
            raise WrongBatchError("a row does not belong to its index")
        seen.append(indices.clone())
        if step:
            time.sleep(step)
    check_exactly_once(seen, length)
    return 1 - waited / (got - warm_at) if step else bound / (got - began)


def run_case(case: Case, repeats: int) -> dict[str, list[float]]:
    """All arms in turn, each repeat beginning with another. What sleeps take is measured anew for each repeat: the
    machine's speed drifts."""
    dataset = Uneven(case.costs(case.batches * case.batch))
    results: dict[str, list[float]] = {arm.name: [] for arm in case.arms}
    for repeat in range(repeats):
        ratio = real_cost(dataset, case.workers)
        bound = float(dataset.costs.sum()) * ratio / case.workers
        print(f"\n{case.name}: work takes {ratio:.3f} times as long as the costs say; bound {bound:.2f} s", flush=True)
        for arm in case.arms[repeat % len(case.arms) :] + case.arms[: repeat % len(case.arms)]:
            results[arm.name].append(run_arm(arm, case, dataset, bound))
    return results


def judge(target: Target, results: dict[str, list[float]]) -> tuple[str, bool]:
    """What was wanted, and whether it was reached."""
    reached = statistics.median(results[target.arm])
    wanted = [f">= {target.at_least:.3f}"] if target.at_least else []
    good = reached >= target.at_least
    if target.above is not None:
        other = statistics.median(results[target.above])
        wanted.append(f"> {target.above} {other:.3f}" + (f" + {target.margin:.2f}" if target.margin else ""))
        good = good and (reached >= other + target.margin if target.margin else reached > other)
    return f"{target.arm}: {' and '.join(wanted)}: reached {reached:.3f}", good


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    every: list[Case | SpecialCase] = [*all_cases(), *special_cases()]
    cases = [case for case in every if not options.only or case.name in options.only]
    if options.list:
        print("\n".join(f"{case.name:16} {case.title}" for case in cases))
        return 0
    print("  ".join(f"{key} {value}" for key, value in harness.machine().items()), flush=True)
    missed, records = 0, []
    for case in cases:
        results = case.run(options.repeats) if isinstance(case, SpecialCase) else run_case(case, options.repeats)
        print(f"\n{case.name}: {case.title}")
        for name, values in results.items():
            print(f"  {name:30} {statistics.median(values):9.3f}   ({min(values):.3f} .. {max(values):.3f})")
        for target in case.targets:
            line, good = target.judge(results) if isinstance(target, Bound) else judge(target, results)
            missed += not good
            print(f"  target {line}: {'met' if good else 'MISSED'}", flush=True)
        records.append({"case": case.name, "title": case.title, "runs": results})
    if options.json:
        options.json.write_text(json.dumps({"machine": harness.machine(), "cases": records}, indent=1))
    return int(missed > 0)


if __name__ == "__main__":
    try:
        status = main()
    except WrongBatchError as error:
        print(f"exactly-once violated: {error}", file=sys.stderr)
        status = 2
    sys.exit(status)
