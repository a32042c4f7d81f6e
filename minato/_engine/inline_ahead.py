"""num_workers=0 with a concurrent fetcher: threads or an event loop of this process fetch ahead of the consumer.

Batches, their order and their errors are those of inline.py; what differs is who fetches, and when. Of the sampler's
next samples a bounded number is under way or waits to be asked for:

    sampler ─► LookAhead: keys in order ─► threads, or coroutines ─► outcomes by position ─► InlineMap._fetch

The sampler is thus asked ahead; a state counts what was delivered, as with workers.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .._errors import DatasetStopIteration, LoaderClosed
from .._fetchers.asynchronous import async_getter
from .._fetchers.loop_thread import FetchLoop
from .._fetchers.sequential import ask_together
from .._fetchers.threaded import FetchThreads, Outcome
from .._plan import Collate, Fetcher, LoaderPlan, WorkerPlan
from .._queues.keys import Indices
from .._recording import Recorder
from .._records import keys_of
from .._sample_random import SampleSource, announce
from .._workers.lanes import copies_of
from .._workers.randomness import Reseed, sample_seed
from .._workers.thread_randomness import SeedingGuard, Turnstile
from .inline import InlineMap
from .inline_mending import Failed, MendingMap
from .inline_tracing import FetchNote, FetchWatch
from .remainder import Portion

_BATCHES_AHEAD = 2  # beside what is being fetched; torch's prefetch for one worker

Begin = Callable[[Any, int, bool, "AbstractContextManager[None]"], "Future[Outcome]"]
"""Begin to fetch a key (or, if so, a list of keys together) under a seed, inside a context."""
Wait = Callable[["Future[Outcome]"], Outcome]
Judge = Callable[[Outcome, Any], Any]
"""Makes an outcome and its key into a sample, or raises."""


class LookAhead:
    """The sampler's batches, with their samples already being fetched."""

    def __init__(
        self, sampler: Iterator[Any], plan: WorkerPlan, together: bool, seed: int, begin: Begin, wait: Wait
    ) -> None:
        self._sampler = sampler
        self._single = plan.collate is Collate.NONE
        self._together = together
        # Where samples that fail are replaced, a batch that is fetched together is not the one the sampler gave.
        self._on_demand = together and plan.mends
        self._seed = seed
        self._begin = begin
        self._wait = wait
        self._lanes = plan.lanes
        self._pool = plan.batch_pool
        self._rows = 1
        self._position = 0
        self._batches: deque[Any] = deque()
        """Taken from the sampler and not asked for: keys as the sampler gave them, or what it raised."""
        self._waiting: deque[tuple[int, Any]] = deque()
        """(position, key) of samples that are not being fetched yet."""
        self._under_way: dict[int, Future[Outcome]] = {}
        """By position. With `together`, by that of the first sample of a batch."""
        self._ended = False
        self.watch: FetchWatch | None = None
        """Who wants to know when samples are fetched."""
        self._notes: dict[int, FetchNote] = {}
        """Of what is under way, as `_under_way`."""
        self.fetched: list[FetchNote] = []
        """Of what was collected."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._batches and not self._ended:
            self._pull()
        self._go_ahead()
        if not self._batches:
            raise StopIteration
        taken = self._batches.popleft()
        if isinstance(taken, _Raised):
            raise taken.error
        return taken

    def collect(self, keys: Sequence[Any], origins: Sequence[int], judge: Judge) -> list[Any]:
        """What `judge` makes of each outcome of the samples at some positions, in order. Samples that are not under way
        are begun now. If it raises, nobody waits for the rest of them any more."""
        try:
            return [judge(self._outcome(key, origin), key) for key, origin in zip(keys, origins, strict=True)]
        except BaseException:
            self._drop(origins)
            raise

    def collect_together(self, keys: Sequence[Any], origins: Sequence[int]) -> Outcome:
        """The outcome of samples that are fetched together."""
        try:
            return self._outcome(keys, origins[0]) if len(keys) else Outcome([])
        except BaseException:
            self._drop(origins)
            raise

    def _drop(self, origins: Sequence[int]) -> None:
        left = set(origins)
        for origin in origins:
            self._under_way.pop(origin, None)
            self._notes.pop(origin, None)
        while self._waiting and self._waiting[0][0] in left:
            self._waiting.popleft()

    def _outcome(self, key: Any, origin: int) -> Outcome:
        if self._waiting and self._waiting[0][0] == origin:
            self._waiting.popleft()
        future = self._under_way.get(origin) or self._start(key, origin)
        self._go_ahead()
        outcome = self._wait(future)
        self._under_way.pop(origin, None)
        if origin in self._notes:
            self.fetched.append(self._notes.pop(origin))
        self._go_ahead()
        return outcome

    def _go_ahead(self) -> None:
        """Begin as many samples as there is room for."""
        while len(self._under_way) < self._limit and not self._on_demand:
            if not self._waiting:
                if self._ended:
                    return
                self._pull()
                continue
            origin, key = self._waiting.popleft()
            self._under_way[origin] = self._start(key, origin)

    @property
    def _limit(self) -> int:
        """Samples, or batches if they are fetched together, that are under way or done and not asked for."""
        items = self._pool or self._lanes + _BATCHES_AHEAD * self._rows
        return max(1, items // self._rows if self._together else items)

    def _start(self, key: Any, origin: int) -> Future[Outcome]:
        together = self._together and isinstance(key, list)
        seed = sample_seed(self._seed, origin, key[0] if together and key else key)
        if self.watch is None:
            return self._begin(key, seed, together, nullcontext())
        note = self._notes[origin] = self.watch.expect(key)
        return self._begin(key, seed, together, note)

    def _pull(self) -> None:
        try:
            given = next(self._sampler)
        except StopIteration:
            self._ended = True
            return
        except Exception as error:  # to be raised where the consumer would have met it
            self._batches.append(_Raised(error))
            self._ended = True
            return
        keys, origins = given, None
        if type(given) is Portion:
            origins, keys = given.origins, given.keys
        elif self._single:
            keys = [given]
        keys = keys.tolist() if isinstance(keys, Indices) else keys_of(keys, self._together)
        origins = range(self._position, self._position + len(keys)) if origins is None else origins
        self._position += len(keys)
        self._rows = max(1, len(keys))
        # The sampler's own object goes on, unless it can be read only once.
        again = given if self._single or type(given) is Portion or isinstance(given, Indices) else keys
        self._batches.append(again)
        if self._on_demand:
            return
        if self._together and keys:
            self._waiting.append((origins[0], keys))
        else:
            self._waiting.extend(zip(origins, keys, strict=True))


class _Raised:
    """In place of a batch: what the sampler raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Pool:
    """Who fetches, and what keeps their random numbers apart from the consumer's."""

    def __init__(self, dataset: Any, plan: WorkerPlan) -> None:
        self.turnstile = Turnstile(is_open=False)
        self.guard = SeedingGuard(self.turnstile)
        self._getter = async_getter(dataset) if plan.fetcher is Fetcher.ASYNCIO else None
        self._loop: FetchLoop | None = None
        self._threads: FetchThreads | None = None
        if self._getter is not None:
            self._loop = FetchLoop(plan.lanes)
        else:
            datasets = copies_of(dataset, plan.lanes) if plan.thread_copies else [dataset] * plan.lanes
            self._threads = FetchThreads(datasets)
        fetchers = self._loop or self._threads
        assert fetchers is not None
        self.close = weakref.finalize(self, _close, self.turnstile, fetchers.close)
        self.close.atexit = False

    def begin(self, key: Any, seed: int, together: bool, around: AbstractContextManager[None]) -> Future[Outcome]:
        """Begin to fetch a sample, inside a context of those that fetch."""
        if not self.close.alive:
            raise LoaderClosed("the loader was closed: make a new iterator with iter(loader), or a new loader")
        getter, guard = self._getter, self.guard

        def announced() -> None:
            announce(SampleSource(lambda _: seed, lambda: 0, guard))

        if self._loop is not None and getter is not None:

            async def fetch_awaited() -> Any:
                announced()
                with around:
                    return await getter(key)

            return self._loop.submit(fetch_awaited)

        def fetch(dataset: Any) -> Any:
            announced()
            with around:
                return ask_together(dataset, key) if together else dataset[key]

        assert self._threads is not None
        return self._threads.submit(fetch)

    def wait(self, outcome: Future[Outcome]) -> Outcome:
        """Wait for an outcome. Only meanwhile samples may use the global generators: what the consumer's own thread
        does, the sampler included, must find its own numbers there."""
        if outcome.done():
            return outcome.result()
        with self.turnstile.opened():
            return outcome.result()


