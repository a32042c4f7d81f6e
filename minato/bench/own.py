"""The user's own dataset as a workload: `minato bench --mine module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from ..cli.errors import UserError
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


def own_workload(maker: str, batch_size: int, workers: int | None, collate: str | None, step_s: float) -> Workload:
    """A workload over what the function `maker` ("module:function") returns."""
    if batch_size < 1 or (workers is not None and workers < 1) or step_s < 0:
        raise UserError("--batch-size and --workers must be at least 1, --step at least 0")
    dataset = _checked(load(maker, "--mine")(), maker)
    arguments = {} if collate is None else {"collate_fn": CollateWithIndex(load(collate, "--collate"))}
    length = min(len(dataset), MOST_SAMPLES)
    return _FixedWorkers(
        name="mine",
        title=f"{maker}, {length} of {len(dataset)} samples",
        make=lambda count: WithIndex(Subset(dataset, range(min(count, length)))),
        length=length,
        batch_size=batch_size,
        fixed_step_s=step_s,
        arguments=arguments,
        count=workers or 0,
    )


def _checked(dataset: Any, maker: str) -> Any:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise UserError(f"--mine needs a map-style dataset (__getitem__ and __len__); {maker} returned a {kind}")
    if len(dataset) == 0:
        raise UserError(f"the dataset that {maker} returned is empty")
    return dataset


def load(spec: str, option: str) -> Callable[..., Any]:
    """The function named `module:function`, looked for from the current directory too."""
    module, colon, name = spec.partition(":")
    if not colon or not module or not name:
        raise UserError(f"{option} needs MODULE:FUNCTION; found {spec!r}")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{option}: module {error.name!r} was not found from here") from None
    except AttributeError:
        raise UserError(f"{option}: module {module!r} has no {name!r}") from None
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise UserError(f"{option}: {spec} is not a function")
    made: Callable[..., Any] = found
    return made
