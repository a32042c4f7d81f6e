"""What a stripped library still tells: its build id and the symbols it exports.

Covers ELF files of 64 bits, in either byte order. Anything else (32 bits, no sections, not ELF, gone) has no build id
and no symbols, which callers treat as "only the library is known".
"""

from __future__ import annotations

import bisect
import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTION_NOTE = 7
SECTION_SYMBOLS = (2, 11)  # the full table, if it was not stripped, and the one of exports
SEGMENT_LOAD = 1
NOTE_BUILD_ID = 3
FUNCTION_TYPES = frozenset({2, 10})  # functions, and those that are chosen when the library is loaded


@dataclass(frozen=True, slots=True)
class Section:
    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Segment:
    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Library:
    """A library as far as it can be read."""

    build_id: str = ""
    """Hexadecimal; empty if the file has none."""
    addresses: tuple[int, ...] = ()
    """Where functions begin, ascending, in the library's own address space."""
    names: tuple[str, ...] = ()
    """Names of those functions, in the same order."""
    segments: tuple[Segment, ...] = field(default=(), repr=False)

    def address(self, file_offset: int) -> int | None:
        """The address of a byte of the file once it is loaded; None if it is not loaded."""
        for segment in self.segments:
            if segment.offset <= file_offset < segment.offset + segment.size:
                return file_offset - segment.offset + segment.address
        return None

    def nearest(self, address: int | None) -> str | None:
        """The last function that begins at or before `address`."""
        if address is None:
            return None
        number = bisect.bisect_right(self.addresses, address)
        return self.names[number - 1] if number else None


@functools.lru_cache(maxsize=512)
def read_library(path: str) -> Library:
    """Read a library once; an empty record if there is nothing to read."""
    try:
        data = Path(path).read_bytes()
        return _parse(data)
    except (OSError, ValueError, struct.error, IndexError):
        return Library()


def _parse(data: bytes) -> Library:
    if data[:4] != b"\x7fELF" or data[4] != 2:
        return Library()
    order = "<" if data[5] == 1 else ">"
    sections = tuple(_sections(data, order))
    symbols = sorted({item for section in sections for item in _functions(data, order, section, sections)})
    addresses = tuple(address for address, _ in symbols)
    names = tuple(name for _, name in symbols)
    return Library(_build_id(data, order, sections), addresses, names, tuple(_segments(data, order)))


def _sections(data: bytes, order: str) -> Iterator[Section]:
    (table,) = struct.unpack_from(order + "Q", data, 0x28)
    size, count = struct.unpack_from(order + "HH", data, 0x3A)
    for number in range(count if table else 0):
        fields = struct.unpack_from(order + "IIQQQQIIQQ", data, table + number * size)
        yield Section(kind=fields[1], offset=fields[4], size=fields[5], link=fields[6])


def _segments(data: bytes, order: str) -> Iterator[Segment]:
    (table,) = struct.unpack_from(order + "Q", data, 0x20)
    size, count = struct.unpack_from(order + "HH", data, 0x36)
    for number in range(count):
        fields = struct.unpack_from(order + "IIQQQQQQ", data, table + number * size)
        if fields[0] == SEGMENT_LOAD:
            yield Segment(offset=fields[2], address=fields[3], size=fields[5])


def _functions(data: bytes, order: str, section: Section, sections: tuple[Section, ...]) -> Iterator[tuple[int, str]]:
    if section.kind not in SECTION_SYMBOLS:
        return
    strings = sections[section.link].offset
    table = data[section.offset : section.offset + section.size]
    for name, info, _, defined_in, address, _ in struct.iter_unpack(order + "IBBHQQ", table[: len(table) // 24 * 24]):
        if info & 15 in FUNCTION_TYPES and defined_in and address:
            end = data.index(b"\0", strings + name)
            yield address, data[strings + name : end].decode("utf-8", "replace")


def _build_id(data: bytes, order: str, sections: tuple[Section, ...]) -> str:
    for section in sections:
        if section.kind != SECTION_NOTE or section.size < 16:
            continue
        name_size, size, kind = struct.unpack_from(order + "III", data, section.offset)
        start = section.offset + 12
        if kind == NOTE_BUILD_ID and data[start : start + name_size] == b"GNU\0":
            start += (name_size + 3) & ~3
            return data[start : start + size].hex()
    return ""
