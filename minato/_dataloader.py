"""`minato.DataLoader`: torch's signature, torch's attributes, minato's engine. Owns no thread and no process itself."""

from __future__ import annotations

import copy
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset

from . import _arguments, _planning
from ._engine.cores import whole_cores
from ._engine.engine import Engine
from ._engine.inline import Habits
from ._engine.inline_ahead import ConcurrentMap
from ._engine.interrupts import Uninterrupted
from ._engine.iterator import (
    DevicePrefetcher,
    LengthWatch,
    LoaderIterator,
    WorkerIterator,
    make_pinner,
    make_prefetcher,
)
from ._engine.memory import MemoryKeeper
from ._engine.observing import make_profile
from ._engine.progress import Track
from ._engine.resume import Resumed, checked, next_of, resume, take_state, workers_for
from ._engine.start import (
    check_fetcher,
    check_shippable,
    shared_pipe_seed,
    start_engine,
    start_inline,
    start_method,
    warn_before_fork,
)
from ._engine.totals import Totals
from ._errors import LoaderClosed
from ._pipeline.cache import make_cache
from ._pipeline.limits import SourceDataset, make_fake
from ._protocols import RemoteSide
from ._records import LoaderStats

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """Loads batches of a dataset, in place of `torch.utils.data.DataLoader`.

    All arguments of torch's loader mean what they mean there. Those of minato alone:

    Args:
        in_order: True gives torch's exact batches in torch's order; False lets samples that are done overtake slower
            ones. None (default) re-orders only where nobody can have relied on order: with torch's own random samplers
            and batching, and `torch.use_deterministic_algorithms` off. A seeded `generator` does not change that: for
            the same batches in every run, say True.
        slow_timeout: when a sample counts as slow: a percentile of the profile ("p75"), seconds, or None for never.
        slow_fallback: used instead when too many samples are flagged.
        warmup_samples: samples to profile before the first threshold; None: max(64, 2 * batch_size).
        max_deferral: batches a slow sample may fall behind its own place; None: four times the batches in flight.
        profile: path of a JSON file with what samples cost. It is read if it is there, so that slow samples are known
            from the first one on, and written at the end of each epoch and by `close()`. None: nothing is read or
            written.
        slow_hint: which samples are slow, if you know: a function of an index that returns a bool, or a sequence with
            one bool, or one cost in any unit, for each sample. They are begun before their turn, as are samples that
            were slow in an earlier epoch of this loader.
        adaptive: whether the number of workers changes while running.
        queue_size: most slow samples that may be put aside between two stages. Finished samples need no bound of
            their own: each goes into a row of a batch at once.
        min_workers: lower limit of adaptation.
        max_workers: upper limit of adaptation; None: the cores this process may use.
        fetcher: how a worker fetches: "sequential", "threaded" or "asyncio".
            A worker with the last two has many samples under way at once; "asyncio" awaits the dataset's
            `async def __getitem_async__(self, index)`. See docs/fetching.md.
        num_fetch_workers: samples that each worker fetches at once.
        batch_pool: most samples that a worker holds at once, being fetched or waiting to be written into their batch;
            below `num_fetch_workers` it bounds these, above it cheap samples are taken several at a time. 0: one for
            each fetch, and of cheap samples about 10 ms worth.
        thread_copies: every fetch thread has a deep copy of the dataset, for datasets that are not thread-safe.
        memory_budget: bytes that batches in flight may take; None: a quarter of the available memory.
        device: accelerator to copy batches to ahead of use; several (a list) get the batches in turn; None or "cpu"
            leaves batches where they are.
        device_prefetch: batches to copy ahead, for each device.
        on_error: what to do with a sample that fails, hangs longer than `timeout` or kills its workers: "raise"; "skip"
            leaves it out, with batches kept full from the following samples; or a function that is given a
            `minato.errors.SampleError` and returns "raise", "skip" or "retry".
        sample_retries: further tries for a sample before `on_error` is asked; after an exception 50 ms later, and twice
            as long each time, up to 2 s.
        max_worker_restarts: dead workers to replace before giving up.
        worker_affinity: "spread" keeps each worker on one core, the cores of this process in turn; ranks of a node
            (`LOCAL_RANK`) begin at different ones. "none" (default): the system places them.
        worker_nice: how much lower than this process's the workers' priority is, 0 (default) to 19: what else runs goes
            first.
        cache: keep what samples have become after their first stages, for later epochs: "source" after loading,
            "after:<stage>" after the stage of that name, "auto" after the last stage that is deterministic and whose
            results fit. Only what is found to be deterministic is kept; see docs/diagnosing.md. None (default):
            nothing.
        cache_bytes: most bytes of it; None: 0.8 of the memory that is available, or of the disk's free space.
        cache_dir: keep it in a file there, which later runs use again; None: in shared memory.
        cache_token: compared at each `iter()`; when it has changed, the cache begins anew. For changes of the data that
            do not show in the dataset's attributes. With `cache_dir`, another token is another file.
        trace: a directory that events are recorded in, to be read with `minato trace` or `minato.trace`; or
            `minato.trace.TraceOptions`. None records nothing.
        offload: other machines' CPUs for part of the work, e.g. `minato.offload.Ray()`; None: none. Needs workers, and
            a map-style dataset.

    `num_workers` may be "auto": as many as the process has cores, 12 at most, and adapted from there.
    """

    offload: Any
    _pending: dict[str, Any] | None = None
    """The state that the next `iter()` goes on from."""
    _watcher: Callable[[Any], Any] | None = None
    """Puts something in front of the layers between workers and the dataset, while this loader is being watched."""

    def __init__(
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool | None = None,
        slow_timeout: str | float | None = "p75",
        slow_fallback: str | float | None = "p90",
        warmup_samples: int | None = None,
        max_deferral: int | None = None,
        profile: str | os.PathLike[str] | None = None,
        slow_hint: Any = None,
        adaptive: Any = None,
        queue_size: int = 100,
        min_workers: int = 1,
        max_workers: int | None = None,
        fetcher: str = "sequential",
        num_fetch_workers: int = 16,
        batch_pool: int = 0,
        thread_copies: bool = False,
        memory_budget: int | None = None,
        device: Any = None,
        device_prefetch: int = 2,
        on_error: Any = "raise",
        sample_retries: int = 0,
        max_worker_restarts: int = 16,
        worker_affinity: str = "none",
        worker_nice: int = 0,
        trace: Any = None,
        cache: str | None = None,
        cache_bytes: int | None = None,
        cache_dir: Any = None,
        cache_token: Any = None,
        offload: Any = None,
    ) -> None:
        given = locals()
        options = {name: given[name] for name in _arguments.OPTIONS}
        if num_workers == "auto" and adaptive is None:
            options["adaptive"] = not isinstance(dataset, IterableDataset)
        num_workers = _arguments.check_num_workers(num_workers, min_workers, max_workers, whole_cores)
        super().__init__(**{**{name: given[name] for name in _arguments.TORCH_ARGUMENTS}, "num_workers": num_workers})
        _arguments.check_options(options, num_workers)
        _arguments.check_adaptable(options["adaptive"], dataset, num_workers)
        _arguments.check_cacheable(cache, dataset)
        _arguments.check_offload(offload, dataset, num_workers, fetcher)
        check_fetcher(fetcher, dataset)
        for name, value in options.items():
            setattr(self, name, value)
        self._shuffle = shuffle
        self._devices, self._device_depth = _arguments.accelerators(device), device_prefetch
        self._begin_life()
        if num_workers > 0 and multiprocessing_context is not None:
            plan = _planning.make_plan(self, whole_cores)
            check_shippable(plan, self.dataset, start_method(self.multiprocessing_context))

    def _begin_life(self) -> None:
        self._closed = False
        self._hazards_told = False
        self._track: Track | None = None
        self._totals = Totals()
        self._habits = Habits()
        self._profile = make_profile(_planning.slow_rule(self), *_arguments.known_costs(self))
        self._cache = make_cache(self)
        self._memory = MemoryKeeper(self.pin_memory or bool(self._devices))
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._remote: RemoteSide | None = None if self.offload is None else self.offload.open()
        self._prefetchers: weakref.WeakSet[DevicePrefetcher] = weakref.WeakSet()
        self._fetching: weakref.WeakSet[ConcurrentMap] = weakref.WeakSet()
        """Iterators without workers that fetch ahead in threads of this process."""

    @property
    def shuffle(self) -> bool | None:
        """The argument as given, of which torch keeps the sampler only. Subclasses may set it: that changes nothing."""
        return self._shuffle

    @shuffle.setter
    def shuffle(self, shuffle: bool | None) -> None:
        self.__dict__["_shuffle"] = shuffle

    # ---- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        if self._closed:
            raise LoaderClosed("this loader was closed; make a new DataLoader to iterate again")
        if self.num_workers > 0 and not self._hazards_told:
            self._hazards_told = True
            context = start_method(self.multiprocessing_context)
            warn_before_fork(_planning.make_plan(self, whole_cores), self.dataset, context, stacklevel=2)
        resumed = None if self._pending is None else resume(self, self._pending)
        iterator = self._begin_epoch(resumed)
        self._pending = None
        if isinstance(iterator, LoaderIterator):
            self._track = iterator.track
        return iterator

    def _begin_epoch(self, resumed: Resumed | None) -> LoaderIterator:
        workers = workers_for(resumed, self.num_workers, stacklevel=3)
        if workers == 0 or not self.persistent_workers or workers != self.num_workers:
            return self._new_iterator(resumed, workers)
        kept: Any = self._iterator  # torch's attribute for it, of torch's type
        iterator: WorkerIterator | None = kept
        stale = self._cache is not None and self._cache.is_stale(self)
        if iterator is None or iterator.closed or stale or resumed is not None:
            if iterator is not None:  # workers begin anew: also the cluster, if there is one, is the next one's
                if stale and not iterator.closed and resumed is None:
                    resumed = next_of(iterator.track, iterator.following, self._index_sampler)
                iterator.supersede()
            new = self._new_iterator(resumed, workers)
            if not isinstance(new, WorkerIterator):  # a subclass has its own, which cannot begin anew
                return new
            self.__dict__["_iterator"] = iterator = new
        else:
            iterator.restart(self._index_sampler, self._length_watch(), shared_pipe_seed(self.dataset, self.generator))
        return iterator

    def _get_iterator(self) -> LoaderIterator:  # type: ignore[override]
        """torch's name for it: subclasses that keep an iterator of their own call it, others override it."""
        workers = self.num_workers
        return self._worker_iterator(None, workers) if workers > 0 else self._inline_iterator(None)

    def _new_iterator(self, resumed: Resumed | None, workers: int) -> LoaderIterator:
        """An iterator over a new epoch, or over what is left of one. A subclass may have given one of its own."""
        if resumed is None:
            return self._get_iterator()
        return self._worker_iterator(resumed, workers) if workers > 0 else self._inline_iterator(resumed)

    def _inline_iterator(self, resumed: Resumed | None) -> LoaderIterator:
        if self.timeout != 0 and self.num_workers == 0:
            raise AssertionError(f"timeout={self.timeout} needs workers to wait for; set num_workers > 0, or timeout=0")
        pinner = make_pinner(self.pin_memory, self.pin_memory_device)
        plan = _planning.make_plan(self, whole_cores)
        layer = self._layer(None)
        batches, track = start_inline(
            plan, self.dataset, self._index_sampler, self.generator, self._totals, self._habits, resumed, layer
        )
        prefetcher = make_prefetcher(batches, pinner, self._devices, self._device_depth)
        watch = self._length_watch(resumed)
        iterator = LoaderIterator(batches, self._sampler_length, watch, pinner, track, prefetcher)
        if isinstance(batches, ConcurrentMap):
            batches.end_with(iterator)
            self._fetching.add(batches)
        return iterator

    def _worker_iterator(self, resumed: Resumed | None, workers: int) -> WorkerIterator:
        self.check_worker_number_rationality()
        with Uninterrupted():  # workers that are started are somebody's, who ends them
            iterator = self._start_workers(resumed, workers)
        if self._closed:  # in another thread, meanwhile
            iterator.close()
            raise LoaderClosed("this loader was closed while its workers were being started")
        return iterator

    def _start_workers(self, resumed: Resumed | None, workers: int) -> WorkerIterator:
        pinner = make_pinner(self.pin_memory, self.pin_memory_device)
        plan = _planning.make_plan(self, whole_cores, workers)
        context = start_method(self.multiprocessing_context)
        layer = self._layer(context)
        engine, track = start_engine(
            plan,
            self.dataset,
            self._index_sampler,
            context,
            self.generator,
            self._totals,
            self._profile,
            self._memory,
            resumed,
            self._remote,
            layer,
        )
        self._engines.add(engine)
        prefetcher = make_prefetcher(engine, pinner, self._devices, self._device_depth)
        if prefetcher is not None:
            self._prefetchers.add(prefetcher)
        watch = self._length_watch(resumed)
        return WorkerIterator(engine, self._sampler_length, watch, pinner, track, plan.persistent, prefetcher)

    def _layer(self, context: BaseContext | None) -> Any:
        """What stands between workers, or this process, and the dataset, for an iterator that begins now."""
        cached = None if self._cache is None else self._cache.handle(self, context)
        return cached if self._watcher is None else self._watcher(cached)

    def _length_watch(self, resumed: Resumed | None = None) -> LengthWatch:
        delivered = 0 if resumed is None else resumed.batches
        return LengthWatch(self.dataset, self._IterableDataset_len_called, self.num_workers, delivered)

    @property
    def _sampler_length(self) -> Callable[[], int]:
        sampler = self._index_sampler
        return lambda: len(sampler)

    # ---- beyond torch ---------------------------------------------------------------------------------------------

    def stats(self) -> LoaderStats:
        """Counters since the loader was made, and the state of its running iterators right now."""
        now = [engine.stats() for engine in self._engines]
        state = {name: sum(getattr(one, name) for one in now) for name in LoaderStats.STATE}
        costs = self._profile.profile.made.summary()
        return LoaderStats(
            **{field.name: getattr(self._totals, field.name) for field in fields(self._totals)},
            **state,
            cached_samples=0 if self._cache is None else self._cache.entries,
            cached_bytes=0 if self._cache is None else self._cache.used_bytes,
            cache_note="" if self._cache is None else self._cache.note,
            **({} if self._remote is None else self._remote.stats()),
            batches_on_device=next((prefetcher.queues for prefetcher in self._prefetchers), ()),
            slow_threshold=costs.threshold,
            slow_share=costs.flagged_share,
            sample_median=costs.median,
            sample_p75=costs.p75,
            sample_p90=costs.p90,
            sample_p99=costs.p99,
            sample_bytes=costs.mean_bytes,
            stages=costs.stages,
        )

    def watch(self, refresh_s: float = 0.5) -> Any:
        """A live view in the terminal or notebook, drawn every `refresh_s` seconds: `with loader.watch(): ...`.

        Throughput, waits, queues, workers; with `trace=` also what each worker and operation takes. Needs rich.
        """
        return sys.modules[__package__]._method("watch")(self, refresh_s)

    def _repr_html_(self) -> str:
        """For notebooks."""
        html: str = sys.modules[__package__]._method("loader_html")(self)
        return html

    def state_dict(self) -> dict[str, Any]:
        """How far this loader has come, as a small plain dict for `torch.save` or JSON. To be called between batches.

        Of the epoch last begun, all batches that `next` returned count as delivered, those in flight do not. In the
        loop's body it is the state of this epoch, even after its last batch; once the loop has ended, that of the next.
        """
        if self._pending is not None:
            return copy.deepcopy(self._pending)
        kept: Any = self._iterator
        return take_state(self, self._track, keeps_workers=kept is not None and not kept.closed)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next `iter()` go on from a state: with the batches that were not delivered, then the epochs after.

        The state may come from a loader with another number of workers, order mode or prefetch factor. `ValueError` if
        dataset length, batch size or sampler are others. Iterators that are alive go on as they were.
        """
        if self._closed:
            raise LoaderClosed("this loader was closed; load the state into a new DataLoader")
        self._pending = checked(self, state_dict)

    def fake(self) -> DataLoader[Any]:
        """A loader of the same batches without the work: every sample is the first one's, made now. What a loop reaches
        with it is what it can reach at best."""
        if isinstance(self.dataset, IterableDataset):
            raise ValueError("fake() needs a dataset with indices, and this is an IterableDataset")
        return self._over(make_fake(self), cache=None)

    def source_only(self) -> DataLoader[Any]:
        """A loader that only loads samples, without their transforms, and gives batches of zeros: what it reaches is
        what the storage and the load function allow. Of a dataset whose stages cannot be told apart, everything is
        loading.
        """
        if isinstance(self.dataset, IterableDataset):
            raise ValueError("source_only() needs a dataset with indices, and this is an IterableDataset")
        return self._over(SourceDataset(self.dataset), cache=None, collate_fn=None)

    def _over(self, dataset: Dataset[Any], **changes: Any) -> DataLoader[Any]:
        """This loader over another dataset of the same length. Its samplers are copies: this loader's stay as they
        are."""
        names = (*_arguments.TORCH_ARGUMENTS, *_arguments.OPTIONS)
        arguments = {name: getattr(self, name) for name in names if name not in ("shuffle", "sampler", "batch_sampler")}
        if self.batch_size is None and self.batch_sampler is not None:
            arguments["batch_sampler"] = copy.deepcopy(self.batch_sampler)
            del arguments["batch_size"], arguments["drop_last"]
        else:
            arguments["sampler"] = copy.deepcopy(self.sampler)
        plain = {"dataset": dataset, "generator": None, "cache_bytes": None, "cache_dir": None, "cache_token": None}
        return DataLoader(**{**arguments, **plain, **changes})

    def close(self) -> None:
        """Stop all workers of this loader. Idempotent; batches that were delivered stay valid."""
        if not self._closed:
            self._profile.save()
        self._closed = True
        for prefetcher in list(self._prefetchers):
            prefetcher.release()  # first: copies read the engines' memory
        for engine in list(self._engines):
            engine.close()
        if self._remote is not None:
            self._remote.close()
        for batches in list(self._fetching):
            batches.close()
        self._memory.close()
        if self._cache is not None:
            self._cache.close()

    def __enter__(self) -> DataLoader[_T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Arguments travel (trainers copy loaders); workers and counters stay."""
        alive = (
            *("_engines", "_prefetchers", "_fetching", "_memory", "_totals", "_profile", "_closed", "_iterator"),
            *("_track", "_remote", "_cache", "_watcher", "_habits"),
        )
        return {name: value for name, value in self.__dict__.items() if name not in alive}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_iterator"] = None
        self._begin_life()
