"""`minato doctor`: what it finds on this machine, and what it says about made-up ones."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import resource
from typing import Any

import pytest
import torch

from minato.cli import doctor, main
from minato.cli.machine import Accelerator, Cores, Limits, Machine, Memory, Perf, SharedMemory, extras_of, look

GIB = 1 << 30
GOOD = Machine(
    versions={"minato": "0"},
    cores=Cores(8, 8, None, 1, 8.0),
    memory=Memory(64 * GIB, 60 * GIB, None, None, 15 * GIB),
    shared_memory=SharedMemory(True, 32 * GIB, 32 * GIB),
    limits=Limits(20_000, 20_000, None),
    start_methods=("fork", "spawn"),
    accelerator=Accelerator("cuda", ("cuda:0", "cuda:1")),
    perf=Perf("/usr/bin/perf", 1),
    extras=(),
)


def test_json_has_what_the_text_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Both forms run on this machine, and agree with what it says of itself."""
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["torch"] == torch.__version__
    assert found["cores"]["affinity"] == len(os.sched_getaffinity(0))
    assert found["limits"]["open_files"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert set(found["start_methods"]) == set(multiprocessing.get_all_start_methods())
    assert found["shared_memory"]["memfd"] is True
    assert {extra["name"] for extra in found["extras"]} >= {"s3", "diagnose", "offload", "report"}

    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text
    for warning in found["warnings"]:
        assert warning in text


def test_nothing_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    look()
    assert os.listdir("/proc/self/fd") == before


def test_the_share_of_a_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert look().cores.allowed == pytest.approx(len(os.sched_getaffinity(0)) / 4)


def test_a_broken_environment_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert main(["doctor"]) == 2
    assert "LOCAL_WORLD_SIZE must be a positive integer" in capsys.readouterr().err


def test_a_good_machine_has_nothing_to_look_after() -> None:
    assert list(doctor.warnings_of(GOOD)) == []
    text = doctor.as_text(GOOD)
    assert "Nothing to look after." in text
    assert "cuda:0, cuda:1" in text


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("limits", Limits(256, 4096, None), ["256 open files", "about 32 workers", "ulimit -n 384"]),
        ("limits", Limits(256, 256, None), ["the hard limit is 256"]),
        ("limits", Limits(None, None, 100), ["100 processes", "ulimit -u"]),
        ("shared_memory", SharedMemory(True, 64 << 20, 0), ["/dev/shm is small (64 MiB)", "fine", "memfd"]),
        ("shared_memory", SharedMemory(True, None, None), ["/dev/shm is missing", "fine"]),
        ("shared_memory", SharedMemory(False, GIB, GIB), ["memfd_create does not work", "num_workers=0"]),
        ("memory", Memory(GIB, GIB, GIB, GIB - 4, 1), ["Little memory", "memory_budget"]),
        ("cores", Cores(64, 64, 1.0, 1, 1.0), ["Only 1 cores", "cgroup quota 1"]),
        ("cores", Cores(4, 4, None, 4, 1.0), ["shared by 4 ranks"]),
        ("perf", Perf("/usr/bin/perf", 4), ["perf_event_paranoid is 4"]),
    ],
)
def test_each_scarcity_is_named_with_what_to_do(part: str, value: Any, words: list[str]) -> None:
    machine = dataclasses.replace(GOOD, **{part: value})
    (warning,) = doctor.warnings_of(machine)
    for word in words:
        assert word in warning
    assert f"! {warning}" in doctor.as_text(machine)


def test_without_memfd_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert main(["doctor"]) == 1
    assert "memfd_create does not work" in capsys.readouterr().out


def test_a_missing_extra_is_named_with_its_command() -> None:
    required = ["torch>=2", 'numpy; extra == "one"', 'no-such-thing>=3; extra == "one"', 'minato[one]; extra == "all"']
    (extra,) = extras_of(required)
    assert extra.name == "one"
    assert list(extra.installed) == ["numpy"]
    assert extra.missing == ("no-such-thing",)
    text = doctor.as_text(dataclasses.replace(GOOD, extras=(extra,)))
    assert "missing no-such-thing: pip install 'minato[one]'" in text
