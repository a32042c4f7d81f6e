"""Requests by obstore: Rust, many at once without the interpreter's lock. The default."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn

from . import classify
from .backend import Backend, Fetched, Folder, ObjectInfo, Span
from .errors import MissingExtra, StorageError
from .location import Location
from .obstore_library import library

# Given by the environment, these are what obstore looks for by itself, and renews.
_OWN_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ASK_BOTO3_AGAIN = timedelta(minutes=10)  # it renews credentials well before they expire, if asked


class ObstoreBackend:
    """See `Backend`."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._library = library()
        self._store = _make_store(location, self._library)
        self._ranges: Backend | None = None

    def get(self, key: str, span: Span | None = None) -> Fetched:
        if self._ranges is not None and span is not None:
            return self._ranges.get(key, span)
        try:
            if span is None:
                result = self._library.get(self._store, key)
            else:
                result = self._library.get(self._store, key, options=_options(span))
            return _fetched(result, result.bytes())
        except Exception as error:
            if span is not None and _refuses_ranges(error):
                return self._by_other_client().get(key, span)
            self._raise(error, key)

    async def get_async(self, key: str, span: Span | None = None) -> Fetched:
        if self._ranges is not None and span is not None:
            return await self._ranges.get_async(key, span)
        try:
            result = await self._library.get_async(self._store, key, options=_options(span))
            return _fetched(result, await result.bytes_async())
        except Exception as error:
            if span is None or not _refuses_ranges(error):
                self._raise(error, key)
        return await self._by_other_client().get_async(key, span)

    def head(self, key: str) -> ObjectInfo:
        try:
            return _info(self._library.head(self._store, key))
        except Exception as error:
            self._raise(error, key)

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        # obstore lists whole folders only: what is asked for beyond the last `/` is sieved out here.
        folder = prefix.rpartition("/")[0]
        try:
            for page in self._library.list(self._store, folder or None, chunk_size=1000):
                yield [_info(meta) for meta in page if meta["path"].startswith(prefix)]
        except StorageError:
            raise
        except Exception as error:
            self._raise(error, prefix)

    def folder(self, prefix: str) -> Folder:
        try:
            found = self._library.list_with_delimiter(self._store, prefix.rstrip("/") or None)
        except Exception as error:
            self._raise(error, prefix)
        objects = [_info(meta) for meta in found["objects"]]
        return Folder(objects, [f"{path.rstrip('/')}/" for path in found["common_prefixes"]])

    def _by_other_client(self) -> Backend:
        """Some servers answer a range with status 200, which obstore refuses and boto3 takes."""
        if importlib.util.find_spec("boto3") is None:
            raise MissingExtra(
                f"{self._location.endpoint} answers ranged reads in a way that obstore does not take, and boto3, which "
                "does, is not installed: pip install 'minato[s3]'",
                self._location.bucket,
                remedy="install",
            )
        from .boto3_backend import Boto3Backend

        self._ranges = Boto3Backend(self._location)
        return self._ranges

    def _raise(self, error: Exception, key: str | None) -> NoReturn:
        raise translate(error, self._location, key) from None


def _make_store(location: Location, obstore: Any) -> Any:
    options: dict[str, Any] = {
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=location.request_timeout_s)},
        "client_options": {
            "allow_http": bool(location.endpoint and location.endpoint.startswith("http:")),
            "connect_timeout": timedelta(seconds=location.connect_timeout_s),
            "timeout": timedelta(seconds=location.request_timeout_s),
            "pool_max_idle_per_host": str(location.connections),
        },
    }
    if location.endpoint:
        options["endpoint"] = location.endpoint
    if location.signing_region:
        options["region"] = location.signing_region
    if location.anonymous:
        options["skip_signature"] = True
    elif location.profile or not any(name in os.environ for name in _OWN_CREDENTIALS):
        options |= _credentials_by_boto3(location)
    return obstore._store.S3Store(location.bucket, **options)


def _credentials_by_boto3(location: Location) -> dict[str, Any]:
    """boto3 knows profiles, single sign-on and roles; asking it takes a tenth of a second, once per process."""
    if importlib.util.find_spec("boto3") is None:
        if location.profile:
            raise MissingExtra(
                f"profile={location.profile!r} is read by boto3, which is not installed: pip install 'minato[s3]'",
                location.bucket,
                remedy="install",
            )
        return {}
    from .boto3_backend import credentials_of, make_session

    session = make_session(location)
    credentials = credentials_of(session, location)

    def current() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _ASK_BOTO3_AGAIN,
        }

    found: dict[str, Any] = {"credential_provider": current}
    if location.signing_region is None and session.region_name:
        found["region"] = session.region_name
    return found


def _options(span: Span | None) -> dict[str, Any] | None:
    return None if span is None else {"range": (span.start, span.end)}


def _fetched(result: Any, body: Any) -> Fetched:
    start, end = result.range
    meta = result.meta
    return Fetched(memoryview(body), end - start, meta["size"], (meta["e_tag"] or "").strip('"'))


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], (meta["e_tag"] or "").strip('"'))


def _refuses_ranges(error: Exception) -> bool:
    return "non-partial response" in str(error)


def translate(error: Exception, location: Location, key: str | None) -> StorageError:
    """obstore has few types of errors; what happened is in the text."""
    text = str(error)
    brief = text.partition("Debug source")[0]
    if "169.254.169.254" in brief or "169.254.170.2" in brief:
        return classify.credentials_missing(location, key, "none in the environment, and this machine has no role")
    status = re.search(r"status code: (\d{3})", text) or re.search(r"status: (\d{3})", text)
    if status is not None:
        code = re.search(r"<Code>(\w+)</Code>", text)
        message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
        region = re.search(r"<Region>(.*?)</Region>", text)
        said = " ".join([message[1] if message else "", f"region {region[1]}" if region else ""]).strip()
        return classify.by_status(location, key, int(status[1]), code[1] if code else "", said)
    if "redirect without LOCATION" in text:
        return classify.by_status(location, key, 301, "PermanentRedirect")
    if isinstance(error, FileNotFoundError):
        return classify.by_status(location, key, 404, "")
    if "response body error" in text and "RetryError" in text:  # the body of a good answer is read behind its retries
        return classify.refusal_cut(location, key, brief)
    if re.search(r"kind: Connect\b", text):
        tls = re.search(
            r"Invalid(?:Content|Certificate|Message)\w*|UnknownIssuer|CertificateUnknown|AlertReceived", text
        )
        return classify.unreachable(location, key, f"TLS: {tls[0]}" if tls else _cause(text))
    if re.search(r"end of file before message length|IncompleteMessage|kind: (Body|Decode)|UnexpectedEof", text):
        return classify.truncated(location, key, None, None, _cause(text))
    if re.search(r"kind: (Timeout|Interrupted|Request|Unknown)|TimedOut|ConnectionReset|BrokenPipe", text):
        return classify.lost(location, key, _cause(text))
    return classify.make(StorageError, location, key, brief, "check endpoint=, region= and the key")


def _cause(text: str) -> str:
    """The innermost words of a chain of errors."""
    found = re.findall(r'(?:message: |error: |Custom {[^}]*error: )"([^"]+)"|(\w+\([\w ]+\))', text)
    innermost = [first or second for first, second in found]
    brief = text.partition("Debug source")[0].strip()
    return f"{brief}: {innermost[-1]}" if innermost else brief
