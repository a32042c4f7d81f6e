"""Faults that are planted in a pipeline, and what the verdict of its trace says of them.

    python benchmarks/planted.py                        # every fault in every mode; estimate: 4 minutes
    python benchmarks/planted.py --seed 7 --rounds 3    # with other costs
    python benchmarks/planted.py --only slow-read stalls --modes threaded

A pipeline reads a sample and does three operations to it, in two workers. Each fault changes one thing in it. Costs are
drawn anew for each seed. Modes: map datasets, in order and re-ordered, one sample at a time or four threads a worker;
streams, in order and not, whose operations are named by `minato.traced`.

For each run it prints what was planted and what was said, and whether that names it, leaves it open, or is wrong;
"cores": other programs had the cores for more than half of the work, and nothing can be said of the fault.
Streams show no stages: an operation of theirs that waits is named rightly if it is named at all, as storage or not.

Exit status: 0 nothing wrong, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

sys.path.insert(0, str(Path(__file__).parents[1]))

import minato
from minato import DataLoader, StagedDataset, get_worker_info
from minato.trace import verdict as words
from minato.trace.summary import summarize
from minato.trace.verdict import Verdict

BATCH, WORKERS, THREADS = 8, 2, 4
RUN_S = 1.2  # seconds that a run should take, about


# ---- a pipeline ----------------------------------------------------------------------------------------------------


def burn(seconds: float) -> None:
    """Use so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@dataclass
class Part:
    """One step of a sample: so much CPU time, and so much waiting. In some samples, or in one worker, more."""

    name: str
    cpu_s: float
    sleep_s: float = 0.0
    slow: frozenset[int] = frozenset()
    """Samples in which it takes `more_cpu_s` and `more_sleep_s` more."""
    more_cpu_s: float = 0.0
    more_sleep_s: float = 0.0
    slow_worker: int = -1
    """The worker in which it takes `times` as much."""
    times: float = 1.0
    lock: Any = None
    """One at a time may be at it."""

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        self.work(int(sample[0]))
        return sample

    def work(self, index: int) -> None:
        """Do it for one sample."""
        info = get_worker_info()
        times = self.times if info is not None and info.id == self.slow_worker else 1.0
        is_slow = index in self.slow
        with self.lock or nullcontext():
            burn((self.cpu_s + is_slow * self.more_cpu_s) * times)
            if self.sleep_s or is_slow:
                time.sleep((self.sleep_s + is_slow * self.more_sleep_s) * times)


@dataclass
class Pipeline:
    """What is run."""

    read: Part
    ops: list[Part]
    samples: int = 0
    step_s: float = 0.0
    """What the consumer does with a batch."""
    workers: int = WORKERS
    collate: Part | None = None

    def load(self, index: int) -> torch.Tensor:
        """One sample."""
        self.read.work(index)
        return torch.full((64,), float(index))

    def collate_fn(self, samples: list[torch.Tensor]) -> Any:
        """A batch."""
        assert self.collate is not None
        self.collate.work(0)
        return default_collate(samples)


