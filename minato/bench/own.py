"""The user's own dataset as a workload: `minato bench --mine module:function`."""

from __future__ import annotations

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


class WithIndex(Dataset[tuple[Any, int]]):
    """Another dataset's samples, each with its index beside it, so that their delivery can be checked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.inner[index], index

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
    _try(dataset, batch_size, arguments)
    length = min(len(dataset), MOST_SAMPLES)
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


def _try(dataset: Any, batch_size: int, arguments: dict[str, Any]) -> None:
    """Make one batch here, so that a dataset that cannot be collated is told before anything is measured."""
    try:
        samples = [(dataset[index], index) for index in range(min(batch_size, len(dataset)))]
    except Exception as error:
        raise UserError(f"--mine: a sample of the dataset raised {told(error)}") from error
    try:
        arguments.get("collate_fn", default_collate)(samples)
    except Exception as error:
        remedy = "" if arguments else "; give your collate_fn by --collate MODULE:FUNCTION"
        raise UserError(f"--mine: a batch could not be collated: {told(error)}{remedy}") from error


def _checked(dataset: Any, mine: str) -> Any:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise UserError(f"--mine needs a map-style dataset (__getitem__ and __len__); {mine} returned a {kind}")
    if len(dataset) == 0:
        raise UserError(f"the dataset that {mine} returned is empty")
    return dataset
