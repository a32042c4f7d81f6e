"""All arms of all workloads in turn: the arms of a workload are interleaved, so that a slow moment hits all of them."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch

from .arms import Arm, arms_of
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
    """How often `tell` will be called."""
    return rounds * sum(len(arms_of(workload, workload.workers(cores))) for workload in workloads)


def run(workloads: Sequence[Workload], rounds: int, seconds: float, cores: int, tell: Tell) -> list[ArmResult]:
    """Measure every arm `rounds` times for about `seconds` each."""
    results: list[ArmResult] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        for workload in workloads:
            results += run_workload(workload, rounds, seconds, cores, tell)
    return results


def run_workload(workload: Workload, rounds: int, seconds: float, cores: int, tell: Tell) -> list[ArmResult]:
    """The arms of one workload; each round starts with another one."""
    built = build(workload, cores)
    arms = arms_of(workload, built.workers)
    visits: dict[str, list[Visit]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        for arm in _rotated(arms, number):
            tell(f"{workload.name}: {arm.name}")
            visits[arm.name].append(visit(arm, built, seconds))
    return [summarise(arm, built, visits[arm.name]) for arm in arms]


def _rotated(arms: tuple[Arm, ...], number: int) -> tuple[Arm, ...]:
    first = number * len(arms) // 2 % len(arms)
    return arms[first:] + arms[:first]
