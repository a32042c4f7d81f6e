"""Requests by aioboto3: boto3's answers, awaited. Blocking calls go to boto3, which aioboto3 is built on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import aioboto3
import aiohttp

from . import classify
from .backend import Fetched, Span
from .boto3_backend import Boto3Backend, client_options, fetched, lightened, range_options, translate
from .errors import StorageError
from .location import Location
from .per_loop import PerLoop


class Aioboto3Backend(Boto3Backend):
    """See `Backend`. Has a client for each event loop that awaits reads; the client closes with its loop."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._awaited = PerLoop(self._hold_client)

    async def get_async(self, key: str, span: Span | None = None) -> Fetched:
        answer: Any = None
        try:
            client = await self._awaited.get()
            answer = await client.get_object(Bucket=self._location.bucket, Key=key, **range_options(span))
            async with answer["Body"]:  # as for boto3
                data = await answer["Body"].read()
        except Exception as error:
            raise _translate(error, self._location, key, answer is not None) from None
        return fetched(answer, data)

    async def _hold_client(self) -> AsyncGenerator[Any, None]:
        location = self._location
        session = aioboto3.Session(profile_name=location.profile, region_name=location.signing_region)
        async with session.client("s3", **client_options(location)) as client:
            yield lightened(client)


def _translate(error: Exception, location: Location, key: str, has_begun: bool) -> StorageError:
    if isinstance(error, aiohttp.ClientPayloadError):
        if not has_begun:
            return classify.refusal_cut(location, key, str(error))
        return classify.truncated(location, key, None, None, str(error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return classify.unreachable(location, key, str(error))
    if isinstance(error, aiohttp.ClientError):
        return classify.lost(location, key, f"{type(error).__name__}: {error}")
    return translate(error, location, key, has_begun)
