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
_AUTHENTICATION = "RAY_AUTH_MODE"
"""Ray's switch for tokens."""
_GCS = "--gcs-address="
"""How a node is told where its cluster is."""
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
    place = _place(found.address, environment)
    if place is None or _is_foreign(place) or is_answering(place):
        return found.address
    if found.address == AUTO and not environment.get("RAY_ADDRESS") and _raylets():
        return AUTO  # of a cluster that was not started by `ray start`
    raise ConnectionError(f"nobody listens at {place}")


def _place(address: str, environment: Mapping[str, str]) -> str | None:
    """Where Ray goes if it is given an address, as far as that can be told."""
    place = environment.get("RAY_ADDRESS") or _last_started(environment) if address == AUTO else address
    return None if place in (AUTO, LOCAL) else place


def adopt(address: str, environment: MutableMapping[str, str]) -> None:
    """Before Ray is imported: be set up as the nodes are that the cluster has on this machine. By itself, Ray takes a
    token for asked for where the address is "auto" and there is one in the user's home, and for not asked for where the
    address is given; either may be wrong, and then nothing works. A user who has set a variable has his way."""
    if address == LOCAL:
        # Nobody else is to join a cluster of our own: whoever reaches Ray runs code.
        environment.setdefault(_ELSEWHERE, "0")
        return
    place = _place(address, environment)
    theirs = [one for its, one in _raylets() if place is None or _is_same(place, its)]
    if theirs:
        environment.setdefault(_AUTHENTICATION, theirs[0].get(_AUTHENTICATION, "disabled"))
        if _ELSEWHERE in theirs[0]:
            environment.setdefault(_ELSEWHERE, theirs[0][_ELSEWHERE])


def _raylets() -> list[tuple[str, Mapping[str, str]]]:
    """Nodes on this machine that are this user's: the address of their cluster, and their environment."""
    found: list[tuple[str, Mapping[str, str]]] = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != "raylet":
            continue
        try:
            given = [word.partition("=")[2] for word in process.cmdline() if word.startswith(_GCS)]
            found += [(one, process.environ()) for one in given]
        except psutil.Error:  # it has just ended, or is somebody else's
            continue
    return found


def _is_same(given: str, its: str) -> bool:
    """Whether an address is that of a cluster with a node on this machine, which the user may call 127.0.0.1."""
    (host, port), (its_host, its_port) = _parts(given), _parts(its)
    return port == its_port and (host == its_host or host in _LOOPBACK)


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return ("127.0.0.1" if host == "localhost" else host.strip("[]")), port


def _is_foreign(address: str) -> bool:
    """Whether it is written in a way that only Ray, or a plugin of it, understands."""
    return "://" in address and not address.startswith(_CLIENT)


def is_answering(address: str) -> bool:
    """Whether somebody listens at host:port, or ray://host:port."""
    host, port = _parts(address.removeprefix(_CLIENT))
    try:
        with socket.create_connection((host, int(port)), _PATIENCE_S):
            return True
    except (OSError, ValueError):
        return False