class Streamed(IterableDataset[torch.Tensor]):
    """The same, of which nobody sees the parts unless they are named."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[torch.Tensor]:
        info, pipeline = get_worker_info(), self._pipeline
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, pipeline.samples, step):
            with minato.traced("read"):
                sample = pipeline.load(index)
            for op in pipeline.ops:
                with minato.traced(op.name):
                    sample = op(sample)
            yield sample


@dataclass(frozen=True)
class Mode:
    """How it is run."""

    name: str
    is_stream: bool = False
    fetcher: str = "sequential"
    in_order: bool = True


MODES = (
    Mode("map, in order"),
    Mode("map, re-ordered", in_order=False),
    Mode("map, in order, threaded", fetcher="threaded"),
    Mode("map, re-ordered, threaded", fetcher="threaded", in_order=False),
    Mode("stream, in order", is_stream=True),
    Mode("stream, overtaking", is_stream=True, in_order=False),
)


def run(pipeline: Pipeline, mode: Mode, folder: str) -> Verdict:
    """One traced epoch, and what is said of it."""
    data: Any = Streamed(pipeline)
    if not mode.is_stream:
        data = StagedDataset(pipeline.load, list(pipeline.ops), pipeline.samples)
    with DataLoader(
        data,
        BATCH,
        shuffle=None if mode.is_stream else not mode.in_order,
        num_workers=pipeline.workers,
        in_order=mode.in_order,
        fetcher=mode.fetcher,
        num_fetch_workers=THREADS,
        collate_fn=None if pipeline.collate is None else pipeline.collate_fn,
        trace=folder,
    ) as loader:
        seen = []
        for batch in loader:
            seen += batch[:, 0].tolist()
            time.sleep(pipeline.step_s)
    if sorted(seen) != list(range(pipeline.samples)):
        raise SystemExit("a sample was lost or doubled")
    return summarize(folder).verdict


# ---- faults --------------------------------------------------------------------------------------------------------

Costs = random.Random


@dataclass(frozen=True)
class Fault:
    """Something that is planted."""

    name: str
    plant: Callable[[Pipeline, Costs], None]
    bounds: tuple[str, ...]
    culprits: tuple[str, ...] = ()
    """Any will do; none: it does not matter."""
    stream_bounds: tuple[str, ...] = ()
    """Further ones, where loading and operations cannot be told apart."""
    stream_culprits: tuple[str, ...] = ()
    says: tuple[str, ...] = ("",)
    """One of which the text or the advice has to say."""

    def is_named(self, said: Verdict, mode: Mode) -> bool:
        """Whether the verdict says what was planted."""
        bounds = self.bounds + (self.stream_bounds if mode.is_stream else ())
        culprits = self.culprits + (self.stream_culprits if mode.is_stream else ())
        fits = said.bound in bounds and (not culprits or said.culprit in culprits)
        return fits and any(word in f"{said.text} {said.advice}" for word in self.says)


def base(costs: Costs) -> Pipeline:
    """A pipeline in which nothing is wrong: about a millisecond and a half a sample."""
    times = [costs.uniform(0.2e-3, 0.6e-3) for _ in range(4)]
    read = Part("read", times[0], costs.uniform(0.1e-3, 0.3e-3))
    return Pipeline(read, [Part(name, cost) for name, cost in zip(("Decode", "Crop", "Flip"), times[1:], strict=True)])


def some(costs: Costs, share: float, samples: int = 2000) -> frozenset[int]:
    return frozenset(index for index in range(samples) if costs.random() < share)


def slow_op_cpu(it: Pipeline, costs: Costs) -> None:
    it.ops[1].cpu_s = costs.uniform(4e-3, 9e-3)


def slow_op_waits(it: Pipeline, costs: Costs) -> None:
    it.ops[1].sleep_s = costs.uniform(5e-3, 15e-3)


def slow_read(it: Pipeline, costs: Costs) -> None:
    it.read.sleep_s = costs.uniform(6e-3, 20e-3)


def heavy_tail(it: Pipeline, costs: Costs) -> None:
    it.ops[1].slow, it.ops[1].more_cpu_s = some(costs, costs.uniform(0.015, 0.035)), costs.uniform(0.08, 0.15)


def rare_stalls(it: Pipeline, costs: Costs) -> None:
    it.read.slow, it.read.more_sleep_s = some(costs, costs.uniform(0.008, 0.02)), costs.uniform(0.15, 0.3)


def even_stalls(it: Pipeline, costs: Costs) -> None:
    every = costs.choice((16, 18, 20, 24))
    it.read.slow, it.read.more_sleep_s = frozenset(range(3, 4000, every)), costs.uniform(0.035, 0.06)


def stalls_in_an_op(it: Pipeline, costs: Costs) -> None:
    it.ops[1].slow, it.ops[1].more_sleep_s = some(costs, costs.uniform(0.02, 0.04)), costs.uniform(0.08, 0.15)


def slow_worker_cpu(it: Pipeline, costs: Costs) -> None:
    times = costs.uniform(3, 6)
    for part in (it.read, *it.ops):
        part.slow_worker, part.times = 1, times


def slow_worker_waits(it: Pipeline, costs: Costs) -> None:
    it.read.sleep_s = costs.uniform(2e-3, 4e-3)
    it.read.slow_worker, it.read.times = 1, costs.uniform(4, 8)


def slow_step(it: Pipeline, costs: Costs) -> None:
    it.step_s = costs.uniform(30e-3, 60e-3)


def slow_collate_cpu(it: Pipeline, costs: Costs) -> None:
    it.collate = Part("Collation", costs.uniform(25e-3, 50e-3))


def slow_collate_waits(it: Pipeline, costs: Costs) -> None:
    it.collate = Part("Collation", 1e-4, costs.uniform(30e-3, 60e-3))


def few_workers(it: Pipeline, costs: Costs) -> None:
    it.workers, it.read.sleep_s, times = 1, 0.0, costs.uniform(2, 4)
    for part in (it.read, *it.ops):
        part.cpu_s *= times


def lock_cpu(it: Pipeline, costs: Costs) -> None:
    it.ops[1].cpu_s, it.ops[1].lock = costs.uniform(4e-3, 8e-3), multiprocessing.Lock()


def lock_waits(it: Pipeline, costs: Costs) -> None:
    it.ops[1].sleep_s, it.ops[1].lock = costs.uniform(4e-3, 8e-3), multiprocessing.Lock()


PRE, STORE, STRAGGLE = (words.PREPROCESSING,), (words.STORAGE,), (words.STRAGGLER,)
FAULTS = (
    Fault("slow-op", slow_op_cpu, PRE, ("Crop",)),
    Fault("waiting-op", slow_op_waits, PRE, ("Crop",), STORE),
    Fault("slow-read", slow_read, STORE, ("loading",), (), ("read",)),
    Fault("heavy-tail", heavy_tail, STRAGGLE, ("slow samples",)),
    Fault("stalls", rare_stalls, STORE + STRAGGLE, ("loading", "slow samples"), (), ("read",)),
    Fault("even-stalls", even_stalls, STORE + STRAGGLE, ("loading", "slow samples"), (), ("read",)),
    Fault("stalls-in-op", stalls_in_an_op, STRAGGLE, ("slow samples",), STORE, ("Crop",)),
    Fault("slow-worker", slow_worker_cpu, STRAGGLE, ("worker 1",)),
    Fault("waiting-worker", slow_worker_waits, STRAGGLE, ("worker 1",)),
    Fault("slow-step", slow_step, (words.ACCELERATOR,), ("consumer",)),
    Fault("slow-collate", slow_collate_cpu, PRE, ("Collation",)),
    Fault("waiting-collate", slow_collate_waits, PRE, ("Collation",)),
    Fault("few-workers", few_workers, PRE, says=("Add workers", "Use more workers")),
    Fault("lock", lock_cpu, PRE, ("Crop",), STORE),
    Fault("lock-waits", lock_waits, PRE, ("Crop",), STORE),
)


def planted(fault: Fault, mode: Mode, seed: int) -> Pipeline:
    """The pipeline of a fault, of about `RUN_S` seconds."""
    costs = random.Random(f"{fault.name} {seed}")
    it = base(costs)
    fault.plant(it, costs)
    if mode.fetcher == "threaded":
        for part in (it.read, *it.ops):
            part.more_sleep_s *= THREADS  # a stall holds up one thread of several: less is no bottleneck
    it.samples = _samples(it, mode)
    return it


def _samples(it: Pipeline, mode: Mode) -> int:
    lanes = it.workers * (THREADS if mode.fetcher == "threaded" else 1)
    cpu_s = wait_s = 0.0
    for part in (it.read, *it.ops):
        often = len([index for index in part.slow if index < 1000]) / 1000
        cpu_s += part.cpu_s + often * part.more_cpu_s
        wait_s += part.sleep_s + often * part.more_sleep_s + (part.cpu_s + part.sleep_s if part.lock else 0.0)
    batch_s = 0.0 if it.collate is None else (it.collate.cpu_s + it.collate.sleep_s) / it.workers
    each_s = max(cpu_s / it.workers, (cpu_s + wait_s) / lanes, it.step_s / BATCH, batch_s / BATCH)
    locked = max((part.cpu_s + part.sleep_s for part in it.ops if part.lock), default=0.0)
    return max(20, round(RUN_S / max(each_s, locked) / BATCH)) * BATCH


# ---- the command ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One run."""

    planted: str
    mode: str
    seed: int
    said: str
    text: str
    is_named: bool
    numbers: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        how = "named" if self.is_named else "cores" if self.lacked_cores else "WRONG" if self.is_wrong else "open"
        return f"{how:<6} {self.planted:<16} {self.mode:<26} {self.said}"

    @property
    def is_wrong(self) -> bool:
        """It names something else; to say that it cannot be told is not wrong."""
        return not self.is_named and not self.said.startswith(words.UNKNOWN) and not self.lacked_cores

    @property
    def lacked_cores(self) -> bool:
        """Other programs had the cores for most of the work: that bounded the run, not what was planted."""
        return self.numbers.get("starved", 0.0) > words.STARVED


