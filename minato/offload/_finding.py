"""Which cluster an address means. Knows nothing of Ray: the answer decides about variables that Ray reads on import."""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

LOCAL = "local"
"""A cluster of its own, on this machine."""
AUTO = "auto"
"""Ray finds the cluster of `ray start`, and its token, only if it is asked like this."""
_ELSEWHERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for nodes on other machines. "0": all of it listens on 127.0.0.1, not on the machine's address."""
_PATIENCE_S = 2.0  # for a cluster of this machine to be there


@dataclass(frozen=True, slots=True)
class Found:
    """Where to go."""

    address: str
    or_local: bool = False
    """Whether to start a cluster if nobody is there: one that was started by `ray start`, and may have ended."""


def find_cluster(given: str | None, connected: str | None, environment: Mapping[str, str]) -> Found:
    """What an `address=` means. None: the cluster that this program is `connected` to, or what `ray.init()` would join:
    the one of RAY_ADDRESS, or the last that `ray start` started on this machine; if there is none, one of its own.
    Clusters that other programs have started for themselves are not joined: they end when these do."""
    if given is not None:
        return Found(given)
    if connected is not None:
        return Found(connected)
    if environment.get("RAY_ADDRESS"):
        return Found(environment["RAY_ADDRESS"])
    started = _last_started(environment)
    return Found(LOCAL) if started is None else Found(started, or_local=True)


def _last_started(environment: Mapping[str, str]) -> str | None:
    """Where `ray start` has left its cluster's address."""
    directory = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    try:
        return (Path(directory) / "ray" / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def settle(found: Found) -> str:
    """The address to join, or LOCAL. May take some seconds."""
    if not found.or_local:
        return found.address
    return AUTO if is_answering(found.address) else LOCAL


def is_answering(address: str) -> bool:
    """Whether somebody listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S):
            return True
    except (OSError, ValueError):
        return False


def keep_to_loopback(address: str, environment: MutableMapping[str, str]) -> None:
    """Before Ray is imported: nobody else is to join a cluster of our own, and whoever reaches Ray runs code. A user
    who has set the switch has his way."""
    if address == LOCAL:
        environment.setdefault(_ELSEWHERE, "0")
