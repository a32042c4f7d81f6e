"""Tells whether an object must not be shared by forked processes, and why. Looks only; imports no optional package."""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from .walk import package_of

_STANDARD_STREAMS = 3  # descriptors 0, 1 and 2
_FILE = "is open: its file position is shared by all workers"
_CONNECTION = "is connected: all workers send and receive on the same connection"
_LOCK = "is held by a thread that does not exist in workers: a worker that needs it waits for ever"

# fmt: off
CLIENTS = frozenset({
    "requests", "urllib3", "http", "httpx", "httpcore", "aiohttp", "boto3", "botocore", "aiobotocore", "aioboto3",
    "s3fs", "gcsfs", "fsspec", "google", "azure", "redis", "pymongo", "pymysql", "psycopg", "psycopg2", "asyncpg",
    "sqlalchemy", "MySQLdb", "mysql", "pyodbc", "duckdb", "elasticsearch", "grpc", "paramiko",
})
# fmt: on
"""Packages whose objects keep their connections somewhere inside: the object is named, not the socket."""


class RiskJudge:
    """Says what forked workers would do to an object, or with it; None if there is nothing to fear."""

    def __init__(self) -> None:
        self._by_type: dict[type, Callable[[Any], str | None] | None] = {}

    def __call__(self, value: Any) -> str | None:
        kind = type(value)
        if kind not in self._by_type:
            self._by_type[kind] = _judge_of(kind)
        judge = self._by_type[kind]
        return None if judge is None else judge(value)


def _judge_of(kind: type) -> Callable[[Any], str | None] | None:
    for base, judge in _JUDGES.items():
        if issubclass(kind, base):
            return judge
    for base in kind.__mro__:
        foreign = _FOREIGN.get((package_of(base), base.__name__))
        if foreign is not None:
            is_open, risk = foreign
            return lambda value: risk if _holds(is_open, value) else None
    return None


def is_held(value: Any) -> bool:
    """Whether a lock could not be taken by a worker forked from this thread."""
    if isinstance(value, _LOCK_TYPE):
        return value.locked()
    if isinstance(value, _RLOCK_TYPE):  # one that this thread holds is held by the worker's only thread as well
        return repr(value).startswith("<locked") and not value._is_owned()  # type: ignore[attr-defined]
    return False


def cuda_risk(value: Any) -> str | None:
    """The same for CUDA, which must be initialised for this to matter."""
    if isinstance(value, torch.Tensor):
        found = value.is_cuda
    elif isinstance(value, torch.Generator):
        found = value.device.type == "cuda"
    else:
        found = isinstance(value, torch.device) and value.type == "cuda"
    return "is on a CUDA device, and CUDA is in use in this process: forked workers cannot use it" if found else None


def _file_risk(value: Any) -> str | None:
    if any(
        value is stream for stream in (sys.stdin, sys.stdout, sys.stderr)
    ):  # shared anyway, whatever they were replaced by
        return None
    try:
        is_shared = not value.closed and value.fileno() >= _STANDARD_STREAMS
    except (OSError, ValueError, AttributeError):  # in memory, or detached
        return None
    return _FILE if is_shared else None


def _socket_risk(value: socket.socket) -> str | None:
    return _CONNECTION if value.fileno() >= 0 else None


def _lock_risk(value: Any) -> str | None:
    return _LOCK if is_held(value) else None


def _thread_risk(value: threading.Thread) -> str | None:
    return "runs in this process, and does not exist in workers" if value.is_alive() else None


_LOCK_TYPE, _RLOCK_TYPE = type(threading.Lock()), type(threading.RLock())

_JUDGES: dict[type, Callable[[Any], str | None]] = {
    io.IOBase: _file_risk,
    socket.socket: _socket_risk,
    threading.Thread: _thread_risk,
    _LOCK_TYPE: _lock_risk,
    _RLOCK_TYPE: _lock_risk,
}

_HDF5 = "is open: HDF5 keeps its state in memory that workers copy, and the file's position is shared"
_LMDB = "is open: LMDB forbids the use of an environment in a forked process"

_NO_THREADS = "was started: its threads do not exist in workers, where its tasks are never run"


def _is_open_sqlite(value: Any) -> bool:
    try:
        return bool(value.total_changes >= 0)
    except Exception as error:  # belongs to another thread, or is closed
        return "closed" not in str(error)


# By package and class name, so that nothing needs to be imported; each with how it tells that it is open.
_FOREIGN: dict[tuple[str, str], tuple[Callable[[Any], Any], str]] = {
    ("h5py", "HLObject"): (bool, _HDF5),
    ("lmdb", "Environment"): (lambda value: value.path(), _LMDB),
    ("lmdb", "Transaction"): (lambda _: True, _LMDB),
    ("psycopg2", "connection"): (lambda value: not value.closed, _CONNECTION),
    ("psycopg", "BaseConnection"): (lambda value: not value.closed, _CONNECTION),
    ("MySQLdb", "Connection"): (lambda value: value.open, _CONNECTION),
    ("duckdb", "DuckDBPyConnection"): (lambda _: True, _CONNECTION),
    ("_duckdb", "DuckDBPyConnection"): (lambda _: True, _CONNECTION),
    ("grpc", "Channel"): (lambda _: True, "has threads, which do not exist in workers: calls there never return"),
    ("pymongo", "MongoClient"): (lambda value: value._opened, _CONNECTION),
    ("zipfile", "ZipFile"): (lambda value: value.fp is not None, _FILE),
    ("tarfile", "TarFile"): (lambda value: not value.closed, _FILE),
    ("sqlite3", "Connection"): (_is_open_sqlite, "is connected: SQLite forbids its use in a forked process"),
    ("concurrent", "ThreadPoolExecutor"): (lambda value: value._threads, _NO_THREADS),
    ("concurrent", "ProcessPoolExecutor"): (lambda value: value._processes, _NO_THREADS),
    ("multiprocessing", "Pool"): (lambda value: value._state == "RUN", _NO_THREADS),
}


def _holds(is_open: Callable[[Any], Any], value: Any) -> bool:
    try:
        return bool(is_open(value))
    except Exception:  # other people's objects when they are closed, or in another version
        return False
