"""The cache of a loader: decided at its first epoch, filled while training, kept until the loader is closed.

The main process owns the file. Each iterator gets a handle with the generation that holds when it begins; a change of
the dataset, or of the loader's `cache_token`, begins a new generation, so iterators and workers from before neither
read nor write entries any more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from .._workers import sync
from .._workers.stages import ATTRIBUTES
from .aside import run_aside
from .cached import CacheHandle
from .looking import Look, choose_indices, fingerprint, look
from .planning import CachePoint, NoCache, choose
from .room import available_bytes
from .store import CacheStore

MEMORY_SHARE = 0.8  # of what is available, when the user does not say how much
KEPT_FREE = 0.1  # of what was available at the start; when less is left, nothing is added to the cache
LOOK_SAMPLES = 16
LOOK_SECONDS = 2.0
_ALWAYS_RELEVANT = frozenset((*ATTRIBUTES, "target_transform", "load", "dataset", "datasets", "indices", "length"))
"""Attributes that decide which code runs, or which sample an index stands for."""


class LoaderCache:
    """Belongs to one loader, in the process that made it."""

    def __init__(self, cache: str, cache_bytes: int | None, cache_dir: str | None) -> None:
        self._argument = cache
        self._limit_bytes = cache_bytes
        self._folder = cache_dir
        self._store: CacheStore | None = None
        self._generation = 0
        self._decision: CachePoint | NoCache | None = None
        self._names: frozenset[str] = frozenset()
        self._seen: dict[Any, Any] = {}
        self._token: Any = None
        self._dataset: Any = None
        self._pid = os.getpid()
        self.known: Look | None = None
        """What was seen of this dataset just now, if somebody has looked: then nobody looks again."""

    def handle(self, loader: Any, context: BaseContext | None) -> CacheHandle | None:
        """For an iterator that begins now; None: nothing is cached. `context`: how workers are started; None: there are
        none. Raises ValueError if what the user asked for cannot be done."""
        dataset, token = loader.dataset, loader.cache_token
        if self._pid != os.getpid():  # a forked copy of the loader: the cache is the parent's
            return None
        if self._decision is None:
            self._decide(dataset, token, context)
        elif self.is_stale(loader):
            self._remember(dataset, token)
            if self._store is not None:
                self._generation = self._store.begin_generation()
        if self._store is None or not isinstance(self._decision, CachePoint):
            return None
        return CacheHandle(self._store, self._generation, self._decision)

    def is_stale(self, loader: Any) -> bool:
        """Whether entries may be of a dataset that is not there any more."""
        dataset, token = loader.dataset, loader.cache_token
        if self._decision is None:
            return False
        if dataset is not self._dataset or token != self._token:
            return True
        now = sync._look(dataset)
        changed = [path for path, seen in now.items() if path not in self._seen or seen.differs(self._seen[path])]
        gone = [path for path in self._seen if path not in now]
        return any(self._is_relevant(path) for path in (*changed, *gone))

    def _is_relevant(self, path: Any) -> bool:
        """Whether the code of the cached stages may read what is at `path`: it would have to name it."""
        names = [step for step in path if isinstance(step, str)]
        return not names or names[-1] in self._names or names[-1] in _ALWAYS_RELEVANT

    def _remember(self, dataset: Any, token: Any) -> None:
        self._dataset, self._token, self._seen = dataset, token, sync._look(dataset)

    def _decide(self, dataset: Any, token: Any, context: BaseContext | None) -> None:
        self._remember(dataset, token)
        samples = len(dataset)
        limit = self._limit()
        indices = choose_indices(dataset, LOOK_SAMPLES)
        if not indices:
            self._decision = NoCache("the dataset is empty")
            return
        if self.known is not None:
            seen = self.known
        elif context is None:
            seen = look(dataset, indices, LOOK_SECONDS)
        else:
            seen = run_aside(context, LOOK_SECONDS, look, dataset, indices, LOOK_SECONDS)
        decision = choose(seen, self._argument, samples, limit)
        if isinstance(decision, NoCache):
            if self._argument != "auto":
                raise ValueError(f"cache={self._argument!r}: {decision.reason}")
        else:
            if decision.share < 1 and self._argument != "auto":
                warnings.warn(
                    f"cache={self._argument!r}: all samples would take {decision.total_bytes / 1e6:.0f} MB, and there "
                    f"is room for {limit / 1e6:.0f} MB: {decision.share:.0%} of them will be cached",
                    stacklevel=4,
                )
            self._names = seen.names
            self._store = self._open(dataset, token, decision, samples, limit, seen.code)
            self._generation = self._store.generation
        self._decision = decision

    def _limit(self) -> int:
        if self._limit_bytes is not None:
            return self._limit_bytes
        if self._folder is None:
            return int(MEMORY_SHARE * available_bytes())
        os.makedirs(self._folder, exist_ok=True)
        return int(MEMORY_SHARE * shutil.disk_usage(self._folder).free)

    def _open(self, dataset: Any, token: Any, point: CachePoint, samples: int, limit: int, code: str) -> CacheStore:
        if self._folder is None:
            return CacheStore.in_memory(samples, limit, int(KEPT_FREE * available_bytes()))
        identity = fingerprint(dataset)
        if identity is None and token is None:
            raise ValueError(
                "cache_dir: the dataset cannot be pickled, so it cannot be told whether files from before are still "
                "right; give a cache_token that changes when the data do"
            )
        text = repr((point.stages, samples, token, code)).encode() + (identity or b"")
        name = f"{type(dataset).__name__}-{hashlib.blake2b(text, digest_size=12).hexdigest()}.cache"
        return CacheStore.on_disk(str(Path(self._folder) / name), samples, limit)

    # ---- what it has come to ----------------------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        return 0 if self._store is None else self._store.count

    @property
    def used_bytes(self) -> int:
        return 0 if self._store is None else self._store.used_bytes

    @property
    def note(self) -> str:
        """What is cached, or why nothing is."""
        if self._decision is None:
            return ""
        if isinstance(self._decision, NoCache):
            return f"nothing is cached: {self._decision.reason}"
        return f"cached after {self._decision.stages[-1]!r}"

    def close(self) -> None:
        """Give the memory up; files on disk stay. Idempotent."""
        if self._store is not None and self._pid == os.getpid():
            self._store.close()
            self._store = None


def make_cache(loader: Any) -> LoaderCache | None:
    """The cache of a loader, by its arguments."""
    return None if loader.cache is None else LoaderCache(loader.cache, loader.cache_bytes, loader.cache_dir)
