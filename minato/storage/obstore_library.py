"""The obstore library, as far as this process may use it.

obstore runs its requests on threads of its own, which it starts once per process and keeps. A fork does not copy
threads: in a forked process that inherited a library in use, the first request waits for ever. So a process that was
forked while the library was loaded gets a fresh copy of it: the same file again under another inode, which the
system's loader takes for another library with threads yet to be started. That takes about 15 ms; so a process that is
about to fork loads such a copy and leaves it alone, and all processes it forks find it there.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from torch.utils.data import get_worker_info

_NAME = "obstore._obstore"
_THREADS = "TOKIO_WORKER_THREADS"  # what the library's runtime looks for when it starts


class _Libraries:
    """What is loaded in this process."""

    def __init__(self) -> None:
        self.in_use: ModuleType | None = None
        """What this process makes its requests with."""
        self.spare: ModuleType | None = None
        """A copy that nobody has used, for the next process that is forked, and those after it."""
        self.untouched: ModuleType | None = None
        """The parent's spare, if it had one when this process was forked."""
        self.original_is_free = True
        """Whether no thread of the imported library can have been lost in a fork."""
        self.copies = 0
        """Loaded by this process, and by those it descends from until it was forked."""


_here = _Libraries()


def _load_spare() -> None:
    """Before a fork: load once what else every forked process would load for itself."""
    if _here.in_use is not None and _here.spare is None:
        # What cannot be loaded here is tried again, and raises, where it is needed.
        with suppress(OSError, ImportError):
            _here.spare = _load_copy(str(sys.modules[_NAME].__file__))


def _note_fork() -> None:
    global _here
    parent, _here = _here, _Libraries()
    _here.untouched = parent.untouched if parent.in_use is None else parent.spare
    _here.original_is_free = _NAME not in sys.modules
    _here.copies = parent.copies


os.register_at_fork(before=_load_spare, after_in_child=_note_fork)


def library() -> Any:
    """The compiled part of obstore: `get`, `list`, …, `_store.S3Store`. Called under the clients' lock."""
    if _here.in_use is None:
        importlib.import_module("obstore")
        original = sys.modules[_NAME]
        chosen = original if _here.original_is_free else _here.untouched or _load_copy(str(original.__file__))
        _start_runtime(chosen)
        _here.in_use = chosen
    return _here.in_use


def _start_runtime(module: Any) -> None:
    """Start the library's threads. By itself it has one for each core, in every process: a loader's workers would have
    many times as many threads as there are cores, which pass a body's parts to each other. They get what is their share
    of the cores; whoever has set the number is obeyed."""
    info = get_worker_info()
    if info is None or _THREADS in os.environ:
        return
    os.environ[_THREADS] = str(max(1, len(os.sched_getaffinity(0)) // max(1, info.num_workers)))
    try:
        with suppress(FileNotFoundError):
            module.head(module._store.MemoryStore(), "nothing")  # any request does
    finally:
        del os.environ[_THREADS]


def _load_copy(path: str) -> ModuleType:
    copy = os.memfd_create("obstore", os.MFD_CLOEXEC)
    try:
        with open(path, "rb") as original:
            size = os.fstat(original.fileno()).st_size
            done = 0
            while done < size:
                done += os.sendfile(copy, original.fileno(), done, size - done)
        # The system's loader takes files of one name for the same one, and descriptors' numbers are used again.
        _here.copies += 1
        file = f"/proc/self/fd/{'./' * _here.copies}{copy}"
        loader = importlib.machinery.ExtensionFileLoader(_NAME, file)
        spec = importlib.util.spec_from_file_location(_NAME, file, loader=loader)
        if spec is None:
            raise ImportError(f"{path} cannot be loaded a second time", name=_NAME, path=path)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    finally:
        os.close(copy)
    return module
