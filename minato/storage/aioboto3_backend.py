"""Requests by aioboto3: boto3's answers, awaited. Blocking calls go to boto3, which aioboto3 is built on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import aioboto3
import aiohttp

from . import classify
from .backend import Fetched, Span
from .boto3_backend import Boto3Backend, client_options, fetched, range_options, translate
from .errors import StorageError
from .location import Location


class Aioboto3Backend(Boto3Backend):
    """See `Backend`. Has a client for each event loop that awaits reads; the client closes with its loop."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._holders: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    async def get_async(self, key: str, span: Span | None = None) -> Fetched:
        try:
            client = await self._client_of_loop()
            answer = await client.get_object(Bucket=self._location.bucket, Key=key, **range_options(span))
            async with answer["Body"] as body:
                data = await body.read()
        except Exception as error:
            raise _translate(error, self._location, key) from None
        return fetched(answer, data)

    async def _client_of_loop(self) -> Any:
        loop = asyncio.get_running_loop()
        opening = self._clients.get(loop)
        if opening is None:
            holder = self._hold_client()
            self._holders[loop] = holder
            opening = self._clients[loop] = asyncio.ensure_future(_first(holder))
        # Shielded: a read that is cancelled must not take the client from all others.
        return await asyncio.shield(opening)

    async def _hold_client(self) -> AsyncGenerator[Any, None]:
        """A client that is closed when the loop closes its asynchronous generators, which is at its end."""
        location = self._location
        session = aioboto3.Session(profile_name=location.profile, region_name=location.signing_region)
        async with session.client("s3", **client_options(location)) as client:
            yield client


async def _first(holder: AsyncGenerator[Any, None]) -> Any:
    return await anext(holder)


def _translate(error: Exception, location: Location, key: str) -> StorageError:
    if isinstance(error, aiohttp.ClientPayloadError):
        return classify.truncated(location, key, None, None, str(error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return classify.unreachable(location, key, str(error))
    if isinstance(error, aiohttp.ClientError):
        return classify.lost(location, key, f"{type(error).__name__}: {error}")
    return translate(error, location, key)
