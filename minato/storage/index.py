"""Which objects a dataset has: listed from a bucket or read from an index file.

Keys are kept in one block of bytes, not as a list of strings: a million strings would be copied page by page into every
forked worker, merely by being counted there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .backend import ObjectInfo
from .clients import client_for
from .location import Location, split_url
from .retrying import RetryPolicy, retry

_FORMAT = "minato-index"
_VERSION = 1
T = TypeVar("T")
Found = Callable[[int], None]
"""Called with the number of objects listed so far."""


@dataclass(frozen=True, slots=True)
class Index:
    """The objects of a dataset, in the order of their keys."""

    bucket: str
    prefix: str
    keys: bytes
    """All keys in UTF-8, one after the other."""
    key_ends: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    etags: npt.NDArray[np.bytes_]

    def __len__(self) -> int:
        return len(self.sizes)

    def key(self, number: int) -> str:
        """The key of an object."""
        ends = self.key_ends
        return self.keys[ends.item(number - 1) if number else 0 : ends.item(number)].decode()

    def etag(self, number: int) -> str:
        """Its ETag when it was listed."""
        etag: bytes = self.etags.item(number)
        return etag.decode()

    def objects(self) -> Iterator[ObjectInfo]:
        """All of it, object by object."""
        for number in range(len(self)):
            yield ObjectInfo(self.key(number), int(self.sizes[number]), self.etag(number))


def make_index(bucket: str, prefix: str, objects: Iterable[ObjectInfo]) -> Index:
    """Sorted by key, so that the same objects have the same numbers however they were listed."""
    ordered = sorted(objects, key=lambda found: found.key)
    encoded = [found.key.encode() for found in ordered]
    return Index(
        bucket,
        prefix,
        b"".join(encoded),
        np.cumsum([len(key) for key in encoded], dtype=np.int64),
        np.array([found.size for found in ordered], dtype=np.int64),
        np.array([found.etag.encode() for found in ordered], dtype=np.bytes_),
    )


def list_objects(
    location: Location,
    prefix: str,
    suffixes: tuple[str, ...] = (),
    parallel: int = 16,
    retry_policy: RetryPolicy | None = None,
    progress: Found | None = None,
) -> Index:
    """List a prefix, folder by folder at once: S3 lists one folder as fast as any, so a bucket without folders takes
    as long as one request per thousand keys takes. Empty "folder objects" (keys that end in `/`) are left out."""
    policy = retry_policy or RetryPolicy()
    found: list[ObjectInfo] = []

    def take(objects: Iterable[ObjectInfo]) -> None:
        found.extend(each for each in objects if _wanted(each, prefix, suffixes))
        if progress is not None:
            progress(len(found))

    folder = prefix.rpartition("/")[0]
    _Listing(location, policy, parallel, take).run(f"{folder}/" if folder else "", prefix)
    return make_index(location.bucket, prefix, found)


def _wanted(found: ObjectInfo, prefix: str, suffixes: tuple[str, ...]) -> bool:
    if not found.key.startswith(prefix) or found.key.endswith("/"):
        return False
    return not suffixes or found.key.endswith(suffixes)


class _Listing:
    """Opens folders until there are as many as may be listed at once, then lists each with all below it."""

    def __init__(
        self, location: Location, policy: RetryPolicy, parallel: int, take: Callable[[Iterable[ObjectInfo]], None]
    ) -> None:
        self._location, self._policy, self._parallel, self._take = location, policy, parallel, take
        self._client = client_for(location)

    def run(self, start: str, prefix: str) -> None:
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="minato-list") as threads:
            opening = [start]
            while opening and len(opening) < self._parallel:
                level = list(threads.map(self._open, opening))
                opening = [below for _, prefixes in level for below in prefixes if _may_hold(below, prefix)]
                for objects, _ in level:
                    self._take(objects)
            running: set[Future[list[ObjectInfo]]] = {threads.submit(self._list, below) for below in opening}
            try:
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._take(future.result())
            finally:
                for future in running:
                    future.cancel()

    def _open(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        folder = self._tried(lambda: self._client.backend.folder(prefix))
        return folder.objects, folder.prefixes

    def _list(self, prefix: str) -> list[ObjectInfo]:
        return self._tried(lambda: [found for page in self._client.backend.pages(prefix) for found in page])

    def _tried(self, call: Callable[[], T]) -> T:
        result = retry(call, self._client.tries(self._policy))
        self._client.reached = True
        return result


def _may_hold(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)


def class_of(key: str, prefix: str) -> str:
    """The folder right below the prefix that an object is in; empty if it is in none."""
    folder = prefix[: prefix.rindex("/") + 1] if "/" in prefix else ""
    return key.removeprefix(folder).partition("/")[0] if "/" in key.removeprefix(folder) else ""


def class_names(index: Index) -> list[str]:
    """The classes of an index, in the order of their names."""
    return sorted({class_of(index.key(number), index.prefix) for number in range(len(index))})


def save_index(index: Index, path: str | os.PathLike[str], classes: list[str] | None = None) -> None:
    """Write an index file, whole or not at all."""
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "url": f"s3://{index.bucket}/{index.prefix}",
        "classes": classes,
        "objects": [[found.key, found.size, found.etag] for found in index.objects()],
    }
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load_index(path: str | os.PathLike[str]) -> tuple[Index, list[str] | None]:
    """An index file as `minato index` writes it; and its classes, if it has them."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["version"] > _VERSION:
            raise ValueError(f"format {document['format']!r}, version {document['version']!r}")
        bucket, prefix = split_url(document["url"])
        objects = [ObjectInfo(key, int(size), etag) for key, size, etag in document["objects"]]
    except FileNotFoundError:
        raise ValueError(f"an s3:// address or an index file was needed; {os.fspath(path)} does not exist") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{os.fspath(path)} is not an index file as `minato index` writes it: {error}") from None
    return make_index(bucket, prefix, objects), document.get("classes")
