"""What every byte cache does, and the checksum they use.

A cache admits until it is full and evicts nothing: epochs visit every object once in random order, so what was just
thrown out is as likely to be wanted as what was kept, and keeping what is there gives the best share of hits there is.
What a cache cannot do (full, broken entry, disk error) is a miss, never an error: the object can always be read again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
_PAGE_WORDS = 512  # what a torn write leaves out, or puts elsewhere
_UNITS = {"": 1} | {
    f"{letter}{i}": base**power for power, letter in enumerate("kmgt", 1) for i, base in (("", 1000), ("i", 1024))
}


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What is in a cache, over all processes that use it."""

    entries: int
    used_bytes: int
    max_bytes: int
    note: str = ""
    """Why nothing is added although there would be room by `max_bytes`; empty: more is added."""


class ByteCache(Protocol):
    """Safe to use from several threads and processes at once; picklable."""

    def get(self, name: str) -> bytes | None:
        """The bytes put under `name`, whole and verified, or None. A cache may have `get_writable` beside it, which
        gives them as an array of uint8 that is the caller's own."""

    def put(self, name: str, data: bytes) -> bool:
        """Keep the bytes if there is room; whether they are in the cache now."""

    def stats(self) -> CacheStats:
        """How full it is."""


def digest_of(name: str) -> bytes:
    """16 bytes that stand for a name."""
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def checksum(data: bytes | bytearray | memoryview) -> int:
    """64 bits of BLAKE2 over the sums of the words of each page, and what is beyond the last whole page: any changed
    word, missing or misplaced page shows.

    Against accidents, not against forgers. A fifth of what zlib's CRC32 takes: what a cache saves is worth little if
    checking it costs as much as reading it.
    """
    pages = len(data) // (8 * _PAGE_WORDS)
    words = np.frombuffer(data, np.uint64, pages * _PAGE_WORDS)
    sums = np.add.reduce(words.reshape(pages, _PAGE_WORDS), axis=1)
    found = hashlib.blake2b(sums.tobytes(), digest_size=8)
    found.update(data[8 * _PAGE_WORDS * pages :])
    return int.from_bytes(found.digest(), "little")


def parse_bytes(value: int | str, argument: str) -> int:
    """A number of bytes: 1000000, "500MB", "2 GiB"."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value, re.IGNORECASE)
        if found is None or found[2].lower() not in _UNITS:
            raise ValueError(f'{argument} must be bytes or a text like "2GB", found {value!r}')
        value = int(float(found[1]) * _UNITS[found[2].lower()])
    if value <= 0:
        raise ValueError(f"{argument} must be positive, found {value}")
    return value
