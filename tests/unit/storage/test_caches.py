"""Byte caches: whole or nothing, bounded, shared, whatever dies."""

import fcntl
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st

import minato
from minato.storage import DirectoryCache, MemoryCache, directory_cache, memory_cache
from minato.storage.cache import checksum, parse_bytes
from minato.storage.locks import locked_file

MakeCache = Callable[[int], Any]


@pytest.fixture(params=["memory", "directory"])
def make_cache(request: pytest.FixtureRequest, tmp_path: Path) -> MakeCache:
    if request.param == "memory":
        return MemoryCache
    return lambda max_bytes: DirectoryCache(tmp_path / "cache", max_bytes)


def body(number: int, length: int = 5_000) -> bytes:
    return random.Random(number).randbytes(length)


def test_gives_back_what_was_put(make_cache: MakeCache) -> None:
    cache = make_cache(10**6)
    assert cache.get("a") is None
    for number, length in enumerate([0, 1, 7, 8, 9, 5_000, 200_003]):
        assert cache.put(f"key {number}", body(number, length))
        assert cache.get(f"key {number}") == body(number, length)
        writable = cache.get_writable(f"key {number}")
        assert isinstance(writable, np.ndarray)
        assert writable.tobytes() == body(number, length)
        writable[:] = 7
        assert cache.get(f"key {number}") == body(number, length), "what a reader does to its copy is its own affair"
    assert cache.put("key 5", body(5, 5_000)), "what is there already counts as kept"
    assert cache.stats().entries == 7
    assert cache.get("other") is None
    assert cache.get_writable("other") is None


def test_admits_until_full_and_evicts_nothing(make_cache: MakeCache) -> None:
    cache = make_cache(10 * 5_100)
    kept = [cache.put(str(number), body(number)) for number in range(20)]
    assert kept == [True] * 10 + [False] * 10
    assert [cache.get(str(number)) == body(number) for number in range(20)] == kept
    assert cache.stats().used_bytes <= 10 * 5_100
    assert cache.put("small", b"x"), "what is small may still fit"


def worker(cache: Any, seed: int, count: int) -> None:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    for number in order:
        found = cache.get(str(number))
        assert found in (None, body(number))
        if found is None:
            cache.put(str(number), body(number))


def test_memory_that_runs_short_ends_admitting_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MemoryCache("1GB")
    left = iter([1 << 50, 1 << 50, 0])
    monkeypatch.setattr(memory_cache, "check_every", lambda _: 8_000)
    monkeypatch.setattr(memory_cache, "available_bytes", lambda: next(left))
    with pytest.warns(RuntimeWarning, match="memory runs short") as told:
        kept = [cache.put(str(number), body(number)) for number in range(10)]
    assert kept == [True] * 4 + [False] * 6
    assert len(told) == 1
    assert "memory runs short" in cache.stats().note
    assert [cache.get(str(number)) == body(number) for number in range(10)] == kept
    assert pickle.loads(pickle.dumps(cache)).get("3") == body(3)


@pytest.mark.parametrize("refused", ["open", "pwrite", "link", "makedirs"])
def test_a_full_disk_is_a_miss_wherever_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """It is not tried again for a while, and nothing is left behind."""
    cache = DirectoryCache(tmp_path / "cache", "1GB")
    assert cache.put("a", body(1))
    calls = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if refused == "open" and "/tmp/" not in str(arguments[0]).removeprefix(str(tmp_path)):
            return real(*arguments, **options)
        raise OSError(28, "No space left on device")

    real = getattr(os, refused)
    monkeypatch.setattr(os, refused, refuse)
    with pytest.warns(RuntimeWarning, match="No space left") as told:
        assert not any(cache.put(str(number), body(number)) for number in range(5))
    monkeypatch.setattr(os, refused, real)
    assert len(told) == 1
    assert "full" in cache.stats().note
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
    assert cache.get("a") == body(1)
    monkeypatch.setattr(cache, "_try_from", 0.0)
    assert cache.put("b", body(2)), "there is room again"
    assert cache.stats().entries == 2


def test_processes_share_one_copy(make_cache: MakeCache) -> None:
    """All write the same objects at the same time; each is there once, and read by all. Spawned ones are in
    tests/integration/test_s3_dataset.py, with a loader."""
    cache = make_cache(2 * 40 * 5_100)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=worker, args=(cache, seed, 40)) for seed in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join(40)
    assert [process.exitcode for process in workers] == [0, 0, 0]
    assert [cache.get(str(number)) for number in range(40)] == [body(number) for number in range(40)]
    assert cache.stats().entries == 40


def test_threads_share_it(make_cache: MakeCache) -> None:
    cache = make_cache(10**6)
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            worker(pickle.loads(pickle.dumps(cache)) if seed % 2 else cache, seed, 60)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert cache.stats().entries == 60


def put_for_ever(cache: Any, seed: int) -> None:
    for number in range(seed, 10**9):
        cache.put(str(number), body(number, 60_000))


