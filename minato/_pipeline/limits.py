"""Datasets for limits: what a loop could reach if samples cost nothing, or nothing but their loading."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import Dataset

from .judging import streams_kept
from .looking import stages_of


class FakeDataset(Dataset[Any]):
    """The same sample for every index, made beforehand."""

    def __init__(self, sample: Any, length: int) -> None:
        self._sample = sample
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._sample


class SourceDataset(Dataset[int]):
    """Loads samples and leaves it at that: every sample is its first stage's, and becomes 0."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._begin: Any = None

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> int:
        begin = self._begin = self._begin or stages_of(self._dataset)
        if begin is None:
            self._dataset[index]
        else:
            run = begin(index)
            run.advance()
            run.close()
        return 0

    def __getstate__(self) -> Any:
        return self._dataset

    def __setstate__(self, state: Any) -> None:
        self._dataset, self._begin = state, None


def make_fake(loader: Any) -> FakeDataset:
    """A dataset of the sample that a loader would begin with, or one like it. Draws nothing from the process's random
    streams, nor from the loader's generator."""
    with streams_kept():
        batched = loader.batch_sampler is not None
        first = next(iter(copy.deepcopy(loader.batch_sampler if batched else loader.sampler)), None)
        index = next(iter(first), None) if batched and first is not None else first
        if index is None:
            raise ValueError("a sample is needed, and the sampler gives none")
        return FakeDataset(loader.dataset[index], len(loader.dataset))
