"""Objects over connections of our own, against a server that says what it is told to."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from minato.storage import connections
from minato.storage.connections import Connections, CutShort, NoConnection, Refused, Unanswered, Unfamiliar

REQUEST = b"GET /bucket/key HTTP/1.1\r\nhost: here\r\n\r\n"
BODY = bytes(range(256)) * 500
HEAD = f'HTTP/1.1 200 OK\r\nETag: "abc"\r\nContent-Length: {len(BODY)}\r\n\r\n'.encode()
LIMIT_S = 90.0


class Server:
    """Answers the requests of each connection with the texts given for it, in turn, and then closes it."""

    def __init__(self, script: Sequence[Sequence[bytes]]) -> None:
        self.script = script
        self.requests = 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(LIMIT_S)
        self.port = self.listening.getsockname()[1]
        self.may_close = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        for answers in self.script:
            stream, _ = self.listening.accept()
            with stream:
                stream.settimeout(LIMIT_S)
                for answer in answers:
                    if not self.read_request(stream):
                        break
                    stream.sendall(answer)
        self.may_close.wait(LIMIT_S)

    def read_request(self, stream: socket.socket) -> bool:
        found = b""
        while not found.endswith(b"\r\n\r\n"):
            more = stream.recv(65536)
            if not more:
                return False
            found += more
        self.requests += 1
        return True


@contextmanager
def serving(*script: Sequence[bytes], timeout_s: float = LIMIT_S) -> Iterator[tuple[Server, Connections]]:
    server = Server(script)
    pool = Connections("127.0.0.1", server.port, 4, LIMIT_S, timeout_s)
    try:
        yield server, pool
    finally:
        pool.close()
        server.may_close.set()
        server.thread.join(LIMIT_S)
        server.listening.close()


def test_a_connection_is_used_again() -> None:
    with serving([HEAD + BODY] * 3) as (server, pool):
        for _ in range(3):
            body, etag = pool.get(REQUEST)
            assert bytes(body) == BODY and etag == "abc" and not body.readonly
    assert server.requests == 3


def test_a_body_that_comes_in_parts_is_whole() -> None:
    """The head in two, the body in a hundred."""
    server_side, ours = socket.socketpair()

    def serve() -> None:
        text = HEAD + BODY
        for part in (text[:20], text[20:90], *(text[k : k + 1280] for k in range(90, len(text), 1280))):
            server_side.sendall(part)

    thread = threading.Thread(target=serve)
    with server_side, ours:
        pool = Connections("", 0, 1, 1.0, LIMIT_S)
        pool._connect = lambda: ours  # type: ignore[method-assign]
        thread.start()
        body, _ = pool.get(REQUEST)
        thread.join(LIMIT_S)
        pool.close()
    assert bytes(body) == BODY


def test_an_empty_object_is_an_object() -> None:
    with serving([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]) as (_, pool):
        assert bytes(pool.get(REQUEST).body) == b""


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    with serving([HEAD + BODY], [HEAD + BODY]) as (server, pool):
        pool.get(REQUEST)
        assert bytes(pool.get(REQUEST).body) == BODY
    assert server.requests == 2


def test_a_connection_that_was_idle_for_long_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_TRUSTED_S", 0.0)
    with serving([HEAD + BODY], [HEAD + BODY] * 2) as (server, pool):
        for _ in range(3):
            assert bytes(pool.get(REQUEST).body) == BODY
    assert server.requests == 3


def test_a_fresh_connection_that_ends_without_a_word_is_not_asked_again() -> None:
    with serving([b""], [HEAD + BODY]) as (server, pool):
        with pytest.raises(Unanswered):
            pool.get(REQUEST)
        assert server.requests == 1
        pool.get(REQUEST)


def test_no_more_connections_than_allowed_are_kept() -> None:
    with serving([HEAD + BODY], [HEAD + BODY]) as (_, pool):
        pool._most_idle = 0
        pool.get(REQUEST)
        pool.get(REQUEST)
        assert not pool._idle


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nbody until the end",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nmore than two",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 301 Moved\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 5xx What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
        b"x" * 200_000,
    ],
)
def test_any_other_answer_is_left_to_a_client_that_knows_it(answer: bytes) -> None:
    with serving([answer]) as (_, pool):
        with pytest.raises((Unfamiliar, Unanswered)):
            pool.get(REQUEST)
        assert not pool._idle, "what is left of such an answer would be taken for the next one"


def test_a_server_in_trouble_is_quoted() -> None:
    words = b"<Error><Code>SlowDown</Code></Error>"
    head = f"HTTP/1.1 503 Slow Down\r\nContent-Length: {len(words)}\r\n\r\n".encode()
    with serving([head + words], [head + words[:9]]) as (_, pool):
        with pytest.raises(Refused) as whole:
            pool.get(REQUEST)
        with pytest.raises(Refused) as cut:
            pool.get(REQUEST)
    assert (whole.value.status, whole.value.reason, whole.value.is_whole) == (503, words.decode(), True)
    assert not cut.value.is_whole


def test_a_body_that_is_cut_short_is_noticed() -> None:
    with serving([HEAD + BODY[:1000]]) as (_, pool):
        with pytest.raises(CutShort) as caught:
            pool.get(REQUEST)
        assert (caught.value.found, caught.value.wanted) == (1000, len(BODY))
        assert not pool._idle


def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with serving([head + BODY], [HEAD + BODY]) as (_, pool):
        pool.get(REQUEST)
        assert not pool._idle
        pool.get(REQUEST)


@pytest.mark.parametrize("begin", [b"", HEAD + BODY[:1000]])
def test_a_server_that_falls_silent_is_waited_for_no_longer_than_allowed(begin: bytes) -> None:
    server_side, ours = socket.socketpair()
    with server_side, ours:
        pool = Connections("127.0.0.1", 0, 1, 1.0, 0.05)
        pool._limit(ours)
        pool._connect = lambda: ours  # type: ignore[method-assign]
        server_side.sendall(begin)
        with pytest.raises(TimeoutError):
            pool.get(REQUEST)


def test_a_head_that_comes_byte_by_byte_is_waited_for_no_longer_than_allowed() -> None:
    server_side, ours = socket.socketpair()
    enough = threading.Event()

    def serve() -> None:
        for _ in range(500):
            if enough.wait(0.01):
                return
            with suppress(OSError):  # our side has closed
                server_side.sendall(b"x")

    thread = threading.Thread(target=serve)
    with server_side, ours:
        pool = Connections("127.0.0.1", 0, 1, 1.0, 0.1)
        pool._limit(ours)
        pool._connect = lambda: ours  # type: ignore[method-assign]
        thread.start()
        try:
            with pytest.raises(TimeoutError):
                pool.get(REQUEST)
        finally:
            enough.set()
            thread.join(LIMIT_S)


def test_no_connection_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(NoConnection, match="refused"):
        Connections("127.0.0.1", port, 4, LIMIT_S, LIMIT_S).get(REQUEST)
