"""`FaultyProxy`: a server on this machine, behind a bad network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to requests. Shares are of all requests, drawn at random from `seed`."""

    latency_s: float = 0.0
    """Added before each request."""
    bytes_per_s: float = 0.0
    """Of each connection; 0: no limit."""
    slow_share: float = 0.0
    slow_s: float = 0.0
    """Added to the latency of a share of requests: a slow tail."""
    busy_share: float = 0.0
    """Answered with 503 Slow Down."""
    reset_share: float = 0.0
    """The connection is reset."""
    truncate_share: float = 0.0
    """The connection ends after half of the body."""
    corrupt_share: float = 0.0
    """One byte of the body is changed."""
    partial_status: bool = False
    """Answers to ranges get status 206 where the server forgot it (`rclone serve s3` does)."""
    answer: str = ""
    """Sent instead of any answer of the server: a whole HTTP answer."""
    seed: int = 0


class FaultyProxy:
    """Forwards from `url` to a server's port on this machine, with faults; in processes of its own.

        with FaultyProxy(server.port, Faults(latency_s=0.020)) as proxy:
            dataset = minato.S3Dataset("s3://bucket", endpoint=proxy.url)
            proxy.set(Faults(busy_share=0.1))
            proxy.counts()["requests"]

    `processes`: one forwards some 2,000 objects of 115 kB per second where server and client share two cores with it.
    """

    def __init__(self, port: int, faults: Faults | None = None, processes: int = 1) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._processes = [self._start(port) for _ in range(processes)]
        self.set(faults or Faults())

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        program = str(Path(__file__).with_name("proxy_server.py"))
        fd = self._listening.fileno()
        return subprocess.Popen(
            [sys.executable, "-S", program, str(port), str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(fd,),
        )

    def set(self, faults: Faults) -> None:
        """New faults from now on; counts start at 0."""
        self._ask(asdict(faults))

    def counts(self) -> Mapping[str, int]:
        """Since the faults were set: requests, get (objects asked for), connections, slow, busy, reset, truncate,
        corrupt."""
        return self._ask(None)

    def _ask(self, command: object) -> Counter[str]:
        total: Counter[str] = Counter()
        for number, process in enumerate(self._processes):
            assert process.stdin is not None and process.stdout is not None
            if isinstance(command, dict):
                command = command | {"seed": command["seed"] + number}
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
            total.update(json.loads(process.stdout.readline()))
        return total

    def close(self) -> None:
        """End the processes."""
        self._listening.close()
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
        for process in self._processes:
            assert process.stdout is not None
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
