"""Entry point of the agent's process: finds out where to go before Ray is imported, joins, works, leaves."""

from __future__ import annotations

import os
import select
import socket
import sys
import warnings
from dataclasses import replace

from .._workers.guard import die_with_parent, reset_signals
from ._finding import AUTO, LOCAL, Found, adopt, settle
from ._wire import Line, Setup, Trouble


def main() -> None:
    """Arguments: descriptors of the line to the main process and of the pipe that breaks with it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    lifeline = die_with_parent(int(sys.argv[2]))
    reset_signals()
    warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
    line = Line(connection)
    select.select([line], [], [])
    received = line.receive()
    if received is None or not isinstance(received[0], Setup):
        return
    setup = received[0]
    try:
        setup = replace(setup, address=settle(Found(setup.address, setup.or_local), os.environ))
    except ConnectionError as error:
        line.send(Trouble(f"no Ray cluster: {error}", fatal=True))
        return
    adopt(setup.address, os.environ)
    _work(line, lifeline, setup)


def _work(line: Line, lifeline: int, setup: Setup) -> None:
    from ._agent import Agent  # not earlier: this imports Ray, which reads the environment only then
    from ._cluster import Cluster

    try:
        cluster = Cluster(setup)
    except Exception as error:
        line.send(Trouble(no_cluster(setup, error), fatal=True))
        return
    try:
        Agent(line, lifeline, setup, cluster).run()
    except Exception as error:
        line.send(Trouble(f"{type(error).__name__}: {error}"[:1000], fatal=True))
        raise
    finally:
        cluster.leave()


def no_cluster(setup: Setup, error: Exception) -> str:
    """Why there is none, in a line."""
    lines = str(error).strip().splitlines() or [""]
    said = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"  # in between: a traceback of Ray's client server
    text = f"no Ray cluster: {type(error).__name__}: {said.rstrip('.')}"[:900]
    if setup.address not in (AUTO, LOCAL) and "RAY_AUTH_MODE" not in os.environ:
        text += "; one that asks for a token needs RAY_AUTH_MODE=token here as well"
    return text


if __name__ == "__main__":
    main()
