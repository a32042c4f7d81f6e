"""Runs something that may hang, or leave processes behind, in a forked copy of this process that is killed after it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
from dataclasses import dataclass

import torch

PATIENCE_S = 90.0
_LENGTH = struct.Struct("Q")


@dataclass(frozen=True)
class Outcome:
    """How a body ended in its copy."""

    how: str
    """"returned", "raised", "hangs" (was still at it when its time was up) or "died"."""
    value: object = None
    """What it returned, or the text of the exception."""
    error: str = ""
    """Name of the exception's class."""


def in_a_copy(body, within_s=PATIENCE_S):
    """The outcome of `body()` in a forked copy with a process group of its own; nothing of the group is left."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_copy(body, write_end)
    os.close(write_end)
    try:
        with open(read_end, "rb") as pipe:
            if not select.select([pipe], [], [], within_s)[0]:
                return Outcome("hangs")
            # Not until its end: workers that outlive the copy hold the pipe open.
            length = pipe.read(_LENGTH.size)
            return pickle.loads(pipe.read(*_LENGTH.unpack(length))) if length else Outcome("died")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)  # it may not have made its group yet
        os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _be_the_copy(body, write_end):
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what torch's workers say as they die is of no interest
        torch.set_num_threads(1)  # OpenMP's threads were not copied
        try:
            outcome = Outcome("returned", body())
        except BaseException as error:
            outcome = Outcome("raised", str(error), type(error).__name__)
        told = pickle.dumps(outcome)
        with open(write_end, "wb") as pipe:
            pipe.write(_LENGTH.pack(len(told)) + told)
    finally:
        os._exit(0)
