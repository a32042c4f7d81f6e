"""Samples of `perf`, one by one, each with the function it fell into.

Names are `perf`'s own. Where it has none, because the library is stripped, the function is the nearest symbol that the
library exports before the sampled address, written with a `~` in front; where there is no such symbol either, only the
library is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .elf import read_library

UNKNOWN = "[unknown]"
NEAR = "~"

FIELDS = ("--ns", "-G", "-F", "pid,time,event,period,ip,sym,dso", "--show-mmap-events", "--show-task-events")
"""Options of `perf script` that give the lines read here."""

_SAMPLE = re.compile(r"\s*(\d+)\s+(\d+)\.(\d{9}):\s+(\d+)\s+(\S+):\s+([0-9a-f]+) (.*)$")
_PLACE = re.compile(r"(.*) \(((?:/|\[).*|inlined)\)$")
_MAPPED = re.compile(r"PERF_RECORD_MMAP2? (-?\d+)/-?\d+: \[(0x[0-9a-f]+|0)\((0x[0-9a-f]+|0)\) @ (0x[0-9a-f]+|0)")
_MAPPED_PATH = re.compile(r"\]: \S+ (/.*)$")
_FORKED = re.compile(r"PERF_RECORD_FORK\((\d+):\d+\):\((\d+):\d+\)")


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A native function; `library` is the file's name without its directories."""

    name: str
    library: str

    @property
    def key(self) -> str:
        """As mapping files name it."""
        return f"{self.name}|{self.library}"

    @classmethod
    def from_key(cls, key: str) -> Function:
        """The inverse of `key`; names may hold bars, libraries do not."""
        name, _, library = key.rpartition("|")
        return cls(name, library)


@dataclass(frozen=True, slots=True)
class Sample:
    pid: int
    time_ns: int
    """On the clock that `perf record` was given."""
    event: str
    period: int
    """Events this sample stands for; nanoseconds for cpu-clock."""
    function: Function
    path: str
    """Path of the library, or what stands in its place (`[kernel.kallsyms]`)."""


@dataclass(frozen=True, slots=True)
class _Area:
    start: int
    size: int
    offset: int
    path: str

    def offset_of(self, address: int) -> int | None:
        inside = address - self.start
        return self.offset + inside if 0 <= inside < self.size else None


@dataclass(slots=True)
class _AddressSpaces:
    """Which file lies where in which process, as far as `perf` was told."""

    areas: dict[int, list[_Area]] = field(default_factory=dict)

    def note(self, line: str) -> None:
        """Learn from a line that is not a sample."""
        if mapped := _MAPPED.search(line):
            path = _MAPPED_PATH.search(line)
            if path is not None:
                pid, *numbers = mapped.groups()
                start, size, offset = (int(number, 16) for number in numbers)
                self.areas.setdefault(int(pid), []).append(_Area(start, size, offset, path[1]))
        elif forked := _FORKED.search(line):
            child, parent = int(forked[1]), int(forked[2])
            if child != parent and parent in self.areas:
                self.areas[child] = list(self.areas[parent])

    def offset(self, pid: int, path: str, address: int) -> int | None:
        """The byte of the file at an address."""
        for area in reversed(self.areas.get(pid, ())):
            if area.path == path and (found := area.offset_of(address)) is not None:
                return found
        return None


def read_samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Samples of the output of `perf script` with the options `FIELDS`."""
    spaces = _AddressSpaces()
    for line in lines:
        match = _SAMPLE.match(line.rstrip("\n"))
        if match is None:
            spaces.note(line.rstrip("\n"))
            continue
        pid, seconds, nanoseconds, period, event, address, rest = match.groups()
        place = _PLACE.match(rest)
        name, path = (place[1].strip(), place[2]) if place else (rest.strip(), UNKNOWN)
        function = _function(name, path, spaces, int(pid), int(address, 16))
        time_ns = int(seconds) * 10**9 + int(nanoseconds)
        yield Sample(int(pid), time_ns, event, int(period), function, path)


def _function(name: str, path: str, spaces: _AddressSpaces, pid: int, address: int) -> Function:
    library = os.path.basename(path) if path.startswith("/") else path
    if name not in ("", UNKNOWN):
        return Function(name, library)
    offset = spaces.offset(pid, path, address)
    return Function(UNKNOWN if offset is None else near_address(path, read_library(path).address(offset)), library)


def near_address(path: str, address: int | None) -> str:
    """The name for an address, in a library's own address space, that belongs to no named function."""
    symbol = read_library(path).nearest(address)
    return UNKNOWN if symbol is None else NEAR + symbol
