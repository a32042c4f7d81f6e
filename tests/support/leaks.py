"""Finds what a piece of code left behind: processes, threads, file descriptors, shared memory.

Covers this process and its descendants. Does not cover memory, temporary files, threads made by native code, and
processes whose parent died (init adopts them): a test that kills a parent has to look for its orphans itself.
"""

import gc
import glob
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil

# Joined threads, reaped children and closing finalizers may lag behind the code that asked for them. Shorter gives
# false alarms on a busy machine; longer only slows down tests that do leak.
SETTLE_S = 2.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1

# Libraries open a few files once and keep them (/dev/urandom, a device node). More different ones than this is a leak.
_MAX_ONE_OFF_FILES = 8

_SHM = Path("/dev/shm")
_SELF_FD = Path("/proc/self/fd")


@dataclass(frozen=True)
class Snapshot:
    """What this process and its descendants hold at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    fds: Counter[str]
    """What descriptors point at. Numbers are useless, they are reused; pipes, sockets and files have their own name."""
    shm: frozenset[tuple[str, int]]
    """Name and inode of each entry of /dev/shm."""


@dataclass
class _Findings:
    leaks: list[str] = field(default_factory=list)
    one_off_files: set[str] = field(default_factory=set)


class LeakCheck:
    """Compares before and after. Keep one for a whole run: it remembers the files that libraries opened once.

    Usage::

        before = check.snapshot()
        ...
        assert check.compare(before) == []
    """

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._one_off_files: set[str] = set()
        self._foreign_shm: set[tuple[str, int]] = set()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            processes=frozenset(_descendants()),
            threads=frozenset(_threads()),
            fds=Counter(_fd_targets()),
            shm=frozenset(_shm_entries()),
        )

    def compare(self, before: Snapshot) -> list[str]:
        """One line per leak, after leaving things up to `settle_s` to end by themselves."""
        found = self._find(before)
        deadline = time.monotonic() + self._settle_s
        pause_s = _FIRST_PAUSE_S
        # Collecting garbage can take 150 ms with torch loaded, so only those who seem to leak pay for it.
        while found.leaks:
            gc.collect()
            found = self._find(before)
            if not found.leaks or time.monotonic() >= deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._one_off_files |= found.one_off_files
        return found.leaks

    def _find(self, before: Snapshot) -> _Findings:
        found = _Findings()
        now = self.snapshot()
        found.leaks += [_describe_process(p) for p in now.processes - before.processes]
        found.leaks += [f"thread {t.name!r}{' (daemon)' if t.daemon else ''}" for t in now.threads - before.threads]
        self._find_fds(now.fds - before.fds, found)
        self._find_shm(now.shm - before.shm, found)
        return found

    def _find_fds(self, new: Counter[str], found: _Findings) -> None:
        for target, count in sorted(new.items()):
            if count == 1 and _may_be_one_off(target) and target not in self._one_off_files:
                found.one_off_files.add(target)
            else:
                found.leaks.append(f"file descriptor {target}{f' ({count} times)' if count > 1 else ''}")
        files = self._one_off_files | found.one_off_files
        if found.one_off_files and len(files) > _MAX_ONE_OFF_FILES:
            found.leaks.append(f"growing number of open files: {', '.join(sorted(files))}")

    def _find_shm(self, new: frozenset[tuple[str, int]], found: _Findings) -> None:
        # /dev/shm belongs to the whole machine; other people's loaders come and go in it.
        suspects = new - self._foreign_shm
        if suspects:
            self._foreign_shm |= _held_by_others(suspects)
            # Some live for less time than the search for their holder takes.
            suspects &= frozenset(_shm_entries())
        found.leaks += [f"shared memory {_SHM / name}" for name, _ in sorted(suspects - self._foreign_shm)]


def _descendants() -> Iterator[psutil.Process]:
    # By pid and not by command line: what the fork server forks has the fork server's command line.
    helpers = {
        getattr(forkserver._forkserver, "_forkserver_pid", None),
        getattr(resource_tracker._resource_tracker, "_pid", None),
    }
    for pid in _descendant_pids():
        if pid not in helpers:
            try:
                yield psutil.Process(pid)
            except psutil.NoSuchProcess:
                pass


def _descendant_pids() -> list[int]:
    if not os.path.exists("/proc/thread-self/children"):  # a kernel option, though a common one
        return [process.pid for process in psutil.Process().children(recursive=True)]
    # psutil goes through all processes of the machine: milliseconds for each test, and more on a busy one.
    found: list[int] = []
    unseen = [os.getpid()]
    while unseen:
        children = _child_pids(unseen.pop())
        found += children
        unseen += children
    return found


def _child_pids(pid: int) -> list[int]:
    children: list[int] = []
    for path in glob.iglob(f"/proc/{pid}/task/*/children"):
        try:
            with open(path, encoding="ascii") as file:
                children += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):  # the process or one of its threads has just ended
            pass
    return children


def _describe_process(process: psutil.Process) -> str:
    try:
        status = process.status()
        what = process.name() if status == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
        return f"process {process.pid} ({status}): {what:.200}"
    except psutil.NoSuchProcess:
        return f"process {process.pid} (ending)"


def _threads() -> Iterator[threading.Thread]:
    # A dummy stands for a native thread that once called into Python. It is not ours, and it never goes away.
    return (t for t in threading.enumerate() if not isinstance(t, threading._DummyThread))


def _fd_targets() -> Iterator[str]:
    # The pipes by which multiprocessing keeps its two helpers alive live as long as they do.
    helpers = {
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        getattr(resource_tracker._resource_tracker, "_fd", None),
    }
    for fd in os.listdir(_SELF_FD):
        if int(fd) in helpers:
            continue
        try:
            yield os.readlink(_SELF_FD / fd)
        except FileNotFoundError:  # the descriptor of this very listing
            pass


def _may_be_one_off(target: str) -> bool:
    """Only a lasting, named file: never a pipe, socket, eventfd, pidfd or memfd, nor anything a test made."""
    if not target.startswith("/") or target.endswith(" (deleted)"):
        return False
    ours = ("/memfd:", f"{_SHM}/", f"{os.path.realpath(tempfile.gettempdir())}/")
    return not target.startswith(ours)


def _shm_entries() -> Iterator[tuple[str, int]]:
    with os.scandir(_SHM) as entries:
        return iter([(entry.name, entry.inode()) for entry in entries])


def _held_by_others(entries: frozenset[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those entries that another user owns, or that a process which is neither this one nor its descendant has open."""
    ours = {os.getpid(), *_descendant_pids()}
    others = [pid for pid in psutil.pids() if pid not in ours]
    held = set().union(*map(_shm_inodes_in_use, others))
    return {(name, inode) for name, inode in entries if inode in held or _owner(name) not in (os.getuid(), None)}


def _shm_inodes_in_use(pid: int) -> set[int]:
    # By inode: a semaphore is mapped under a temporary name before it gets its own.
    process = Path(f"/proc/{pid}")
    used: set[int] = set()
    try:
        maps = (process / "maps").read_text(errors="replace").splitlines()
        used.update(int(line.split(maxsplit=5)[4]) for line in maps if f"{_SHM}/" in line)
        used.update(fd.stat().st_ino for fd in (process / "fd").iterdir() if os.readlink(fd).startswith(f"{_SHM}/"))
    except OSError:  # ended meanwhile, or not ours to look into
        pass
    return used


def _owner(shm_name: str) -> int | None:
    try:
        return (_SHM / shm_name).stat().st_uid
    except FileNotFoundError:
        return None
