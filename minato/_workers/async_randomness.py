"""The global generators in an event loop: each sample's own, in every stretch of its code between two awaits.

A sample's coroutine is driven step by step. Before a step its generators are put in place, after it they are kept. As
with one sample at a time (randomness.py), a generator that no sample draws from is soon only watched, and a sample that
draws from it after all is fetched again. What a sample has done by tasks of its own is not driven here, and draws from
the process's streams.

Cheap samples come many at a time and mostly wait for nothing. While all generators are only watched, they are made in
one go, and looked after once for all of them, until one has to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Generator as Steps
from typing import Any, NamedTuple

from .._fetchers.sequential import Capture, Word
from .generators import Generator, all_generators
from .randomness import QUIET_SAMPLES


class Started(NamedTuple):
    """A sample's coroutine after its first step."""

    coroutine: Any
    waits_for: Any
    """What it has yielded, to be passed on to the event loop."""


class AsyncRandomness:
    """Which generators are seeded for every sample, and which are only watched. One for an event loop."""

    def __init__(self, generators: Sequence[Generator] | None = None) -> None:
        self.seeded: list[Generator] = list(all_generators() if generators is None else generators)
        self.watched: list[Generator] = []
        self.salts = {generator: salt for salt, generator in enumerate(self.seeded)}
        self._quiet: dict[Generator, int] = dict.fromkeys(self.seeded, 0)
        """Generators on trial: samples in a row that left them alone."""

    def fetch(self, begin: Callable[[], Any], seed: int, started: Started | None = None) -> Driven:
        """What to await for the result of the awaitable that `begin` returns, made under a seed. `started`: it was
        begun in `fetch_at_once`."""
        return Driven(self, begin, seed, started)

    def fetch_at_once(
        self, getter: Callable[[Any], Any], keys: Sequence[Any], capture: Capture, current: Word
    ) -> tuple[list[Any], Started | None]:
        """The samples of the first keys, as long as they come without waiting, and the one that waits, if one does.
        None at all if some generator is seeded for every sample, or has to be from now on. `current` and `capture` are
        as for `fetch_each`."""
        samples: list[Any] = []
        started: Started | None = None
        if self.seeded:
            return samples, started
        looks = [(generator, generator.glance()) for generator in self.watched]
        for number, key in enumerate(keys):
            current[0] = number
            try:
                coroutine = getter(key).__await__()
                started = Started(coroutine, next(coroutine))
                break
            except StopIteration as end:
                samples.append(end.value)
            except BaseException as error:
                samples.append(capture(error, key))
        drawn = [(generator, look) for generator, look in looks if generator.glance() != look]
        for generator, look in drawn:
            generator.rewind(look)
            self.drawn(generator)
        if not drawn:
            return samples, started
        if started is not None:
            started.coroutine.close()
        return [], None

    def drawn(self, generator: Generator) -> None:
        """A sample has drawn from a generator: it is seeded for good."""
        self._quiet.pop(generator, None)
        if generator in self.watched:
            self.watched.remove(generator)
            self.seeded.append(generator)

    def ended(self, drawn: set[Generator]) -> None:
        """A sample is done, and has drawn from these."""
        for generator in list(self._quiet):
            self._quiet[generator] += 1
            if generator not in drawn and self._quiet[generator] >= QUIET_SAMPLES:
                del self._quiet[generator]
                self.seeded.remove(generator)
                self.watched.append(generator)


class Driven:
    """An awaitable: a sample's coroutine, driven with its own generators in place."""

    def __init__(
        self, randomness: AsyncRandomness, begin: Callable[[], Any], seed: int, started: Started | None
    ) -> None:
        self._randomness = randomness
        self._begin = begin
        self._seed = seed
        self._started = started
        self._states: dict[Generator, Any] = {}
        """Of generators that the sample has drawn from."""
        self._is_spoilt = False
        """Whether it drew from a generator that was not the sample's."""

    def __await__(self) -> Steps[Any, Any, Any]:
        while True:
            self._states, self._is_spoilt = {}, False
            result = yield from self._drive()
            if not self._is_spoilt:
                self._randomness.ended(set(self._states))
                return result

    def _drive(self) -> Steps[Any, Any, Any]:
        started, self._started = self._started, None
        coroutine: Any = None if started is None else started.coroutine
        value: Any = None
        error: BaseException | None = None
        while True:
            if started is not None:
                waits_for, started = started.waits_for, None
            else:
                looks = self._install()
                try:
                    if coroutine is None:
                        coroutine = self._begin().__await__()
                    if error is not None:
                        waits_for = coroutine.throw(error)
                    else:
                        waits_for = next(coroutine) if value is None else coroutine.send(value)
                except StopIteration as end:
                    return end.value
                finally:
                    error = None  # no cycle with this frame
                    self._keep(looks)
                if self._is_spoilt:
                    coroutine.close()
                    return None
            try:
                value = yield waits_for
            except BaseException as thrown:
                error = thrown

    def _install(self) -> list[tuple[Generator, object]]:
        """Put the sample's generators in place. Returns what all generators look like now."""
        randomness = self._randomness
        for generator in randomness.seeded:
            if generator in self._states:
                generator.restore(self._states[generator])
            else:
                generator.seed(self._seed ^ randomness.salts[generator])
        return [(generator, generator.glance()) for generator in (*randomness.seeded, *randomness.watched)]

    def _keep(self, looks: list[tuple[Generator, object]]) -> None:
        """Keep the states of generators that were drawn from."""
        for generator, look in looks:
            if generator.glance() == look:
                continue
            if generator in self._randomness.watched:
                generator.rewind(look)
                self._is_spoilt = True
            else:
                self._states[generator] = generator.save()
            self._randomness.drawn(generator)
