"""`minato.S3File`: an object as a file that reads only the parts asked for."""

from __future__ import annotations

import io
from typing import Any

from .backend import Span
from .clients import client_for
from .location import make_location, split_url
from .reading import Reader
from .retrying import retry

_BUFFER_BYTES = 1 << 20


class S3File(io.RawIOBase):
    """An object, opened for reading: seekable, each read is one ranged request, with all tries and checks.

    `S3File("s3://bucket/key", endpoint=…)`, or `dataset.open(index)`. Small reads are served out of a buffer of
    `buffer_bytes` read ahead (1 MiB; 0 for none), so `zipfile`, `tarfile`, `h5py` or Parquet readers can be given one.
    If the object is replaced while it is open, reading raises instead of mixing two versions. Not for several threads
    at once.
    """

    def __init__(
        self, source: str, *, reader: Reader | None = None, buffer_bytes: int = _BUFFER_BYTES, **options: Any
    ) -> None:
        """`source`: an address, or a key where a reader is given. Options: backend, endpoint, region, profile,
        anonymous, timeout_s, as for `S3Dataset`."""
        super().__init__()
        if buffer_bytes < 0:
            raise ValueError(f"buffer_bytes must be 0 or more, found {buffer_bytes}")
        if reader is None:
            bucket, source = split_url(source)
            reader = Reader(make_location(bucket, **options))
        elif options:
            raise TypeError(f"a reader has its options already, found {', '.join(options)}")
        self.name = source
        self._reader = reader
        self._buffer_bytes = buffer_bytes
        client = client_for(reader.location)
        info = retry(lambda: client.backend.head(source), client.tries(reader.retry))
        self._size, self._etag = info.size, info.etag
        self._position = 0
        self._buffer, self._buffer_start = b"", 0

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check_open()
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        if whence not in starts:
            raise ValueError(f"whence must be 0, 1 or 2, found {whence}")
        position = starts[whence] + offset
        if position < 0:
            raise ValueError(f"cannot seek to {position}, before the start of {self.name}")
        self._position = position
        return position

    def read(self, size: int | None = -1) -> bytes:
        """`size` bytes, fewer only at the end; all that is left if `size` is negative or None."""
        self._check_open()
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        data = self._bytes(self._position, length)
        self._position += length
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _bytes(self, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        offset = start - self._buffer_start
        if offset >= 0 and offset + length <= len(self._buffer):
            return self._buffer[offset : offset + length]
        if length >= self._buffer_bytes:
            return self._request(start, length)
        self._buffer = self._request(start, min(self._buffer_bytes, self._size - start))
        self._buffer_start = start
        return self._buffer[:length]

    def _request(self, start: int, length: int) -> bytes:
        fetched = self._reader.fetch(self.name, Span(start, start + length))
        if fetched.etag != self._etag or fetched.object_bytes != self._size:
            raise OSError(
                f"{self._reader.location.describe(self.name)} was replaced while it was open: its ETag was "
                f"{self._etag} and is {fetched.etag}; open it again"
            )
        return bytes(fetched.data)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"I/O operation on closed file {self.name}")
