"""Connections to one server that are kept open, and the exchange of a GET request for its answer.

As little as whole objects need: HTTP/1.1, an answer of known length. An answer of any other kind is `Unfamiliar`, and
the caller asks again by a client that knows them all. Blocking, for threads: a body is waited for by the kernel, which
wakes its thread once where a library with threads of its own wakes two or three for every part of it.
"""

from __future__ import annotations

import socket
import struct
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_HEAD_BYTES = 4096  # read at first: a head, and little of a body, which has to be copied
_MOST_HEAD_BYTES = 64 << 10
_MOST_REASON_BYTES = 64 << 10
_MOST_DIGITS = 13  # of a length: S3 has no objects of 10 TB
_TRUSTED_S = 1.0  # idle for longer, a connection is looked at before it is used: the server may have closed it
_KEPT_S = 60.0  # idle for longer, it is closed


class Unfamiliar(Exception):
    """An answer that is not simply an object."""


class Refused(Exception):
    """The server is busy, or in trouble: its status, what it had to say, and whether that was all of it."""

    def __init__(self, status: int, reason: str, is_whole: bool) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.is_whole = is_whole


class CutShort(Exception):
    """The connection ended in the middle of a body."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(found, wanted)
        self.found = found
        self.wanted = wanted


class Unanswered(Exception):
    """The connection ended before an answer was there."""


class NoConnection(Exception):
    """None could be made."""


class Answer(NamedTuple):
    """An object."""

    body: memoryview
    """Memory of its own, which may be written to."""
    etag: str


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    idle_since: float = 0.0


class Connections:
    """Safe to use from several threads: each has a connection to itself while it needs one."""

    def __init__(self, host: str, port: int, most_idle: int, connect_timeout_s: float, timeout_s: float) -> None:
        self._address = host, port
        self._most_idle = most_idle
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._idle: deque[_Connection] = deque()
        """The one used last at the right."""
        self.close = weakref.finalize(self, _close_all, self._idle)

    def get(self, request: bytes) -> Answer:
        """Send a request for an object. Raises one of the errors above, or OSError if the connection breaks in the
        middle of a body or (`TimeoutError`) takes too long."""
        began = time.monotonic()
        used = self._take_idle(began)
        if used is not None:
            # The server has closed it while it was idle, most likely, as it may have closed all others. Had it been at
            # work on the request, asking a second time does no harm.
            with suppress(Unanswered):
                return self._exchange(used, request, began)
        return self._exchange(_Connection(self._connect()), request, began)

    def _take_idle(self, now: float) -> _Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if now - connection.idle_since < _TRUSTED_S or _is_open(connection.socket):
                return connection
            connection.socket.close()

    def _put_back(self, connection: _Connection) -> None:
        idle, now = self._idle, time.monotonic()
        connection.idle_since = now
        idle.append(connection)
        with suppress(IndexError):  # other threads may take all of them meanwhile
            if now - idle[0].idle_since > _KEPT_S or len(idle) > self._most_idle:
                idle.popleft().socket.close()

    def _connect(self) -> socket.socket:
        try:
            made = socket.create_connection(self._address, self._connect_timeout_s)
        except OSError as error:
            raise NoConnection(f"{type(error).__name__}: {error}") from None
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._limit(made)
        return made

    def _limit(self, stream: socket.socket) -> None:
        """Have the kernel wait no longer than allowed. Python's own limit would have it asked twice for everything."""
        stream.settimeout(None)
        limit = struct.pack("ll", *divmod(max(1, int(self._timeout_s * 1e6)), 1_000_000))  # 0 would be none
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _exchange(self, connection: _Connection, request: bytes, began: float) -> Answer:
        """Send a request, read the answer; the connection is idle afterwards, or closed."""
        stream, may_stay = connection.socket, False
        try:
            head, rest = _ask(stream, request, began + self._timeout_s)
            length, etag, keeps = _understood(head, rest, stream)
            body = self._read_body(stream, rest, length, began)
            may_stay = keeps
        except BlockingIOError:
            raise TimeoutError(f"nothing came for {self._timeout_s:g} s") from None
        finally:
            if may_stay:
                self._put_back(connection)
            else:
                stream.close()
        return Answer(body, etag)

    def _read_body(self, stream: socket.socket, begin: bytes, length: int, began: float) -> memoryview:
        body = np.empty(length, np.uint8).data  # not cleared: all of it is written, or none of it used
        done = len(begin)
        body[:done] = begin
        while done < length:
            count = stream.recv_into(body[done:], 0, socket.MSG_WAITALL)
            if count == 0:
                raise CutShort(done, length)
            done += count
            if done < length and time.monotonic() - began > self._timeout_s:
                raise TimeoutError(f"{done} of {length} bytes came in {self._timeout_s:g} s")
        return body


def _close_all(idle: deque[_Connection]) -> None:
    while idle:
        idle.pop().socket.close()


def _is_open(stream: socket.socket) -> bool:
    """Whether an idle connection is still one: nothing is to come, and no end either."""
    try:
        stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _ask(stream: socket.socket, request: bytes, until: float) -> tuple[bytes, bytes]:
    """Send a request; returns the head of the answer, and what has come of its body. `until`: monotonic seconds."""
    found = b""
    try:
        stream.sendall(request)
        while (end := found.find(b"\r\n\r\n")) < 0:
            more = stream.recv(_HEAD_BYTES)
            if not more:
                raise Unanswered("closed")
            found += more
            if len(found) > _MOST_HEAD_BYTES:
                raise Unfamiliar
            if time.monotonic() > until:  # what comes byte by byte is in time for the kernel
                raise TimeoutError(f"the head of an answer was not there in time, only {len(found)} bytes of it")
    except ConnectionError as error:
        raise Unanswered(f"{type(error).__name__}: {error}") from None
    return found[:end], found[end + 4 :]


def _understood(head: bytes, rest: bytes, stream: socket.socket) -> tuple[int, str, bool]:
    """Length and ETag of the object whose answer has that head, and whether the connection may be used again."""
    names = head.lower()
    length = _value(head, names, b"\r\ncontent-length:")
    status = head[9:12]
    if not head.startswith(b"HTTP/1.1 ") or not status.isdigit() or b"\r\ntransfer-encoding:" in names:
        raise Unfamiliar
    if not length.isdigit() or len(length) > _MOST_DIGITS:
        raise Unfamiliar
    size = int(length)
    if status == b"429" or status.startswith(b"5"):
        raise _refusal(int(status), stream, rest, min(size, _MOST_REASON_BYTES))
    if status != b"200" or len(rest) > size:
        raise Unfamiliar
    etag = _value(head, names, b"\r\netag:").decode("latin-1").strip('"')
    return size, etag, _value(names, names, b"\r\nconnection:") != b"close"


def _value(head: bytes, names: bytes, name: bytes) -> bytes:
    """What a header says; nothing, if there is none. `names`: the head in small letters."""
    begin = names.find(name)
    if begin < 0:
        return b""
    begin += len(name)
    end = head.find(b"\r\n", begin)
    return head[begin : end if end >= 0 else len(head)].strip()


def _refusal(status: int, stream: socket.socket, begin: bytes, length: int) -> Refused:
    """The error for an answer that is one, with what comes of its words."""
    found = begin
    with suppress(OSError):
        while len(found) < length and (more := stream.recv(length - len(found))):
            found += more
    return Refused(status, found.decode("utf-8", "replace"), len(found) >= length)
