"""The leak check finds each kind of leak, and stays silent about everything else."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context, shared_memory
from pathlib import Path

import pytest

from tests.support.leaks import LeakCheck

ROOT = Path(__file__).parents[2]


@pytest.fixture
def check() -> LeakCheck:
    """A check inside the check that guards each test; impatient, because most tests here do leak."""
    return LeakCheck(settle_s=0.1)


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    """Undoes the planted leak, so that the guarding check has nothing to say."""
    with ExitStack() as stack:
        yield stack


def open_fds(fds: tuple[int, ...], cleanup: ExitStack) -> None:
    for fd in fds:
        cleanup.callback(os.close, fd)


def test_finds_nothing_where_nothing_is_left(check: LeakCheck) -> None:
    """Resources that were closed are no leaks."""
    before = check.snapshot()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    os.close(os.eventfd(0))
    subprocess.run(["true"], check=True)
    block = shared_memory.SharedMemory(create=True, size=1)
    block.close()
    block.unlink()
    assert check.compare(before) == []


def test_finds_process(check: LeakCheck, cleanup: ExitStack, start_method: str) -> None:
    """A running child is found, also when the fork server is its parent; the helpers themselves are not."""
    before = check.snapshot()
    process = get_context(start_method).Process(target=time.sleep, args=(60,))
    process.start()
    cleanup.callback(process.close)
    cleanup.callback(process.join)
    cleanup.callback(process.kill)
    leaks = [leak for leak in check.compare(before) if leak.startswith("process")]
    assert len(leaks) == 1
    assert str(process.pid) in leaks[0]


def test_ignores_multiprocessing_helpers(check: LeakCheck, start_method: str) -> None:
    """The fork server and the resource tracker, with their pipes, live on by design."""
    before = check.snapshot()
    process = get_context(start_method).Process(target=int)
    process.start()
    process.join()
    process.close()
    assert check.compare(before) == []


def test_finds_grandchild(check: LeakCheck, cleanup: ExitStack) -> None:
    """Descendants of any depth count."""
    before = check.snapshot()
    script = "import subprocess as s, time; p = s.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    cleanup.enter_context(parent)
    cleanup.callback(parent.kill)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    cleanup.callback(os.kill, grandchild, 9)
    leaks = check.compare(before)
    assert any(f"process {parent.pid} " in leak for leak in leaks)
    assert any(f"process {grandchild} " in leak for leak in leaks)


def test_finds_zombie(check: LeakCheck, cleanup: ExitStack) -> None:
    """A child that ended and was not waited for still holds its pid."""
    before = check.snapshot()
    process = subprocess.Popen(["true"])
    cleanup.callback(process.wait)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    (leak,) = check.compare(before)
    assert f"process {process.pid} (zombie)" in leak


def test_finds_thread(check: LeakCheck, cleanup: ExitStack) -> None:
    """A running thread is found by its name, a daemon too."""
    before = check.snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten", daemon=True)
    thread.start()
    cleanup.callback(thread.join)
    cleanup.callback(stop.set)
    assert check.compare(before) == ["thread 'forgotten' (daemon)"]


@pytest.mark.parametrize(
    ("open_some", "name"),
    [
        pytest.param(lambda: os.pipe(), "pipe:", id="pipe"),
        pytest.param(lambda: (os.eventfd(0),), "eventfd", id="eventfd"),
        pytest.param(lambda: (os.memfd_create("arena"),), "memfd:arena", id="memfd"),
        pytest.param(lambda: (os.pidfd_open(os.getpid()),), "pidfd", id="pidfd"),
        pytest.param(lambda: (socket.socket().detach(),), "socket:", id="socket"),
    ],
)
def test_finds_descriptor(
    check: LeakCheck, cleanup: ExitStack, open_some: Callable[[], tuple[int, ...]], name: str
) -> None:
    """Each kind of descriptor that a loader uses is found the first time, and named."""
    before = check.snapshot()
    open_fds(open_some(), cleanup)
    (leak,) = check.compare(before)
    assert leak.startswith("file descriptor")
    assert name in leak


def test_finds_temporary_file(check: LeakCheck, cleanup: ExitStack) -> None:
    """Libraries do not keep files open where tests make theirs, so the first one is a leak."""
    before = check.snapshot()
    file = cleanup.enter_context(tempfile.NamedTemporaryFile())
    assert check.compare(before) == [f"file descriptor {os.path.realpath(file.name)}"]


def test_finds_exchanged_descriptor(check: LeakCheck, cleanup: ExitStack) -> None:
    """A leak does not hide behind an old descriptor that went away, nor behind its number."""
    old = os.pipe()
    before = check.snapshot()
    for fd in old:
        os.close(fd)
    new = os.pipe()
    open_fds(new, cleanup)
    assert new == old
    assert len(check.compare(before)) == 1


def test_finds_one_more_of_the_same(check: LeakCheck, cleanup: ExitStack) -> None:
    """All eventfds have the same name; their number tells."""
    open_fds((os.eventfd(0),), cleanup)
    before = check.snapshot()
    open_fds((os.eventfd(0),), cleanup)
    assert len(check.compare(before)) == 1


def test_excuses_a_file_once(check: LeakCheck, cleanup: ExitStack) -> None:
    """Libraries open a file on first use and keep it; who opens it again and again leaks."""
    before = check.snapshot()
    open_fds((os.open("/dev/urandom", os.O_RDONLY),), cleanup)
    assert check.compare(before) == []
    before = check.snapshot()
    open_fds((os.open("/dev/urandom", os.O_RDONLY),), cleanup)
    assert check.compare(before) == ["file descriptor /dev/urandom"]


def test_finds_growing_number_of_files(check: LeakCheck, cleanup: ExitStack) -> None:
    """Always another file is a leak too."""
    names = ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "swaps", "uptime", "version", "vmstat")
    leaks = []
    for name in names:
        before = check.snapshot()
        open_fds((os.open(f"/proc/{name}", os.O_RDONLY),), cleanup)
        leaks += check.compare(before)
    (leak,) = leaks
    assert leak.startswith("growing number of open files: ")


def test_finds_shared_memory(check: LeakCheck, cleanup: ExitStack) -> None:
    """A name left in /dev/shm is found, also when nobody has it open."""
    before = check.snapshot()
    block = shared_memory.SharedMemory(create=True, size=1)
    cleanup.callback(block.unlink)
    block.close()
    assert check.compare(before) == [f"shared memory /dev/shm/{block.name}"]


def test_ignores_shared_memory_of_others(check: LeakCheck, cleanup: ExitStack) -> None:
    """Another program on the same machine may use /dev/shm while a test runs, and rename what it has there."""
    before = check.snapshot()
    path = Path(f"/dev/shm/minato-test-{os.getpid()}")
    cleanup.callback(path.unlink)
    # The shell ends at once, so that init and not this process is the parent of the sleeper.
    script = f"sleep 60 3>{path}.new >/dev/null & echo $!; until mv {path}.new {path} 2>/dev/null; do :; done"
    shell = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True, text=True, timeout=90)
    cleanup.callback(os.kill, int(shell.stdout), 9)
    assert check.compare(before) == []


def test_collects_garbage_first(check: LeakCheck) -> None:
    """What only a reference cycle keeps open is not a leak."""

    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.socket = socket.socket()

        def __del__(self) -> None:
            self.socket.close()

    before = check.snapshot()
    Holder()
    assert check.compare(before) == []


def test_waits_for_things_to_settle() -> None:
    """Something that ends soon by itself is not a leak, and costs no more than its own time."""
    check = LeakCheck(settle_s=30)
    before = check.snapshot()
    threading.Thread(target=time.sleep, args=(0.2,)).start()
    start = time.monotonic()
    assert check.compare(before) == []
    assert time.monotonic() - start < 15


def test_costs_little() -> None:
    """Cheap enough to stand around every test."""
    check = LeakCheck()
    times_s = []
    for _ in range(5):
        start = time.perf_counter()
        assert check.compare(check.snapshot()) == []
        times_s.append(time.perf_counter() - start)
    assert min(times_s) < 0.02


def nested_pytest(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest on `body` in a process of its own, with our conftest as a plugin."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_nested.py").write_text(body)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "--strict-markers", str(tmp_path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)


def test_guards_every_test(tmp_path: Path) -> None:
    """A leaking test fails without asking for any fixture, unless it failed by itself or is marked with a reason."""
    body = """
import os, pytest

def test_clean(): pass

def test_leaks(): os.pipe()

def test_fails_and_leaks():
    os.pipe()
    assert False

@pytest.mark.leaks_ok("for a reason")
def test_may_leak(): os.pipe()

@pytest.mark.leaks_ok
def test_without_reason(): pass
"""
    result = nested_pytest(tmp_path, body)
    output = result.stdout + result.stderr
    assert result.returncode == 1, output
    assert "1 failed, 3 passed, 2 errors" in output, output
    assert "the test leaked:\n  file descriptor pipe:" in output
    assert "ERROR at teardown of test_leaks" in output
    assert "leaks_ok needs a reason" in output
