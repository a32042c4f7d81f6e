"""Measure the arms of a case side by side, check what they delivered, compare them with targets, print a table.

An arm is one way of making a loader. The arms of a case run in turn in one process, in an order that rotates from one
repeat to the next, so that a slow minute of the machine hits all of them.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.workloads import Reader, Workload, WrongBatchError, check_exactly_once

HANG_SECONDS = 240.0
"""After this long in one arm, print the stacks and give up."""

TIE_SHARE = 0.03
"""How far on the wrong side of its bound a "no worse than torch" ratio is still a tie, if some repeat met the bound."""

Measure = Literal["rate", "first batch", "memory", "idle"]
UNITS: dict[Measure, str] = {"rate": "samples/s", "first batch": "ms", "memory": "MB", "idle": "% of a core"}


@dataclass(frozen=True)
class Arm:
    """One contender: a name and how its loader is made from the dataset of the case."""

    name: str
    make_loader: Callable[[Any], Iterable[Any]]
    epochs: int = 1

    def rows(self) -> list[str]:
        """Names of the results it gives: one per epoch."""
        return [self.name] if self.epochs == 1 else [f"{self.name}, epoch {k + 1}" for k in range(self.epochs)]


@dataclass(frozen=True)
class Target:
    """What row `row` must reach, as a multiple of row `against` (or in the unit of the case, where that is None)."""

    row: str
    against: str | None
    bound: float
    at_most: bool = False
    tie_allowed: bool = False

    def allows(self, value: float, slack: float = 0.0) -> bool:
        """Whether `value` is on the right side of the bound, or within the share `slack` of it."""
        return value <= self.bound * (1 + slack) if self.at_most else value >= self.bound * (1 - slack)

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.bound:g}" + (f"x {self.against}" if self.against else " %")


@dataclass(frozen=True)
class Case:
    """One workload in one setting, with its arms and targets."""

    name: str
    title: str
    workload: Workload
    arms: tuple[Arm, ...]
    targets: tuple[Target, ...]
    measure: Measure = "rate"
    baseline: str | None = None


@dataclass(frozen=True)
class Verdict:
    """A target, the value reached (ratio, or the unit of the case) and the range of it over the repeats."""

    target: Target
    value: float
    low: float
    high: float
    outcome: Literal["met", "tie", "MISSED"]


Results = dict[str, list[float]]
"""Row name to one value per repeat, in the unit of the case."""


def drain(loader: Iterable[Any], reader: Reader) -> tuple[float, list[Tensor]]:
    """Read one epoch; seconds from `iter()` until the end of the loop, and the indices of each batch."""
    delivered: list[Tensor] = []
    began = time.perf_counter()
    iterator = iter(loader)
    for batch in iterator:
        delivered.append(reader(batch))
    # An iterator that stops its workers only when it is garbage pays for that here, as torch's does in its last step.
    del iterator
    return time.perf_counter() - began, delivered


def close(loader: Any) -> None:
    """Close a loader that has `close()` (torch's has not)."""
    stop = getattr(loader, "close", None)
    if callable(stop):
        stop()


def children() -> set[int]:
    """Process ids of the direct children of this process."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                found.update(int(word) for word in file.read().split())
        except FileNotFoundError:
            pass
    return found


def settle(before: set[int], seconds: float = 2.0) -> None:
    """Wait, at most `seconds`, until children that were not there `before` have ended."""
    gc.collect()
    until = time.monotonic() + seconds
    while children() - before and time.monotonic() < until:
        time.sleep(0.005)


def run_arm(arm: Arm, loader: Any, reader: Reader, length: int) -> list[float]:
    """Samples per second of each epoch; every epoch is checked for exactly-once delivery."""
    before = children()
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    rates = []
    try:
        epochs = []
        for _ in range(arm.epochs):
            seconds, delivered = drain(loader, reader)
            epochs.append(delivered)
            rates.append(length / seconds)
        for number, delivered in enumerate(epochs):
            try:
                check_exactly_once(delivered, length)
            except WrongBatchError as error:
                raise WrongBatchError(f"{arm.name}, epoch {number + 1}: {error}") from None
    finally:
        if arm.epochs > 1:
            close(loader)
        del loader
        settle(before)
        faulthandler.cancel_dump_traceback_later()
    return rates


def rotations(arms: tuple[Arm, ...], repeats: int) -> Iterable[Arm]:
    """Every arm once per repeat; each repeat starts with another arm."""
    for repeat in range(repeats):
        first = repeat % len(arms)
        yield from arms[first:] + arms[:first]


def run_rates(case: Case, repeats: int, quick: bool) -> Results:
    """Rates of all arms of a case, interleaved in this process.

    A loader is made once and iterated again in every repeat, as a training run iterates its loader epoch after epoch.
    Arms with persistent workers get a fresh one each time, so that their first epoch is a first epoch.
    """
    dataset = case.workload.build(quick)
    reader: Reader = getattr(dataset, case.workload.reader)
    results: Results = {row: [] for arm in case.arms for row in arm.rows()}
    kept = {arm.name: arm.make_loader(dataset) for arm in case.arms if arm.epochs == 1}
    try:
        for arm in rotations(case.arms, repeats):
            loader = kept[arm.name] if arm.name in kept else arm.make_loader(dataset)
            rates = run_arm(arm, loader, reader, case.workload.length(quick))
            del loader
            for row, rate in zip(arm.rows(), rates, strict=True):
                results[row].append(rate)
    finally:
        for loader in kept.values():
            close(loader)
    return results


def judge(target: Target, results: Results) -> Verdict:
    """Compare the medians; low and high are over repeats, each against the same repeat of the other arm."""
    own = results[target.row]
    if target.against is None:
        value, each = statistics.median(own), own
    else:
        other = results[target.against]
        value = statistics.median(own) / statistics.median(other)
        each = [mine / theirs for mine, theirs in zip(own, other, strict=True)]
    met = target.allows(value)
    tie = target.tie_allowed and target.allows(value, slack=TIE_SHARE) and any(map(target.allows, each))
    return Verdict(target, value, min(each), max(each), "met" if met else "tie" if tie else "MISSED")


def judge_all(case: Case, results: Results) -> list[Verdict]:
    """The verdict on every target of a case."""
    return [judge(target, results) for target in case.targets]


def _ratio(case: Case, results: Results, row: str) -> str:
    """The median of a row over that of torch's row of the same setting, or over the baseline of the case."""
    twin = row.replace("minato", "torch", 1)
    against = twin if twin != row and twin in results else case.baseline
    if against is None or against == row:
        return ""
    return f"{statistics.median(results[row]) / statistics.median(results[against]):6.2f}x {against}"


def format_case(case: Case, results: Results, verdicts: list[Verdict]) -> str:
    """The rows of a case with medians, spreads and ratios, then its targets."""
    digits = 0 if case.measure == "rate" else 2 if case.measure == "idle" else 1
    lines = [f"{case.name}: {case.title}   [{UNITS[case.measure]}]"]
    for row, values in results.items():
        median = statistics.median(values)
        spread = f"{min(values):,.{digits}f} .. {max(values):,.{digits}f}"
        lines.append(f"  {row:34} {median:12,.{digits}f}   ({spread:>22}) {_ratio(case, results, row)}")
    for verdict in verdicts:
        unit = "x" if verdict.target.against else " %"
        reached = f"{verdict.value:.2f}{unit} ({verdict.low:.2f} .. {verdict.high:.2f})"
        lines.append(f"  target {verdict.target.row}: {verdict.target}: reached {reached}: {verdict.outcome}")
    return "\n".join(lines)


def format_summary(judged: list[tuple[Case, list[Verdict]]]) -> str:
    """One line per target: what the issue asks, what was reached."""
    header = f"{'case':16} {'arm':34} {'target':34} {'reached':>9}  {'range':16} outcome"
    lines = [header, "-" * len(header)]
    for case, verdicts in judged:
        for verdict in verdicts:
            unit = "x" if verdict.target.against else "%"
            spread = f"{verdict.low:.2f} .. {verdict.high:.2f}"
            lines.append(
                f"{case.name:16} {verdict.target.row:34} {verdict.target!s:34} {verdict.value:8.2f}{unit}  "
                f"{spread:16} {verdict.outcome}"
            )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    try:
        minato = metadata.version("minato")
    except metadata.PackageNotFoundError:
        minato = "not installed (source tree)"
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "minato": minato,
        "load_average": os.getloadavg()[0],
    }
