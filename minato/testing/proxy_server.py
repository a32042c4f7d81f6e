"""The process behind `FaultyProxy`: forwards HTTP connections to one server, with delays and faults.

Standard library only and no import of minato, so that it starts in a tenth of a second. Run as a program with the
upstream port and a descriptor to listen on; settings come as lines of JSON on standard input, counts go out the same
way.

It does not parse what it forwards, but for the beginning of requests and answers: a client sends one request at a time
over a connection and waits for the answer, as S3 clients do. So every burst of bytes that begins with a method is a new
request; it is held back for the latency, and its fate is drawn from a seeded generator when it comes.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import sys
from typing import Any

COUNTED = ("requests", "get", "connections", "slow", "busy", "reset", "truncate", "corrupt")
METHODS = (b"GET ", b"HEAD", b"PUT ", b"POST", b"DELE")
_CHUNK_BYTES = 1 << 16  # of a body that is slowed down
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
BUSY_BODY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Settings:
    """As `minato.testing.Faults`, by the names there."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.latency_s = float(values.get("latency_s", 0))
        self.bytes_per_s = float(values.get("bytes_per_s", 0))
        self.slow_share = float(values.get("slow_share", 0))
        self.slow_s = float(values.get("slow_s", 0))
        self.busy_share = float(values.get("busy_share", 0))
        self.reset_share = float(values.get("reset_share", 0))
        self.truncate_share = float(values.get("truncate_share", 0))
        self.corrupt_share = float(values.get("corrupt_share", 0))
        self.partial_status = bool(values.get("partial_status", False))
        self.answer = str(values.get("answer", "")).encode()
        self.random = random.Random(values.get("seed", 0))

    def draw(self) -> str:
        """The fate of a request: "busy", "reset", "truncate", "corrupt" or "" for none."""
        chance = self.random.random()
        for fate in ("busy", "reset", "truncate", "corrupt"):
            chance -= getattr(self, f"{fate}_share")
            if chance < 0:
                return fate
        return ""

    def delay_s(self) -> float:
        slow = self.slow_share and self.random.random() < self.slow_share
        return self.latency_s + (self.slow_s if slow else 0.0)


class Proxy:
    """Settings and counts, shared by all connections."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.settings = Settings({})
        self.counts = dict.fromkeys(COUNTED, 0)


class Client(asyncio.Protocol):
    """The side towards a client; owns the connection to the server."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.fate = ""
        self.upstream: asyncio.Transport | None = None
        self.waiting: list[bytes] = []
        self.head = b""
        self.in_head = False
        self.body_left = 0
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        _no_delay(transport)
        self.proxy.counts["connections"] += 1
        self.connecting = self.loop.create_task(
            self.loop.create_connection(lambda: Server(self), "127.0.0.1", self.proxy.port)
        )
        self.connecting.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self.transport.abort()
            return
        self.upstream = task.result()[0]
        _no_delay(self.upstream)
        for data in self.waiting:
            self.upstream.write(data)
        self.waiting.clear()

    def data_received(self, data: bytes) -> None:
        if not data.startswith(METHODS):
            self._forward(data)  # the body of a request
            return
        settings, counts = self.proxy.settings, self.proxy.counts
        counts["requests"] += 1
        counts["get"] += data.startswith(b"GET /") and b"list-type" not in data.partition(b"\r\n")[0]
        self.fate, self.in_head, self.head = settings.draw(), True, b""
        if self.fate:
            counts[self.fate] += 1
        delay_s = settings.delay_s()
        counts["slow"] += delay_s > settings.latency_s
        if delay_s:
            self.loop.call_later(delay_s, self._begin, data)
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.fate == "busy":
            self.transport.write(BUSY % (len(BUSY_BODY), BUSY_BODY))
            self.transport.close()
        elif self.fate == "reset":
            self.reset()
        elif self.proxy.settings.answer:
            self.transport.write(self.proxy.settings.answer)
            self.transport.close()
        else:
            self._forward(data)

    def _forward(self, data: bytes) -> None:
        if self.upstream is None:
            self.waiting.append(data)
        else:
            self.upstream.write(data)

    def reset(self) -> None:
        """Close so that the client sees a reset, not an end."""
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def answer(self, data: bytes) -> None:
        """Bytes from the server: the head of an answer, then its body."""
        if not self.in_head:
            self._body(data)
            return
        self.head += data
        head, end, body = self.head.partition(b"\r\n\r\n")
        if not end:
            return
        self.in_head, self.head = False, b""
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        self.body_left = int(length[1]) if length else 0
        if self.fate == "truncate":
            self.body_left //= 2
        if self.proxy.settings.partial_status and b"ontent-Range:" in head:
            head = head.replace(b" 200 OK", b" 206 Partial Content", 1)
        if not body:
            self.transport.write(head + end)
            return
        if self.fate in ("truncate", "corrupt") or self.proxy.settings.bytes_per_s:
            self.transport.write(head + end)
            self._body(body)
        else:
            self.transport.writelines([head, end, body])

    def _body(self, data: bytes) -> None:
        if self.fate == "truncate":
            data = data[: self.body_left]
            self.body_left -= len(data)
            self.transport.write(data)
            if self.body_left <= 0:
                self.transport.close()
            return
        if self.fate == "corrupt" and data:
            data = bytes([data[0] ^ 0xFF]) + data[1:]
            self.fate = ""
        if self.proxy.settings.bytes_per_s:
            self._slowly(data)
        else:
            self.transport.write(data)

    def _slowly(self, data: bytes) -> None:
        """Hold the server back for as long as these bytes take at the rate of a connection."""
        assert self.upstream is not None
        self.upstream.pause_reading()
        self.transport.write(data)
        self.loop.call_later(len(data) / self.proxy.settings.bytes_per_s, self._go_on)

    def _go_on(self) -> None:
        if self.upstream is not None and not self.upstream.is_closing():
            self.upstream.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self.connecting.cancel()
        if self.upstream is not None:
            self.upstream.abort()


class Server(asyncio.Protocol):
    """The side towards the server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        if not self.client.transport.is_closing():
            self.client.answer(data)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.client.transport.is_closing():
            self.client.transport.close()


def _no_delay(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _serve(port: int, listening: socket.socket) -> None:
    proxy = Proxy(port)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(proxy), sock=listening, backlog=1024)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    # Ends when whoever started it closes the pipe or dies.
    while line := await commands.readline():
        values = json.loads(line)
        if values is not None:
            proxy.settings = Settings(values)
            proxy.counts = dict.fromkeys(proxy.counts, 0)
        sys.stdout.write(json.dumps(proxy.counts) + "\n")
        sys.stdout.flush()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
