"""Datasets that can be awaited: `async def __getitem_async__(self, index)`."""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Callable
from typing import Any

from torch.utils.data import ConcatDataset, Subset

AsyncGetter = Callable[[Any], Awaitable[Any]]


def async_getter(dataset: Any) -> AsyncGetter | None:
    """What to call with a key for an awaitable sample: the dataset's `__getitem_async__`, or that of the datasets under
    a `Subset` or `ConcatDataset` (as they are: a subclass may mean something else by an index). None: there is none."""
    own = getattr(dataset, "__getitem_async__", None)
    if callable(own):
        getter: AsyncGetter = own
        return getter
    if type(dataset) is Subset:
        return _through_subset(dataset)
    if type(dataset) is ConcatDataset:
        return _through_concat(dataset)
    return None


def lacking(dataset: Any) -> list[str]:
    """Names of the types that have no `__getitem_async__`, for a message."""
    if async_getter(dataset) is not None:
        return []
    if type(dataset) is Subset:
        return lacking(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return sorted({name for part in dataset.datasets for name in lacking(part)})
    return [type(dataset).__name__]


def _through_subset(subset: Subset[Any]) -> AsyncGetter | None:
    if async_getter(subset.dataset) is None:
        return None

    def get(key: Any) -> Awaitable[Any]:
        getter = async_getter(subset.dataset)  # looked up each time: attributes may be changed between epochs
        assert getter is not None
        return getter(subset.indices[key])

    return get


def _through_concat(concat: ConcatDataset[Any]) -> AsyncGetter | None:
    if any(async_getter(part) is None for part in concat.datasets):
        return None

    def get(key: Any) -> Awaitable[Any]:
        if key < 0:
            if -key > len(concat):
                raise ValueError("absolute value of index should not exceed dataset length")
            key = len(concat) + key
        part = bisect.bisect_right(concat.cumulative_sizes, key)
        first = 0 if part == 0 else concat.cumulative_sizes[part - 1]
        getter = async_getter(concat.datasets[part])
        assert getter is not None
        return getter(key - first)

    return get
