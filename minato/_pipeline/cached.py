"""The dataset that samples are fetched from when there is a cache: the user's, with its beginning kept.

A sample whose entry is there goes on from it; any other is made in stages, and what it has become after the chosen
stage is kept on the way. A sample that takes another way than the one that was looked at (other stages, in a
concatenation) is made without the cache.
"""

from __future__ import annotations

import pickle
import warnings
from typing import Any

from .._instrument import active
from .._workers.splitting import Steps
from .._workers.stages import SampleRun
from .continuing import finish, suspend
from .judging import judge_code
from .looking import fetches_batches, stage_behind, stages_of
from .planning import CachePoint
from .store import CacheStore


class CachedDataset:
    """`dataset[index]`, with the same result. Lives in a worker, or where there are no workers in the main process."""

    def __init__(self, dataset: Any, store: CacheStore, generation: int, point: CachePoint) -> None:
        self._dataset = dataset
        self._is_whole = point.is_whole
        self._store = store
        self._generation = generation
        self._names = tuple(name.partition("#")[0] for name in point.stages)
        """Of the stages that are kept, as they name themselves."""
        self._begin = stages_of(dataset)
        self._judged: dict[int, tuple[Any, bool]] = {}
        """By id, with the object: it keeps its id that way."""
        self._keeps = True

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int or not 0 <= index < self._store.entries:
            return self._dataset[index]
        entry = self._look_up(index)
        if entry is None:
            return self._make(index)
        whole, value = entry
        return value if whole == 0 else finish(self._dataset, index, value)

    def _look_up(self, index: int) -> Any:
        entry = self._store.get(index, self._generation)
        if (instrument := active()) is not None:
            instrument.looked_up(entry is not None)
        return entry

    def steps_of(self, index: Any) -> Steps:
        """The same in stages, for a trace: looking into the cache, then what is left to do."""
        if type(index) is not int or not 0 <= index < self._store.entries:
            return (yield not_cached, (self._dataset.__getitem__, index), {})
        entry = self._look_up(index)
        if entry is None:
            return (yield not_cached, (self._make, index), {})
        whole, value = entry
        return value if whole == 0 else (yield after_cache, (self._dataset, index, value), {})

    def _make(self, index: int) -> Any:
        if not self._keeps or self._store.is_full:
            return self._dataset[index]
        if self._begin is None:
            sample = self._dataset[index]
            self._keep(index, (0, sample))
            return sample
        run = self._begin(index)
        if self._advance(run) and run.done == self._is_whole:
            if run.done:
                self._keep(index, (0, run.result))
            elif (standings := suspend(run)) is not None:
                self._keep(index, (1, standings))
        while not run.done:
            run.advance()
        return run.result

    def _advance(self, run: SampleRun) -> bool:
        """Do the stages that are kept; False: the sample has gone another way."""
        for name in self._names:
            if run.done or run.stage != name or not self._may_keep(run):
                return False
            run.advance()
        return True

    def _may_keep(self, run: SampleRun) -> bool:
        """Whether the next stage is not random by its code. Each object is looked at once; loading was looked at before
        there was a cache."""
        if run.call is None:
            return True
        stage = stage_behind(run.call[0])
        known = self._judged.get(id(stage))
        if known is None:
            known = self._judged[id(stage)] = stage, judge_code(stage)[0].may_be_cached
        return known[1]

    def _keep(self, index: int, entry: Any) -> None:
        try:
            self._store.put(index, self._generation, entry)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            self._keeps = False
            warnings.warn(
                f"sample index {index} cannot be cached, and nothing else is from now on: {error}", stacklevel=2
            )


def not_cached(make: Any, index: Any) -> Any:
    """Make a sample that is not in the cache."""
    return make(index)


def after_cache(dataset: Any, index: Any, value: Any) -> Any:
    """Go on with one that is."""
    return finish(dataset, index, value)


not_cached.__name__, after_cache.__name__ = "(not cached)", "(after the cache)"  # as they are called in traces


class CachedSubset(CachedDataset):
    """The same for a `Subset`, which is asked for several samples at once and makes them one by one."""

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        return [self[index] for index in indices]


class CachedBatchDataset(CachedDataset):
    """The same for a dataset that fetches several samples at once: whole samples are kept."""

    def __getitems__(self, indices: Any) -> Any:
        store, generation = self._store, self._generation
        plain = [type(index) is int and 0 <= index < store.entries for index in indices]
        found = [store.get(index, generation) if known else None for index, known in zip(indices, plain, strict=True)]
        missing = [index for index, entry in zip(indices, found, strict=True) if entry is None]
        if (instrument := active()) is not None:
            instrument.looked_up(False, len(missing))
            instrument.looked_up(True, len(indices) - len(missing))
        is_new = len(missing) == len(indices)
        made = self._dataset.__getitems__(indices if is_new else missing) if missing else []
        if type(made) is not list or len(made) != len(missing):  # it has its own idea of a batch
            return made if is_new else self._dataset.__getitems__(indices)
        fresh = iter(made)
        samples = []
        for index, known, entry in zip(indices, plain, found, strict=True):
            sample = next(fresh) if entry is None else entry[1]
            if entry is None and known and self._keeps:
                self._keep(index, (0, sample))
            samples.append(sample)
        return samples


class CacheHandle:
    """What travels to a worker: how to put the cache in front of its copy of the dataset."""

    def __init__(self, store: CacheStore, generation: int, point: CachePoint) -> None:
        self._store = store
        self._generation = generation
        self._point = point

    def wrap(self, dataset: Any) -> CachedDataset:
        """The dataset to fetch from."""
        kind = CachedBatchDataset if fetches_batches(dataset) else CachedDataset
        if kind is CachedDataset and getattr(dataset, "__getitems__", None):
            kind = CachedSubset
        return kind(dataset, self._store, self._generation, self._point)
