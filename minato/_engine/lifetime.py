"""Engines that are open, so that interpreter exit closes them.

Workers are not daemonic (a dataset may start processes of its own), so multiprocessing would wait for them at exit.
An exit handler registered after multiprocessing's runs before it.
"""

from __future__ import annotations

import atexit
import os
from typing import Protocol


class Closable(Protocol):
    def close(self) -> None: ...


_open: dict[int, Closable] = {}
_registered_in: int | None = None


def keep_until_exit(engine: Closable) -> None:
    """Close `engine` at interpreter exit, if nobody did before."""
    global _registered_in
    if _registered_in != os.getpid():
        _open.clear()  # a forked child must not close its parent's engines
        atexit.register(_close_all)
        _registered_in = os.getpid()
    _open[id(engine)] = engine


def release(engine: Closable) -> None:
    """`engine` was closed."""
    _open.pop(id(engine), None)


def _close_all() -> None:
    for engine in list(_open.values()):
        engine.close()
