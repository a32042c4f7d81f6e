"""Map-style datasets, one sample after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .._errors import CapturedError
from .._records import Asked

Capture = Callable[[BaseException, object], CapturedError]
"""Makes an exception and the key it is about into what takes the sample's place."""


def has_getitems(dataset: Any) -> bool:
    """Whether the dataset fetches several samples at once. torch asks the same way."""
    return bool(getattr(dataset, "__getitems__", None))


class Word(Protocol):
    """A number that others may look at: the only item of a sequence."""

    def __setitem__(self, place: int, number: int, /) -> None: ...


NOBODY_LOOKS: Word = [0]


def fetch_each(
    dataset: Any,
    keys: Sequence[Any],
    reseed: Callable[[int], None] | None,
    capture: Capture,
    first: int = 0,
    current: Word = NOBODY_LOOKS,
    caught: type[BaseException] = Exception,
) -> list[Any]:
    """`dataset[key]` for each key. An exception, if `caught`, takes its sample's place as a CapturedError.

    `reseed`, if given, is called with the number of each sample, counted from `first` on, before it is fetched.
    `current[0]` is that number while it is fetched, and -1 afterwards.
    """
    samples: list[Any] = []
    for number, key in enumerate(keys, first):
        current[0] = number
        if reseed is not None:
            reseed(number)
        try:
            samples.append(dataset[key])
        except caught as error:
            samples.append(capture(error, key))
    current[0] = -1
    return samples


def fetch_onto(
    put: Callable[[int, Any], object],
    dataset: Any,
    keys: Sequence[Any],
    reseed: Callable[[int], None] | None,
    capture: Capture,
    first: int = 0,
    current: Word = NOBODY_LOOKS,
    caught: type[BaseException] = Exception,
) -> None:
    """As `fetch_each`, but each sample is `put`, with its number, before the next is fetched: a large one is still in
    the processor's cache then, and the next takes its memory."""
    for number, key in enumerate(keys, first):
        current[0] = number
        if reseed is not None:
            reseed(number)
        try:
            sample = dataset[key]
        except caught as error:
            sample = capture(error, key)
        current[0] = -1
        put(number, sample)
        del sample


def ask_together(dataset: Any, keys: Sequence[Any]) -> Any:
    """One `__getitems__` call, with the sampler's own object where that is known, as torch does it."""
    return dataset.__getitems__(keys.given if type(keys) is Asked else list(keys))


def fetch_together(
    dataset: Any,
    keys: Sequence[Any],
    capture: Capture,
    one_by_one: bool = False,
    current: Word = NOBODY_LOOKS,
    caught: type[BaseException] = Exception,
) -> Any:
    """One `__getitems__` call, and what it returns: a list of as many samples as it was asked for, or anything else
    that the collate function takes. An exception takes the place of all samples; with `one_by_one` each is then asked
    for alone, to see which of them fail. `current` as for `fetch_each`, as far as a sample is asked for alone."""
    current[0] = 0 if len(keys) == 1 else -1
    try:
        return ask_together(dataset, keys)
    except caught as error:
        if not one_by_one or len(keys) == 1:
            return [capture(error, list(keys))] * len(keys)
    finally:
        current[0] = -1
    return fetch_each(_OneByOne(dataset), keys, None, capture, current=current, caught=caught)


class _OneByOne:
    """A dataset that is asked for several samples at once, one at a time."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        (sample,) = self._dataset.__getitems__([key])
        return sample
