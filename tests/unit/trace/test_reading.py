"""Files to events, whatever state the files are in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._instrument import BLOCK, RECORD, Block, Kind, TraceOptions, TraceSpec
from minato._recording import Recorder
from minato.trace import TraceError, read_run, sessions
from minato.trace.batches import batches
from minato.trace.summary import summarize, to_text
from tests.support.traces import MS, WALL_OFFSET_NS, SyntheticRun


def small_run(path: Path) -> SyntheticRun:
    run = SyntheticRun(path)
    run.made(0, 0, 0, 10, samples=2)
    run.made(0, 1, 4, 10, samples=2)
    run.op("Crop", 0, 1, 2, index=7, batch=0)
    run.taken(0, 5, 9.5, samples=4)
    run.write()
    return run


def spec(path: Path, **changes: object) -> TraceSpec:
    whole = {"segment_bytes": 64 << 20, "max_bytes": 1 << 30, **changes}
    return TraceSpec(str(path), "session", 0, WALL_OFFSET_NS, "op", **whole)  # type: ignore[arg-type]


def test_events_come_back_as_recorded(tmp_path: Path) -> None:
    """Every field, through the file."""
    recorder = Recorder(spec(tmp_path), "worker", 3)
    recorder.record(
        Kind.OP, 5, 6, name="Größe, 2", batch=7, index=-8, nbytes=9, count=10, cpu_ns=11_000, flags=4, pool=12
    )
    recorder.note(Kind.DECISION, 13, target=4, inputs={"cpu": 0.5})
    recorder.flush()
    (process,) = read_run(tmp_path).processes
    (event,) = process.events()
    assert (event.kind, event.start_ns, event.duration_ns, event.end_ns) == (Kind.OP, 5, 6, 11)
    assert (event.name, event.batch, event.index, event.nbytes, event.count) == ("Größe, 2", 7, -8, 9, 10)
    assert (event.cpu_ns, event.flags, event.pool, event.thread) == (11_000, 4, 12, 0)
    (note,) = process.notes
    assert (note.kind, note.start_ns, note.fields["inputs"]) == (Kind.DECISION, 13, {"cpu": 0.5})
    assert (process.label, process.header.pid, process.torn) == ("worker 3", os.getpid(), False)


def test_a_batch_lives_from_first_start_to_last_row(tmp_path: Path) -> None:
    """Two workers make it; the wall clock is one for all."""
    run = small_run(tmp_path)
    (life,) = batches(read_run(tmp_path))
    assert (life.start_ns, life.preprocess_ns) == (WALL_OFFSET_NS, 14 * MS)
    assert life.workers == (run.main_pid + 1, run.main_pid + 2)
    assert life.finisher == run.main_pid + 2
    assert (life.wait_ns, life.delay_ns, life.samples) == (9.5 * MS, 0.5 * MS, 4)


@given(st.integers(min_value=0, max_value=600))
def test_a_torn_file_gives_what_is_whole(cut: int) -> None:
    """A file cut at any byte, as a kill leaves it: never an error beside that of the header, never a wrong record."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        recorder = Recorder(spec(path), "main")
        for number in range(8):
            recorder.record(Kind.OP, number, 1, name=f"op {number // 4}", index=number)
            if number % 2:
                recorder.flush()
        (file,) = path.iterdir()
        whole = file.read_bytes()
        header = BLOCK.size + BLOCK.unpack_from(whole)[1]
        file.write_bytes(whole[: min(len(whole), header + cut)])
        (process,) = read_run(path).processes
        found = [event.index for event in process.events()]
        assert found == list(range(len(found)))
        assert all(event.name == f"op {event.index // 4}" for event in process.events())
        assert len(found) == 8 or process.torn or header + cut < len(whole)


