"""Whole objects over connections of our own, everything else by obstore. The default where the endpoint is plain HTTP.

What an object costs its client counts where server, network and training share few cores. obstore's runtime hands every
part of a body from thread to thread; a thread that asks the kernel for all of it at once takes half the CPU time. So
the one request that is made for every sample, GET of a whole object, is made here, as long as all is plain: HTTP
without TLS, no proxy, credentials that can be had. Whatever is answered but the object, or a server in trouble, is
asked for again by obstore, and if that gets an object, all others too; everything else is obstore's from the start.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from . import classify
from .backend import Fetched, Folder, ObjectInfo, Span
from .connections import Connections, CutShort, NoConnection, Refused, Unanswered, Unfamiliar
from .errors import StorageError
from .location import Location
from .obstore_backend import ObstoreBackend
from .signing import Credentials, Signer

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
# Of Amazon's variables, those that do not change what a request for an object looks like, or that are obeyed here.
# obstore knows others.
_OBEYED = frozenset({
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "AWS_EC2_METADATA_DISABLED", "AWS_CA_BUNDLE", "AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE", "AWS_PAGER",
    "AWS_DEFAULT_OUTPUT", "AWS_EXECUTION_ENV", "AWS_SDK_LOAD_CONFIG", "AWS_STS_REGIONAL_ENDPOINTS",
    "AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION",
})  # fmt: skip
_PLAIN_HOST = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_PLAIN_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class DirectBackend:
    """See `Backend`."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._obstore: ObstoreBackend | None = None
        self._signer: Signer | None = None
        self._connections: Connections | None = None
        if is_plain(location, os.environ):
            parts = urlsplit(location.endpoint or "")
            base = f"{parts.path.rstrip('/')}/{location.bucket}/"
            self._signer = Signer(parts.netloc, base, location.signing_region or "", _credentials(location))
            times_s = location.connect_timeout_s, location.request_timeout_s
            self._connections = Connections(parts.hostname or "", parts.port or 80, location.connections, *times_s)

    def get(self, key: str, span: Span | None = None) -> Fetched:
        signer, connections = self._signer, self._connections
        if signer is None or connections is None or span is not None:
            return self._other().get(key, span)
        try:
            body, etag = connections.get(signer.get(key))
        except Refused as error:
            raise _refused(self._location, key, error) from None
        except CutShort as error:
            raise classify.truncated(self._location, key, error.found, error.wanted) from None
        except (Unanswered, OSError) as error:
            raise classify.lost(self._location, key, str(error)) from None
        except NoConnection as error:
            raise classify.unreachable(self._location, key, str(error)) from None
        except Unfamiliar:
            found = self._other().get(key)  # raises if it is no object
            self._signer = None  # a server that only obstore understands would be asked twice for each
            return found
        return Fetched(body, len(body), len(body), etag)

    async def get_async(self, key: str, span: Span | None = None) -> Fetched:
        return await self._other().get_async(key, span)

    def head(self, key: str) -> ObjectInfo:
        return self._other().head(key)

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        return self._other().pages(prefix)

    def folder(self, prefix: str) -> Folder:
        return self._other().folder(prefix)

    @property
    def has_other(self) -> bool:
        """Whether obstore was needed."""
        return self._obstore is not None

    def close(self) -> None:
        """Close connections that are idle. Those of obstore close themselves in time."""
        if self._connections is not None:
            self._connections.close()

    def _other(self) -> ObstoreBackend:
        """Made when it is needed: in most workers never."""
        if self._obstore is None:
            with self._lock:
                if self._obstore is None:
                    self._obstore = ObstoreBackend(self._location)
        return self._obstore


def is_plain(location: Location, environment: Mapping[str, str]) -> bool:
    """Whether requests for whole objects may be made here: all that is asked for is understood."""
    parts = urlsplit(location.endpoint or "")
    return (
        parts.scheme == "http"
        and _PLAIN_HOST.fullmatch(parts.netloc) is not None
        and not parts.query
        and _PLAIN_BUCKET.fullmatch(location.bucket) is not None
        and not any(environment.get(name) for name in _PROXIES)
        and all(name in _OBEYED for name in environment if name.startswith("AWS_"))
        and (location.anonymous or _has_keys(location, environment) or importlib.util.find_spec("boto3") is not None)
    )


def _has_keys(location: Location, environment: Mapping[str, str]) -> bool:
    return location.profile is None and all(environment.get(name) for name in _KEYS)


def _credentials(location: Location) -> Callable[[], Credentials] | None:
    """Where credentials come from, the same as for obstore; None: there are to be none."""
    if location.anonymous:
        return None
    if _has_keys(location, os.environ):
        access_key, secret_key = (os.environ[name] for name in _KEYS)
        found = Credentials(access_key, secret_key, os.environ.get("AWS_SESSION_TOKEN"))
        return lambda: found
    from .boto3_backend import credentials_of, make_session

    credentials = credentials_of(make_session(location), location)

    def current() -> Credentials:
        frozen = credentials.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    return current


def _refused(location: Location, key: str, error: Refused) -> StorageError:
    if not error.is_whole:
        return classify.refusal_cut(location, key, f"{error.status}: {error.reason}")
    code = re.search(r"<Code>(\w+)</Code>", error.reason)
    message = re.search(r"<Message>(.*?)</Message>", error.reason, re.DOTALL)
    return classify.by_status(location, key, error.status, code[1] if code else "", message[1] if message else "")
