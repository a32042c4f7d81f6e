"""The test server ends with whoever started it, however that ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minato.testing import S3Server

STARTED = """
import sys, time
from minato.testing import S3Server
server = S3Server()
server.put("bucket", "a", b"data")
print(server.port, server._process.pid, server.root, flush=True)
time.sleep(600)
"""
ENDED_S = 20.0


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until_gone(port: int, root: Path) -> None:
    until = time.monotonic() + ENDED_S
    while (answers(port) or root.exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not answers(port)
    assert not root.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_neither_server_nor_directory(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, _, root = process.stdout.readline().split(maxsplit=2)
        assert answers(int(port))
        process.send_signal(number)
        process.wait()
        wait_until_gone(int(port), Path(root.strip()))


def test_a_killed_keeper_takes_the_server_along() -> None:
    with S3Server() as server:
        assert answers(server.port)
        os.kill(server._process.pid, signal.SIGKILL)
        until = time.monotonic() + ENDED_S
        while answers(server.port) and time.monotonic() < until:
            time.sleep(0.05)
        assert not answers(server.port)
    assert not server.root.exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rclone"
    program.write_text("#!/bin/sh\necho 'no such storage' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("minato.testing.s3_server._rclone", lambda: str(program))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="no such storage"):
        S3Server()
    assert time.monotonic() - began < ENDED_S, "it was waited for although it had ended"