def test_files_rotate_and_the_oldest_goes(tmp_path: Path) -> None:
    """The size bound holds, names are known in every file, and what is gone is told."""
    bound = 4 << 16
    recorder = Recorder(spec(tmp_path, segment_bytes=1 << 16, max_bytes=bound), "main")
    recorder.hold()
    total = 3 * bound // RECORD.size
    for number in range(total):
        recorder.record(Kind.OP, number, 1, name="always the same", index=number)
        if number % 100 == 0:
            recorder.flush()
    recorder.let_go()
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert sum(sizes) <= bound
    (process,) = read_run(tmp_path).processes
    assert process.dropped_segments >= 7
    assert "the beginning is missing" in to_text(summarize(tmp_path))
    kept = [event.index for event in process.events()]
    assert kept == list(range(kept[0], total))
    assert {event.name for event in process.events()} == {"always the same"}


def test_a_directory_that_was_emptied_between_two_loaders_is_written_anew(tmp_path: Path) -> None:
    """As somebody does who tries again in a notebook: what is recorded afterwards can be read, names and all."""
    recorder = Recorder(spec(tmp_path, segment_bytes=1 << 16, max_bytes=2 << 16), "main")
    for round_number in range(2):
        recorder.hold()
        for number in range(3000):  # more than two files
            recorder.record(Kind.OP, number, 1, name="op", index=10_000 * round_number + number)
            recorder.flush()
        recorder.let_go()
        (process,) = read_run(tmp_path).processes
        kept = [event.index for event in process.events()]
        assert kept[-1] == 10_000 * round_number + 2999
        assert {event.name for event in process.events()} == {"op"}
        for file in tmp_path.iterdir():
            file.unlink()
    assert not recorder.ended


def test_the_newest_session_of_each_rank_is_read(tmp_path: Path) -> None:
    """A program that was started again with the same directory loses nothing, and mixes nothing."""
    for session, rank in (("20260101T000000.000-9-aaaa", 0), ("20260102T000000.000-1-bbbb", 0), ("20250101T0-1", 1)):
        run = SyntheticRun(tmp_path, rank, session)
        run.taken(0, 1, 2)
        run.write()
    found = read_run(tmp_path)
    assert {(p.header.rank, p.header.session[:8]) for p in found.processes} == {(0, "20260102"), (1, "20250101")}
    assert [life.id for life in batches(found)] == [0, 1]
    written = sum(file.stat().st_size for file in tmp_path.iterdir() if "-9-aaaa" not in file.name)
    assert summarize(found).trace_bytes == written  # of what was read, not of older sessions
    older = sessions(tmp_path)[0][0]
    assert [process.header.session for process in read_run(tmp_path, older).processes] == [older]
    with pytest.raises(TraceError, match=r"no session 'x', but 2025.*aaaa"):
        read_run(tmp_path, "x")


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    """A strange file beside a trace is named; nothing but strange files is an error."""
    with pytest.raises(TraceError, match="no directory"):
        read_run(tmp_path / "absent")
    with pytest.raises(TraceError, match="holds no trace"):
        read_run(tmp_path)
    (tmp_path / "x.mtrace").write_bytes(b"hello, this is not a trace")
    header = json.dumps({"format": "minato-trace", "version": 99}).encode()
    (tmp_path / "y.mtrace").write_bytes(BLOCK.pack(Block.HEADER, len(header)) + header)
    (tmp_path / "z.mtrace").touch()
    small_run(tmp_path)
    assert [text.split(": ")[0] for text in read_run(tmp_path).unreadable] == ["x.mtrace", "y.mtrace", "z.mtrace"]
    assert "version 99" in read_run(tmp_path).unreadable[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"granularity": "fine"}, "granularity"),
        ({"segment_bytes": 10}, "segment_bytes"),
        ({"max_bytes": 1 << 20}, "max_bytes"),
    ],
)
def test_options_are_checked(changes: dict[str, object], message: str) -> None:
    """At once, and by name."""
    with pytest.raises(ValueError, match=message):
        TraceOptions("x", **changes)  # type: ignore[arg-type]
