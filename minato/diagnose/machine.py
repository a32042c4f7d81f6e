"""What the cores do besides running a loader: idle, or run others. By /proc/stat."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE, _WAITING, _STOLEN = 3, 4, 7  # columns of a core's line, after its name
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CoresTime:
    """Of the cores this process may use, together, since the machine started."""

    count: int
    idle_s: float
    """A core that waits for a disk idles."""
    stolen_s: float
    """Had by other guests of the host, while somebody here wanted to run."""


def cores_time() -> CoresTime | None:
    """Until now; None: the system does not tell."""
    try:
        return time_of(_STAT.read_text(), os.sched_getaffinity(0), _TICKS_S)
    except OSError:
        return None


def time_of(stat: str, cores: Collection[int], ticks_s: int) -> CoresTime | None:
    """The same from the text of /proc/stat."""
    idle, stolen, seen = 0, 0, 0
    for line in stat.splitlines():
        name, _, counters = line.partition(" ")
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and int(number) in cores:
            ticks = [int(word) for word in counters.split()]
            idle += ticks[_IDLE] + ticks[_WAITING]
            stolen += ticks[_STOLEN]
            seen += 1
    return CoresTime(seen, idle / ticks_s, stolen / ticks_s) if seen == len(cores) else None
