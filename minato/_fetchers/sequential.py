"""Map-style datasets, one sample after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._errors import CapturedError

Describe = Callable[[object], str]


def has_getitems(dataset: Any) -> bool:
    """Whether the dataset fetches several samples at once. torch asks the same way."""
    return bool(getattr(dataset, "__getitems__", None))


def fetch_each(
    dataset: Any, keys: Sequence[Any], reseed: Callable[[int], None] | None, where: Describe, first: int = 0
) -> list[Any]:
    """`dataset[key]` for each key. An exception takes its sample's place as a CapturedError.

    `reseed`, if given, is called with the number of each sample, counted from `first` on, before it is fetched.
    """
    samples: list[Any] = []
    for number, key in enumerate(keys, first):
        if reseed is not None:
            reseed(number)
        try:
            samples.append(dataset[key])
        except Exception as error:
            samples.append(CapturedError.capture(error, where(key)))
    return samples


def fetch_together(dataset: Any, keys: Sequence[Any], where: Describe) -> list[Any]:
    """One `__getitems__` call, which may return more or fewer samples than it was asked for. An exception takes the
    place of all samples."""
    try:
        return list(dataset.__getitems__(list(keys)))
    except Exception as error:
        return [CapturedError.capture(error, where(list(keys)))] * len(keys)
