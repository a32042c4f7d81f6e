"""The Python stack of a worker that does not answer: written by a signal handler of faulthandler's, in C.

So it works for a worker that is stuck in C code with the GIL held. The stack goes into a memfd that the main process
made: no pipe could fill up, no file is left behind.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time

STACK_SIGNAL = signal.SIGRTMIN + 11  # real-time signals have no other meaning; this one is not used by C libraries
WITHIN_S = 0.5  # seconds for a worker to write its stack; it may be in a system call that cannot be interrupted
_LOOK_EVERY_S = 0.01


def tell_stack_into(fd: int) -> None:
    """In a worker: write the stacks of all threads to `fd` whenever asked."""
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


def ask_stack(pidfd: int, fd: int, thread: int = 0) -> str:
    """The stack of a process that called `tell_stack_into`, innermost call first: of its main thread, or of the one
    with that identity. Empty: it did not answer in time."""
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
    except ProcessLookupError:
        return ""
    deadline = time.monotonic() + WITHIN_S
    seen, text = -1, b""
    while time.monotonic() < deadline and (len(text) != seen or not text.endswith(b"\n")):
        time.sleep(_LOOK_EVERY_S)
        seen, text = len(text), os.pread(fd, 1 << 20, 0)
    stacks = text.decode(errors="replace").strip().split("\n\n")
    own = [stack for stack in stacks if thread and f"hread 0x{thread:016x} " in stack]  # "Thread", "Current thread"
    return own[0] if own else stacks[-1]  # faulthandler begins with the youngest thread


def innermost(stack: str) -> str:
    """The line a stack stands at, in words."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return f"at {lines[0]}" if lines else "at a place that is not known"
