"""The seam between minato and the client libraries.

A backend is made on first use in the process that uses it, is shared by its threads, and is never used after a fork:
a forked process makes its own. It makes one request per call and never tries again by itself; it raises only errors of
`errors.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


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


class Fetched(NamedTuple):
    """The answer to a GET: the body, and what the headers say of the object. (Of all records the one that is made for
    every object: a frozen dataclass takes a microsecond more.)"""

    data: bytes | memoryview
    """A view is of memory that the client library made for this body, and has no further use for."""
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
