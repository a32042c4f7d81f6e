"""`minato.cached_bytes`: any map-style dataset of bytes, behind a byte cache."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from .cache import ByteCache
from .choosing import parse_cache
from .directory_cache import DirectoryCache

_PLAIN, _TUPLE = b"\0", b"\1"


def cached_bytes(
    dataset: Any,
    cache: str | int | os.PathLike[str] | ByteCache,
    transform: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> CachedBytes:
    """A dataset with the samples of `dataset`, each read once and kept in `cache` as far as there is room.

    Args:
        dataset: map-style; its samples are bytes, or tuples with bytes in them (and labels and the like, which are
            pickled). What `dataset` itself draws at random would be drawn only once: randomness belongs in `transform`.
        cache: "2GB" (memory, shared by all workers), a path, a `MemoryCache` or a `DirectoryCache`.
        transform: applied to each sample after the cache, anew in every epoch.
        name: what the samples are called in the cache. Needed for a directory, where other datasets may be too; a new
            name for data that have changed.
    """
    return CachedBytes(dataset, cache, transform, name)


class CachedBytes(Dataset[Any]):
    """See `cached_bytes`."""

    def __init__(
        self,
        dataset: Any,
        cache: str | int | os.PathLike[str] | ByteCache,
        transform: Callable[[Any], Any] | None,
        name: str | None,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"cached_bytes needs a dataset with __len__ and __getitem__, found {type(dataset).__name__}"
            )
        found = parse_cache(cache)
        if found is None:
            raise TypeError("cached_bytes needs a cache, found None")
        if isinstance(found, DirectoryCache) and not name:
            raise ValueError(
                "a directory may keep the samples of several datasets: say name=, a text of your choice for this one"
            )
        self.dataset = dataset
        self.cache = found
        self.transform = transform
        self.name = name or ""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        sample = self._kept(index)
        if sample is _MISSING:
            sample = self.dataset[index]
            self.cache.put(self._name_of(index), _packed(sample))
        return sample if self.transform is None else self.transform(sample)

    async def _get_async(self, index: Any) -> Any:
        sample = self._kept(index)
        if sample is _MISSING:
            sample = await self.dataset.__getitem_async__(index)
            self.cache.put(self._name_of(index), _packed(sample))
        return sample if self.transform is None else self.transform(sample)

    @property
    def __getitem_async__(self) -> Any:
        """There if the dataset has it."""
        if not hasattr(self.dataset, "__getitem_async__"):
            raise AttributeError(f"{type(self.dataset).__name__} has no __getitem_async__")
        return self._get_async

    def _kept(self, index: Any) -> Any:
        packed = self.cache.get(self._name_of(index))
        return _MISSING if packed is None else _unpacked(packed)

    def _name_of(self, index: Any) -> str:
        return f"{self.name}|{index!r}"


_MISSING = object()


def _packed(sample: Any) -> bytes:
    if isinstance(sample, (bytes, bytearray, memoryview)):
        return b"".join([_PLAIN, sample])
    if isinstance(sample, (tuple, list)) and any(isinstance(part, (bytes, bytearray)) for part in sample):
        return b"".join([_TUPLE, pickle.dumps(sample, protocol=5)])
    raise TypeError(
        f"cached_bytes keeps samples that are bytes, or tuples with bytes in them, found {type(sample).__name__}: give "
        "it the dataset without decoding, and decode in transform="
    )


def _unpacked(packed: bytes) -> Any:
    return packed[1:] if packed[:1] == _PLAIN else pickle.loads(memoryview(packed)[1:])
