"""The global generators in a process that fetches in threads: left alone, but for blocks that have them to themselves.

What samples draw outside of such blocks comes from the process's own streams, in the order in which threads happen to
draw. In a block (`minato.seeded_sample`, and every call of a collate function) the generators are the sample's own, as
where one sample is fetched at a time; afterwards they are what they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._errors import LoaderClosed
from .._sample_random import SampleSource
from .generators import Generator, all_generators
from .randomness import Fetch


class Turnstile:
    """Lets in one thread at a time, and none at all while it is shut."""

    def __init__(self, is_open: bool = True) -> None:
        self._changed = threading.Condition()
        self._open = is_open
        self._ended = False
        self._inside: int | None = None
        """The thread that is in."""

    @contextmanager
    def passed(self) -> Iterator[bool]:
        """Be the one that is in. False: this thread is in already. Raises LoaderClosed after the end."""
        me = threading.get_ident()
        if self._inside == me:
            yield False
            return
        with self._changed:
            while (not self._open or self._inside is not None) and not self._ended:
                self._changed.wait()
            if self._ended:
                raise LoaderClosed("the loader was closed while a sample was being fetched")
            self._inside = me
        try:
            yield True
        finally:
            with self._changed:
                self._inside = None
                self._changed.notify_all()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open for the time of a block; at its end nobody is in."""
        with self._changed:
            self._open = True
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._open = False
                while self._inside is not None:
                    self._changed.wait()

    def end(self) -> None:
        """Let nobody in any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class SeedingGuard:
    """What `seeded_sample` does where samples are fetched in threads. One for a process's threads."""

    def __init__(self, turnstile: Turnstile | None = None, generators: Sequence[Generator] | None = None) -> None:
        self._turnstile = Turnstile() if turnstile is None else turnstile
        self._generators = all_generators() if generators is None else generators

    @contextmanager
    def __call__(self, source: SampleSource) -> Iterator[None]:
        with self._turnstile.passed() as first:
            if not first:
                yield
                return
            own = self._save()
            try:
                seed = source.rng().seed
                if source.states is None:
                    self._seed(seed)
                else:
                    self._restore(source.states)
                yield
                source.states = self._save()
            finally:
                self._restore(own)

    def fetch(self, fetch: Fetch, seeds: Callable[[int], int]) -> list[Any]:
        """As `Randomness.fetch`, for collation: always under its seed, with the generators to itself."""
        with self._turnstile.passed():
            return self.fetch_inside(fetch, seeds)

    def fetch_inside(self, fetch: Fetch, seeds: Callable[[int], int]) -> list[Any]:
        """The same for whoever knows that nobody else is in a block: the consumer, who shut the turnstile."""
        own = self._save()
        try:
            return fetch(lambda number: self._seed(seeds(number)))
        finally:
            self._restore(own)

    def _seed(self, seed: int) -> None:
        for salt, generator in enumerate(self._generators):
            generator.seed(seed ^ salt)

    def _save(self) -> list[Any]:
        return [generator.save() for generator in self._generators]

    def _restore(self, states: Sequence[Any]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.restore(state)


class Unmanaged:
    """As `Randomness`, and leaves the generators alone."""

    def fetch(self, fetch: Fetch, _seeds: Callable[[int], int]) -> list[Any]:
        """Call `fetch`."""
        return fetch(None)
