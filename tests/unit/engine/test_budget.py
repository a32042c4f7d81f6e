"""The default memory budget, with made-up cgroups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from minato._engine import budget
from minato._pipeline import room

GIB = 1 << 30


class Machine:
    """Files and memory as `budget` sees them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups = root / "cgroup"
        self.membership = root / "membership"
        self.groups.mkdir()
        real = Path
        monkeypatch.setattr(room, "Path", lambda path: self.membership if "proc" in str(path) else real(path))
        monkeypatch.setattr(room, "_CGROUP", self.groups)
        self._patch = monkeypatch
        self.available(100 * GIB)

    def available(self, nbytes: int) -> None:
        class Memory:
            available = nbytes

        self._patch.setattr(psutil, "virtual_memory", lambda: Memory)

    def joins(self, text: str) -> None:
        self.membership.write_text(text)

    def group(self, name: str, limit: Any = None, current: Any = 0) -> None:
        if limit is not None:
            self._files(name, {"memory.max": limit, "memory.current": current})

    def old_group(self, name: str, limit: Any, used: Any = 0) -> None:
        """Of version 1."""
        self._files(f"memory/{name}", {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used})

    def files_in_memory(self, name: str, prefix: str, inactive: int, active: int) -> None:
        stat = f"anon 5\n{prefix}inactive_file {inactive}\n{prefix}active_file {active}"
        self._files(name, {"memory.stat": stat})

    def _files(self, name: str, texts: dict[str, Any]) -> None:
        folder = self.groups / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def share(nbytes: int) -> int:
    return int(budget.SHARE * nbytes)


def test_without_cgroups_it_is_a_share_of_what_is_available(machine: Machine) -> None:
    assert budget.default_memory_budget() == share(100 * GIB)


def test_a_limit_of_the_own_group_counts_less_what_is_used(machine: Machine) -> None:
    machine.joins("0::/job/step\n")
    machine.group("job/step", 8 * GIB, 2 * GIB)
    assert budget.default_memory_budget() == share(6 * GIB)


def test_the_tightest_ancestor_counts(machine: Machine) -> None:
    machine.joins("0::/job/step/task\n")
    machine.group("job", 4 * GIB, 3 * GIB)
    machine.group("job/step", 8 * GIB, 2 * GIB)
    machine.group("job/step/task", "max")
    assert budget.default_memory_budget() == share(GIB)


def test_the_machine_counts_where_it_has_less(machine: Machine) -> None:
    machine.available(GIB)
    machine.joins("0::/job\n")
    machine.group("job", 8 * GIB, 0)
    assert budget.default_memory_budget() == share(GIB)


@pytest.mark.parametrize("limit", ["max", "rubbish", ""])
def test_no_limit_is_no_limit(machine: Machine, limit: str) -> None:
    machine.joins("0::/job\n")
    machine.group("job", limit)
    assert budget.default_memory_budget() == share(100 * GIB)


def test_a_group_beyond_its_limit_still_leaves_a_byte(machine: Machine) -> None:
    machine.joins("0::/job\n")
    machine.group("job", GIB, 2 * GIB)
    assert budget.default_memory_budget() == 1


def test_the_root_group_is_looked_at_in_a_container(machine: Machine) -> None:
    machine.joins("0::/\n")
    machine.group(".", 2 * GIB, GIB)
    assert budget.default_memory_budget() == share(GIB)


@pytest.mark.parametrize(
    "text",
    ["12:memory:/docker/abc\n11:cpu:/docker/abc\n", "12:memory:/x\n0::/job\n", "", "0::/gone\n", "0::/../..\n"],
    ids=["version 1", "mixed", "empty", "missing group", "outside"],
)
def test_unusual_memberships_do_no_harm(machine: Machine, text: str) -> None:
    machine.joins(text)
    assert budget.default_memory_budget() == share(100 * GIB)


def test_a_limit_of_version_1_counts(machine: Machine) -> None:
    machine.joins("4:cpu:/job\n3:memory:/job/step\n0::/\n")
    machine.old_group("job", 8 * GIB, 2 * GIB)
    machine.old_group("job/step", 9223372036854771712, GIB)
    assert budget.default_memory_budget() == share(6 * GIB)


def test_in_a_container_of_version_1_the_root_group_is_looked_at(machine: Machine) -> None:
    machine.joins("3:memory:/docker/of-the-host\n")
    machine.old_group(".", 2 * GIB, GIB)
    assert budget.default_memory_budget() == share(GIB)


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_were_read_are_given_up_for_others(machine: Machine, version: int) -> None:
    """A job that has read its dataset once has filled its group with it."""
    if version == 1:
        machine.joins("3:memory:/job\n")
        machine.old_group("job", 8 * GIB, 8 * GIB)
        machine.files_in_memory("memory/job", "total_", 3 * GIB, 2 * GIB)
    else:
        machine.joins("0::/job\n")
        machine.group("job", 8 * GIB, 8 * GIB)
        machine.files_in_memory("job", "", 3 * GIB, 2 * GIB)
    assert budget.default_memory_budget() == share(4 * GIB)
