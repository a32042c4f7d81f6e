"""All arms of all workloads in turn: the arms of a workload are interleaved, so that a slow moment hits all of them."""

from __future__ import annotations

import gc
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from .arms import Arm, arms_of
from .datasets import WrongBatchError
from .measuring import ArmResult, Visit, summarise, visit
from .verdict import compare
from .workloads import Workload, build

Tell = Callable[[str], None]
"""Called with what is about to run."""


@dataclass(frozen=True)
class Machine:
    """What the numbers were measured on."""

    cpu: str
    cores: int
    memory_bytes: int
    python: str
    torch: str
    numpy: str
    minato: str


def this_machine() -> Machine:
    """A description of this machine."""
    from .. import __version__

    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total
    cpu = models[0] if models else platform.machine()
    return Machine(cpu, cores, memory, platform.python_version(), torch.__version__, np.__version__, __version__)


class StolenTime:
    """What other guests of a virtual machine's host take of its CPU time: nobody in here can see who."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float:
        """Of all CPU time since this object was made."""
        now = psutil.cpu_times()
        spent = sum(now) - sum(self._before)
        stolen = getattr(now, "steal", 0.0) - getattr(self._before, "steal", 0.0)
        return stolen / spent if spent > 0 else 0.0


def count_visits(workloads: Sequence[Workload], rounds: int, cores: int) -> int:
    """How often `tell` will be called, if there is time for all rounds."""
    return rounds * sum(len(arms_of(workload, workload.workers(cores))) for workload in workloads)


def run(
    workloads: Sequence[Workload],
    rounds: int,
    seconds: float,
    cores: int,
    tell: Tell,
    budget_s: float | None = None,
) -> list[ArmResult]:
    """Measure every arm `rounds` times for about `seconds` each. With a budget, once; then, while it lasts, again where
    it is least clear which loader is ahead."""
    began = time.monotonic()
    races: list[Race] = []
    gc.freeze()  # garbage is collected before and after each visit: what is there already need not be looked at again
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            for number in range(1 if budget_s is not None else rounds):
                for place, workload in enumerate(workloads):
                    if not number:
                        races.append(Race(workload, cores))
                    races[place].round(number, seconds, tell)
            if budget_s is not None:
                look_again(races, seconds, tell, began + budget_s)
    finally:
        gc.unfreeze()
    return [result for race in races for result in race.results()]


def look_again(races: Sequence[Race], seconds: float, tell: Tell, until: float) -> None:
    """Measure pairs of arms once more, while the monotonic clock allows it: those in which minato seemed slower, then
    those that were nearest to each other. A moment in which the machine was busy is over by then."""
    open_pairs = [(pair, race) for race in races for pair in compare(race.results())]
    open_pairs.sort(key=lambda entry: (entry[0].word != "slower", abs(math.log(entry[0].ratio))))
    for pair, race in open_pairs:
        if time.monotonic() + race.seconds_of(pair.arm, pair.against) > until:
            continue
        for name in (pair.against, pair.arm):
            race.visit(name, seconds, tell)


class Race:
    """The arms of one workload, measured round by round; each round starts with another one."""

    def __init__(self, workload: Workload, cores: int) -> None:
        self._built = build(workload, cores)
        self._arms = arms_of(workload, self._built.workers)
        self._visits: dict[str, list[Visit]] = {arm.name: [] for arm in self._arms}
        self._took: dict[str, float] = {}
        """Seconds of the last visit to each arm."""

    def round(self, number: int, seconds: float, tell: Tell) -> None:
        """Visit every arm once."""
        for arm in _rotated(self._arms, number):
            self.visit(arm.name, seconds, tell)

    def visit(self, name: str, seconds: float, tell: Tell) -> None:
        """Visit the arm of that name."""
        arm = next(arm for arm in self._arms if arm.name == name)
        tell(f"{self._built.workload.name}: {name}")
        began = time.monotonic()
        try:
            self._visits[name].append(visit(arm, self._built, seconds))
        except WrongBatchError as error:
            raise WrongBatchError(f"{self._built.workload.name}: {name}: {error}") from None
        self._took[name] = time.monotonic() - began

    def seconds_of(self, *names: str) -> float:
        """What the last visits to these arms took together."""
        return sum(self._took[name] for name in names)

    def results(self) -> list[ArmResult]:
        """The medians of all rounds."""
        return [summarise(arm, self._built, self._visits[arm.name]) for arm in self._arms]


def _rotated(arms: tuple[Arm, ...], number: int) -> tuple[Arm, ...]:
    first = number * len(arms) // 2 % len(arms)
    return arms[first:] + arms[:first]
