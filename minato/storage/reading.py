"""Reads objects of one bucket: a client of this process, tries, verification, second requests for slow reads.

    read ─► cache? ─► tries ─► [second request if slow] ─► backend.get ─► length, checksum ─► cache

A `Reader` is plain data and goes to workers as it is; what belongs to a process (clients, threads, the times of recent
reads) is made on first use in each.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from . import classify
from .backend import Fetched, Span
from .cache import ByteCache, Bytes
from .clients import Client, client_for
from .errors import StorageError
from .hedging import HedgePolicy, Hedger
from .location import Location
from .owning import owned
from .retrying import RetryPolicy, Tries, retry, retry_async
from .verify import EtagCheck, Verify


@dataclass(frozen=True, slots=True)
class Reader:
    """How the objects of a bucket are read."""

    location: Location
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    verify: Verify = "checksum"
    hedge: HedgePolicy | None = None
    cache: ByteCache | None = None

    def read(self, key: str, etag: str = "") -> bytes:
        """All bytes of an object. `etag`, if known, keeps versions of an object apart in the cache."""
        kept = self._kept(key, etag)
        return self._keep(key, etag, self.fetch(key)) if kept is None else kept

    def read_writable(self, key: str, etag: str = "") -> Bytes:
        """As `read`, in memory of the caller's own: one copy fewer for whoever needs that."""
        if self.cache is None:
            return owned(self.fetch(key).data)
        kept = self._kept_writable(key, etag)
        return self._keep_writable(key, etag, self.fetch(key)) if kept is None else kept

    async def read_async(self, key: str, etag: str = "") -> bytes:
        """As `read`, awaiting."""
        kept = self._kept(key, etag)
        return self._keep(key, etag, await self.fetch_async(key)) if kept is None else kept

    async def read_writable_async(self, key: str, etag: str = "") -> Bytes:
        """As `read_writable`, awaiting."""
        kept = self._kept_writable(key, etag)
        return self._keep_writable(key, etag, await self.fetch_async(key)) if kept is None else kept

    def _kept(self, key: str, etag: str) -> bytes | None:
        return None if self.cache is None else self.cache.get(self.cache_name(key, etag))

    def _kept_writable(self, key: str, etag: str) -> Bytes | None:
        if self.cache is None:
            return None
        get: Callable[[str], Bytes | None] | None = getattr(self.cache, "get_writable", None)
        if get is not None:
            return get(self.cache_name(key, etag))
        kept = self._kept(key, etag)  # a cache of the user's may lack it
        return None if kept is None else owned(kept)

    def _keep(self, key: str, etag: str, fetched: Fetched) -> bytes:
        data = bytes(fetched.data)
        if self.cache is not None:
            self.cache.put(self.cache_name(key, etag), data)
        return data

    def _keep_writable(self, key: str, etag: str, fetched: Fetched) -> Bytes:
        if self.cache is not None:
            self._keep(key, etag, fetched)
        return owned(fetched.data)

    def cache_name(self, key: str, etag: str) -> str:
        """What names an object's bytes in a cache that other datasets may share."""
        return f"{self.location.endpoint or ''}|{self.location.bucket}|{key}|{etag}"

    def fetch(self, key: str, span: Span | None = None) -> Fetched:
        """An object or part of it from the server, whatever the cache has."""
        # The usual course, without an error, in few steps: they are taken for every object, by a thread that was asleep
        # and has nothing in the processor's caches.
        client = client_for(self.location)
        etags = self._etags(client, key, span)
        began = time.monotonic()
        try:
            fetched = client.backend.get(key, span) if self.hedge is None else self._request(client, key, span)
            return self._checked(fetched, client, key, etags)
        except StorageError as error:
            failure = error
        return self._fetch_again(failure, client.tries(self.retry, began), client, key, span, etags)

    def _fetch_again(
        self, failure: StorageError, tries: Tries, client: Client, key: str, span: Span | None, etags: EtagCheck | None
    ) -> Fetched:
        def attempt() -> Fetched:
            return self._checked(self._request(client, key, span), client, key, etags)

        return retry(attempt, tries, failure)

    async def fetch_async(self, key: str, span: Span | None = None) -> Fetched:
        """As `fetch`, awaiting."""
        client = client_for(self.location)
        etags = self._etags(client, key, span)

        async def attempt() -> Fetched:
            return self._checked(await self._request_async(client, key, span), client, key, etags)

        return await retry_async(attempt, client.tries(self.retry))

    def _etags(self, client: Client, key: str, span: Span | None) -> EtagCheck | None:
        return EtagCheck(client, self.location, key) if self.verify == "checksum" and span is None else None

    def _checked(self, fetched: Fetched, client: Client, key: str, etags: EtagCheck | None) -> Fetched:
        """An answer that is what it says. Raises if it is not."""
        if len(fetched.data) != fetched.announced:
            raise classify.truncated(self.location, key, len(fetched.data), fetched.announced)
        if etags is not None:
            etags.check(fetched)
        client.reached = True
        return fetched

    def _request(self, client: Client, key: str, span: Span | None) -> Fetched:
        if self.hedge is None:
            return client.backend.get(key, span)
        return _hedged(lambda: client.backend.get(key, span), _hedger_of(self))

    async def _request_async(self, client: Client, key: str, span: Span | None) -> Fetched:
        if self.hedge is None:
            return await client.backend.get_async(key, span)
        return await _hedged_async(lambda: asyncio.ensure_future(client.backend.get_async(key, span)), _hedger_of(self))


