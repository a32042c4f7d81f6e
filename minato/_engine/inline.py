"""num_workers=0: samples are fetched in this process, by the caller, one batch per `next`.

Random numbers are those that workers would give the same samples, and the process's own random streams are left alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._fetchers.sequential import ask_together, has_getitems
from .._fetchers.stream import Stream
from .._plan import Collate, WorkerPlan
from .._queues.keys import Indices
from .._records import keys_of
from .._sample_random import SampleSource, announce
from .._workers import plain
from .._workers.generators import Generator, mix
from .._workers.randomness import COLLATE_SALT, QUIET_COLLATIONS, Randomness, Reseed, sample_seed
from .._workers.stream_account import packed_state, skip_batches
from .courses import Course, begin_course
from .progress import Handover, MapProgress, StreamPlace, StreamProgress
from .remainder import Portion
from .totals import Totals


@dataclass(frozen=True, slots=True)
class Habits:
    """Generators that code was seen to leave alone, kept from one epoch of a loader to the next."""

    samples: set[Generator] = field(default_factory=set)
    collation: set[Generator] = field(default_factory=set)


class InlineMap:
    """Batches of a map-style dataset."""

    def __init__(
        self,
        dataset: Any,
        plan: WorkerPlan,
        sampler: Iterable[Any] | Course,
        base_seed: int,
        totals: Totals,
        epoch: int = 0,
        habits: Habits | None = None,
    ) -> None:
        """`habits`: what earlier epochs have shown of the dataset's and the collate_fn's random numbers."""
        self.dataset = dataset
        self._function = plan.collate_fn
        self._course = sampler if isinstance(sampler, Course) else begin_course(sampler)
        self._sampler = self._course.batches
        self._by_sample = plan.short_batch_last
        self._batches = 0
        self.handover = Handover()
        """Of batches: number and positions among those this run gives out."""
        self._seed = mix(base_seed, epoch)
        self._single = plan.collate is Collate.NONE
        self._together = not self._single and has_getitems(dataset)
        self._own_function = plan.collate is not Collate.ROWS
        habits = Habits() if habits is None else habits
        self._samples = Randomness(known_quiet=habits.samples)
        self._collation = Randomness(known_quiet=habits.collation, trial=QUIET_COLLATIONS)
        self._position = 0
        self._totals = totals
        self._left: Iterator[Any] = iter(())
        """Keys of the batch being fetched that are still to come."""

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises."""
        keys = next(self._sampler)
        origins: Sequence[int] | None = None
        if type(keys) is Portion:
            origins, keys = keys.origins, keys.keys
        elif self._single:
            keys = [keys]
        keys = keys.tolist() if isinstance(keys, Indices) else keys_of(keys, self._together)
        first = self._position
        self.handover.add((self._batches, range(first, first + len(keys))))
        self._position += len(keys)
        self._batches += 1  # from here on it is on its way to the user, as a batch or as an error
        origins = range(first, self._position) if origins is None else origins
        samples = self._fetch(keys, origins)
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += len(keys)
        if not self._own_function:
            return self._function(samples)
        return self._collate(samples[0] if self._single else samples, origins[0] if origins else first)

    def progress(self) -> MapProgress:
        """What was delivered."""
        on_the_way = self.handover.batches
        issued = self._position if self._by_sample else self._batches
        waiting = [n for number, units in on_the_way for n in (units if self._by_sample else (number,))]
        return MapProgress(self._course.origin, self._course.before.after(issued, np.array(waiting, np.int64)))

    def _fetch(self, keys: Sequence[Any], origins: Sequence[int]) -> Any:
        """The samples, or what `__getitems__` gave in place of a list of them."""
        source = SampleSource(
            lambda number: sample_seed(self._seed, origins[number], keys[number]), lambda: self._number(len(keys))
        )
        try:
            return self._fetch_under(source, keys)
        finally:
            announce(None)  # a source would keep this object alive

    def _fetch_under(self, source: SampleSource, keys: Sequence[Any]) -> Any:
        randomness = self._samples
        announce(source)
        if not randomness.seeds:  # nothing draws, as far as we know: fetch, and look whether that is still true
            before = randomness.glances()
            samples = self._fetch_plain(keys)
            if not randomness.were_used(before):
                return samples

        def fetch(reseed: Reseed | None) -> Any:
            announce(source)
            return self._fetch_plain(keys) if reseed is None else self._fetch_seeded(keys, reseed)

        with randomness.preserved():
            return randomness.fetch(fetch, source.seed_of)

    def _fetch_plain(self, keys: Sequence[Any]) -> Any:
        dataset = self.dataset
        if self._together:
            return ask_together(dataset, keys)
        self._left = left = iter(keys)
        return [dataset[key] for key in left]

    def _fetch_seeded(self, keys: Sequence[Any], reseed: Reseed) -> Any:
        if self._together:
            if keys:
                reseed(0)
            return self._fetch_plain(keys)
        samples = []
        self._left = left = iter(keys)
        for number, key in enumerate(left):
            reseed(number)
            samples.append(self._one(key))
        return samples

    def _number(self, count: int) -> int:
        """Which of `count` samples is being fetched; the first, if they are fetched together."""
        return 0 if self._together else count - 1 - operator.length_hint(self._left)

    def _one(self, key: Any) -> Any:
        return self.dataset[key]

    def _collate(self, value: Any, position: int) -> Any:
        source = SampleSource(lambda _: mix(self._seed, position, COLLATE_SALT), lambda: 0)
        try:
            return self._collate_under(source, value)
        finally:
            announce(None)

    def _collate_under(self, source: SampleSource, value: Any) -> Any:
        randomness = self._collation
        announce(source)
        if not randomness.seeds:
            before = randomness.glances()
            batch = self._function(value)
            if not randomness.were_used(before):
                return batch

        def collate(reseed: Reseed | None) -> list[Any]:
            announce(source)
            if reseed is not None:
                reseed(0)
            return [self._function(value)]

        with randomness.preserved():
            return randomness.fetch(collate, source.seed_of)[0]


