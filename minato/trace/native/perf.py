"""The program `perf`: where it is, how a recording of a running process is started and ended, how it is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import POLLIN, poll
from typing import Final

from .errors import PerfFailed, PerfMissing
from .samples import FIELDS, Sample, read_samples

HOW_TO_GET: Final = (
    "install it with `apt install linux-perf` (Debian), `apt install linux-tools-$(uname -r)` (Ubuntu) or "
    "`dnf install perf` (Fedora, RHEL)"
)
ANSWER_S = 30.0
"""How long `perf` may take to answer a command: it reads all maps of the process before its first answer."""
END_S = 120.0
"""How long it may take to write its file after its process has ended: it reads the build id of each library."""


def find_perf(perf: str | None = None) -> str:
    """The path of `perf`; `PerfMissing` says how to get it."""
    wanted = perf or "perf"
    found = shutil.which(wanted)
    if found is None:
        where = f"at {wanted!r}" if perf else "on the PATH"
        raise PerfMissing(f"native mapping needs the program perf, which is not {where}; {HOW_TO_GET}")
    return found


class Control:
    """The two pipes by which a process tells `perf` when to collect. Used inside the process that is profiled."""

    def __init__(self, directory: Path) -> None:
        # Opened for both directions, so that neither end waits for the other to open it.
        self._commands = os.open(directory / "control", os.O_RDWR)
        self._answers = os.open(directory / "answers", os.O_RDWR)

    def __call__(self, command: str) -> None:
        """Give a command and wait until `perf` has carried it out."""
        os.write(self._commands, f"{command}\n".encode())
        waiting = poll()
        waiting.register(self._answers, POLLIN)
        if not waiting.poll(ANSWER_S * 1000):
            raise PerfFailed(f"perf did not answer {command!r} within {ANSWER_S:.0f} s")
        os.read(self._answers, 64)

    def close(self) -> None:
        """Close both pipes."""
        os.close(self._commands)
        os.close(self._answers)


@contextmanager
def recording(perf: str, pid: int, directory: Path, event: str, frequency_hz: int) -> Iterator[subprocess.Popen[bytes]]:
    """Attach to a process; nothing is collected until it asks for it through its `Control`. Ends with the process."""
    for name in ("control", "answers"):
        os.mkfifo(directory / name)
    command = [perf, "record", "-q", "-e", event, "-F", str(frequency_hz), "-k", "CLOCK_MONOTONIC", "-D", "-1"]
    command += ["--control", f"fifo:{directory / 'control'},{directory / 'answers'}"]
    command += ["-p", str(pid), "-o", str(directory / "perf.data")]
    with open(directory / "perf.err", "wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def finish(process: subprocess.Popen[bytes], directory: Path) -> Path:
    """Wait until `perf` has written its file, and give its path. The profiled process must have ended."""
    try:
        code = process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        raise PerfFailed(f"perf did not write its file within {END_S:.0f} s") from None
    path = directory / "perf.data"
    if code != 0 or not path.exists():
        raise failure(directory, code)
    return path


def failure(directory: Path, code: int | None) -> PerfFailed:
    """What `perf` said before it ended."""
    said = (directory / "perf.err").read_text(encoding="utf-8", errors="replace").strip() or "nothing"
    return PerfFailed(
        f"perf record ended with code {code}; it said: {said}\n"
        "If it may not open events here: `sysctl kernel.perf_event_paranoid=2` lets a user profile their own processes"
    )


def script(perf: str, data: Path) -> Iterator[Sample]:
    """All samples of a file that `perf record` wrote."""
    command = [perf, "script", "-f", "-i", str(data), *FIELDS]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
        )
        assert process.stdout is not None
        try:
            yield from read_samples(process.stdout)
            code = process.wait()
        finally:  # also when the caller stops reading
            process.stdout.close()
            process.kill()
            process.wait()
        if code != 0:
            errors.seek(0)
            raise PerfFailed(f"perf script could not read {data}; it said: {errors.read().strip() or 'nothing'}")
