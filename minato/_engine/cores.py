"""How much CPU this process may use: its affinity, the quota of its cgroup, and the ranks it shares the node with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RANKS_VARIABLE = "LOCAL_WORLD_SIZE"  # set by torchrun: processes of one job on this node
_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class AllowedCores:
    """The limits on CPU time, each by itself. Cores' worth of time."""

    affinity: int
    """Cores that the scheduler may put this process on."""
    quota: float | None
    """The tightest quota of the cgroups this process is in; None: there is none."""
    ranks: int
    """Processes of the job on this node, which share what there is: one loader per rank."""

    @property
    def cores(self) -> float:
        """What is left for one rank; a quota may make it a fraction."""
        whole = float(self.affinity) if self.quota is None else min(self.affinity, self.quota)
        return whole / self.ranks


def allowed_cores(
    environment: Mapping[str, str] = os.environ, cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP
) -> AllowedCores:
    """The limits as they are now. `cgroups`: where the cgroup tree is mounted; `membership`: this process's place."""
    return AllowedCores(len(os.sched_getaffinity(0)), _quota(cgroups, membership), _ranks(environment))


def whole_cores() -> int:
    """Cores that one rank may use, at least one."""
    return max(1, int(allowed_cores().cores))


def _ranks(environment: Mapping[str, str]) -> int:
    text = environment.get(RANKS_VARIABLE, "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"the environment variable {RANKS_VARIABLE} must be a positive integer, got {text!r}")
    return int(text)


def _quota(cgroups: Path, membership: Path) -> float | None:
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no /proc, or no cgroups: no quota either
        return None
    quotas = [quota for line in lines for level in _levels(line, cgroups) if (quota := _quota_of(level)) is not None]
    return min(quotas, default=None)


def _levels(line: str, cgroups: Path) -> Iterator[Path]:
    """The directories of the cgroup that a line of /proc/self/cgroup names, and of its ancestors.

    In a container the path may be the host's, of which only the upper end is mounted: directories that are not there
    have no files, and the mount's root is always among the ancestors.
    """
    _, controllers, path = line.split(":", 2)
    if not controllers:  # version 2
        root = cgroups
    elif "cpu" in controllers.split(","):
        root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / "cpu"
    else:
        return
    group = root / path.lstrip("/")
    yield from (level for level in (group, *group.parents) if level.is_relative_to(root))


def _quota_of(level: Path) -> float | None:
    """Cores' worth of time that one cgroup may use, by the files of either version."""
    words = _words(level / "cpu.max") or _words(level / "cpu.cfs_quota_us") + _words(level / "cpu.cfs_period_us")
    quota, period = words if len(words) == 2 else ("max", "0")
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:  # "max" and "-1" mean none
        return None
    return int(quota) / int(period)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # not there, or gone since
        return []
