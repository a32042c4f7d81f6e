"""Requests by boto3: blocking, so a thread for each; pure Python, so the interpreter's lock is the limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import boto3
import botocore.config
import botocore.exceptions

from . import classify
from .backend import Fetched, Folder, ObjectInfo, Span
from .errors import StorageError
from .location import Location
from .per_loop import PerLoop

_WITHOUT_SIGNATURE = botocore.UNSIGNED


class Boto3Backend:
    """See `Backend`. Awaited reads run on threads, `Location.connections` at most."""

    def __init__(self, location: Location) -> None:
        self._location = location
        session = make_session(location)
        if not location.anonymous:
            credentials_of(session, location)
        self._client: Any = lightened(session.client("s3", **client_options(location)))
        self._threads = PerLoop(self._hold_threads)

    def get(self, key: str, span: Span | None = None) -> Fetched:
        answer: Any = None
        try:
            answer = self._client.get_object(Bucket=self._location.bucket, Key=key, **range_options(span))
            with answer["Body"]:  # what it enters is the bare stream, which compares nothing
                data = answer["Body"].read()
        except Exception as error:
            raise translate(error, self._location, key, has_begun=answer is not None) from None
        return fetched(answer, data)

    async def get_async(self, key: str, span: Span | None = None) -> Fetched:
        threads = await self._threads.get()
        return await asyncio.get_running_loop().run_in_executor(threads, self.get, key, span)

    async def _hold_threads(self) -> AsyncGenerator[ThreadPoolExecutor, None]:
        with ThreadPoolExecutor(self._location.connections, thread_name_prefix="minato-s3") as threads:
            yield threads

    def head(self, key: str) -> ObjectInfo:
        try:
            answer = self._client.head_object(Bucket=self._location.bucket, Key=key)
        except Exception as error:
            self._raise(error, key)
        return ObjectInfo(key, answer["ContentLength"], answer.get("ETag", "").strip('"'))

    def pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        try:
            for page in self._listing(prefix):
                yield [_listed(entry) for entry in page.get("Contents", [])]
        except Exception as error:
            self._raise(error, prefix)

    def folder(self, prefix: str) -> Folder:
        found = Folder([], [])
        try:
            for page in self._listing(prefix, Delimiter="/"):
                found.objects.extend(_listed(entry) for entry in page.get("Contents", []))
                found.prefixes.extend(entry["Prefix"] for entry in page.get("CommonPrefixes", []))
        except Exception as error:
            self._raise(error, prefix)
        return found

    def _listing(self, prefix: str, **options: str) -> Any:
        paginator = self._client.get_paginator("list_objects_v2")
        return paginator.paginate(Bucket=self._location.bucket, Prefix=prefix, **options)

    def _raise(self, error: Exception, key: str | None) -> NoReturn:
        raise translate(error, self._location, key) from None


def make_session(location: Location) -> Any:
    """A session of boto3 with the profile of the location."""
    try:
        return boto3.Session(profile_name=location.profile, region_name=location.signing_region)
    except botocore.exceptions.ProfileNotFound as error:
        raise classify.credentials_missing(location, None, str(error)) from None


def credentials_of(session: Any, location: Location) -> Any:
    """The session's credentials. Found now, so that their lack is told before the first request."""
    try:
        credentials = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise classify.credentials_missing(location, None, str(error)) from None
    if credentials is None:
        searched = "the environment, ~/.aws or this machine's role"
        where = f"in profile {location.profile}" if location.profile else f"in {searched}"
        raise classify.credentials_missing(location, None, f"none {where}")
    return credentials


