"""`minato.StagedDataset`: a dataset whose stages are visible."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import Dataset


class StagedDataset(Dataset[Any]):
    """A map-style dataset made of a load function and transforms that are applied to its result, one after the other.

    An ordinary dataset for torch's loader and for minato's; minato also sees its stages, and can stop between them.

    Args:
        load: called with an index, gives the raw sample.
        transforms: each is called with what the one before gave.
        length: number of samples.
    """

    def __init__(self, load: Callable[[int], Any], transforms: Iterable[Callable[[Any], Any]], length: int) -> None:
        transforms = list(transforms)
        if not callable(load):
            raise TypeError(f"load must be callable with an index, got {load!r}")
        for number, transform in enumerate(transforms):
            if not callable(transform):
                raise TypeError(f"transforms must be callables, got {transform!r} as number {number}")
        try:
            length = operator.index(length)
        except TypeError:
            raise TypeError(f"length must be an integer, got {length!r}") from None
        if length < 0:
            raise ValueError(f"length must not be negative, got {length}")
        self.load = load
        self.transforms = transforms
        self.length = length

    def __len__(self) -> int:
        return self.length

    def index(self, index: int) -> int:
        """The index from the front; IndexError if there is no such sample."""
        found = operator.index(index)
        if found < 0:
            found += self.length
        if not 0 <= found < self.length:
            raise IndexError(f"index {index} is out of range: there are {self.length} samples")
        return found

    def __getitem__(self, index: int) -> Any:
        sample = self.load(self.index(index))
        for transform in self.transforms:
            sample = transform(sample)
        return sample
