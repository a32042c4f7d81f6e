"""How much memory is left, for this machine and for the cgroups this process is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 has a number near 2**63 for it
KEPT_FREE = 0.1  # of what is available when a cache begins; when less is left, nothing is added to it
LEAST_KEPT_FREE = 128 << 20  # bytes, where that is not more than half: workers that start again want some
CHECK_EVERY_BYTES = 16 << 20  # of new data of all workers, at most; then it is looked how much memory is left
CHECKS_PER_FLOOR = 16  # so many times in what is to be left, at least


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The limit of a cgroup, and what its processes use."""

    limit_bytes: int
    used_bytes: int
    """Without what the system would give up for others: files that were read and may be read again."""

    @property
    def room_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def available_bytes() -> int:
    """Memory that can be had without swapping, and without going over the limit of a cgroup."""
    available, group = int(psutil.virtual_memory().available), cgroup_memory()
    return available if group is None else min(available, group.room_bytes)


def kept_free(available: int) -> int:
    """Bytes that a cache leaves for others, of so many that are available when it begins."""
    return max(int(KEPT_FREE * available), min(LEAST_KEPT_FREE, available // 2))


def check_every(floor: int) -> int:
    """Bytes after which a cache looks again whether more than `floor` is left. A look takes less than a millisecond."""
    return min(CHECK_EVERY_BYTES, floor // CHECKS_PER_FLOOR)


def cgroup_memory() -> CgroupMemory | None:
    """Of this process's cgroups and their ancestors, that with the least room; None: there is no limit."""
    return min(_limited_groups(), key=lambda group: group.room_bytes, default=None)


def _limited_groups() -> Iterator[CgroupMemory]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        for level in _levels(line):
            memory = _memory_of(level)
            if memory is not None:
                yield memory


def _levels(line: str) -> Iterator[Path]:
    """The directories of the cgroup that a line of /proc/self/cgroup names, and of its ancestors. In a container the
    path may be the host's: directories that are not there have no files, and the mount's root is always among them."""
    _, controllers, path = [*line.split(":", 2), "", ""][:3]
    if controllers and "memory" not in controllers.split(","):
        return
    root = _CGROUP / "memory" if controllers else _CGROUP  # version 1 has a tree for each controller
    group = root / path.lstrip("/")
    yield from (level for level in (group, *group.parents) if level.is_relative_to(root))


def _memory_of(level: Path) -> CgroupMemory | None:
    """By the files of either version; None: no limit is set here."""
    for limit_file, used_file, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit = (level / limit_file).read_text().strip()
            if not limit.isdecimal() or int(limit) >= _NO_LIMIT:
                continue
            used = int((level / used_file).read_text())
        except (OSError, ValueError):
            continue
        return CgroupMemory(int(limit), max(0, used - _reclaimable(level, prefix)))
    return None


def _reclaimable(level: Path, prefix: str) -> int:
    """Bytes of files in memory that the system gives up when others need it. They count as used, and a job that reads
    its dataset fills its cgroup with them. Of those in frequent use, which programs run from, half."""
    try:
        words = dict(line.split(maxsplit=1) for line in (level / "memory.stat").read_text().splitlines())
        return int(words[f"{prefix}inactive_file"]) + int(words[f"{prefix}active_file"]) // 2
    except (OSError, ValueError, KeyError):
        return 0
