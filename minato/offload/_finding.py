"""Which cluster an address means. Knows nothing of Ray: the answer decides about variables that Ray reads on import."""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import psutil

LOCAL = "local"
"""A cluster of its own, on this machine."""
AUTO = "auto"
"""Ray finds the cluster of `ray start`, and its token, only if it is asked like this."""
_ELSEWHERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for nodes on other machines. "0": all of it listens on 127.0.0.1, not on the machine's address."""
_CLIENT = "ray://"
_LOOPBACK = ("127.0.0.1", "::1")
_PATIENCE_S = 5.0  # for whoever listens at an address to answer


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


def settle(found: Found, environment: Mapping[str, str]) -> str:
    """The address to join, or LOCAL. May take some seconds. ConnectionError: nobody is there. Ray would try for minutes
    before it said so."""
    if found.or_local:
        return AUTO if is_answering(found.address) else LOCAL
    if found.address == LOCAL:
        return LOCAL
    named, started = environment.get("RAY_ADDRESS"), _last_started(environment)
    if not named and _is_same(found.address, started) and is_answering(str(started)):
        return AUTO
    place = (named or started) if found.address == AUTO else found.address
    if place in (None, AUTO, LOCAL) or _is_foreign(str(place)) or is_answering(str(place)):
        return found.address
    if found.address == AUTO and not named and _is_raylet_here():  # of a cluster that was not started by `ray start`
        return AUTO
    raise ConnectionError(f"nobody listens at {place}")


def _is_same(given: str, started: str | None) -> bool:
    """Whether an address is the one that `ray start` has left, which is this machine's own if the cluster is."""
    if started is None:
        return False
    (host, port), (its_host, its_port) = _parts(given), _parts(started)
    return port == its_port and (host == its_host or host in _LOOPBACK)


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return ("127.0.0.1" if host == "localhost" else host.strip("[]")), port


def _is_foreign(address: str) -> bool:
    """Whether it is written in a way that only Ray, or a plugin of it, understands."""
    return "://" in address and not address.startswith(_CLIENT)


def _is_raylet_here() -> bool:
    return any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))


def is_answering(address: str) -> bool:
    """Whether somebody listens at host:port, or ray://host:port."""
    host, port = _parts(address.removeprefix(_CLIENT))
    try:
        with socket.create_connection((host, int(port)), _PATIENCE_S):
            return True
    except (OSError, ValueError):
        return False


def keep_to_loopback(address: str, environment: MutableMapping[str, str]) -> None:
    """Before Ray is imported: nobody else is to join a cluster of our own, and whoever reaches Ray runs code. One of
    `ray start` that is on the loopback is looked for there. A user who has set the switch has his way."""
    started = None if environment.get("RAY_ADDRESS") else _last_started(environment)
    is_on_loopback = started is not None and _parts(started)[0] in _LOOPBACK and is_answering(started)
    if address == LOCAL or (address == AUTO and is_on_loopback):
        environment.setdefault(_ELSEWHERE, "0")
