"""Memory that large samples free is there for the next ones, within bounds. In processes of their own: malloc's
settings are a process's."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
import torch
from minato._workers.heap import LARGE, Heap

MIB = 1 << 20
heap = Heap(int(sys.argv[1]) * MIB)
heap.keep_freed()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def make(mib):
    before = faults()
    sample = torch.ones(mib * MIB // 4)
    if sample.nbytes >= heap.told_from:
        heap.made(sample.nbytes)
    return faults() - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // MIB

PAGES = 40 * MIB // resource.getpagesize()
"""


def run(program: str, spare_mib: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM + program, str(spare_mib)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_large_samples_find_the_memory_of_those_before() -> None:
    run("for _ in range(5): make(40)\nassert make(40) < PAGES // 4, 'pages were made anew'", spare_mib=4096)


@pytest.mark.parametrize("spare_mib", [0, 100])
def test_where_memory_is_short_large_pieces_go_back_at_once(spare_mib: int) -> None:
    run(
        "before = resident()\n"
        "for _ in range(5): make(400)\n"
        "assert make(40) >= PAGES, 'kept all the same'\n"
        "assert resident() - before < 100",
        spare_mib,
    )


def test_a_single_huge_sample_is_given_back_when_others_follow() -> None:
    run(
        "for _ in range(5): make(40)\n"
        "usual = resident()\n"
        "make(1000)\n"
        "keeper = torch.ones(1000)\n"
        "for _ in range(60): make(40)\n"
        "assert resident() - usual < 300, resident()",
        spare_mib=4096,
    )


def test_small_samples_for_long_are_treated_as_in_the_beginning() -> None:
    run(
        "for _ in range(5): make(40)\n"
        "assert heap.told_from == 0\n"
        "for _ in range(60): make(1)\n"
        "assert heap.told_from == LARGE\n"
        "before = resident()\n"
        "make(200)\n"
        "make(1)\n"
        "for _ in range(60): make(1)\n"
        "assert resident() - before < 100, resident()",
        spare_mib=4096,
    )


def test_free_memory_is_measured() -> None:
    run(
        "made = [torch.ones(MIB // 4) for _ in range(200)]\n"
        "keeper = torch.ones(MIB // 4)\n"
        "before = heap.free_bytes\n"
        "del made\n"
        "assert 190 * MIB <= heap.free_bytes - before <= 210 * MIB",
        spare_mib=0,
    )
