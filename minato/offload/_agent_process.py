"""The agent as the main process sees it: started, spoken to, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from .._workers.guard import close_lifeline, open_lifeline
from ._wire import Line, Setup, Stop

STOP_GRACE_S = 8.0  # seconds to end the actors and leave the cluster; one that was started here takes some of them


class AgentProcess:
    """A running agent. Not a child of multiprocessing: nothing of the user's main module is run again in it."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lifeline = open_lifeline()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __package__ + "._agent_main", str(theirs.fileno()), str(self._lifeline[0])],
                pass_fds=(theirs.fileno(), self._lifeline[0]),
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        except BaseException:
            ours.close()
            close_lifeline(*self._lifeline)
            raise
        finally:
            theirs.close()
        self.pidfd = os.pidfd_open(self._process.pid)
        self.pid = self._process.pid
        self.is_ready = False
        """Whether it is in the cluster."""
        self._line = Line(ours)
        self._line.send(setup)

    @property
    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, message: object, fds: tuple[int, ...] = ()) -> bool:
        return self._line.send(message, fds)

    def receive(self) -> Any:
        """The next message, or None."""
        try:
            received = self._line.receive()
        except EOFError:
            return None
        return None if received is None else received[0]

    def await_message(self, kind: type, within_s: float) -> bool:
        """Wait for a message of that kind; others are dropped."""
        deadline = time.monotonic() + within_s
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        while time.monotonic() < deadline:
            message = self.receive()
            if isinstance(message, kind):
                return True
            if message is None:
                if self.has_ended:
                    return False
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        return False

    def kill(self) -> None:
        """End it at once; its actors end with it, and so does a cluster that it started."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """End it, and give everything back. One that is not in the cluster yet has nothing to take leave of."""
        self._line.send(Stop())
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if not poll.poll(STOP_GRACE_S * 1000 if self.is_ready else 0):
            self.kill()
        self._process.wait()
        self._line.close()
        os.close(self.pidfd)
        close_lifeline(*self._lifeline)


def _environment() -> dict[str, str]:
    """What the agent, and a cluster that it starts, find in their environment."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        "OMP_NUM_THREADS": "1",
    }
