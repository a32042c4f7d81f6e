"""The cache of a loader: decided at its first epoch, filled while training, kept until the loader is closed.

The main process owns the file. Each iterator gets a handle with the generation that holds when it begins; a change of
the dataset, or of the loader's `cache_token`, begins a new generation, so iterators and workers from before neither
read nor write entries any more.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import warnings
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from .._workers import sync
from .._workers.stages import ATTRIBUTES
from .aside import run_aside
from .cached import CacheHandle
from .looking import Look, choose_indices, fingerprint, look
from .planning import CachePoint, NoCache, choose
from .room import available_bytes, kept_free
from .store import CacheStore, Full

MEMORY_SHARE = 0.8  # of what is available, when the user does not say how much
GIVEN_UP = 4  # when so small a part of what was to be left to others is left, they get what the cache has
LOOK_SAMPLES = 16
LOOK_SECONDS = 2.0
_ALWAYS_RELEVANT = frozenset((*ATTRIBUTES, "target_transform", "load", "dataset", "datasets", "indices", "length"))
"""Attributes that decide which code runs, or which sample an index stands for."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)
_WHY_FULL = {
    Full.NOT: "",
    Full.LIMIT: "the room for it is used up",
    Full.MEMORY: "memory runs short",
    Full.WRITE: "there is no space left where it is written",
}


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
        self._told_full = False
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
            if self._is_memory_wanted():
                warnings.warn(f"cache={self._argument!r}: memory runs short: what was kept is given up", stacklevel=4)
            self._remember(dataset, token)
            if self._store is not None:
                self._generation = self._store.begin_generation()
        if self._store is None or not isinstance(self._decision, CachePoint):
            return None
        self._tell_if_short()
        return CacheHandle(self._store, self._generation, self._decision)

    def is_stale(self, loader: Any) -> bool:
        """Whether it begins anew: entries may be of a dataset that is not there any more, or others want the memory."""
        dataset, token = loader.dataset, loader.cache_token
        if self._decision is None:
            return False
        if dataset is not self._dataset or token != self._token or self._is_memory_wanted():
            return True
        now = sync._look(dataset)
        changed = [path for path, seen in now.items() if path not in self._seen or seen.differs(self._seen[path])]
        gone = [path for path in self._seen if path not in now]
        return any(self._is_relevant(path) for path in (*changed, *gone))

    def _is_memory_wanted(self) -> bool:
        """Whether memory has become so short since that what is kept would have others killed. From what was left free
        they had more than their share; anew, the cache takes what there is room for then."""
        store = self._store
        if self._folder is not None or store is None or not store.count:
            return False
        return available_bytes() < store.floor_bytes // GIVEN_UP

    def _is_relevant(self, path: Any) -> bool:
        """Whether the code of the cached stages may read what is at `path`: it would have to name it."""
        names = [step for step in path if isinstance(step, str)]
        return not names or names[-1] in self._names or names[-1] in _ALWAYS_RELEVANT

    def _remember(self, dataset: Any, token: Any) -> None:
        self._dataset, self._token, self._seen = dataset, token, sync._look(dataset)

    def _tell_if_short(self) -> None:
        """Once, and in the main process: workers have nobody to tell it to. A limit that is reached is no surprise."""
        full = Full.NOT if self._store is None else self._store.full
        if full in (Full.MEMORY, Full.WRITE) and not self._told_full:
            self._told_full = True
            warnings.warn(f"cache={self._argument!r}: {self.note}", stacklevel=5)

    def _decide(self, dataset: Any, token: Any, context: BaseContext | None) -> None:
        self._remember(dataset, token)
        samples = len(dataset)
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
        files = self._files(dataset, token, seen, samples)
        limit = self._limit(files)
        decision = choose(seen, self._argument, samples, limit)
        if isinstance(decision, CachePoint):
            self._names = seen.names
            decision = self._open(decision, files, samples, limit)
        elif self._argument != "auto":
            raise ValueError(f"cache={self._argument!r}: {decision.reason}")
        self._decision = decision

    def _files(self, dataset: Any, token: Any, seen: Look, samples: int) -> list[str]:
        """The files of a cache after each of the stages; none: it is in memory."""
        if self._folder is None:
            return []
        identity = fingerprint(dataset)
        if identity is None and token is None:
            raise ValueError(
                "cache_dir: the dataset cannot be pickled, so it cannot be told whether files from before are still "
                "right; give a cache_token that changes when the data do"
            )
        stages = [stage.name for stage in seen.stages]
        texts = [repr((tuple(stages[: n + 1]), samples, token, seen.code)).encode() for n in range(len(stages))]
        names = [hashlib.blake2b(text + (identity or b""), digest_size=12).hexdigest() for text in texts]
        return [str(Path(self._folder) / f"{type(dataset).__name__}-{name}.cache") for name in names]

    def _limit(self, files: Sequence[str]) -> int:
        """Bytes that it may take: what the user says, but no more than there is."""
        if self._folder is None:
            there = available_bytes()
            most = there - kept_free(there)
        else:
            os.makedirs(self._folder, exist_ok=True)
            # What files of ours take of the disk already is theirs.
            there = most = shutil.disk_usage(self._folder).free + sum(map(_bytes_on_disk, files))
        return int(MEMORY_SHARE * there) if self._limit_bytes is None else min(self._limit_bytes, most)

    def _open(self, point: CachePoint, files: Sequence[str], samples: int, limit: int) -> CachePoint | NoCache:
        """Make the store; why not, if there is no room for as much as its table."""
        if point.share > 0:
            if point.share < 1 and self._argument != "auto":
                warnings.warn(
                    f"cache={self._argument!r}: all samples would take {point.total_bytes / 1e6:.0f} MB, and there "
                    f"is room for {limit / 1e6:.0f} MB: {point.share:.0%} of them will be cached",
                    stacklevel=5,
                )
            try:
                if files:
                    self._store = CacheStore.on_disk(files[len(point.stages) - 1], samples, limit)
                else:
                    self._store = CacheStore.in_memory(samples, limit, kept_free(available_bytes()))
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
            else:
                self._generation = self._store.generation
                return point
        where = "in memory" if self._folder is None else f"in {self._folder}"
        needed = f"{point.total_bytes / 1e6:.0f} MB are needed"
        none = NoCache(f"there is room for {limit / 1e6:.0f} MB {where}, and {needed}")
        warnings.warn(f"cache={self._argument!r}: nothing is cached: {none.reason}", stacklevel=5)
        return none

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
        kept = f"cached after {self._decision.stages[-1]!r}"
        if self._store is None or not self._store.is_full:
            return kept
        return (
            f"{kept}: {self._store.count:,} of {self._store.entries:,} samples, and no more are added, as "
            f"{_WHY_FULL[self._store.full]}"
        )

    def close(self) -> None:
        """Give the memory up; files on disk stay. Idempotent."""
        if self._store is not None and self._pid == os.getpid():
            self._store.close()
            self._store = None


def _bytes_on_disk(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:  # not made yet
        return 0


def make_cache(loader: Any) -> LoaderCache | None:
    """The cache of a loader, by its arguments."""
    return None if loader.cache is None else LoaderCache(loader.cache, loader.cache_bytes, loader.cache_dir)
