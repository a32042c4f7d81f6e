"""Bytes that came from a client library, as an array that its owner may write to."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cache import Bytes

_WORTH_SPARING = 64 << 10  # bytes; less is copied: it may be part of a buffer that is many times larger


def owned(data: bytes | memoryview) -> Bytes:
    """The bytes in memory of the caller's own. A `memoryview` is of a body that nobody else refers to: a large one is
    not copied, but its memory passed on, which spares fresh pages for every object."""
    array: Bytes = np.frombuffer(data, np.uint8)
    if isinstance(data, memoryview) and not data.readonly:  # made for this body, and no larger
        return array
    if isinstance(data, bytes) or len(array) < _WORTH_SPARING:
        return array.copy()
    return np.asarray(_Writable(array))


class _Writable:
    """The memory of a read-only array, which lives as long as this."""

    __slots__ = ("__array_interface__", "_array")

    def __init__(self, array: Bytes) -> None:
        interface: dict[str, Any] = array.__array_interface__
        interface["data"] = (interface["data"][0], False)  # address; whether it is for reading only
        self.__array_interface__ = interface
        self._array = array
