"""What the stages of a pipeline cost: samples run for the purpose, one at a time, each stage by its own clocks.

Runs aside, in a process started as workers are, on a dataset nobody else uses; the user's run is not touched. The
running mean of what a sample costs is watched, and the probe ends when it changes by less than 1 % from one block to
the next, or when its time is up. Then the same samples are run again: the machine's other work can only have added to
what a sample costs, so the lesser of two CPU times is nearer to the truth.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from .._instrument import Tally
from .._pipeline.looking import LOAD, stages_of
from .._pipeline.sizes import bytes_of
from .._workers.generators import all_generators, mix
from .._workers.stages import Begin
from .clocks import UsageMeter, Used
from .records import COLLATE, TRANSFORM, StageMeasurement
from .records import LOAD as LOAD_KIND

TOLERANCE = 0.01  # change of the mean from one block to the next that is small enough
LEAST_BLOCKS = 3
BLOCK = 16  # samples
LEAST_S = 0.3
_MOST_PATHS = 512


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe."""

    stages: tuple[StageMeasurement, ...]
    samples: int
    change: float
    """By which share the mean cost still changed."""
    files: tuple[str, ...]
    """Files that were opened for reading."""


@dataclass(slots=True)
class _Cost:
    """Of one stage of one sample."""

    cpu_ns: int
    wall_ns: int
    bytes_in: int
    bytes_out: int
    bytes_read: int


@dataclass(slots=True)
class _Collected:
    kinds: dict[str, str] = field(default_factory=dict)
    costs: dict[str, list[_Cost]] = field(default_factory=dict)
    least_cpu_ns: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, kind: str, cost: _Cost) -> None:
        self.kinds.setdefault(name, kind)
        self.costs.setdefault(name, []).append(cost)


def probe(
    dataset: Any,
    indices: Sequence[int],
    batch_size: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    max_seconds: float,
) -> Probe:
    """Measure the stages on samples with these indices, in their order, or on as many as there is time for."""
    begin = stages_of(dataset)
    meter = UsageMeter()
    files = _watch_files()
    collected = _Collected()
    run = _Runner(dataset, begin, meter, collate_fn, batch_size)
    deadline = time.monotonic() + max_seconds
    done, change = _first_pass(run, collected, indices, deadline)
    _second_pass(run, collected, indices[:done], deadline)
    return Probe(tuple(_summaries(collected)), done, change, tuple(files))


def _first_pass(run: _Runner, collected: _Collected, indices: Sequence[int], deadline: float) -> tuple[int, float]:
    """Samples that were run, and how much the mean still changed. Ends at two thirds of the time."""
    began = time.monotonic()
    until = began + (deadline - began) * 2 / 3
    means: list[float] = []
    total_ns, done, change = 0, 0, math.inf
    for number, index in enumerate(indices):
        total_ns += run.sample(index, collected)
        done = number + 1
        now = time.monotonic()
        if done % BLOCK == 0:
            means.append(total_ns / done)
            change = max((abs(means[-1] / old - 1) for old in means[-LEAST_BLOCKS:-1]), default=math.inf)
            if len(means) >= LEAST_BLOCKS and change < TOLERANCE and now - began > LEAST_S:
                break
        if now > until:
            break
    run.finish_batch(collected)
    return done, min(change, 1.0)


def _second_pass(run: _Runner, collected: _Collected, indices: Sequence[int], deadline: float) -> None:
    """The lesser CPU time of each stage and sample; those for which there is no time keep what they have."""
    again = _Collected()
    for index in indices:
        if time.monotonic() > deadline:
            break
        run.sample(index, again)
    run.finish_batch(again)
    for name, costs in collected.costs.items():
        others = again.costs.get(name, [])
        pairs = zip(costs, others, strict=False)
        least = sum(min(one.cpu_ns, other.cpu_ns) for one, other in pairs)
        both = min(len(costs), len(others))
        rest = sum(cost.cpu_ns for cost in costs[both:])
        # Samples without a second look are taken to be as much too dear as those with one were.
        first = sum(cost.cpu_ns for cost in costs[:both])
        collected.least_cpu_ns[name] = int(least + rest * (least / first if first else 1.0))


