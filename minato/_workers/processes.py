"""Worker processes as the system sees them: what multiprocessing's own objects do not do, or do otherwise."""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import signal
import weakref
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

_ours: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""Workers of this process's pools."""


def own(process: BaseProcess) -> None:
    """A worker of this process was started."""
    _ours.add(process)


def _disown_workers() -> None:
    """In a forked copy of this process: its end must not wait for workers that are not its own children."""
    multiprocessing.process._children.difference_update(_ours)  # type: ignore[attr-defined]
    _ours.clear()


os.register_at_fork(after_in_child=_disown_workers)


def start_helpers(start_method: str) -> None:
    """Start multiprocessing's own helper processes, which live on, before interrupts are blocked for a worker's sake:
    starting the tracker unblocks them, and a fork server would hand the block on to all its children."""
    multiprocessing.resource_tracker.ensure_running()
    if start_method == "forkserver":
        multiprocessing.forkserver.ensure_running()


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """A process that is started in this block inherits that it is not interrupted by Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reap(process: BaseProcess) -> int | None:
    """Wait for a process that has ended; returns its peak memory in bytes, which multiprocessing's own way does not
    tell. None: somebody else has waited for it."""
    try:
        _, status, usage = os.wait4(process.pid or 0, 0)
    except ChildProcessError:  # the fork server's child, or somebody else was quicker
        return None
    process._popen.returncode = os.waitstatus_to_exitcode(status)  # type: ignore[attr-defined]
    return usage.ru_maxrss * 1024
