"""How samples are made on an actor: one after the other, in threads, or awaited, as the loader's workers make them.

A single sample is always made alone, under its seed: that is what the agent compares with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from .._fetchers.asynchronous import async_getter
from .._fetchers.sequential import Capture, fetch_each, fetch_together
from .._fetchers.threaded import FetchThreads
from .._plan import Fetcher
from .._sample_random import SampleSource, announce
from .._workers.async_randomness import AsyncRandomness
from .._workers.lanes import copies_of
from .._workers.program import Program
from .._workers.randomness import Randomness, Reseed
from .._workers.thread_randomness import SeedingGuard
from ._wire import Job


@dataclass(frozen=True, slots=True)
class Cargo:
    """What is sent to other machines: the user's objects, and how samples are fetched from them."""

    program: Program
    fetcher: Fetcher = Fetcher.SEQUENTIAL
    lanes: int = 1
    """Samples that a worker fetches at once."""
    thread_copies: bool = False


class Maker(Protocol):
    """Makes the samples of a job; what could not be made is a CapturedError in its place."""

    def make(self, job: Job) -> list[Any]: ...

    def close(self) -> None: ...


def make_maker(cargo: Cargo, capture: Capture) -> Maker:
    """What makes samples as a loader's workers do."""
    dataset = cargo.program.dataset
    if cargo.fetcher is Fetcher.ASYNCIO:
        return Awaiting(dataset, cargo.lanes, capture)
    if cargo.fetcher is Fetcher.THREADED:
        datasets = copies_of(dataset, cargo.lanes) if cargo.thread_copies else [dataset] * cargo.lanes
        return InThreads(datasets, capture)
    return OneByOne(dataset, capture)


def make_probe_maker(cargo: Cargo, capture: Capture) -> Maker:
    """The same for single samples: no threads are needed for those."""
    return make_maker(cargo if cargo.fetcher is Fetcher.ASYNCIO else Cargo(cargo.program), capture)


class OneByOne:
    """One sample after the other, or all of them by one `__getitems__` call."""

    def __init__(self, dataset: Any, capture: Capture) -> None:
        self._dataset = dataset
        self._capture = capture
        self._randomness = Randomness()

    def make(self, job: Job) -> list[Any]:
        current = [-1]
        source = SampleSource(job.seeds.__getitem__, lambda: current[0])

        def fetch(reseed: Reseed | None) -> Any:
            announce(source)
            if not job.together:
                return fetch_each(self._dataset, job.keys, reseed, self._capture, current=current)
            if reseed is not None:
                reseed(0)
            return fetch_together(self._dataset, job.keys, self._capture, job.mends, current)

        try:
            return self._randomness.fetch(fetch, source.seed_of)
        finally:
            announce(None)

    def close(self) -> None:
        """Nothing is kept."""


class InThreads:
    """Several at once. As in a worker, they share the process's generators, but for `minato.seeded_sample` blocks."""

    def __init__(self, datasets: list[Any], capture: Capture) -> None:
        self._alone = OneByOne(datasets[0], capture)
        self._capture = capture
        self._threads = FetchThreads(datasets)
        self._guard = SeedingGuard()

    def make(self, job: Job) -> list[Any]:
        if job.together or len(job.keys) == 1:
            return self._alone.make(job)
        under_way = [self._threads.submit(self._work(key, seed)) for key, seed in zip(job.keys, job.seeds, strict=True)]
        outcomes = [future.result() for future in under_way]
        return [
            outcome.sample if outcome.error is None else self._capture(outcome.error, key)
            for outcome, key in zip(outcomes, job.keys, strict=True)
        ]

    def _work(self, key: Any, seed: int) -> Callable[[Any], Any]:
        def fetch(dataset: Any) -> Any:
            announce(SampleSource(lambda _: seed, lambda: 0, self._guard))
            return dataset[key]

        return fetch

    def close(self) -> None:
        self._threads.close()


class Awaiting:
    """Several at once, in one event loop that lives as long as the maker: clients are bound to theirs."""

    def __init__(self, dataset: Any, most: int, capture: Capture) -> None:
        self._dataset = dataset
        self._capture = capture
        self._loop = asyncio.new_event_loop()
        self._most = most
        self._randomness = AsyncRandomness()

    def make(self, job: Job) -> list[Any]:
        return self._loop.run_until_complete(self._make(job))

    async def _make(self, job: Job) -> list[Any]:
        room = asyncio.Semaphore(self._most)

        async def one(key: Any, seed: int) -> Any:
            async with room:
                try:
                    return await self._randomness.fetch(lambda: self._begin(key, seed), seed)
                except BaseException as error:  # of which CancelledError is one
                    return self._capture(error, key)

        return await asyncio.gather(*(one(key, seed) for key, seed in zip(job.keys, job.seeds, strict=True)))

    def _begin(self, key: Any, seed: int) -> Coroutine[Any, Any, Any]:
        announce(SampleSource(lambda _: seed, lambda: 0))
        getter: Any = async_getter(self._dataset)  # each time: attributes may have changed
        return getter(key)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
