"""What must not be shared by forked workers is named, and nothing else is."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import socket
import sqlite3
import sys
import tarfile
import tempfile
import threading
import types
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from minato import DataLoader
from minato._workers.hazards import warn_of_fork_hazards
from minato._workers.program import Program
from minato.errors import ForkHazardWarning

WAIT_S = 20


class Plain(Dataset):
    """A dataset with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def told(dataset: Any, collate_fn: Any = None, worker_init_fn: Any = None) -> str:
    """The text of the one warning; empty if there was none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_fork_hazards(Program(dataset, collate_fn, worker_init_fn), stacklevel=1)
    assert len(caught) <= 1
    if not caught:
        return ""
    assert caught[0].category is ForkHazardWarning
    assert caught[0].filename == __file__
    return str(caught[0].message)


@pytest.fixture
def opened(tmp_path):
    """Things that are open, and how each is told."""
    (tmp_path / "text").write_text("text")
    with contextlib.ExitStack() as stack:
        with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
            archive.writestr("a", "a")
        with tarfile.open(tmp_path / "tar", "w") as archive:
            archive.add(tmp_path / "text")
        np.savez(tmp_path / "arrays.npz", a=np.arange(3))
        one, other = socket.socketpair()
        stack.callback(other.close)
        executor = stack.enter_context(ThreadPoolExecutor(1))
        executor.submit(int).result()
        database = sqlite3.connect(":memory:")
        stack.callback(database.close)
        yield {
            "file": (stack.enter_context(open(tmp_path / "text")), "(_io.TextIOWrapper) is open"),
            "binary": (stack.enter_context(open(tmp_path / "text", "rb")), "(_io.BufferedReader) is open"),
            "archive": (stack.enter_context(zipfile.ZipFile(tmp_path / "zip")), "(zipfile.ZipFile) is open"),
            "tar": (stack.enter_context(tarfile.open(tmp_path / "tar")), "(tarfile.TarFile) is open"),
            "socket": (stack.enter_context(one), "(socket.socket) is connected"),
            "database": (database, "(sqlite3.Connection) is connected"),
            "executor": (executor, "(concurrent.futures.thread.ThreadPoolExecutor) was started"),
            "arrays": (stack.enter_context(np.load(tmp_path / "arrays.npz")), "(zipfile.ZipFile) is open"),
        }


@pytest.mark.parametrize("kind", ["file", "binary", "archive", "tar", "socket", "database", "executor", "arrays"])
def test_what_is_open_is_named_with_its_path(opened, kind):
    value, text = opened[kind]
    path = "dataset.thing.zip" if kind == "arrays" else "dataset.thing"
    assert f"  - {path} {text}" in told(Plain(thing=value))


def test_all_that_is_open_is_named_in_one_warning(opened):
    text = told(Plain(**{name: value for name, (value, _) in opened.items()}))
    assert all(f"dataset.{name}" in text for name in opened)


def test_what_is_closed_is_not_named(tmp_path):
    with open(tmp_path / "text", "w") as file, zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a", "a")
    tar = tarfile.open(tmp_path / "tar", "w")
    tar.close()
    one, other = socket.socketpair()
    one.close()
    other.close()
    database = sqlite3.connect(":memory:")
    database.close()
    with ThreadPoolExecutor(1) as unused:
        assert told(Plain(a=file, b=archive, c=tar, d=one, e=database, f=unused, g=threading.Lock())) == ""


def closure_over(file):
    return lambda samples: (file, samples)


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda file: Subset(Plain(file=file), [0]), "dataset.dataset.file"),
        (lambda file: ConcatDataset([Plain(), Plain(file=file)]), "dataset.datasets[1].file"),
        (lambda file: Plain(shards={"a": [(0, file)]}), "dataset.shards['a'][0][1]"),
        (lambda file: Plain(files=[file] * 5000), "dataset.files[0]"),
        (lambda file: Plain(transform=closure_over(file)), "dataset.transform<file>"),
        (lambda file: Plain(transform=functools.partial(print, file=file)), "dataset.transform.keywords['file']"),
        (lambda file: Plain(transform=Plain(file=file).__getitem__), "dataset.transform.__self__.file"),
    ],
)
def test_the_path_goes_through_wrappers_containers_and_functions(opened, wrap, path):
    assert f"  - {path} (_io.TextIOWrapper) is open" in told(wrap(opened["file"][0]))


def test_the_functions_a_worker_runs_are_looked_at_too(opened):
    file = opened["file"][0]
    assert "  - collate_fn<file> (_io" in told(Plain(), closure_over(file))
    assert "  - worker_init_fn<file> (_io" in told(Plain(), None, closure_over(file))


def test_a_client_is_named_and_not_the_socket_deep_inside_it(opened):
    client = type("Session", (), {"__module__": "requests.sessions"})()
    client.adapters = {"https://": Plain(pool=[Plain(sock=opened["socket"][0])])}
    text = told(Plain(session=client))
    assert "  - dataset.session (requests.sessions.Session): its socket.socket is connected" in text


def test_foreign_handles_are_known_by_package_and_class():
    environment = type("Environment", (), {"__module__": "lmdb.cffi", "path": lambda self: "/data"})()
    file = type("File", (type("HLObject", (), {"__module__": "h5py._hl.base"}),), {"__module__": "h5py._hl.files"})
    text = told(Plain(env=environment, h5=file()))
    assert "dataset.env (lmdb.cffi.Environment) is open" in text
    assert "dataset.h5 (h5py._hl.files.File) is open" in text


def test_ordinary_datasets_are_not_warned_about(tmp_path):
    log = logging.getLogger("test_hazards")
    handler = logging.FileHandler(tmp_path / "log")
    log.addHandler(handler)
    np.save(tmp_path / "array.npy", np.arange(10))
    try:
        ordinary = Plain(
            log=log,
            lock=threading.Lock(),
            event=threading.Event(),
            out=sys.stderr,
            memory=io.BytesIO(b"x"),
            array=np.load(tmp_path / "array.npy", mmap_mode="r"),
            paths=[str(k) for k in range(10_000)],
            table={k: (k, str(k)) for k in range(10_000)},
            model=torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
            device=torch.device("cpu"),
        )
        ordinary.itself = ordinary
        assert told(ordinary) == told(Subset(ordinary, range(3))) == told(TensorDataset(torch.ones(3))) == ""
    finally:
        log.removeHandler(handler)
        handler.close()


def test_a_dataset_is_not_run_by_looking_at_it():
    class Touchy(Plain):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

        @property
        def handle(self) -> Any:
            raise AssertionError("the property was read")

    assert told(Touchy(a=1)) == ""


# ------------------------------------------------------------------------------------------- threads, CUDA, Ray


@contextlib.contextmanager
def thread(target, name="busy"):
    """A thread that runs `target(is_there, may_go)`."""
    is_there, may_go = threading.Event(), threading.Event()
    running = threading.Thread(target=target, args=(is_there, may_go), name=name)
    running.start()
    assert is_there.wait(WAIT_S)
    try:
        yield running
    finally:
        may_go.set()
        running.join()


def waiting(is_there, may_go):
    is_there.set()
    may_go.wait(WAIT_S)


def test_a_thread_that_waits_is_no_reason_to_warn():
    with thread(waiting):
        assert told(Plain()) == ""


def test_a_lock_that_another_thread_holds_is_named():
    lock, again = threading.Lock(), threading.RLock()

    def hold(is_there, may_go):
        with lock, again:
            waiting(is_there, may_go)

    with thread(hold, "holder"):
        text = told(Plain(lock=lock, again=again))
        assert "dataset.lock (_thread.lock) is held" in text
        assert "dataset.again (_thread.RLock) is held" in text
        assert "thread 'holder' (test_hazards.py:" in text
        assert "hold) uses again, which is held" in text
        assert "holder" in text.splitlines()[-1]
    assert told(Plain(lock=lock, again=again)) == ""


def test_a_lock_a_worker_can_take_is_not_named():
    lock = threading.RLock()
    with lock:  # the worker's only thread is a copy of this one, and owns the lock
        assert told(Plain(lock=lock)) == ""


def test_a_thread_in_the_middle_of_an_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "module_that_waits.py").write_text("from tests.unit.workers import test_hazards as t\nt.WAIT_HERE()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def importing(is_there, may_go):
        monkeypatch.setitem(globals(), "WAIT_HERE", lambda: waiting(is_there, may_go))
        __import__("module_that_waits")

    with thread(importing, "importer"):
        assert "  - thread 'importer' is importing a module" in told(Plain())
    del sys.modules["module_that_waits"]


def test_a_thread_the_dataset_depends_on_is_named():
    with thread(waiting, "refresh") as running:
        assert "dataset.refresher (threading.Thread) runs in this process" in told(Plain(refresher=running))


def test_cuda_is_named_only_if_the_dataset_refers_to_it(monkeypatch):
    on_device = Plain(device=torch.device("cuda:0"))
    assert told(on_device) == ""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert told(Plain()) == ""
    assert "dataset.device (torch.device) is on a CUDA device" in told(on_device)


def test_ray_is_named_if_it_is_connected(monkeypatch):
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert told(Plain()) == ""
    ray.is_initialized = lambda: True
    assert "Ray is connected" in told(Plain())


# --------------------------------------------------------------------------------------------------- from the loader


def test_a_loader_warns_once_and_at_the_line_of_the_loop():
    with tempfile.TemporaryFile() as file:
        loader = DataLoader(Plain(file=file), num_workers=1)
        with pytest.warns(ForkHazardWarning, match=r"dataset\.file") as caught:
            assert len(list(loader)) == 4
        assert [warning.filename for warning in caught] == [__file__]
        assert len(list(loader)) == 4


def test_no_warning_where_nothing_is_forked():
    with tempfile.TemporaryFile() as file:
        assert len(list(DataLoader(Plain(file=file), num_workers=0))) == 4
        loader = DataLoader(Opening(file.fileno()), num_workers=1, multiprocessing_context="spawn")
        assert len(list(loader)) == 4


class Opening(Plain):
    """Has an open file here, which does not travel."""

    def __init__(self, fd: int) -> None:
        super().__init__(file=open(fd, "rb", closefd=False))

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_a_warning_made_an_error_leaves_nothing_behind():
    with tempfile.TemporaryFile() as file, pytest.raises(ForkHazardWarning):
        list(DataLoader(Plain(file=file), num_workers=2))


def test_a_look_that_fails_is_told_and_ends_nothing(monkeypatch):
    def stumble(*_):
        raise RuntimeError("no such attribute")

    monkeypatch.setattr("minato._engine.start.warn_of_fork_hazards", stumble)
    with pytest.warns(RuntimeWarning, match="looking for hazards of a fork failed: .*no such attribute"):
        assert len(list(DataLoader(list(range(4)), num_workers=1))) == 4
