"""The clients of this process, made on first use; and what is known of their servers."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from .backend import Backend
from .errors import AccessDenied, CredentialsMissing, StorageError
from .location import Location
from .retrying import RetryPolicy, Tries


@dataclass(slots=True, eq=False)
class Client:
    """A backend, and what this process knows about its server."""

    backend: Backend
    location: Location
    reached: bool = False
    """Whether the endpoint has answered at all."""
    etag_matched: bool = False
    """Whether an ETag was seen to be the MD5 of its object."""
    etag_trusted: bool = True
    """False once ETags are known not to be MD5s (objects encrypted with a key of KMS, some servers)."""

    def tries(self, policy: RetryPolicy, began: float | None = None) -> Tries:
        """The tries of one request, which began at that time of the monotonic clock; None: now."""
        return Tries(policy, self, began)

    def given_up(self, error: StorageError) -> None:
        """A client has the credentials that were found when it was made. If they are of no use, the next request is to
        look for them again: whoever is told that they are missing may set them and go on."""
        if isinstance(error, CredentialsMissing) or (isinstance(error, AccessDenied) and not self.reached):
            with _clients.lock:
                if _clients.by_location.get(self.location) is self:
                    del _clients.by_location[self.location]
                    _clients.latest = None


class _Clients:
    """The clients of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.by_location: dict[Location, Client] = {}
        self.latest: tuple[Location, Client] | None = None
        """Who was made last: mostly the only one, and found without hashing all that says where it is."""


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
    latest = _clients.latest
    if latest is not None and latest[0] is location:
        return latest[1]
    found = _clients.by_location.get(location)
    if found is not None:
        return found
    with _clients.lock:
        found = _clients.by_location.get(location)
        if found is None:
            found = _clients.by_location[location] = Client(_make(location), location)
            _clients.latest = location, found
        return found


def _make(location: Location) -> Backend:
    if location.backend == "direct":
        from .direct_backend import DirectBackend

        return DirectBackend(location)
    if location.backend == "obstore":
        from .obstore_backend import ObstoreBackend

        return ObstoreBackend(location)
    if location.backend == "aioboto3":
        from .aioboto3_backend import Aioboto3Backend

        return Aioboto3Backend(location)
    from .boto3_backend import Boto3Backend

    return Boto3Backend(location)