class _Runner:
    """Runs samples stage by stage."""

    def __init__(
        self,
        dataset: Any,
        begin: Begin | None,
        meter: UsageMeter,
        collate_fn: Callable[[list[Any]], Any] | None,
        batch_size: int,
    ) -> None:
        self._dataset = dataset
        self._begin = begin
        self._meter = meter
        self._collate = copy_rows if collate_fn is default_collate else collate_fn
        self._batch_size = batch_size
        self._batch: list[Any] = []

    def sample(self, index: int, collected: _Collected) -> int:
        """One sample, and with the last of a batch its collation. Returns nanoseconds of wall time."""
        for salt, generator in enumerate(all_generators()):
            generator.seed(mix(salt, index))  # the second pass draws the same
        began = time.perf_counter_ns()
        sample = self._opaque(index, collected) if self._begin is None else self._staged(index, collected)
        if self._collate is not None:
            self._batch.append(sample)
            if len(self._batch) == self._batch_size:
                self.finish_batch(collected)
        return time.perf_counter_ns() - began

    def _opaque(self, index: int, collected: _Collected) -> Any:
        with Tally() as told:
            before = self._meter.mark()
            sample = self._dataset[index]
            used = self._meter.since(before)
        collected.add(LOAD, LOAD_KIND, _cost(used, told, 0, bytes_of(sample)))
        return sample

    def _staged(self, index: int, collected: _Collected) -> Any:
        assert self._begin is not None
        run = self._begin(index)
        nbytes = 0
        names: dict[str, int] = {}
        while not run.done:
            name = run.stage
            kind = LOAD_KIND if run.call is None else TRANSFORM
            names[name] = names.get(name, 0) + 1
            if names[name] > 1:
                name = f"{name}#{names[name]}"
            with Tally() as told:
                before = self._meter.mark()
                done = run.advance()
                used = self._meter.since(before)
            made = bytes_of(run.result if done else run.call[1:] if run.call is not None else None)
            collected.add(name, kind, _cost(used, told, nbytes, made))
            nbytes = made
        return run.result

    def finish_batch(self, collected: _Collected) -> None:
        """Collate what there is."""
        batch, self._batch = self._batch, []
        if not batch or self._collate is None or (len(batch) < self._batch_size and COLLATE in collected.costs):
            return
        nbytes = bytes_of(batch)
        with Tally() as told:
            before = self._meter.mark()
            made = self._collate(batch)
            used = self._meter.since(before)
        collected.add(COLLATE, COLLATE, _cost(used, told, nbytes, bytes_of(made) or nbytes))


def _cost(used: Used, told: Tally, bytes_in: int, bytes_out: int) -> _Cost:
    return _Cost(used.cpu_ns, used.wall_ns, bytes_in, bytes_out, used.bytes_read + told.nbytes)


def copy_rows(samples: list[Any]) -> None:
    """What minato does in place of `default_collate`: each sample's arrays are copied once, into memory that exists."""
    for sample in samples:
        _copy(sample)


_scratch: dict[Any, torch.Tensor] = {}


def _copy(value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        key = value.shape, value.dtype
        place = _scratch.get(key)
        if place is None:
            place = _scratch[key] = torch.empty_like(value)
        place.copy_(value)
    elif isinstance(value, dict):
        for part in value.values():
            _copy(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _copy(part)


def _summaries(collected: _Collected) -> list[StageMeasurement]:
    stages = []
    for name, costs in collected.costs.items():
        walls = [cost.wall_ns * 1e-9 for cost in costs]
        stages.append(
            StageMeasurement(
                name=name,
                kind=collected.kinds[name],
                completions=len(costs),
                cpu_s=sum(cost.cpu_ns for cost in costs) * 1e-9,
                wall_s=sum(walls),
                bytes_in=sum(cost.bytes_in for cost in costs),
                bytes_out=sum(cost.bytes_out for cost in costs),
                bytes_read=sum(cost.bytes_read for cost in costs),
                cpu_least_s=collected.least_cpu_ns.get(name, 0) * 1e-9 or None,
                wall_std_s=float(np.std(walls)),
            )
        )
    return stages


def _watch_files() -> dict[str, None]:
    """Notes which files are opened for reading, from now on until this process ends: hooks cannot be taken back."""
    found: dict[str, None] = {}
    quiet = os.path.realpath(sys.prefix)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and len(found) < _MOST_PATHS and isinstance(arguments[0], (str, os.PathLike)):
            path = os.fspath(arguments[0])
            own = not isinstance(path, str) or path.startswith(("/proc", "/dev", "/sys", quiet)) or path.endswith(_CODE)
            if not own and not int(arguments[2] or 0) & os.O_WRONLY:
                found.setdefault(str(path))

    sys.addaudithook(hook)
    return found


_CODE = (".py", ".pyc", ".so")
