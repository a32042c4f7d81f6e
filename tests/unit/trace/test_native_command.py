"""`minato trace map` and `minato trace attribute`, end to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minato._instrument import Kind
from minato.cli import main
from tests.support.traces import SyntheticRun

from .test_native_perf import REASON

needs_perf = pytest.mark.skipif(REASON is not None, reason=str(REASON))

# Runs without torch, whose symbols perf takes seconds to read, when it is profiled as a whole.
PROGRAM = """
import hashlib, zlib

DATA = bytes(range(256)) * 2000

def load(index):
    return zlib.decompress(zlib.compress(DATA, 1))

def hashed(data):
    return len(hashlib.sha256(data * 3).digest())

def make():
    import minato
    return minato.StagedDataset(load, [hashed], 40)

if __name__ == "__main__":
    for index in range(40):
        hashed(load(index))
"""


@needs_perf
def test_from_a_dataset_to_a_split_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mapped_program.py").write_text(PROGRAM)
    options = ["--gap", "0.02", "--warmup", "1", "--runs", "8", "--json"]
    assert main(["trace", "map", "mapped_program:make", "--out", "map.json", *options]) == 0
    told = capsys.readouterr()
    assert set(json.loads(told.out)["op_to_func"]) == {"Loader", "hashed"}
    assert "mapping hashed" in told.err
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-o", "run.data"]
    subprocess.run([*command, sys.executable, "mapped_program.py"], check=True, timeout=150)
    trace = SyntheticRun(tmp_path / "run1")
    for index in range(40):
        trace.op("Loader", 0, 10 * index, 6, kind=Kind.LOADER)
        trace.op("hashed", 0, 10 * index + 6, 2)
    trace.write()
    arguments = ["trace", "attribute", "run.data", "--mapping", "map.json", "--trace", "run1", "--weights", "trace"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parts = {op: part["metrics"]["cpu-clock samples"] for op, part in found["ops"].items()}
    assert sum(parts.values()) == pytest.approx(found["totals"]["cpu-clock samples"])
    assert parts["Loader"] > 20
    assert parts["hashed"] > 20
    mapped = json.loads((tmp_path / "map.json").read_text())
    mapped["machine"]["processor"] = "another"
    (tmp_path / "map.json").write_text(json.dumps(mapped))
    assert main(arguments) == 2
    assert "accept it with --foreign" in capsys.readouterr().err
    assert main([*arguments, "--foreign"]) == 0
    assert capsys.readouterr().err.count("made elsewhere") == 1  # once, though it is read and used


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["map", "nothing"], "is needed as MODULE:NAME"),
        (["map", "no_such_module:x"], "module 'no_such_module' was not found"),
        (["map", "minato:nothing"], "'minato' has no 'nothing'"),
        (["map", "os:getpid"], "os:getpid gives a int; a map-style dataset was needed"),
        (["map", "sys:argv", "--perf", "/nowhere/perf"], "which is not at '/nowhere/perf'"),
        (["attribute", "p", "--mapping", "missing.json"], "missing.json"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["trace", *arguments]) == 2
    assert told in capsys.readouterr().err
