"""The seam between minato and the client libraries, and the clients of this process.

A backend is made on first use in the process that uses it, is shared by its threads, and is never used after a fork:
a forked process makes its own. It makes one request per call and never tries again by itself; it raises only errors of
`errors.py`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from .location import Location


@dataclass(frozen=True, slots=True)
class Span:
    """Part of an object, in bytes: `start` included, `end` not."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing or a HEAD request says about an object."""

    key: str
    size: int
    etag: str
    """Without quotes; empty if the server gave none."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a GET: the body, and what the headers say of the object."""

    data: bytes
    announced: int
    """Length of the body by the headers, in bytes."""
    object_bytes: int
    etag: str
    checksum_verified: bool = False
    """Whether the client library has checked the body against a checksum of the server."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One level of a listing: the objects right in it, and the prefixes (ending in `/`) below it."""

    objects: list[ObjectInfo]
    prefixes: list[str]


class Backend(Protocol):
    """Safe to use from several threads of the process that made it."""

    def get(self, key: str, span: Span | None = None) -> Fetched:
        """An object, or part of it."""

    async def get_async(self, key: str, span: Span | None = None) -> Fetched:
        """As `get`, without blocking the event loop it is called in."""

    def head(self, key: str) -> ObjectInfo:
        """Size and ETag of an object."""

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """All objects whose keys begin with `prefix`, in the order of their keys."""

    def folder(self, prefix: str) -> Folder:
        """One level of a listing."""


@dataclass(slots=True)
class Client:
    """A backend, and what this process knows about its server."""

    backend: Backend
    reached: bool = False
    """Whether the endpoint has answered at all."""
    etag_matched: bool = False
    """Whether an ETag was seen to be the MD5 of its object."""
    etag_trusted: bool = True
    """False once ETags are known not to be MD5s (objects encrypted with a key of KMS, some servers)."""


class _Clients:
    """The clients of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.by_location: dict[Location, Client] = {}


_clients = _Clients()
# Of the parent: neither used nor destroyed here, since their threads did not come along.
_inherited: list[_Clients] = []


def _forget_inherited_clients() -> None:
    global _clients
    _inherited.append(_clients)
    _clients = _Clients()


os.register_at_fork(after_in_child=_forget_inherited_clients)


def client_for(location: Location) -> Client:
    """This process's client for a location, made on first use."""
    found = _clients.by_location.get(location)
    if found is not None:
        return found
    with _clients.lock:
        if location not in _clients.by_location:
            _clients.by_location[location] = Client(_make(location))
        return _clients.by_location[location]


def _make(location: Location) -> Backend:
    if location.backend == "obstore":
        from .obstore_backend import ObstoreBackend

        return ObstoreBackend(location)
    if location.backend == "aioboto3":
        from .aioboto3_backend import Aioboto3Backend

        return Aioboto3Backend(location)
    from .boto3_backend import Boto3Backend

    return Boto3Backend(location)