def test_killed_writers_leave_nothing_partial(make_cache: MakeCache) -> None:
    """Whenever a writer is killed, the others go on, and what can be read is whole."""
    cache = make_cache(60 * 60_000)
    context = multiprocessing.get_context("fork")
    for kill in range(8):
        process = context.Process(target=put_for_ever, args=(cache, kill * 10))
        process.start()
        time.sleep(random.Random(kill).uniform(0.005, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = [cache.get(str(number)) for number in range(200)]
        assert all(data in (None, body(number, 60_000)) for number, data in enumerate(found))
    assert cache.stats().used_bytes <= 60 * 60_000
    assert cache.put("after", b"all is well") in (True, False)


def test_directory_forgets_damaged_and_abandoned_files(tmp_path: Path) -> None:
    """What a power failure or a kill left is never served, and its room is given back."""
    cache = DirectoryCache(tmp_path, 10**6)
    for number in range(4):
        cache.put(str(number), body(number))
    files = sorted(path for path in tmp_path.glob("??/*"))
    files[0].write_bytes(files[0].read_bytes()[:-9])
    files[1].write_bytes(b"\0" * files[1].stat().st_size)
    files[2].write_bytes(b"")
    found = [(cache.get if number % 2 else cache.get_writable)(str(number)) for number in range(4)]
    assert found.count(None) == 3
    assert cache.stats().entries == 1
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = f"{os.uname().nodename}.{int(done.stdout)}.5000.abc"
    (tmp_path / "tmp" / left).write_bytes(b"half")
    (tmp_path / "tmp" / ".nfs0001").write_bytes(b"of the file system")
    used = cache.stats().used_bytes
    again = DirectoryCache(tmp_path, 10**6)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == [".nfs0001"]
    assert again.stats().used_bytes == max(0, used - 5_000)
    (tmp_path / "ledger").unlink()
    assert DirectoryCache(tmp_path, 10**6).stats().entries == 1, "counted anew from the files"


@pytest.mark.parametrize("read", ["get", "get_writable"])
@pytest.mark.parametrize("when", ["put here", "read here before", "put by another job"])
def test_a_changed_or_shortened_file_is_not_served(tmp_path: Path, read: str, when: str) -> None:
    """Files are verified when a job first reads them, and again when they have changed since: at once, whoever changed
    them, even within the tick of the clock in which they were put."""
    job = DirectoryCache(tmp_path, 10**6)
    job.put("flipped", body(1))
    job.put("cut", body(2))
    if when == "put by another job":
        job = DirectoryCache(tmp_path, 10**6)
    elif when == "read here before":
        for path in tmp_path.glob("??/*"):
            os.utime(path, (1e9, 1e9))  # long ago
        assert job.get("flipped") == body(1) and job.get("cut") == body(2)
    entries = {bytes(path.read_bytes()[:10]): path for path in tmp_path.glob("??/*")}
    flipped, cut = entries[body(1)[:10]], entries[body(2)[:10]]
    with open(flipped, "r+b") as file:
        file.seek(2_500)
        byte = file.read(1)
        file.seek(2_500)
        file.write(bytes([byte[0] ^ 1]))
    os.truncate(cut, 3_000)
    assert getattr(job, read)("flipped") is None
    assert getattr(job, read)("cut") is None
    assert not flipped.exists() and not cut.exists(), "and they are put anew by whoever reads the objects again"
    assert job.stats().entries == 0
    assert job.put("flipped", body(1)) and job.get("flipped") == body(1)


def test_a_byte_that_the_disk_changes_by_itself_is_noticed_by_the_next_job(tmp_path: Path) -> None:
    """Beneath the file system, so that the file looks as it did."""
    job = DirectoryCache(tmp_path, 10**6)
    job.put("a", body(1))
    (path,) = tmp_path.glob("??/*")
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[1_000] ^= 0x10
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert DirectoryCache(tmp_path, 10**6).get("a") is None
    assert pickle.loads(pickle.dumps(job)).get("a") is None


def test_forked_processes_share_what_is_known_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one worker has verified the others need not."""
    DirectoryCache(tmp_path, 10**6).put("a", body(1))
    for path in tmp_path.glob("??/*"):
        os.utime(path, (1e9, 1e9))
    cache = DirectoryCache(tmp_path, 10**6)
    process = multiprocessing.get_context("fork").Process(target=cache.get, args=("a",))
    process.start()
    process.join(20)
    assert process.exitcode == 0
    monkeypatch.setattr(directory_cache, "checksum", lambda data: 1)
    assert cache.get("a") == body(1)
    assert DirectoryCache(tmp_path, 10**6).get("a") is None, "another job looks for itself"


def test_nothing_can_shorten_or_write_to_the_memory_that_is_read(tmp_path: Path) -> None:
    cache = MemoryCache(10**5)
    cache.put("a", body(1))
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(cache._owner_fd, 100)
    with pytest.raises(TypeError, match="read-only"):
        cache._mapped[-1] = 1
    assert cache.get("a") == body(1)


def test_memory_that_is_not_what_was_put_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a writer that a broken machine made write something else."""
    cache = MemoryCache(10**5)
    monkeypatch.setattr(memory_cache, "checksum", lambda data: 1)
    cache.put("a", body(1))
    monkeypatch.undo()
    assert cache.get("a") is None
    assert cache.get_writable("a") is None


def test_memory_that_cannot_be_mapped_says_so() -> None:
    with pytest.raises(ValueError, match="address space"):
        MemoryCache("300TB")


def test_memory_out_of_reach_is_an_empty_cache() -> None:
    """A cache whose owner has gone, as on another machine, misses and keeps nothing; nothing fails."""
    cache = MemoryCache(10**5)
    packed = pickle.dumps(cache)
    del cache
    orphan = pickle.loads(packed)
    assert orphan.get("a") is None
    assert not orphan.put("a", b"data")
    assert orphan.stats().entries == 0


@given(st.binary(max_size=300), st.data())
def test_checksum_notices_any_changed_byte(data: bytes, draw: Any) -> None:
    if data:
        place = draw.draw(st.integers(0, len(data) - 1))
        changed = bytearray(data)
        changed[place] ^= draw.draw(st.integers(1, 255))
        assert checksum(bytes(changed)) != checksum(data)
    assert checksum(data + b"\0") != checksum(data)


@pytest.mark.parametrize("pages", [2, 30, 5_000])
def test_checksum_notices_pages_that_are_missing_misplaced_or_changed(pages: int) -> None:
    """Of few pages, of many, of more than there are weights at hand; with a piece of a page and of a word behind."""
    data = np.random.default_rng(pages).bytes(pages * 4096 + 1003)
    right = checksum(data)
    first, last = slice(0, 4096), slice((pages - 1) * 4096, pages * 4096)
    for place in (first, last):
        torn = bytearray(data)
        torn[place] = bytes(4096)
        assert checksum(torn) != right
        changed = bytearray(data)
        changed[place.start + 7] ^= 0x80
        assert checksum(changed) != right
    swapped = bytearray(data)
    swapped[first], swapped[last] = swapped[last], swapped[first]
    assert checksum(swapped) != right
    assert checksum(bytearray(data)) == right


def test_sizes_in_words() -> None:
    assert parse_bytes("2GB", "x") == 2 * 10**9
    assert parse_bytes("1.5 KiB", "x") == 1536
    assert parse_bytes(7, "x") == 7
    with pytest.raises(ValueError, match="x must be"):
        parse_bytes("2 apples", "x")


class Counted(torch.utils.data.Dataset[Any]):
    """Bytes and a label; every read leaves a mark."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        with open(self.marks, "ab") as file:
            file.write(b".")
        return body(index), index


def label_of(sample: tuple[bytes, int]) -> int:
    assert sample[0] == body(sample[1])
    return sample[1]


@pytest.mark.parametrize("loader", [minato.DataLoader, torch.utils.data.DataLoader], ids=["minato", "torch"])
def test_any_dataset_of_bytes_is_read_once(tmp_path: Path, loader: Any) -> None:
    dataset = minato.cached_bytes(Counted(tmp_path / "marks"), "1MB", transform=label_of)
    for _ in range(2):
        batches = list(loader(dataset, batch_size=5, num_workers=2, shuffle=True))
        assert sorted(torch.cat(batches).tolist()) == list(range(30))
    assert (tmp_path / "marks").stat().st_size == 30


def test_cached_bytes_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name="):
        minato.cached_bytes([b"a"], tmp_path / "c")
    with pytest.raises(TypeError, match="transform="):
        minato.cached_bytes([torch.zeros(2)], "1MB")[0]
    with pytest.raises(TypeError, match="__len__"):
        minato.cached_bytes(iter([]), "1MB")
    named = minato.cached_bytes([b"a"], tmp_path / "c", name="letters")
    assert named[0] == named[0] == b"a"
    assert not hasattr(named, "__getitem_async__")


def _can_lock(path: str) -> bool:
    """Whether another process can."""
    pid = os.fork()
    if pid == 0:
        try:
            fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_thread_that_closes_the_ledger_does_not_unlock_it_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, inside, closed = (threading.Event() for _ in range(3))
    path, close = str(tmp_path / "ledger"), os.close
    free: list[bool] = []

    def slow_close(fd: int) -> None:
        closing.set()
        inside.wait(0.3)
        close(fd)
        closed.set()

    def come_second() -> None:
        closing.wait()
        with locked_file(path):
            inside.set()
            closed.wait()
            free.append(_can_lock(path))
            monkeypatch.undo()

    second = threading.Thread(target=come_second)
    second.start()
    with locked_file(path):
        assert not _can_lock(path)
        monkeypatch.setattr(os, "close", slow_close)
    second.join()
    assert free == [False]
    assert _can_lock(path)
