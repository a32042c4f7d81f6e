"""The obstore library, as far as this process may use it.

obstore runs its requests on threads of its own, which it starts once per process and keeps. A fork does not copy
threads: in a forked process that inherited a library in use, the first request waits for ever. So a process that was
forked while the library was loaded gets a fresh copy of it: the same file again under another inode, which the
system's loader takes for another library with threads yet to be started. It takes about 15 ms, once per process.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_NAME = "obstore._obstore"

_inherited = False  # whether this process was forked from one that had loaded the library
_own_copy: ModuleType | None = None


def _note_fork() -> None:
    global _inherited, _own_copy
    _inherited = _own_copy is not None or _NAME in sys.modules
    _own_copy = None


os.register_at_fork(after_in_child=_note_fork)


def library() -> Any:
    """The compiled part of obstore: `get`, `list`, …, `_store.S3Store`. Called under the clients' lock."""
    global _own_copy
    importlib.import_module("obstore")
    if not _inherited:
        return sys.modules[_NAME]
    if _own_copy is None:
        _own_copy = _load_copy(str(sys.modules[_NAME].__file__))
    return _own_copy


def _load_copy(path: str) -> ModuleType:
    copy = os.memfd_create("obstore", os.MFD_CLOEXEC)
    try:
        with open(path, "rb") as original:
            size = os.fstat(original.fileno()).st_size
            done = 0
            while done < size:
                done += os.sendfile(copy, original.fileno(), done, size - done)
        file = f"/proc/self/fd/{copy}"
        loader = importlib.machinery.ExtensionFileLoader(_NAME, file)
        spec = importlib.util.spec_from_file_location(_NAME, file, loader=loader)
        if spec is None:
            raise ImportError(f"{path} cannot be loaded a second time", name=_NAME, path=path)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    finally:
        os.close(copy)
    return module
