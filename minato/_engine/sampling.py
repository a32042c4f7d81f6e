"""The sampler's batches; torch's own random and sequential samplers without a Python step per sample.

torch's `RandomSampler` makes a list of all its indices and hands them on one by one through two generators: 50 µs for a
batch of 256, a third of what the main process does for a batch. Where exactly those classes are used, and the
permutation comes from no generator of the user's, the same indices are cut out of one array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from .._queues.keys import Indices


@dataclass(slots=True)
class DrawnSeed:
    """The seed of a permutation; None until it is drawn."""

    value: int | None = None


def is_cut(sampler: Iterable[Any]) -> bool:
    """Whether the batches of a sampler are cut out of one array."""
    if type(sampler) is not BatchSampler or type(sampler.batch_size) is not int:
        return False
    inner = sampler.sampler
    return type(inner) is SequentialSampler or (type(inner) is RandomSampler and _is_plain(inner))


def batches_of(sampler: Iterable[Any], seed: DrawnSeed | None = None) -> Iterator[Any]:
    """`iter(sampler)`, or an iterator over the same batches as arrays. Like torch's, it draws nothing until it is asked
    for its first batch. `seed`: of a permutation, or where to note it."""
    if not is_cut(sampler):
        return iter(sampler)
    assert isinstance(sampler, BatchSampler)
    inner = sampler.sampler
    if isinstance(inner, SequentialSampler):
        return _cut(sampler, _all_in_sequence(inner))
    assert isinstance(inner, RandomSampler)
    return _cut(sampler, _permutation(inner, DrawnSeed() if seed is None else seed))


def _is_plain(sampler: RandomSampler) -> bool:
    """Every index once. A given generator is drawn from once more at the end of an epoch: that is left to torch."""
    return not sampler.replacement and sampler.generator is None and sampler._num_samples is None


def _all_in_sequence(sampler: SequentialSampler) -> Iterator[npt.NDArray[np.int64]]:
    yield np.arange(len(sampler.data_source))


def _permutation(sampler: RandomSampler, seed: DrawnSeed) -> Iterator[npt.NDArray[np.int64]]:
    generator = torch.Generator()
    if seed.value is None:
        seed.value = int(torch.empty((), dtype=torch.int64).random_().item())
    generator.manual_seed(seed.value)
    yield torch.randperm(len(sampler.data_source), generator=generator).numpy()


def _cut(batch_sampler: BatchSampler, order: Iterator[npt.NDArray[np.int64]]) -> Iterator[Indices]:
    indices, size = next(order), batch_sampler.batch_size
    end = len(indices) // size * size if batch_sampler.drop_last else len(indices)
    for first in range(0, end, size):
        yield indices[first : first + size].view(Indices)