def client_options(location: Location) -> dict[str, Any]:
    """Options of `session.client`, the same for boto3 and aioboto3."""
    style = {"addressing_style": "path"} if location.endpoint else {}
    config: dict[str, Any] = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": location.connect_timeout_s,
        "read_timeout": location.request_timeout_s,
        "max_pool_connections": location.connections,
        "user_agent": "minato",  # botocore's own is put together anew for every request, a tenth of its cost
        "s3": style,
    }
    if location.anonymous:
        config["signature_version"] = _WITHOUT_SIGNATURE
    options: dict[str, Any] = {"endpoint_url": location.endpoint, "config": config}
    if "AWS_DEFAULT_REGION" not in os.environ and location.signing_region:
        options["region_name"] = location.signing_region
    options["config"] = botocore.config.Config(**config)
    return options


def lightened(client: Any) -> Any:
    """A client that does not work out its endpoint for every key anew, which is a quarter of what a request costs. It
    does not depend on the key, by the rules of S3; but botocore keeps results by all parameters, and the key is one.
    Should botocore keep its parameters elsewhere one day, nothing is lost but time."""
    parameters = getattr(getattr(client, "_ruleset_resolver", None), "_param_definitions", None)
    if isinstance(parameters, dict):
        parameters.pop("Key", None)
    return client


def range_options(span: Span | None) -> dict[str, str]:
    """The `Range` argument; its last byte is included."""
    return {} if span is None else {"Range": f"bytes={span.start}-{span.end - 1}"}


def fetched(answer: Any, data: bytes) -> Fetched:
    """boto3 and aioboto3 compare the body with the checksum headers of S3 where there is one that they can compute: the
    body is of another type then. (CRC64NVME takes a package more; of an object put in parts there may be none.)"""
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    announced = int(headers.get("content-length", len(data)))
    whole = answer.get("ContentRange", "").rpartition("/")[2]
    verified = "Checksum" in type(answer["Body"]).__name__
    object_bytes = int(whole) if whole.isdigit() else announced
    return Fetched(data, announced, object_bytes, answer.get("ETag", "").strip('"'), verified)


def _listed(entry: Any) -> ObjectInfo:
    return ObjectInfo(entry["Key"], entry["Size"], entry.get("ETag", "").strip('"'))


def translate(error: Exception, location: Location, key: str | None, has_begun: bool = True) -> StorageError:
    """botocore has a type for everything. `has_begun`: whether a good answer had begun; botocore reads the body of any
    other before it returns."""
    known = botocore.exceptions
    if isinstance(error, StorageError):
        return error
    if isinstance(error, RecursionError) or _says(error, "maximum recursion depth"):
        # It looks for the region that a 301 does not name by a request that is answered with a 301, and so on.
        return classify.by_status(location, key, 301, "PermanentRedirect")
    if isinstance(error, known.ClientError):
        answer = error.response
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        detail = answer.get("Error", {})
        region = f"region {detail['Region']}" if "Region" in detail else ""
        text = f"{detail.get('Message') or ''} {region}".strip()
        code = detail.get("Code") or ""
        return classify.by_status(location, key, status, "" if code.isdigit() else code, text)
    if isinstance(error, (known.NoCredentialsError, known.PartialCredentialsError, known.CredentialRetrievalError)):
        return classify.credentials_missing(location, key, str(error))
    if isinstance(error, (known.IncompleteReadError, known.ResponseStreamingError)) or _says(error, "IncompleteRead"):
        if not has_begun:
            return classify.refusal_cut(location, key, str(error))
        return classify.truncated(location, key, None, None, str(error))
    if isinstance(error, known.FlexibleChecksumError):
        return classify.checksum(location, key, str(error))
    if isinstance(error, (known.SSLError, known.EndpointConnectionError, known.ConnectTimeoutError)):
        return classify.unreachable(location, key, str(error))
    if isinstance(error, (known.HTTPClientError, ConnectionError, TimeoutError, asyncio.TimeoutError)):
        return classify.lost(location, key, f"{type(error).__name__}: {error}")
    return classify.make(StorageError, location, key, f"{type(error).__name__}: {error}", "check endpoint= and the key")


def _says(error: Exception, word: str) -> bool:
    return word in f"{type(error).__name__} {error}"
