"""Files for other tools: Lotus's and Chrome's."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from minato._instrument import Kind
from minato.cli import main
from minato.trace import chrome, lotus, read_run
from minato.trace.chrome_check import check
from tests.support.traces import MS, WALL_OFFSET_NS, SyntheticRun


@pytest.fixture
def traced(tmp_path: Path) -> SyntheticRun:
    """Batch 0 by two workers, batch 1 by one, overtaking nothing; one operation in each."""
    run = SyntheticRun(tmp_path / "run")
    run.made(0, 0, 0, 10, samples=2)
    run.made(0, 0, 10, 5, samples=1)
    run.made(0, 1, 2, 10)
    run.made(1, 1, 12, 10)
    run.op("Crop", 0, 1, 3, index=5, batch=0)
    run.op("Flip, up", 1, 13, 3, index=6, batch=1)
    run.op("Collation", 1, 20, 1, batch=1, kind=Kind.COLLATION)
    run.taken(0, 0, 15.5)
    run.taken(1, 24, 0.002, ready=True)
    run.queue("ready", 16, 1)
    run.main.record(Kind.MARK, 17 * MS, 5 * MS, name="train_step")
    run.main.note(Kind.DECISION, 18 * MS, target=3, reason="waits", inputs={"cpu": 0.1})
    run.write()
    return run


def test_lotus_files_have_lotus_lines(traced: SyntheticRun, tmp_path: Path) -> None:
    """Three columns, wall clock, 1 µs for a batch that was ready, each batch with the worker that finished it."""
    lotus.export(read_run(tmp_path / "run"), tmp_path / "csv")
    lines = {
        path.name: [line.split(",") for line in path.read_text().splitlines()] for path in (tmp_path / "csv").iterdir()
    }
    wall = WALL_OFFSET_NS
    pid = traced.main_pid
    assert lines[f"custom_log_main_pid_{pid}"] == [
        ["SBatchWait_0", str(wall), str(int(15.5 * MS))],
        ["SBatchConsumed_0", str(wall + int(15.5 * MS)), "0"],
        ["SBatchWait_1", str(wall + 24 * MS), "1000"],
        ["SBatchConsumed_1", str(wall + 24 * MS + 2000), "0"],
    ]
    assert lines[f"custom_log_worker_pid_{pid + 1}"] == [
        ["SBatchPreprocessed_0", str(wall), str(15 * MS)],
        ["SCrop", str(wall + MS), str(3 * MS)],
    ]
    assert [line[0] for line in lines[f"custom_log_worker_pid_{pid + 2}"]] == [
        "SBatchPreprocessed_1",
        "SFlip__up",
        "SCollation",
    ]


def test_chrome_trace_has_arrows_and_nested_spans(traced: SyntheticRun, tmp_path: Path) -> None:
    """One arrow per batch with a negative id, from its first span to its consumption; fine has what coarse has not."""
    run = read_run(tmp_path / "run")
    chrome.export(run, tmp_path / "fine.json")
    chrome.export(run, tmp_path / "coarse.json.gz", "batch")
    fine = json.loads((tmp_path / "fine.json").read_text())
    assert check(fine) == []
    found = fine["traceEvents"]
    starts, ends = ({e["id"]: e for e in found if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() == {-1, -2}
    assert (starts[-1]["pid"], starts[-1]["ts"]) == (traced.main_pid + 1, 0)
    assert ends[-2]["pid"] == traced.main_pid
    names = [e["name"] for e in found if e["ph"] == "X"]
    assert names.count("SBatchPreprocessed_0") == 2  # one on the track of each worker
    assert {"SCrop", "SFlip, up", "train_step", "SBatchWait_1"} <= set(names)
    assert {e["name"] for e in found if e["ph"] in "Ci"} == {"ready", "decision", "worker start"}
    from gzip import decompress

    coarse = json.loads(decompress((tmp_path / "coarse.json.gz").read_bytes()))
    assert check(coarse) == []
    assert "SCrop" not in {e["name"] for e in coarse["traceEvents"]}


def test_check_finds_what_viewers_would_not_show() -> None:
    """The check of the tests above can fail."""
    span = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 10}
    assert check([span, {**span, "ts": 5}])
    assert check([span, {**span, "ts": 2, "dur": 3}]) == []
    assert check([span, {**span, "ts": 9.999}])  # by a nanosecond and more
    assert check([span, {**span, "ts": 10}]) == []
    begin, end = ({"ph": phase, "id": -1, "name": "x", "pid": 1, "tid": 1, "ts": 5} for phase in "sf")
    assert check([begin])
    assert check([begin, end])  # on no span
    assert check([span, begin, end]) == []
    assert check([span, {**begin, "ts": 6}, end])  # back in time
    assert check([span, begin, {**end, "tid": 2}])
    assert check([{"ph": "C", "name": "ready", "pid": 1, "ts": 0, "args": {"ready": "3"}}])
    assert check([{"ph": "C", "name": "ready", "pid": 1, "ts": 0, "args": {"ready": 3}}]) == []
    assert check([{"ph": "X", "name": "a", "pid": 1, "ts": 0}])
    assert check([{"ph": "X", "pid": 1}])


def test_work_between_the_parts_of_a_parked_sample_stays_where_it_was(tmp_path: Path) -> None:
    """Both parts are written when the sample is done; what the worker did in between was done then."""
    run = SyntheticRun(tmp_path / "run")
    run.made(1, 0, 10, 5)
    run.made(0, 0, 0, 5, samples=0)
    run.made(0, 0, 40, 5)
    run.taken(1, 0, 16)
    run.taken(0, 20, 26)
    run.write()
    events = list(chrome.events(read_run(tmp_path / "run"), WALL_OFFSET_NS))
    assert check(events) == []
    made = [event for event in events if event["name"].startswith("SBatchPre")]
    assert [(event["name"][-1], event["ts"] / 1000, event["dur"] / 1000) for event in made] == [
        ("0", 0, 5),
        ("1", 10, 5),
        ("0", 40, 5),
    ]


def test_calls_to_other_machines_have_a_track_for_each_lane(tmp_path: Path) -> None:
    """Several are under way at once; tracks that are not a process's first have a name, merged or not."""
    run = SyntheticRun(tmp_path / "run")
    for lane, start in enumerate((0, 5)):
        run.main.record(Kind.OFFLOADED, start * MS, 20 * MS, name="actor a", batch=0, index=lane, count=4, nbytes=100)
    run.made(0, 0, 30, 1)
    run.taken(0, 0, 40)
    run.write()
    events = list(chrome.events(read_run(tmp_path / "run"), WALL_OFFSET_NS))
    assert check(events) == []
    calls = [event for event in events if event["name"] == "actor a"]
    assert [(call["ts"], call["dur"], call["args"]["samples"]) for call in calls] == [(0, 20_000, 4), (5000, 20_000, 4)]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [names[call["tid"]] for call in calls] == ["other machines, call 0", "other machines, call 1"]
    theirs = {"ph": "M", "name": "process_name", "pid": run.main_pid, "args": {"name": "python"}}
    (tmp_path / "prof.json").write_text(json.dumps([theirs]))
    chrome.merge(read_run(tmp_path / "run"), tmp_path / "prof.json", tmp_path / "out.json")
    merged = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    assert sum(event["name"] == "thread_name" for event in merged) == 2