def _close(turnstile: Turnstile, close: Callable[[], object]) -> None:
    turnstile.end()
    close()


class ConcurrentMap(InlineMap):
    """What the two classes below add to InlineMap and MendingMap."""

    def look_ahead(self, plan: WorkerPlan) -> None:
        """Have samples fetched ahead. To be called once, before the first batch."""
        self._pool = _Pool(self.dataset, plan)
        self._lanes, self._are_threads = plan.lanes, plan.fetcher is not Fetcher.ASYNCIO
        self._together = self._together and plan.fetcher is not Fetcher.ASYNCIO
        self._ahead = LookAhead(self._sampler, plan, self._together, self._seed, self._pool.begin, self._pool.wait)
        self._sampler = self._ahead

    def see(self, recorder: Recorder) -> None:
        """Note when samples are fetched, for `take_fetched`. To be called before the first batch."""
        self._ahead.watch = FetchWatch(recorder, self._lanes, self._are_threads)

    def take_fetched(self) -> list[FetchNote]:
        """Of the samples that were collected since this was asked last."""
        fetched, self._ahead.fetched = self._ahead.fetched, []
        return fetched

    def end_with(self, iterator: object) -> None:
        """End the threads or the loop when an iterator is garbage. This object may live on: its state may be asked."""
        weakref.finalize(iterator, self._pool.close).atexit = False

    def close(self) -> None:
        """End the threads or the loop. Idempotent."""
        self._pool.close()

    def next_batch(self) -> Any:
        """The next batch; raises StopIteration at the end, or what the user's code raises."""
        try:
            return super().next_batch()
        except StopIteration:
            self._pool.close()
            raise

    def _collate_under(self, source: SampleSource, value: Any) -> Any:
        def collate(reseed: Reseed | None) -> list[Any]:
            assert reseed is not None
            announce(source)
            reseed(0)
            return [self._function(value)]

        return self._pool.guard.fetch_inside(collate, source.seed_of)[0]


