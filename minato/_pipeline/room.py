"""How much memory is left, for this machine and for the cgroups this process is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The limit of a cgroup, and what its processes use."""

    limit_bytes: int
    used_bytes: int

    @property
    def room_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def available_bytes() -> int:
    """Memory that can be had without swapping, and without going over the limit of a cgroup (version 2)."""
    available, group = int(psutil.virtual_memory().available), cgroup_memory()
    return available if group is None else min(available, group.room_bytes)


def cgroup_memory() -> CgroupMemory | None:
    """Of this process's cgroup (version 2) and its ancestors, that with the least room; None: there is no limit."""
    return min(_limited_groups(), key=lambda group: group.room_bytes, default=None)


def _limited_groups() -> Iterator[CgroupMemory]:
    try:
        relative = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        return
    group = _CGROUP / relative
    for level in (group, *group.parents):
        if not level.is_relative_to(_CGROUP):
            break
        memory = _memory_of(level)
        if memory is not None:
            yield memory


def _memory_of(level: Path) -> CgroupMemory | None:
    try:
        limit = (level / "memory.max").read_text().strip()
        return None if limit == "max" else CgroupMemory(int(limit), int((level / "memory.current").read_text()))
    except (OSError, ValueError):
        return None
