"""num_workers=0: samples are fetched in this process, by the caller, one batch per `next`.

Random numbers are those that workers would give the same samples, and the process's own random streams are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .._fetchers.sequential import has_getitems
from .._fetchers.stream import Stream
from .._plan import Collate, WorkerPlan
from .._queues.keys import Indices
from .._workers.generators import mix
from .._workers.randomness import COLLATE_SALT, Randomness, Reseed, sample_seed
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
        keys = keys.tolist() if isinstance(keys, Indices) else keys
        samples = self._fetch([keys] if self._single else keys)
        position, self._position = self._position, self._position + len(samples)
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += len(samples)
        if not self._own_function:
            return self._function(samples)
        return self._collate(samples[0] if self._single else samples, position)

    def _fetch(self, keys: Sequence[Any]) -> list[Any]:
        randomness = self._samples
        if not randomness.seeds:  # nothing draws, as far as we know: fetch, and look whether that is still true
            before = randomness.glances()
            samples = self._fetch_plain(keys)
            if not randomness.were_used(before):
                return samples
        position = self._position
        with randomness.preserved():
            return randomness.fetch(
                lambda reseed: self._fetch_plain(keys) if reseed is None else self._fetch_seeded(keys, reseed),
                lambda number: sample_seed(self._seed, position + number, keys[number]),
            )

    def _fetch_plain(self, keys: Sequence[Any]) -> list[Any]:
        dataset = self._dataset
        if self._together:
            samples: list[Any] = dataset.__getitems__(keys)
            return samples
        return [dataset[key] for key in keys]

    def _fetch_seeded(self, keys: Sequence[Any], reseed: Reseed) -> list[Any]:
        if self._together:
            reseed(0)
            return self._fetch_plain(keys)
        samples = []
        for number, key in enumerate(keys):
            reseed(number)
            samples.append(self._dataset[key])
        return samples

    def _collate(self, value: Any, position: int) -> Any:
        randomness = self._collation
        if not randomness.seeds:
            before = randomness.glances()
            batch = self._function(value)
            if not randomness.were_used(before):
                return batch

        def collate(reseed: Reseed | None) -> list[Any]:
            if reseed is not None:
                reseed(0)
            return [self._function(value)]

        with randomness.preserved():
            return randomness.fetch(collate, lambda _: mix(self._seed, position, COLLATE_SALT))[0]


class InlineStream:
    """Batches of an iterable dataset. Draws from the process's own random streams, as with torch."""

    def __init__(self, dataset: Any, plan: WorkerPlan, totals: Totals) -> None:
        self._totals = totals
        self._stream = Stream(dataset, plan.batch_size, plan.drop_last, keeps=plan.skips)
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