class AheadMap(ConcurrentMap, InlineMap):
    """Batches of a map-style dataset."""

    def _fetch(self, keys: Sequence[Any], origins: Sequence[int]) -> list[Any]:
        if self._together:
            samples: list[Any] = _sample(self._ahead.collect_together(keys, origins), list(keys))
            return samples
        return self._ahead.collect(keys, origins, _sample)


class MendingAheadMap(ConcurrentMap, MendingMap):
    """The same, where samples that fail are fetched again, left out, or raised."""

    def _fetch(self, keys: Sequence[Any], origins: Sequence[int]) -> list[Any]:
        if not self._together:
            return self._ahead.collect(keys, origins, _or_failed)
        outcome = self._ahead.collect_together(keys, origins)
        if outcome.error is None:
            samples: list[Any] = outcome.sample
            return samples
        if len(keys) == 1:
            return [_or_failed(outcome, keys[0])]
        return [self._fetch([key], [origin])[0] for key, origin in zip(keys, origins, strict=True)]


def _or_failed(outcome: Outcome, key: Any) -> Any:
    """The sample, or Failed in its place; raises what is no Exception."""
    return Failed(outcome.error) if isinstance(outcome.error, Exception) else _sample(outcome, key)


def _sample(outcome: Outcome, key: Any) -> Any:
    """The sample, or what fetching it raised."""
    error = outcome.error
    if error is None:
        return outcome.sample
    if isinstance(error, StopIteration):
        raise DatasetStopIteration(f"StopIteration was raised fetching sample index {key!r}") from error
    error.add_note(f"raised in the main process, fetching sample index {key!r}")
    raise error


def make_ahead(plan: LoaderPlan, *args: Any) -> InlineMap:
    """Batches fetched ahead, as planned. `args`: as for InlineMap, but for the plan."""
    dataset, epoch, base_seed, totals, number = args
    batches: ConcurrentMap
    if plan.worker.mends:
        batches = MendingAheadMap(dataset, plan, epoch, base_seed, totals, number)
    else:
        batches = AheadMap(dataset, plan.worker, epoch, base_seed, totals, number)
    batches.look_ahead(plan.worker)
    return batches
