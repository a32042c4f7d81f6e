"""Looking at a loader while it runs: from its counters, from its trace, in a terminal and in a notebook."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

import minato
from minato import LoaderStats
from minato._instrument import BLOCK, SUFFIX, Block, Kind
from minato.cli import main
from minato.trace import TraceError
from minato.trace.following import TraceSource, running
from minato.trace.live import CounterSource, Snapshot
from minato.trace.screen import bar, draw, loader_html, source_of, sparkline
from tests.support.traces import SyntheticRun


class FakeLoader:
    """Counters that a test sets."""

    trace = None

    def __init__(self) -> None:
        self.now = LoaderStats()

    def stats(self) -> LoaderStats:
        return self.now


def text_of(snapshot: Snapshot) -> str:
    console_of = pytest.importorskip("rich.console", reason="rich is not installed").Console
    console = console_of(width=120, record=True, file=open(os.devnull, "w"))
    with console.file:
        console.print(draw(snapshot))
        text: str = console.export_text()
    return text


def test_counters_become_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("minato.trace.live.time.monotonic", lambda: clock[0])
    loader = FakeLoader()
    source = CounterSource(loader)
    clock[0] += 2
    loader.now = LoaderStats(
        workers=3, samples_delivered=400, batches_delivered=10, waits=4, wait_seconds=0.5, bytes_delivered=4_000_000
    )
    seen = source.snapshot()
    assert (seen.samples_per_s, seen.batches_per_s, seen.wait_share, seen.ready_share) == (200, 5, 0.25, 0.6)
    assert seen.queues["workers"] == 3
    clock[0] += 1
    assert source.snapshot().samples_per_s == 0
    assert source.snapshot().history == (200.0, 0.0)  # too soon for another rate
    assert "0 samples/s" in text_of(source.snapshot())


def test_a_trace_is_followed_as_it_grows(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    source = TraceSource(tmp_path)
    with pytest.raises(TraceError, match="holds no trace"):
        source.snapshot()
    run.made(0, 0, 0, 80, samples=8)
    run.op("decode", 0, 0, 60)
    run.op("flip", 0, 60, 20)
    run.taken(0, 0, 100, samples=8)
    run.queue("ready", 90, 3)
    run.write()
    first = source.snapshot()
    assert (first.samples, first.batches, first.queues) == (8, 1, {"ready": 3})
    assert [(op.name, op.mean_ms, op.share) for op in first.ops] == [("decode", 60.0, 0.75), ("flip", 20.0, 0.25)]
    run.taken(1, 200, 10, ready=True, samples=8)
    run.worker(0).record(Kind.WORKER, 250_000_000, name="stop", index=0)
    run.main.note(Kind.DECISION, 10, text="2 → 3 workers: the consumer waits")
    run.write()
    second = source.snapshot()
    assert (second.samples, second.batches, second.ready_share) == (16, 2, 0.5)
    assert second.workers[0].ended == "stopped"
    assert second.news == ("2 → 3 workers: the consumer waits",)
    shown = text_of(second)
    assert "decode" in shown and "stopped" in shown and "consumer waits" in shown


def test_a_block_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.taken(0, 0, 1, samples=4)
    run.write()
    source = TraceSource(tmp_path)
    assert source.snapshot().samples == 4
    (file,) = tmp_path.glob(f"*main*{SUFFIX}")
    whole = file.read_bytes()
    at = whole.index(BLOCK.pack(Block.RECORDS, 0)[:4])
    block = whole[at:]
    with file.open("ab") as stream:
        stream.write(block[:30])
    assert source.snapshot().samples == 4
    with file.open("ab") as stream:
        stream.write(block[30:])
    assert source.snapshot().samples == 8


def test_a_program_that_starts_again_is_shown_anew(tmp_path: Path) -> None:
    old = SyntheticRun(tmp_path)
    old.taken(0, 0, 1, samples=4)
    old.write()
    source = TraceSource(tmp_path)
    assert source.snapshot().samples == 4
    new = SyntheticRun(tmp_path, session="20270101T000000.000-1-bbbb")
    new.taken(0, 0, 1, samples=1)
    new.write()
    assert source.snapshot().samples == 1


def test_a_running_loader_is_found_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By directory, by process id, and in-process; with what its workers and operations take."""
    data = minato.StagedDataset(float, [abs], 64)
    with minato.DataLoader(data, batch_size=8, num_workers=2, trace=tmp_path) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        assert running()[os.getpid()] == tmp_path
        assert main(["top", str(os.getpid()), "--once", "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        assert seen["samples"] == 40
        assert {line["name"] for line in seen["workers"]} <= {"main", "worker 0", "worker 1"}
        assert isinstance(source_of(loader), TraceSource)
        if "rich" in sys.modules or pytest.importorskip("rich", reason="rich is not installed"):
            assert main(["top", str(tmp_path), "--once"]) == 0
            assert "samples/s" in capsys.readouterr().out
        del batches


def test_mistakes_of_top_are_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minato.trace.following.running", dict)
    for arguments, told in (
        (["top"], "no loader of yours is being traced"),
        (["top", "4711"], "process 4711 is not writing a trace"),
        (["top", str(tmp_path)], "holds no trace"),
        (["top", "--refresh", "0"], "--refresh must be at least 0.05"),
    ):
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
    monkeypatch.setattr("minato.trace.following.running", lambda: {1: tmp_path, 2: tmp_path})
    assert main(["top"]) == 2
    assert "several loaders are being traced" in capsys.readouterr().err


def test_a_loader_is_watched_while_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    data = minato.StagedDataset(float, [abs], 32)
    with minato.DataLoader(data, batch_size=8, num_workers=1) as loader, loader.watch(refresh_s=0.05):
        assert sum(len(batch) for batch in loader) == 32
        time.sleep(0.2)
    shown = capsys.readouterr().out
    assert "32 samples" in shown
    assert "samples/s" in shown


def test_without_rich_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    loader = minato.DataLoader([1, 2, 3])
    with pytest.raises(ImportError, match=r"pip install 'minato\[report\]'"):
        loader.watch()
    with pytest.raises(ValueError, match="refresh_s must be at least"):
        loader.watch(refresh_s=0)


def test_a_notebook_shows_what_a_loader_is_and_did() -> None:
    class Named(list):  # type: ignore[type-arg]
        pass

    Named.__name__ = "<b>Odd</b>"
    loader = minato.DataLoader(Named([1, 2, 3, 4]), batch_size=2)
    list(loader)
    shown = loader._repr_html_()
    assert shown == loader_html(loader)
    assert "&lt;b&gt;Odd&lt;/b&gt;, 4 samples" in shown
    assert "4 samples in 2 batches" in shown
    assert "<b>Odd" not in shown
    loader.close()
    assert "closed" in loader._repr_html_()


def test_bars_and_curves() -> None:
    assert bar(0.5, 4) == "██░░"
    assert bar(7.0, 2) == "██"
    assert sparkline((0.0, 4.0, 8.0), 2) == "▄█"
    assert sparkline((0.0, 0.0), 5) == "  "
