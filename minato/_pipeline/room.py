"""How much memory is left, for this machine and for the cgroups this process is in."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that can be had without swapping, and without going over the limit of a cgroup (version 2)."""
    available = int(psutil.virtual_memory().available)
    limit = _cgroup_room()
    return available if limit is None else min(available, limit)


def _cgroup_room() -> int | None:
    """Bytes left below the limit of this process's cgroup (version 2) and of its ancestors; None: there is no limit."""
    try:
        relative = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        return None
    rooms = []
    group = _CGROUP / relative
    for level in (group, *group.parents):
        if not level.is_relative_to(_CGROUP):
            break
        room = _room(level)
        if room is not None:
            rooms.append(room)
    return min(rooms, default=None)


def _room(level: Path) -> int | None:
    try:
        limit = (level / "memory.max").read_text().strip()
        return None if limit == "max" else max(0, int(limit) - int((level / "memory.current").read_text()))
    except (OSError, ValueError):
        return None