def test_ranks_with_the_same_process_ids_have_tracks_of_their_own(tmp_path: Path) -> None:
    """As on several machines, or in containers."""
    for rank in range(2):
        run = SyntheticRun(tmp_path / "run", rank)
        run.main_pid = run.main.pid = 17
        run.made(0, 0, 0, 10 + rank)
        run.op("Crop", 0, 1, 3, index=5, batch=0)
        run.taken(0, 0, 15 + rank)
        run.write()
    events = list(chrome.events(read_run(tmp_path / "run"), WALL_OFFSET_NS))
    assert check(events) == []
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(names) == 4
    assert names[17] == "minato main of rank 0"
    waits = [event for event in events if event["name"].startswith("SBatchWait")]
    assert [names[event["pid"]] for event in waits] == ["minato main of rank 0", "minato main of rank 1"]


def test_merging_honours_the_profilers_base(traced: SyntheticRun, tmp_path: Path) -> None:
    """Times are relative to the base that the profiler's file names; its own events stay as they are."""
    base = WALL_OFFSET_NS - 5_000_000
    theirs = {"ph": "M", "name": "process_name", "pid": traced.main_pid, "args": {"name": "python"}}
    (tmp_path / "prof.json").write_text(json.dumps({"baseTimeNanoseconds": base, "traceEvents": [theirs]}))
    chrome.merge(read_run(tmp_path / "run"), tmp_path / "prof.json", tmp_path / "out.json")
    merged = json.loads((tmp_path / "out.json").read_text())
    assert check(merged) == []
    found = merged["traceEvents"]
    assert found[0] == theirs
    assert [e["args"]["name"] for e in found if e["name"] == "process_name" and e["pid"] == traced.main_pid] == [
        "python"
    ]
    (wait,) = [e for e in found if e["name"] == "SBatchWait_0"]
    assert wait["ts"] == 5000


def test_the_command_writes_everything(
    traced: SyntheticRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables, JSON, files; mistakes are told in a line."""
    run = str(tmp_path / "run")
    assert main(["trace", "report", run, "--csv", str(tmp_path / "tables")]) == 0
    assert "Verdict" in capsys.readouterr().out
    assert (tmp_path / "tables" / "ops.csv").read_text().startswith("name,")
    assert main(["trace", "report", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 5
    out = str(tmp_path / "out.json")
    assert main(["trace", "export", run, "--chrome", out, "--csv", str(tmp_path / "csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chrome"] == out
    assert main(["trace", "export", run]) == 2
    assert main(["trace", "report", str(tmp_path / "absent")]) == 2
    (tmp_path / "bad.json").write_text("{")
    assert main(["trace", "export", run, "--chrome", out, "--merge", str(tmp_path / "bad.json")]) == 2
    assert "no JSON" in capsys.readouterr().err


@pytest.fixture(scope="module")
def _fonts_open() -> None:
    """matplotlib keeps the fonts open that it once used: before the test, so that it is not blamed for it."""
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.set_title("÷ – 0", weight="bold")
    axes.set_yscale("log")
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.usefixtures("_fonts_open")
def test_the_command_draws_a_picture(
    traced: SyntheticRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a display, and beside other runs; mistakes are told in a line."""
    monkeypatch.delenv("DISPLAY", raising=False)
    run, picture = str(tmp_path / "run"), tmp_path / "run.png"
    assert main(["trace", "report", run, "--png", str(picture), "--beside", run, run]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["trace", "report", run, "--beside", run]) == 2
    assert main(["trace", "report", run, "--png", str(tmp_path / "run.nothing")]) == 2
    assert main(["trace", "report", run, "--png", str(picture), "--beside", str(tmp_path / "absent")]) == 2
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["trace", "report", run, "--png", str(picture)]) == 2
    assert "pip install 'minato[report]'" in capsys.readouterr().err
