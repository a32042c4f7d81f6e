"""What this machine offers a loader, as plain records. Looks, and changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import tomllib
import torch

from .._engine.budget import default_memory_budget
from .._engine.cores import allowed_cores
from .._pipeline.room import cgroup_memory

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_SHM = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Cores:
    """Cores' worth of CPU time."""

    present: int
    affinity: int
    quota: float | None
    """Of the cgroup; None: there is none."""
    ranks: int
    """Processes of the job on this node, which share the cores."""
    allowed: float
    """What is left for one rank."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    loader_budget_bytes: int
    """What batches in flight may take where `memory_budget` is not given."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    memfd: bool
    """Whether memory without a name can be made, in which batches live."""
    shm_total_bytes: int | None
    """Of /dev/shm; None: it is not there."""
    shm_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Soft and hard limits of this process; None: there is none."""

    open_files: int | None
    open_files_hard: int | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class Accelerator:
    kind: str | None
    """"cuda", "mps", …; None: torch finds none."""
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Perf:
    path: str | None
    paranoid: int | None
    """kernel.perf_event_paranoid: up to 2 lets a process look at itself; None: the kernel has no perf events."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One of the optional parts of minato."""

    name: str
    installed: dict[str, str]
    """Package and version."""
    missing: tuple[str, ...]
    pip: str
    """How to install what it needs."""


@dataclass(frozen=True, slots=True)
class Machine:
    versions: dict[str, str]
    cores: Cores
    memory: Memory
    shared_memory: SharedMemory
    limits: Limits
    start_methods: tuple[str, ...]
    """The default one first."""
    accelerator: Accelerator
    perf: Perf
    extras: tuple[Extra, ...]


def look() -> Machine:
    """All of it, as it is now."""
    return Machine(
        versions=_versions(),
        cores=_cores(),
        memory=_memory(),
        shared_memory=_shared_memory(),
        limits=_limits(),
        start_methods=tuple(multiprocessing.get_all_start_methods()),
        accelerator=_accelerator(),
        perf=Perf(shutil.which("perf"), _paranoid()),
        extras=extras_of(requirements()),
    )


def _versions() -> dict[str, str]:
    from .. import __version__

    return {
        "minato": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "psutil": metadata.version("psutil"),
        "kernel": os.uname().release,
    }


def _cores() -> Cores:
    allowed = allowed_cores()
    return Cores(os.cpu_count() or 1, allowed.affinity, allowed.quota, allowed.ranks, allowed.cores)


def _memory() -> Memory:
    machine, group = psutil.virtual_memory(), cgroup_memory()
    limit, used = (None, None) if group is None else (group.limit_bytes, group.used_bytes)
    return Memory(machine.total, machine.available, limit, used, default_memory_budget())


def _shared_memory() -> SharedMemory:
    try:
        shm = os.statvfs(_SHM)
    except OSError:
        return SharedMemory(_can_memfd(), None, None)
    return SharedMemory(_can_memfd(), shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize)


def _can_memfd() -> bool:
    try:
        fd = os.memfd_create("minato-doctor", os.MFD_CLOEXEC)
    except OSError:
        return False
    try:
        os.ftruncate(fd, 4096)
        return os.pwrite(fd, b"minato", 0) == 6
    except OSError:
        return False
    finally:
        os.close(fd)


def _limits() -> Limits:
    files, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return Limits(*(None if limit == resource.RLIM_INFINITY else limit for limit in (files, files_hard, processes)))


def _accelerator() -> Accelerator:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return Accelerator(None, ())
    names = (f"{found.type}:{number}" for number in range(torch.accelerator.device_count()))
    return Accelerator(found.type, tuple(names))


def _paranoid() -> int | None:
    try:
        return int(_PARANOID.read_text())
    except (OSError, ValueError):
        return None


# ---- extras -------------------------------------------------------------------------------------------------------


def requirements() -> list[str]:
    """What minato and its extras need, in the form of package metadata: `name>=1; extra == "s3"`."""
    try:
        return metadata.requires("minato") or []
    except metadata.PackageNotFoundError:  # run from a source tree
        return _of_source_tree(Path(__file__).parents[2] / "pyproject.toml")


def _of_source_tree(project: Path) -> list[str]:
    try:
        extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    except (OSError, KeyError):
        return []
    return [f'{needed}; extra == "{extra}"' for extra, all_needed in extras.items() for needed in all_needed]


def extras_of(required: Iterable[str]) -> tuple[Extra, ...]:
    """The extras and what is there of each. Extras that only name other extras are left out."""
    packages: dict[str, list[str]] = {}
    for line in required:
        named, extra = re.match(r"[\w.-]+", line), re.search(r"""extra\s*==\s*['"]([^'"]+)""", line)
        if named and extra and named[0] != "minato":
            packages.setdefault(extra[1], []).append(named[0])
    return tuple(_extra(name, needed) for name, needed in packages.items())


def _extra(name: str, needed: list[str]) -> Extra:
    installed: dict[str, str] = {}
    for package in needed:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    missing = tuple(package for package in needed if package not in installed)
    return Extra(name, installed, missing, f"pip install 'minato[{name}]'")
