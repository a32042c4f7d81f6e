"""Native mapping with the real `perf`: what it collects, and only then."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from minato.trace.native import NativeMapping, Op, PerfFailed, attribute, map_ops
from minato.trace.native.attribution import OTHER


def why_not() -> str | None:
    """Why `perf` cannot be used here; None if it can."""
    if shutil.which("perf") is None:
        return "perf is not installed"
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-o", "/dev/null", "--", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    return None if tried.returncode == 0 else f"perf may not record here: {tried.stderr.strip()[:200]}"


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

DATA = bytes(range(256)) * 2000
HASHES = ("libcrypto", "_sha", "_hashlib", "_blake2")


def hashing() -> None:
    hashlib.sha256(DATA).digest()


def zipping() -> None:
    zlib.compress(DATA, 1)


def share_in(mapping: NativeMapping, op: str, *libraries: str) -> float:
    found = mapping.counts(op)
    inside = sum(n for f, n in found.samples.items() if f.library.startswith(libraries))
    return inside / found.total


@pytest.fixture(scope="module")
def mapped() -> NativeMapping:
    return map_ops({"first": hashing, "zip": zipping, "last": hashing}, runs=12, calls=10, warmup=1, gap_s=0.02)


def test_an_operation_between_two_others_is_seen_alone(mapped: NativeMapping) -> None:
    assert mapped.counts("zip").total >= 20
    assert share_in(mapped, "zip", *HASHES) == 0
    assert share_in(mapped, "zip", "libz", "zlib") > 0.5
    for op in ("first", "last"):
        assert share_in(mapped, op, *HASHES) > 0.5
        assert share_in(mapped, op, "libz", "zlib") == 0
    assert mapped.counts("zip").runs == 12
    assert mapped.counts("zip").calls == 120
    assert mapped.machine.libraries  # build ids of what was seen
    assert "zip: 120 calls in 12 runs" in mapped.table()


def test_a_whole_run_is_split_over_its_operations(mapped: NativeMapping, tmp_path: Path) -> None:
    """Two zips to one hash; each in its own row, nothing lost, the interpreter's start in none."""
    program = tmp_path / "run.py"
    program.write_text(
        "import hashlib, zlib\n"
        "data = bytes(range(256)) * 2000\n"
        "for _ in range(100):\n"
        "    hashlib.sha256(data).digest(); zlib.compress(data, 1); zlib.compress(data, 1)\n"
    )
    data = tmp_path / "perf.data"
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "1999", "-o", str(data), sys.executable, str(program)]
    subprocess.run(command, check=True, timeout=150)
    found = attribute(data, mapped)
    assert found.metrics == ("cpu-clock", "cpu-clock samples")
    assert sum(found.value(op, "cpu-clock samples") for op in found.ops) == found.total("cpu-clock samples") > 50
    # first and last are the same function: halves of it
    both = [float(found.value(op, "cpu-clock")) for op in ("first", "last")]
    assert both[0] == pytest.approx(both[1], rel=0.5)
    per_call = {op: mapped.counts(op).seconds / mapped.counts(op).calls for op in ("first", "zip")}
    expected = 2 * per_call["zip"] / (2 * per_call["zip"] + per_call["first"])
    zipped = float(found.value("zip", "cpu-clock"))
    assert zipped / (zipped + sum(both)) == pytest.approx(expected, abs=0.2)
    assert found.value(OTHER, "cpu-clock") > 0


def test_what_an_operation_raises_is_raised() -> None:
    def fails() -> None:
        raise LookupError("no such sample")

    with pytest.raises(LookupError, match="no such sample"):
        map_ops({"op": fails}, gap_s=0)


def test_a_killed_operation_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def prepare() -> object:
        os.kill(os.getpid(), signal.SIGKILL)
        return int

    with pytest.raises(PerfFailed, match="ended with code -9"):
        map_ops([Op("op", prepare)], gap_s=0)  # type: ignore[arg-type]


def test_an_event_that_is_not_there_is_told_in_perfs_words() -> None:
    with pytest.raises(PerfFailed, match="no-such-event"):
        map_ops({"op": hashing}, event="no-such-event", gap_s=0)


def test_operations_can_run_in_a_spawned_process() -> None:
    mapping = map_ops({"zip": zipping}, runs=2, calls=5, warmup=1, gap_s=0, start_method="spawn")
    assert share_in(mapping, "zip", "libz", "zlib") > 0.5
