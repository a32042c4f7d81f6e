"""The process between `S3Server` and its server: ends the server, whatever ends whoever started it.

Standard library only and no import of minato, so that it starts at once. Run as a program with a directory to remove at
the end (or nothing) and the server's command; it lasts until its standard input ends, which it does when the
process that holds the other end closes it or dies, or until the server ends by itself.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1
_END_S = 5.0  # seconds for the server to end when asked to


def _end_with_parent() -> None:
    """In the server, before it begins: end with the keeper too, should that be killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(remove: str, command: list[str]) -> int:
    """Run the command; its exit status, if it ended by itself."""
    # The first thread starts it: it is the thread's death that the server would notice, not the process's.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    watching = threading.Thread(target=_end_when_abandoned, args=(server,), daemon=True)
    watching.start()
    status = server.wait()
    if remove:
        shutil.rmtree(remove, ignore_errors=True)
    return status


def _end_when_abandoned(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        pass
    server.terminate()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C is for whoever started the server
        signal.signal(ignored, signal.SIG_IGN)
    sys.exit(main(sys.argv[1], sys.argv[2:]) & 0xFF)