_hedgers: dict[tuple[int, Location, HedgePolicy], Hedger] = {}


def _hedger_of(reader: Reader) -> Hedger:
    """This process's: it follows the times of all its threads."""
    assert reader.hedge is not None
    name = (os.getpid(), reader.location, reader.hedge)
    return _hedgers.get(name) or _hedgers.setdefault(name, Hedger(reader.hedge))


def hedge_counts(reader: Reader) -> tuple[int, int]:
    """Requests and second requests that this process made by a hedging reader."""
    hedger = _hedger_of(reader)
    return hedger.requests, hedger.hedges


def _hedged(request: Callable[[], Fetched], hedger: Hedger) -> Fetched:
    began = time.perf_counter()
    patience_s = hedger.patience_s()
    done, running = wait([_on_thread(request)], patience_s)
    if not done and hedger.may_hedge():
        running.add(_on_thread(request))
    while not done or (running and all(future.exception() is not None for future in done)):
        finished, running = wait(running, return_when=FIRST_COMPLETED)
        done |= finished
    result = next((future for future in done if future.exception() is None), next(iter(done))).result()
    hedger.observe(time.perf_counter() - began)
    return result


def _on_thread(request: Callable[[], Fetched]) -> Future[Fetched]:
    """On a thread of its own, 0.1 ms: the loser of two requests cannot be called off, and must hold up neither a pool
    nor the end of the process."""
    future: Future[Fetched] = Future()

    def run() -> None:
        try:
            future.set_result(request())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="minato-hedge", daemon=True).start()
    return future


async def _hedged_async(request: Callable[[], asyncio.Task[Fetched]], hedger: Hedger) -> Fetched:
    began = time.perf_counter()
    patience_s = hedger.patience_s()
    tasks = [request()]
    try:
        done, running = await asyncio.wait(tasks, timeout=patience_s)
        if not done and hedger.may_hedge():
            tasks.append(request())
            running.add(tasks[-1])
        while not done or (running and all(task.exception() is not None for task in done)):
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            done |= finished
        succeeded = [task for task in done if task.exception() is None]
        result = (succeeded or list(done))[0].result()
    finally:
        for task in tasks:
            task.cancel()
    hedger.observe(time.perf_counter() - began)
    return result