class InlineStream:
    """Batches of an iterable dataset. Draws from the process's own random streams, as with torch."""

    def __init__(self, dataset: Any, plan: WorkerPlan, totals: Totals, before: StreamPlace | None = None) -> None:
        """`before`: how far the stream had come when its epoch was interrupted."""
        self._totals = totals
        self._single = plan.collate is Collate.NONE
        self._function = plan.collate_fn
        self._place = StreamPlace() if before is None else replace(before, packed=None)
        start = None if before is None else before.start()
        sources = plain.process_sources()
        if start is not None and start.generators is not None:
            plain.set_all(sources, dict(start.generators))
        else:
            self._place = replace(self._place, generators=plain.read_all(sources))
        self._stream = Stream(dataset, plan.batch_size, plan.drop_last, start, keeps=plan.skips)
        if start is not None:
            skip_batches(self._stream, start.skip, self._collate)
        self._place = replace(self._place, packed=self._packed_state())
        self.handover = Handover()
        """Of batches: 0, and the stream's place before."""

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises."""
        self.handover.forget_lost()
        self.handover.add((0, self._place))
        try:
            samples = self._next_samples()
        finally:
            if self._stream.ended:
                self._place = replace(self._place, ended=True)
        if not samples:
            self.handover.take_back()
            raise StopIteration
        self._totals.batches_delivered += 1
        self._totals.samples_delivered += len(samples)
        return self._collate(samples)

    def see(self, view: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        """Take samples from a view of the dataset's iterator from now on."""
        self._stream.see(view)

    def _next_samples(self) -> list[Any]:
        try:
            samples = self._stream.next_batch()
        except Exception:
            self._advance()  # a turn, as with workers: a resumed stream takes it again
            raise
        if samples:
            self._advance()
        return samples

    def _advance(self) -> None:
        self._place = self._place.advanced(self._packed_state())

    def _packed_state(self) -> bytes | None:
        return packed_state(self._stream) if self._stream.is_stateful else None

    def _collate(self, samples: list[Any]) -> Any:
        return self._function(samples[0] if self._single else samples)

    def progress(self) -> StreamProgress:
        """How far the stream has come."""
        on_the_way = self.handover.batches
        return StreamProgress(0, 0, (on_the_way[0][1] if on_the_way else self._place,))
