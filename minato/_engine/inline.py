"""num_workers=0: samples are fetched in this process, by the caller, one batch per `next`.

Random numbers are those that workers would give the same samples, and the process's own random streams are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._fetchers.sequential import has_getitems
from .._fetchers.stream import Stream
from .._plan import Collate, WorkerPlan
from .._workers.generators import mix
from .._workers.randomness import COLLATE_SALT, Fetch, Randomness, Reseed, sample_seed
from .totals import Totals


class InlineMap:
    """Batches of a map-style dataset."""

    def __init__(self, dataset: Any, plan: WorkerPlan, sampler: Iterable[Any], base_seed: int, totals: Totals) -> None:
        self._dataset = dataset
        self._function = plan.collate_fn
        self._sampler = iter(sampler)
        self._seed = mix(base_seed, 0)
        self._single = plan.collate is Collate.NONE
        self._together = not self._single and has_getitems(dataset)
        self._own_function = plan.collate is not Collate.ROWS
        self._samples = Randomness()
        self._collation = Randomness()
        self._position = 0
        self._totals = totals

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises."""
        keys = next(self._sampler)
        samples = self._run(self._samples, self._fetch([keys] if self._single else keys), self._seeds(keys))
        position, self._position = self._position, self._position + len(samples)
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += len(samples)
        if not self._own_function:
            return self._function(samples)
        value = samples[0] if self._single else samples
        return self._run(
            self._collation, self._collate(value), lambda _: mix(self._seed, position, COLLATE_SALT)
        )[0]

    def _run(self, randomness: Randomness, call: Fetch, seeds: Callable[[int], int]) -> list[Any]:
        if not randomness.seeds:
            return randomness.fetch(call, seeds)
        with randomness.preserved():
            return randomness.fetch(call, seeds)

    def _seeds(self, keys: Any) -> Callable[[int], int]:
        listed: Sequence[Any] = [keys] if self._single else keys
        position = self._position
        return lambda number: sample_seed(self._seed, position + number, listed[number])

    def _fetch(self, keys: Sequence[Any]) -> Callable[[Reseed | None], list[Any]]:
        dataset = self._dataset

        def fetch(reseed: Reseed | None) -> list[Any]:
            if self._together:
                if reseed is not None:
                    reseed(0)
                samples: list[Any] = dataset.__getitems__(keys)
                return samples
            if reseed is None:
                return [dataset[key] for key in keys]
            samples = []
            for number, key in enumerate(keys):
                reseed(number)
                samples.append(dataset[key])
            return samples

        return fetch

    def _collate(self, value: Any) -> Callable[[Reseed | None], list[Any]]:
        def collate(reseed: Reseed | None) -> list[Any]:
            if reseed is not None:
                reseed(0)
            return [self._function(value)]

        return collate


class InlineStream:
    """Batches of an iterable dataset. Draws from the process's own random streams, as with torch."""

    def __init__(self, dataset: Any, plan: WorkerPlan, totals: Totals) -> None:
        self._totals = totals
        self._stream = Stream(dataset, plan.batch_size, plan.drop_last)
        self._single = plan.collate is Collate.NONE
        self._function = plan.collate_fn

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises."""
        samples = self._stream.next_batch()
        if not samples:
            raise StopIteration
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += len(samples)
        return self._function(samples[0] if self._single else samples)
