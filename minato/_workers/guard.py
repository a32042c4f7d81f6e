"""A worker's safety: it never outlives its parent, and Ctrl-C is the parent's business.

The parent holds the write end of a pipe that nothing is ever written to. When the parent dies, however it dies, the
kernel closes it, and since the worker's read end is set to send a signal on that event, the kernel kills the worker at
once: inside a long C call, with the GIL held, whatever. (`prctl(PR_SET_PDEATHSIG)` would not do: it fires when the
*thread* that started the worker ends, and a forkserver's children have another parent.)
"""

from __future__ import annotations

import fcntl
import os
import select
import signal

_F_SETSIG = 10  # Linux; not in the fcntl module


_write_ends: set[int] = set()
"""Of this process's pools. No forked child may hold them, or the pipe would not break when this process dies."""


def open_lifeline() -> tuple[int, int]:
    """A pipe that breaks when this process dies: (read end for workers, write end for this process alone)."""
    read_end, write_end = os.pipe()
    _write_ends.add(write_end)
    return read_end, write_end


def close_lifeline(read_end: int, write_end: int) -> None:
    """Undo `open_lifeline`."""
    _write_ends.discard(write_end)
    os.close(write_end)
    os.close(read_end)


def _forget_lifelines() -> None:
    """In a forked child, whoever forked it and whatever for."""
    while _write_ends:
        os.close(_write_ends.pop())


os.register_at_fork(after_in_child=_forget_lifelines)


def die_with_parent(read_end: int) -> int:
    """Have the kernel kill this process when the pipe breaks. Returns a descriptor that reports the same."""
    # Owner and signal belong to the open file, which all workers share: this one gets its own.
    mine = os.open(f"/proc/self/fd/{read_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(mine, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(mine, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(mine, fcntl.F_SETFL, fcntl.fcntl(mine, fcntl.F_GETFL) | os.O_ASYNC)
    if _is_broken(mine):  # the parent died before we asked
        os._exit(1)
    return mine


def _is_broken(read_end: int) -> bool:
    poll = select.poll()
    poll.register(read_end, 0)
    return bool(poll.poll(0))


def reset_signals() -> None:
    """Ctrl-C goes to the whole foreground group; only the parent answers it. SIGTERM ends a worker without a word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
