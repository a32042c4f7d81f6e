"""Map-style datasets, one sample after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._errors import CapturedError

Capture = Callable[[Exception, object], CapturedError]
"""Makes an exception and the key it is about into what takes the sample's place."""


def has_getitems(dataset: Any) -> bool:
    """Whether the dataset fetches several samples at once. torch asks the same way."""
    return bool(getattr(dataset, "__getitems__", None))


def fetch_each(
    dataset: Any, keys: Sequence[Any], reseed: Callable[[int], None] | None, capture: Capture, first: int = 0
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
            samples.append(capture(error, key))
    return samples


def fetch_together(dataset: Any, keys: Sequence[Any], capture: Capture, one_by_one: bool = False) -> list[Any]:
    """One `__getitems__` call, which may return more or fewer samples than it was asked for. An exception takes the
    place of all samples; with `one_by_one` each is then asked for alone, to see which of them fail."""
    try:
        return list(dataset.__getitems__(list(keys)))
    except Exception as error:
        if not one_by_one or len(keys) == 1:
            return [capture(error, list(keys))] * len(keys)
    return [_fetch_alone(dataset, key, capture) for key in keys]


def _fetch_alone(dataset: Any, key: Any, capture: Capture) -> Any:
    try:
        (sample,) = dataset.__getitems__([key])
    except Exception as error:
        return capture(error, key)
    return sample
