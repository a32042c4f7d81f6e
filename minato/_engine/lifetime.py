"""Engines that are open, so that the end of the process closes them.

Workers are not daemonic (a dataset may start processes of its own), so multiprocessing waits for them when the process
ends. Its own finalizers run before that wait, at interpreter exit as well as at the end of a multiprocessing child,
where `atexit` handlers are not run at all.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.util import Finalize
from typing import Protocol

from .._errors import LoaderClosed


class Closable(Protocol):
    def close(self) -> None: ...


_EXIT_PRIORITY = 100  # ahead of anything that may want to join our processes
_open: dict[int, Closable] = {}
_registered_in: int | None = None
_ending_in: int | None = None
"""The process that has begun to end."""


def keep_until_exit(engine: Closable) -> None:
    """Close `engine` when the process ends, if nobody did before."""
    global _registered_in
    if _registered_in != os.getpid():
        _open.clear()  # a forked child must not close its parent's engines
        Finalize(None, _close_all, exitpriority=_EXIT_PRIORITY)
        _registered_in = os.getpid()
    _open[id(engine)] = engine


def release(engine: Closable) -> None:
    """`engine` was closed."""
    _open.pop(id(engine), None)


def closed_error(message: str) -> BaseException:
    """For whoever asks a closed engine for a batch. A daemon thread that iterates while the process ends is ended
    without a word, as Python ends such threads: nobody closed its loader, and nobody is left to be told."""
    if _ending_in == os.getpid() and threading.current_thread().daemon:
        return SystemExit(message)
    return LoaderClosed(message)


def _close_all() -> None:
    global _ending_in
    _ending_in = os.getpid()
    for engine in list(_open.values()):
        engine.close()
