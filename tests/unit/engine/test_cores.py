"""Allowed cores, from a cgroup tree made for the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minato._engine.cores import AllowedCores, allowed_cores


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "membership").write_text("0::/\n")
    return tmp_path


def write(tree: Path, path: str, text: str) -> None:
    file = tree / "cgroup" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def quota(tree: Path) -> float | None:
    return allowed_cores({}, tree / "cgroup", tree / "membership").quota


def test_without_a_quota_the_affinity_counts(tree: Path) -> None:
    found = allowed_cores({}, tree / "cgroup", tree / "membership")
    assert found == AllowedCores(len(os.sched_getaffinity(0)), None, 1)
    assert found.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("150000 100000", 1.5),
        ("max 100000", None),
        ("400000 200000\n", 2.0),
        ("50000", None),
        ("", None),
        ("x y", None),
    ],
)
def test_the_quota_of_a_cgroup_is_read(tree: Path, text: str, expected: float | None) -> None:
    write(tree, "cpu.max", text)
    assert quota(tree) == expected


def test_the_tightest_of_the_ancestors_counts(tree: Path) -> None:
    (tree / "membership").write_text("0::/kubepods/pod7/container\n")
    write(tree, "kubepods/cpu.max", "800000 100000")
    write(tree, "kubepods/pod7/cpu.max", "300000 100000")
    write(tree, "kubepods/pod7/container/cpu.max", "max 100000")
    assert quota(tree) == 3.0


def test_a_path_of_the_host_that_is_not_mounted_does_not_hide_the_root(tree: Path) -> None:
    (tree / "membership").write_text("0::/system.slice/docker-abc.scope\n")
    write(tree, "cpu.max", "250000 100000")
    assert quota(tree) == 2.5


@pytest.mark.parametrize("directory", ["cpu,cpuacct", "cpu"])
def test_version_one_is_understood(tree: Path, directory: str) -> None:
    (tree / "membership").write_text("5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n")
    write(tree, f"{directory}/job/cpu.cfs_quota_us", "120000")
    write(tree, f"{directory}/job/cpu.cfs_period_us", "100000")
    write(tree, f"{directory}/cpu.cfs_quota_us", "-1")
    write(tree, f"{directory}/cpu.cfs_period_us", "100000")
    write(tree, "memory/job/cpu.cfs_quota_us", "1")
    write(tree, "memory/job/cpu.cfs_period_us", "100000")
    assert quota(tree) == 1.2


def test_without_proc_there_is_no_quota(tree: Path) -> None:
    assert allowed_cores({}, tree / "cgroup", tree / "nothing").quota is None


@pytest.mark.parametrize(
    ("affinity", "limit", "ranks", "cores"),
    [(8, None, 1, 8), (8, 3.5, 1, 3.5), (4, 16.0, 1, 4), (8, None, 4, 2), (64, 24.0, 8, 3), (2, None, 4, 0.5)],
)
def test_ranks_share_what_there_is(affinity: int, limit: float | None, ranks: int, cores: float) -> None:
    assert AllowedCores(affinity, limit, ranks).cores == cores


def test_the_number_of_ranks_comes_from_torchrun(tree: Path) -> None:
    found = allowed_cores({"LOCAL_WORLD_SIZE": "4"}, tree / "cgroup", tree / "membership")
    assert found.ranks == 4
    assert found.cores == len(os.sched_getaffinity(0)) / 4


@pytest.mark.parametrize("text", ["0", "-2", "two", ""])
def test_a_number_of_ranks_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE"):
        allowed_cores({"LOCAL_WORLD_SIZE": text})


def test_the_affinity_of_a_process_is_respected() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{one}]); from minato._engine.cores import allowed_cores; "
    code += "print(allowed_cores().affinity)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    assert run.stdout.strip() == "1"
