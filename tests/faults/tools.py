"""How tests of faults watch processes, count warnings, and run scripts in interpreters of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
import traceback
import warnings
from pathlib import Path

import psutil
import pytest
import torch

PATIENCE_S = 90.0
ROOT = Path(__file__).parents[2]


class Marks:
    """Files that the processes of a test leave for each other."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def once(self, name, text=""):
        """Leave a mark; False if it was there already. True for exactly one of all processes that try."""
        try:
            fd = os.open(self.folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(fd, str(text).encode())
        os.close(fd)
        return True

    def sign(self, prefix):
        """Leave a mark with this process's id."""
        self.once(f"{prefix}-{os.getpid()}", os.getpid())

    def named(self, prefix):
        """Names of all marks that begin so."""
        return sorted(path.name for path in self.folder.glob(f"{prefix}*"))

    def pids(self, prefix):
        """The processes that signed."""
        return [int(name.rpartition("-")[2]) for name in self.named(f"{prefix}-")]

    def read(self, name):
        return (self.folder / name).read_text()

    def wait_for(self, prefix, count=1):
        """Wait until there are `count` marks that begin so."""
        until(lambda: len(self.named(prefix)) >= count, f"{count} marks named {prefix}*, found {self.named('')}")


def until(condition, what, within_s=PATIENCE_S):
    """Wait for something that another process does."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"in vain for {within_s} s: {what}")
        time.sleep(0.005)


def running(pids):
    """Those processes that have not ended; a zombie has."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def assert_gone(pids, within_s):
    """No process is left after a while. Nothing is left running by a failure, either."""
    assert pids, "nobody to look for"
    try:
        until(lambda: not running(pids), f"processes {pids} to be gone", within_s)
    finally:
        for pid in running(pids):
            os.kill(pid, 9)


@contextlib.contextmanager
def caught_warnings():
    """All warnings of the block, as a list of (category, text)."""
    caught = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield caught
    caught += [(record.category, str(record.message)) for record in records]


def forked(body, meanwhile=lambda: None, within_s=PATIENCE_S):
    """Run `body` in a forked copy of this process, and `meanwhile` here; returns the copy's exit code, 0 or 1."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # OpenMP's threads were not copied
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    try:
        meanwhile()
        peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
        until(lambda: os.waitid(os.P_PID, pid, peek) is not None, "the copy to end", within_s)
    finally:
        os.kill(pid, 9)  # too late to matter, if all went well
        status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


class Script:
    """A program in an interpreter of its own, in a process group of its own."""

    def __init__(self, folder, text, *args, wrapper=()):
        self.path = Path(folder) / "script.py"
        self.path.write_text(textwrap.dedent(text))
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, str(self.path), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def pid(self):
        return self._process.pid

    def signal_group(self, number):
        os.killpg(self._process.pid, number)

    def result(self, within_s=PATIENCE_S):
        """Exit code, standard output and standard error, once it has ended."""
        try:
            out, err = self._process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            self.signal_group(9)
            out, err = self._process.communicate()
            raise AssertionError(f"the script did not end; it said:\n{out}\n{err}") from None
        return self._process.returncode, out, err


def run_script(folder, text, *args, wrapper=()):
    """The standard output of a script that ends well and complains about nothing."""
    code, out, err = Script(folder, text, *args, wrapper=wrapper).result()
    assert (code, err) == (0, ""), f"exit code {code}\n{out}\n{err}"
    return out


def on_small_disk(folder, mib):
    """A command that runs another with a disk of its own of that size at a folder; skips where that is forbidden."""
    mount = f"mount -t tmpfs -o size={mib}m tmpfs {folder}"
    wrapper = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    try:
        permitted = subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        permitted = False
    if not permitted:
        pytest.skip("needs the right to unshare the mount namespace")
    return wrapper
