"""The argument `cache=`."""

from __future__ import annotations

import os

from .cache import ByteCache
from .directory_cache import DirectoryCache
from .memory_cache import MemoryCache


def parse_cache(value: object) -> ByteCache | None:
    """The argument `cache=`: None; bytes or "2GB" for memory; a path for a directory; or a cache."""
    if value is None:
        return None
    if isinstance(value, (MemoryCache, DirectoryCache)):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return MemoryCache(value)
    if isinstance(value, str) and os.sep not in value:
        return MemoryCache(value)
    if isinstance(value, (str, os.PathLike)):
        return DirectoryCache(value)
    if all(callable(getattr(value, name, None)) for name in ("get", "put", "stats")):
        return value  # type: ignore[return-value]
    raise TypeError(
        'cache must be None, a size such as "2GB" (memory), a path with a / in it (directory), a MemoryCache or a '
        f"DirectoryCache, found {value!r}"
    )