def outcome(fault: Fault, mode: Mode, seed: int) -> Outcome:
    """Plant, run, compare."""
    with tempfile.TemporaryDirectory() as folder:
        said = run(planted(fault, mode, seed), mode, folder)
    name, text = f"{said.bound} ({said.culprit})", f"{said.text} {said.advice}"
    return Outcome(fault.name, mode.name, seed, name, text, fault.is_named(said, mode), dict(said.numbers))


def main() -> int:
    parser = argparse.ArgumentParser(description="Planted faults, and what the verdict says.")
    parser.add_argument("--only", nargs="+", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--modes", default="", help="only those whose name has this in it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--explain", action="store_true", help="with the words and numbers of what is wrong")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = []
    for seed in range(arguments.seed, arguments.seed + arguments.rounds):
        for fault in FAULTS:
            for mode in MODES:
                if arguments.modes in mode.name and (not arguments.only or fault.name in arguments.only):
                    done.append(outcome(fault, mode, seed))
                    print(done[-1], flush=True)
                    if arguments.explain and not done[-1].is_named:
                        print("   ", done[-1].text, "\n   ", {k: round(v, 4) for k, v in done[-1].numbers.items()})
    wrong = [one for one in done if one.is_wrong]
    named = sum(one.is_named for one in done)
    print(f"{len(done)} planted, {named} named, {len(done) - named - len(wrong)} not told, {len(wrong)} wrong")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([vars(one) for one in done], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
