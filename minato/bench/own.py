"""The user's own dataset as a workload: `minato bench --mine module:function`."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate

from ..cli.errors import UserError
from ..cli.naming import made_by, maker, told
from .workloads import Workload

MOST_SAMPLES = 2_000
"""An epoch of the benchmark is at most this long: the figures are per second."""
EPOCH_S = 2.0
"""Seconds that an epoch with workers should take at most: some twenty are read."""
LEAST_BATCHES = 3
"""Of an epoch, however dear samples are: with fewer there is nothing to overlap."""


class SampleFailedError(Exception):
    """A sample of the user's dataset raised; the text names it, its error, and where that was raised."""


def failure(error: Exception) -> str:
    """What stopped a measurement of the user's dataset, in one line. torch's loader puts a traceback into the text."""
    last = (str(error).strip().splitlines() or [""])[-1]
    if isinstance(error, SampleFailedError):
        return last.rpartition(f"{SampleFailedError.__name__}: ")[2]
    return f"the dataset could not be measured: {told(error)}"


class WithIndex(Dataset[tuple[Any, int]]):
    """Another dataset's samples, each with its index beside it, so that their delivery can be checked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        try:
            return self.inner[index], index
        except (Exception, SystemExit) as error:
            raise SampleFailedError(f"sample {index} of the dataset raised {told(error)}") from error

    def read(self, batch: Any) -> Tensor:
        """Indices of a batch of (samples, indices)."""
        return torch.clone(batch[1])


@dataclass(frozen=True)
class CollateWithIndex:
    """The user's `collate_fn` for the samples; the indices become a tensor."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[tuple[Any, int]]) -> tuple[Any, Tensor]:
        return self.collate([sample for sample, _ in samples]), torch.tensor([index for _, index in samples])


@dataclass(frozen=True)
class _FixedWorkers(Workload):
    count: int = 1

    def workers(self, cores: int) -> int:
        return self.count or cores


def own_workload(mine: str, batch_size: int, workers: int | None, collate: str | None, step_s: float) -> Workload:
    """A workload over what the function `mine` ("module:function") returns."""
    if batch_size < 1 or (workers is not None and workers < 1) or step_s < 0:
        raise UserError("--batch-size and --workers must be at least 1, --step at least 0")
    dataset = _checked(made_by(mine, "--mine"), mine)
    arguments = {} if collate is None else {"collate_fn": CollateWithIndex(maker(collate, "--collate"))}
    cost_s = _try(dataset, batch_size, arguments)
    length = samples_of_epoch(len(dataset), batch_size, cost_s, workers or len(os.sched_getaffinity(0)))
    return _FixedWorkers(
        name="mine",
        title=f"{mine}, {length} of {len(dataset)} samples",
        make=lambda count: WithIndex(Subset(dataset, range(min(count, length)))),
        length=length,
        batch_size=batch_size,
        fixed_step_s=step_s,
        arguments=arguments,
        count=workers or 0,
    )


def samples_of_epoch(total: int, batch_size: int, cost_s: float, workers: int) -> int:
    """How many of `total` samples an epoch of the benchmark has: what the workers can make in EPOCH_S."""
    in_time = int(EPOCH_S * workers / max(cost_s, 1e-9))
    return min(total, MOST_SAMPLES, max(in_time, LEAST_BATCHES * batch_size))


def _try(dataset: Any, batch_size: int, arguments: dict[str, Any]) -> float:
    """Make one batch here, so that a dataset that cannot be collated is told before anything is measured. Returns what
    a sample took, in seconds."""
    indexed = WithIndex(dataset)
    try:
        samples = [indexed[0]]  # apart: what is imported or opened at the first access
        began = time.perf_counter()
        samples += [indexed[index] for index in range(1, min(batch_size, len(dataset)))]
        cost_s = (time.perf_counter() - began) / max(1, len(samples) - 1)
    except SampleFailedError as error:
        raise UserError(f"--mine: {error}") from error
    try:
        batch = arguments.get("collate_fn", default_collate)(samples)
    except Exception as error:
        remedy = "" if arguments else "; give your collate_fn by --collate MODULE:FUNCTION"
        raise UserError(f"--mine: a batch could not be collated: {told(error)}{remedy}") from error
    try:
        pickle.dumps(batch)
    except Exception as error:  # torch's loader would wait for ever for such a batch
        raise UserError(f"--mine: a batch cannot be sent from a worker: {told(error)}") from error
    return cost_s


def _checked(dataset: Any, mine: str) -> Any:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise UserError(f"--mine needs a map-style dataset (__getitem__ and __len__); {mine} returned: {kind}")
    if len(dataset) == 0:
        raise UserError(f"the dataset that {mine} returned is empty")
    return dataset
