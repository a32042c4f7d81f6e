"""Caches where memory or disk really run short: the right samples, a word of it, nobody killed, nobody waits."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from .tools import on_small_disk, run_script

GROUP_MIB = 420  # the interpreter, torch and two workers take some 250
DISK_MIB = 20


def own_group():
    """The directory of this process's memory cgroup and the name of its limit's file, in either version."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory", path.lstrip("/")), "memory.limit_in_bytes"
        if not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup", path.lstrip("/")), "memory.max"
    return pytest.skip("needs a memory cgroup")


@contextlib.contextmanager
def memory_group(mib):
    """A command that runs another in a cgroup of that size; skips the test where none can be made."""
    parent, limit = own_group()
    group = parent / f"minato-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs the right to make a cgroup: {error}")
    try:
        try:
            (group / limit).write_text(str(mib << 20))
        except OSError as error:
            pytest.skip(f"needs the right to limit a cgroup's memory: {error}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for _ in range(100):  # a process that has just ended may still be counted
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def small_disk(folder):
    """A command that runs another with a small disk of its own mounted at a folder."""
    return on_small_disk(folder, DISK_MIB)


SAMPLES = """
import os
import resource
import sys
import warnings

import numpy as np
import torch
from torch.utils.data import Dataset

import minato

N = 200


class Large(Dataset):
    '''Two megabytes a sample, 400 MB all of them; dear enough to be worth keeping.'''

    def __len__(self):
        return N

    def __getitem__(self, index):
        values = np.arange(1 << 18, dtype=np.int64) + index
        for _ in range(6):
            values = values * 3 + index
        return torch.from_numpy(values)


def expected(index):
    values = np.arange(1 << 18, dtype=np.int64)[[0, 1, -1]] + index
    for _ in range(6):
        values = values * 3 + index
    return values.tolist()


def check(loader, epochs=3):
    '''Each epoch has all samples, as they should be; the warnings that came.'''
    wanted = sorted(expected(index) for index in range(N))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(epochs):
            assert sorted(batch[k, [0, 1, -1]].tolist() for batch in loader for k in range(len(batch))) == wanted
    return [str(one.message) for one in told if "worker processes" not in str(one.message)]
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache_bytes", [None, 2 << 30], ids=["no limit", "limit beyond memory"])
def test_a_cache_leaves_the_memory_of_its_group_to_others(workers, cache_bytes, tmp_path):
    """A group that goes over its limit has a process killed, most likely that with the cache."""
    with memory_group(GROUP_MIB) as wrapper:
        out = run_script(
            tmp_path,
            SAMPLES
            + f"""
from minato._pipeline.room import available_bytes
assert available_bytes() < {GROUP_MIB} << 20
options = dict(num_workers={workers}, shuffle=True, cache="source", cache_bytes={cache_bytes})
with minato.DataLoader(Large(), 4, **options) as loader:
    told = check(loader)
    stats = loader.stats()
assert 0 < stats.cached_samples < N, stats
assert "no more are added" in stats.cache_note, stats.cache_note
assert any("will be cached" in text for text in told), told
assert stats.worker_restarts == 0, stats
print("done")
""",
            wrapper=wrapper,
        )
    assert out == "done\n"


def test_a_byte_cache_leaves_the_memory_of_its_group_to_others(tmp_path):
    with memory_group(GROUP_MIB) as wrapper:
        out = run_script(
            tmp_path,
            SAMPLES
            + """
class Packed(Large):
    def __getitem__(self, index):
        return super().__getitem__(index).numpy().tobytes()

def unpack(data):
    return torch.frombuffer(bytearray(data), dtype=torch.int64)

warnings.simplefilter("ignore")  # of whoever finds it short: a worker's goes to the terminal
dataset = minato.cached_bytes(Packed(), "4GB", transform=unpack)
with minato.DataLoader(dataset, 4, num_workers=2, shuffle=True) as loader:
    check(loader)
stats = dataset.cache.stats()
assert 0 < stats.entries < N, stats
assert "memory runs short" in stats.note, stats
print("done")
""",
            wrapper=[*wrapper, "env", "PYTHONWARNINGS=ignore"],
        )
    assert out == "done\n"


FULL_DISK = """
folder = sys.argv[1]
for workers in map(int, sys.argv[2:]):
    options = dict(num_workers=workers, shuffle=True, cache="source", cache_bytes=2 << 30, cache_dir=folder)
    with minato.DataLoader(Large(), 4, **options) as loader:
        told = check(loader, 2)
        stats = loader.stats()
    assert 0 < stats.cached_samples < N, stats
    assert "no more are added" in stats.cache_note, stats.cache_note
    assert told, "nobody said that there is little room"
print("done")
"""


def test_a_cache_on_a_disk_that_is_full_keeps_what_it_has(tmp_path):
    """The second loader finds the first one's entries, and the disk as full as before."""
    folder = tmp_path / "disk"
    folder.mkdir()
    assert run_script(tmp_path, SAMPLES + FULL_DISK, folder, 0, 2, wrapper=small_disk(folder)) == "done\n"


def test_a_cache_whose_file_may_not_grow_keeps_what_it_has(tmp_path):
    """Without workers: their batches are in a file as well."""
    limited = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({DISK_MIB} << 20, resource.RLIM_INFINITY))\n"
    assert run_script(tmp_path, SAMPLES + limited + FULL_DISK, tmp_path / "cache", 0, 0) == "done\n"


def test_a_disk_without_room_for_the_table_is_a_loader_without_a_cache(tmp_path):
    out = run_script(
        tmp_path,
        SAMPLES
        + """
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
options = dict(shuffle=True, cache="source", cache_dir=sys.argv[1])
with minato.DataLoader(Large(), 4, **options) as loader:
    told = check(loader, 2)
    assert loader.stats().cached_samples == 0
    assert "nothing is cached" in loader.stats().cache_note
assert len(told) == 1 and "nothing is cached" in told[0], told
assert os.listdir(sys.argv[1]) == []
print("done")
""",
        tmp_path / "cache",
    )
    assert out == "done\n"


DIRECTORY = """
class Packed(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return bytes([index]) * 1_000_000

def first(data):
    assert data == data[:1] * 1_000_000
    return data[0]

dataset = minato.cached_bytes(Packed(), sys.argv[1], transform=first, name="letters")
dataset.cache.max_bytes = 1 << 30
for workers in (0, 2):
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            batches = list(minato.DataLoader(dataset, 4, num_workers=workers, shuffle=True))
        assert sorted(torch.cat(batches).tolist()) == list(range(60))
        if workers == 0 and _ == 0:
            assert any("nothing is added" in str(one.message) for one in told), told
            assert "full" in dataset.cache.stats().note
stats = dataset.cache.stats()
assert 0 < stats.entries < 60, stats
assert stats.used_bytes == stats.entries * (1_000_001 + 24), stats
assert os.listdir(os.path.join(sys.argv[1], "tmp")) == []
print("done")
"""


def test_a_byte_cache_in_a_directory_on_a_full_disk_is_a_miss(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    wrapper = [*small_disk(folder), "env", "PYTHONWARNINGS=ignore"]
    assert run_script(tmp_path, SAMPLES + DIRECTORY, folder, wrapper=wrapper) == "done\n"
