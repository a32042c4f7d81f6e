"""All arms of all workloads in turn: the arms of a workload are interleaved, so that a slow moment hits all of them."""

from __future__ import annotations

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
    """Measure every arm `rounds` times for about `seconds` each; with a budget, once, and again while it lasts."""
    began, took = time.monotonic(), dict.fromkeys((workload.name for workload in workloads), 0.0)
    races = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        for number in range(rounds):
            for place, workload in enumerate(workloads):
                started = time.monotonic()
                if number and budget_s is not None and started - began + took[workload.name] > budget_s:
                    continue
                if not number:
                    races.append(Race(workload, cores))
                races[place].round(number, seconds, tell)
                took[workload.name] = time.monotonic() - started
    return [result for race in races for result in race.results()]


class Race:
    """The arms of one workload, measured round by round; each round starts with another one."""

    def __init__(self, workload: Workload, cores: int) -> None:
        self._built = build(workload, cores)
        self._arms = arms_of(workload, self._built.workers)
        self._visits: dict[str, list[Visit]] = {arm.name: [] for arm in self._arms}

    def round(self, number: int, seconds: float, tell: Tell) -> None:
        """Visit every arm once."""
        for arm in _rotated(self._arms, number):
            tell(f"{self._built.workload.name}: {arm.name}")
            try:
                self._visits[arm.name].append(visit(arm, self._built, seconds))
            except WrongBatchError as error:
                raise WrongBatchError(f"{self._built.workload.name}: {arm.name}: {error}") from None

    def results(self) -> list[ArmResult]:
        """The medians of all rounds."""
        return [summarise(arm, self._built, self._visits[arm.name]) for arm in self._arms]


def _rotated(arms: tuple[Arm, ...], number: int) -> tuple[Arm, ...]:
    first = number * len(arms) // 2 % len(arms)
    return arms[first:] + arms[:first]
