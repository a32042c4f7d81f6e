"""The user's code run for a look, in a process of its own that is started as workers are.

A dataset that opens its file at the first sample must not do so in the main process: forked workers would share the
open file. So whatever runs samples to learn something about them runs here.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import pickle
import signal
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import torch

from .._errors import CapturedError, WorkerDied
from .._workers.guard import close_lifeline, die_with_parent, open_lifeline, reset_signals
from .._workers.main import Handle

_T = TypeVar("_T")
_GRACE_S = 30.0  # beyond its own time limit, before a look is ended: one sample may take long


def run_aside(context: BaseContext, max_seconds: float, function: Callable[..., _T], *arguments: Any) -> _T:
    """The function's result, or what it raised. `WorkerDied` if its process ended without either, or took much longer
    than `max_seconds`. Under spawn and forkserver, function and arguments have to be picklable."""
    read_end, write_end = open_lifeline()
    mine, theirs = multiprocessing.connection.Pipe(duplex=False)
    try:
        process = context.Process(  # type: ignore[attr-defined]
            target=_child, args=(theirs, Handle(read_end), function, arguments), name="minato-look", daemon=False
        )
        process.start()
        theirs.close()
        try:
            result: _T = _await(mine, process, max_seconds + _GRACE_S)
            return result
        finally:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
    finally:
        mine.close()
        theirs.close()
        close_lifeline(read_end, write_end)


def _await(connection: Any, process: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    ready = multiprocessing.connection.wait([connection, process.sentinel], seconds)
    if connection in ready or connection.poll(0):
        try:
            is_result, value = pickle.loads(connection.recv_bytes())
        except EOFError:
            process.join(max(0.0, deadline - time.monotonic()))
        else:
            if is_result:
                return value
            raise value.rebuild()
    elif process.is_alive():
        raise WorkerDied(
            f"a look at the dataset took longer than {seconds:.0f} s and was ended: a sample takes so long, or hangs, "
            f"as libraries that compute in threads may in a forked process (multiprocessing_context='spawn' helps then)"
        )
    code = process.exitcode
    how = f"by signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
    raise WorkerDied(f"the process that looked at the dataset ended {how}")


def _child(connection: Any, parent: Handle, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    die_with_parent(parent.fd)
    reset_signals()
    torch.set_num_threads(1)
    try:
        message = pickle.dumps((True, function(*arguments)))
    except Exception as error:
        message = pickle.dumps((False, CapturedError.capture(error, "while the dataset was looked at")))
    connection.send_bytes(message)
    connection.close()
    os._exit(0)  # whatever the user's code has begun (threads, processes) is not waited for
