"""A traced loader does what an untraced one does, records all of it, and nothing that happens to the trace stops it."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import signal
import time
from collections import Counter

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import minato
from minato import DataLoader, StagedDataset
from minato._instrument import active
from minato._queues.taking import TakingBoard
from minato.trace import Kind, TraceOptions, chrome, read_run, sessions
from minato.trace.batches import batches
from minato.trace.chrome_check import check
from minato.trace.summary import summarize

from .data import DiesOnce, Rows
from .test_scaling import Scripted
from .tools import Marks, caught_warnings, forked, until

LENGTH, BATCH = 22, 4
COUNT = -(-LENGTH // BATCH)


def load(index):
    return torch.full((4,), float(index))


class Double:
    def __call__(self, x):
        return 2 * x


class Add(torch.nn.Module):
    def forward(self, x):
        return x + 1


def staged(length=LENGTH):
    return StagedDataset(load, [Double(), Add(), lambda_free], length)


def lambda_free(x):
    return x


class Sleeps(Rows):
    def __getitem__(self, index):
        time.sleep(0.002)
        return super().__getitem__(index)


class Streamed(IterableDataset):
    """Each worker gives its share."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (torch.full((2,), index) for index in range(first, LENGTH, step))


def stack(samples):
    return torch.stack(samples)


def numbers(found):
    return sorted(number for batch in found for number in batch[:, 0].tolist())


def assert_recorded(path, samples=LENGTH, taken=COUNT):
    """Every sample was made once, every batch waited for and taken once; nothing is torn; it can be drawn."""
    run = read_run(path)
    made, consumed = Counter(), Counter()
    for process in run.processes:
        assert not process.torn
        for event in process.events(Kind.RUN):
            made[process.header.rank, event.pool, event.batch] += event.count
        for event in process.events(Kind.CONSUMED):
            consumed[process.header.rank, event.pool, event.batch] += 1
    lives = [life for life in batches(run) if life.consumed_ns is not None]
    assert sum(life.samples for life in lives) == samples
    assert len(lives) == taken
    assert set(consumed.values()) == {1}
    for life in lives:
        assert made[life.rank, life.pool, life.number] == life.samples
        assert life.start_ns <= life.done_ns <= life.consumed_ns
        assert life.wait_start_ns + life.wait_ns <= life.consumed_ns
    assert check(list(chrome.events(run, run.start_ns))) == []
    return run


CASES = {
    "map, no workers": (staged, {"num_workers": 0}),
    "map, in order": (staged, {"num_workers": 2, "in_order": True}),
    "map, re-ordered": (staged, {"num_workers": 2, "in_order": False, "shuffle": True}),
    "map, own collation": (staged, {"num_workers": 2, "collate_fn": stack}),
    "stream": (Streamed, {"num_workers": 2}),
    "stream, no workers": (Streamed, {"num_workers": 0}),
}


@pytest.mark.parametrize("name", CASES)
def test_everything_is_recorded_in_every_mode(tmp_path, name):
    """Two epochs; the batches are those of an untraced loader."""
    make, arguments = CASES[name]
    plain = DataLoader(make(), batch_size=BATCH, **arguments)
    expected = numbers(plain)
    loader = DataLoader(make(), batch_size=BATCH, trace=TraceOptions(tmp_path / "a" / "b", "op"), **arguments)
    for _ in range(2):
        found = []
        for batch in loader:
            with minato.mark("step"):
                found.append(batch)
        assert numbers(found) == expected
    loader.close()
    extra = name == "stream"  # each of the two workers ends with a short batch
    run = assert_recorded(tmp_path / "a" / "b", 2 * LENGTH, 2 * (COUNT + extra * (len(list(plain)) - COUNT)))
    names = Counter(event.name for process in run.processes for event in process.events(Kind.LOADER, Kind.OP))
    names.pop("(rest)", None)  # between two stages, when this process is kept from the CPU
    if make is staged:
        assert names == dict.fromkeys(("Loader", "Double", "Add", "lambda_free"), 2 * LENGTH)
    else:  # of a stream a sample is all loading
        assert names == {"Loader": 2 * LENGTH}
        assert sum(len(process.of(Kind.SAMPLE)) for process in run.processes) == 2 * LENGTH
    marks = [event for process in run.mains for event in process.events(Kind.MARK)]
    assert len(marks) >= 2 * COUNT
    collations = [event for process in run.processes for event in process.events(Kind.COLLATION)]
    assert all(event.batch >= 0 for event in collations)
    assert bool(collations) == (name in ("map, own collation", "map, no workers", "stream, no workers"))


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_workers_that_are_not_forked_and_persistent_ones_record(tmp_path, start_method):
    """Whichever way they were started, and on in the next epoch."""
    loader = DataLoader(
        staged(), BATCH, num_workers=1, multiprocessing_context=start_method, persistent_workers=True, trace=tmp_path
    )
    for _ in range(2):
        assert len(list(loader)) == COUNT
    loader.close()
    run = assert_recorded(tmp_path, 2 * LENGTH, 2 * COUNT)
    assert len(run.workers) == 1
    assert {row.ended for row in summarize(run).workers} == {"stopped"}
    (main,) = run.mains
    assert [event.index for event in main.events(Kind.EPOCH)] == [0, 1]


def test_a_killed_worker_leaves_a_readable_file(tmp_path):
    """Its death is seen, its samples are recorded by others, and what it did before is kept but for its last batch."""
    marks = Marks(tmp_path)
    data = DiesOnce(40, {25}, marks)
    with caught_warnings():
        loader = DataLoader(data, BATCH, num_workers=2, trace=TraceOptions(tmp_path / "run", "op"))
        assert numbers(loader) == list(range(40))
        loader.close()
    died = int(marks.read("death-25"))
    run = read_run(tmp_path / "run")
    assert {row.pid for row in summarize(run).workers if row.ended == "died"} == {died}
    made = Counter(event.index for process in run.workers for event in process.events(Kind.SAMPLE))
    lost = set(range(40)) - made.keys()
    assert len(lost) <= BATCH
    consumed = [event.batch for event in run.mains[0].events(Kind.CONSUMED)]
    assert consumed == list(range(10))


def test_a_killed_main_process_leaves_readable_files(tmp_path):
    """At most one batch is missing."""

    def body():
        for number, _ in enumerate(DataLoader(staged(400), BATCH, num_workers=2, trace=tmp_path)):
            if number == 20:
                os.kill(os.getpid(), signal.SIGKILL)

    assert forked(body) == -signal.SIGKILL
    (main,) = read_run(tmp_path).mains
    assert len(main.of(Kind.CONSUMED)) >= 20


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_ends_the_trace_and_not_the_epoch(tmp_path, monkeypatch, workers):
    """One warning, all samples, and what was written before can be read."""
    write, written = os.write, []

    def full(fd, data):
        if ".mtrace" in os.readlink(f"/proc/self/fd/{fd}"):
            written.append(len(data))
            if len(written) > 4:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    with caught_warnings() as caught:
        loader = DataLoader(staged(), BATCH, num_workers=workers, trace=tmp_path)
        for _ in range(2):
            assert len(list(loader)) == COUNT
        loader.close()
    assert [category for category, _ in caught] == [RuntimeWarning]
    assert "tracing ends" in caught[0][1]
    assert "No space left" in caught[0][1]
    assert read_run(tmp_path).mains


def test_a_directory_that_vanishes_stops_nothing(tmp_path):
    """Between construction and use it has become a file."""
    loader = DataLoader(staged(), BATCH, num_workers=2, trace=tmp_path / "run")
    (tmp_path / "run").write_text("in the way")
    with caught_warnings() as caught:
        assert len(list(loader)) == COUNT
    assert len([text for _, text in caught if "tracing ends" in text]) == 1


def test_a_directory_that_cannot_be_is_refused(tmp_path):
    """At construction, naming the argument."""
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"trace=.*a directory was needed"):
            DataLoader(staged(), trace=wrong)
    with pytest.raises(TypeError, match=r"trace must be a directory .* got 3"):
        DataLoader(staged(), trace=3)
    with pytest.raises(ValueError, match="empty string"):
        DataLoader(staged(), trace="")


def test_two_loaders_and_a_second_start_share_a_directory(tmp_path):
    """Loaders of one process are one session; another process begins a session of its own, also as another rank."""
    train, valid = (DataLoader(staged(), BATCH, num_workers=n, trace=str(tmp_path)) for n in (2, 0))
    for _ in zip(train, valid, strict=True):
        pass
    (session,) = sessions(tmp_path)[0]
    assert_recorded(tmp_path, 2 * LENGTH, 2 * COUNT)

    def body():
        os.environ["RANK"] = "1"
        for _ in DataLoader(staged(), BATCH, num_workers=2, trace=tmp_path):
            pass

    assert forked(body) == 0
    assert sessions(tmp_path)[0] == [session]
    assert list(sessions(tmp_path)) == [0, 1]
    run = assert_recorded(tmp_path, 3 * LENGTH, 3 * COUNT)
    assert [life.id for life in batches(run)] == list(range(3 * COUNT))


def test_a_resumed_epoch_is_traced(tmp_path):
    """From where it goes on."""
    loader = DataLoader(staged(), BATCH, num_workers=2, trace=tmp_path / "one")
    for number, _ in enumerate(loader):
        if number == 2:
            state = json.loads(json.dumps(loader.state_dict()))
            break
    loader.close()
    again = DataLoader(staged(), BATCH, num_workers=2, trace=tmp_path / "two")
    again.load_state_dict(state)
    assert len(list(again)) == COUNT - 3
    assert_recorded(tmp_path / "two", LENGTH - 3 * BATCH, COUNT - 3)


def test_samples_that_fail_are_marked(tmp_path):
    """The error arrives as ever, and its span says that it ended so."""

    def broken(index):
        if index == 5:
            raise KeyError(index)
        return load(index)

    data = StagedDataset(broken, [Double()], 8)
    loader = DataLoader(data, BATCH, num_workers=1, trace=TraceOptions(tmp_path, "op"))
    with pytest.raises(KeyError):
        list(loader)
    loader.close()
    run = read_run(tmp_path)
    failed = [e for p in run.workers for e in p.events(Kind.SAMPLE, Kind.LOADER) if e.flags]
    assert {(event.kind, event.index) for event in failed} == {(Kind.SAMPLE, 5), (Kind.LOADER, 5)}


class Tells(Rows):
    """Samples say what their worker is like: boards that record, and whether something is active."""

    def __getitem__(self, index):
        boards = [thing for thing in gc.get_objects() if isinstance(thing, TakingBoard)]
        assert boards
        return torch.tensor([sum(type(board) is not TakingBoard for board in boards), active() is not None])


def test_an_untraced_loader_has_none_of_it(tmp_path):
    """Its workers take from the plain board and nothing is active in them, also beside a traced loader."""
    arguments = {"num_workers": 1, "multiprocessing_context": "fork"}
    (traced,) = DataLoader(Tells(2), 2, trace=tmp_path, **arguments)
    (plain,) = DataLoader(Tells(2), 2, **arguments)
    assert traced.tolist() == [[1, 1]] * 2
    assert plain.tolist() == [[0, 0]] * 2


# ---- planted faults: the verdict names each -------------------------------------------------------------------------


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def load_from_slow_storage(index):
    time.sleep(0.02)
    return load(index)


def load_in_a_slow_worker(index):
    time.sleep(0.02 if get_worker_info().id == 1 else 0.004)
    return load(index)


def burn_a_little(x):
    burn(0.001)
    return x


def slow_op(x):
    burn(0.008)
    return x


class Together:
    """Workers begin when both are there."""

    def __init__(self, marks):
        self.marks = marks

    def __call__(self, worker):
        self.marks.sign("here")
        self.marks.wait_for("here", 2)


def test_the_verdict_names_a_slow_operation(tmp_path):
    """One of two transforms takes eight times as long as the other."""
    data = StagedDataset(load, [burn_a_little, slow_op], 48)
    assert len(list(DataLoader(data, 4, num_workers=1, trace=tmp_path))) == 12
    verdict = summarize(tmp_path).verdict
    assert (verdict.bound, verdict.culprit) == ("preprocessing-bound", "slow_op"), verdict


def test_the_verdict_names_a_slow_worker(tmp_path):
    """One of two workers takes five times as long as the other."""
    data, marks = StagedDataset(load_in_a_slow_worker, [], 120), Marks(tmp_path)
    loader = DataLoader(data, 4, num_workers=2, trace=tmp_path / "run", worker_init_fn=Together(marks))
    assert len(list(loader)) == 30
    verdict = summarize(tmp_path / "run").verdict
    assert (verdict.bound, verdict.culprit) == ("straggler-bound", "worker 1"), verdict


def test_the_verdict_names_slow_storage(tmp_path):
    """Loading waits, off the CPU."""
    data = StagedDataset(load_from_slow_storage, [burn_a_little], 40)
    assert len(list(DataLoader(data, 4, num_workers=1, trace=tmp_path))) == 10
    verdict = summarize(tmp_path).verdict
    assert (verdict.bound, verdict.culprit) == ("storage-bound", "loading"), verdict


class Stalling(IterableDataset):
    """Some reads stall: one in nearly every batch."""

    def __iter__(self):
        for index in range(96):
            with minato.traced("read"):
                time.sleep(0.1 if index % 12 == 5 else 0.0)
            yield load(index)


def test_the_verdict_names_reads_that_stall_in_a_stream(tmp_path):
    """Samples are told apart, not only batches, each of which has one that stalls."""
    loader = DataLoader(Stalling(), 16, num_workers=1, trace=TraceOptions(tmp_path, "op"))
    assert len(list(loader)) == 6
    summary = summarize(tmp_path)
    assert summary.verdict.bound == "storage-bound", summary.verdict
    assert {row.name: row.calls for row in summary.ops} == {"Loader": 96, "read": 96}


def test_the_verdict_names_slow_storage_behind_threads(tmp_path):
    """Several reads at once wait, and what is computed meanwhile is not the limit."""
    data = StagedDataset(load_from_slow_storage, [burn_a_little], 80)
    loader = DataLoader(data, 4, num_workers=1, fetcher="threaded", num_fetch_workers=4, trace=tmp_path)
    assert len(list(loader)) == 20
    verdict = summarize(tmp_path).verdict
    assert (verdict.bound, verdict.culprit) == ("storage-bound", "loading"), verdict


def test_the_verdict_names_a_slow_consumer(tmp_path):
    """It asks for a batch long after that was ready."""
    loader = DataLoader(StagedDataset(load, [burn_a_little], 40), 4, num_workers=1, trace=tmp_path)
    for number, _ in enumerate(loader, 1):
        until(lambda n=number: n == 10 or loader.stats().batches_ready, "a batch to be ready")
        time.sleep(0.02)
    verdict = summarize(tmp_path).verdict
    assert (verdict.bound, verdict.culprit) == ("accelerator-bound", "consumer"), verdict


def test_decisions_are_recorded_with_their_inputs(tmp_path):
    """Each change of the number of workers, with its reason and what was measured."""
    loader = DataLoader(
        Sleeps(120), 4, num_workers=1, adaptive=Scripted((2, 1)), min_workers=1, max_workers=2, trace=tmp_path
    )
    assert numbers(loader) == list(range(120))
    loader.close()
    assert_recorded(tmp_path, 120, 30)
    (main,) = read_run(tmp_path).mains
    notes = [note for note in main.notes if note.kind is Kind.DECISION]
    assert notes
    assert len(notes) == len(loader.stats().decisions)
    for note in notes:
        assert note.fields["target"] != note.fields["before"]
        assert note.fields["reason"] == "as scripted"
        assert {"cpu_share", "wait_share", "throughput", "queue_occupancy"} <= note.fields["inputs"].keys()
    lengths = [event.count for event in main.events(Kind.QUEUE) if event.name == "workers"]
    assert {1, 2} <= set(lengths)


def test_a_profilers_trace_takes_the_events_in(tmp_path):
    """A real run of torch.profiler: every wait lies within the profiler's own span of `next`."""
    loader = DataLoader(staged(), BATCH, num_workers=2, trace=tmp_path / "run")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for batch in loader:
            batch.sum()
    profiler.export_chrome_trace(str(tmp_path / "prof.json"))
    run = read_run(tmp_path / "run")
    chrome.merge(run, tmp_path / "prof.json", tmp_path / "merged.json")
    merged = json.loads((tmp_path / "merged.json").read_text())
    nexts = [e for e in merged["traceEvents"] if e["name"].startswith("enumerate(DataLoader)")]
    found = [e for e in merged["traceEvents"] if e["name"].startswith("SBatchWait")]
    assert len(found) == COUNT
    for wait in found:  # microseconds; the profiler has a clock of its own, compared with the wall clock's once
        assert any(
            span["ts"] - 500 < wait["ts"] and wait["ts"] + wait["dur"] < span["ts"] + span["dur"] + 500
            for span in nexts
        )
    arrows = [e for e in merged["traceEvents"] if e["ph"] == "s" and e["id"] < 0]
    assert len(arrows) == COUNT


class SometimesSlow:
    """Every fourth sample takes long."""

    def __call__(self, x):
        time.sleep(0.05 if int(x[0]) % 4 == 0 else 0.002)
        return x


@pytest.mark.parametrize("granularity", ["batch", "op"])
def test_parked_samples_are_recorded(tmp_path, granularity):
    """What is parked is gone on with, every sample is made once, and the timeline holds together."""
    data = StagedDataset(load, [SometimesSlow(), lambda_free], 64)
    loader = DataLoader(
        data, BATCH, num_workers=2, in_order=False, slow_timeout=0.02, trace=TraceOptions(tmp_path, granularity)
    )
    assert numbers(loader) == list(range(64))
    loader.close()
    run = assert_recorded(tmp_path, 64, 16)
    parked, resumed = (
        sorted(event.index for process in run.workers for event in process.events(kind))
        for kind in (Kind.PARKED, Kind.RESUMED)
    )
    assert parked == resumed
    ops = [event for process in run.workers for event in process.events(Kind.OP)]
    assert bool(ops) == (granularity == "op")
    if granularity == "op":
        assert Counter(event.index for event in ops if event.name == "SometimesSlow") == dict.fromkeys(range(64), 1)
        looked_at = Counter(event.index for process in run.workers for event in process.events(Kind.SAMPLE))
        assert looked_at == dict.fromkeys(range(64), 1)


class Fetched(Rows):
    """Waits, by itself or awaited, inside a span of its own that says which sample it is."""

    def __getitem__(self, index):
        with minato.traced(f"get {index}"):
            time.sleep(0.001)
        return super().__getitem__(index)

    async def __getitem_async__(self, index):
        with minato.traced(f"get {index}"):
            await asyncio.sleep(0.001)
        return super().__getitem__(index)


@pytest.mark.parametrize("fetcher", ["threaded", "asyncio"])
@pytest.mark.parametrize("in_order", [True, False])
def test_samples_that_are_fetched_at_once_leave_spans_of_their_own(tmp_path, fetcher, in_order):
    """Spans of the same time in one process are kept apart: each with its own sample and batch, on its lane's track."""
    options = {"num_workers": 2, "fetcher": fetcher, "num_fetch_workers": 4, "in_order": in_order}
    with DataLoader(Fetched(LENGTH), BATCH, trace=TraceOptions(tmp_path, "op"), **options) as loader:
        assert len(numbers(loader)) == LENGTH
    run = assert_recorded(tmp_path)
    spans = {event.index: event for process in run.workers for event in process.events(Kind.LOADER)}
    assert sorted(spans) == list(range(LENGTH))
    gotten = [e for process in run.workers for e in process.events(Kind.OP) if e.name.startswith("get ")]
    assert sorted(event.index for event in gotten) == list(range(LENGTH))
    for event in gotten:
        around = spans[event.index]
        assert event.name == f"get {event.index}"
        assert (event.batch, event.thread) == (around.batch, around.thread)
        assert around.start_ns <= event.start_ns and event.end_ns <= around.end_ns
    for row in summarize(run).workers:
        assert 1 <= row.lanes <= 4 and 0 <= row.busy_share <= 1


@pytest.mark.parametrize("granularity", ["op", "batch"])
@pytest.mark.parametrize("fetcher", ["threaded", "asyncio"])
def test_samples_that_are_fetched_ahead_without_workers_have_times_of_their_own(tmp_path, fetcher, granularity):
    """When they were made, not when they were asked for; each for its batch, on the track of who made it."""
    options = {"num_workers": 0, "fetcher": fetcher, "num_fetch_workers": 4}
    with DataLoader(Fetched(LENGTH), BATCH, trace=TraceOptions(tmp_path, granularity), **options) as loader:
        assert len(numbers(loader)) == LENGTH
    run = assert_recorded(tmp_path)
    (main,) = run.processes
    made = list(main.events(Kind.RUN))
    assert [event.count for event in made] == [1] * LENGTH
    assert Counter(event.batch for event in made) == Counter(index // BATCH for index in range(LENGTH))
    assert {event.thread for event in made} <= {1, 2, 3, 4}
    assert all(event.duration_ns >= 1_000_000 for event in made)  # the pause in it
    spans = {event.index: event.batch for event in main.events(Kind.LOADER)}
    assert spans == ({index: index // BATCH for index in range(LENGTH)} if granularity == "op" else {})
    gotten = {event.index: (event.name, event.batch) for event in main.events(Kind.OP)}
    assert gotten == {index: (f"get {index}", index // BATCH) for index in range(LENGTH)}
    assert "turn with its own work" not in summarize(run).verdict.text


@pytest.mark.parametrize("workers", [0, 2])
def test_looks_into_the_cache_are_counted(tmp_path, workers):
    options = {"num_workers": workers, "cache": "after:Add", "trace": TraceOptions(tmp_path, "op")}
    with DataLoader(staged(), BATCH, **options) as loader:
        for _ in range(3):
            assert len(numbers(loader)) == LENGTH
    summary = summarize(tmp_path)
    assert (summary.cache.hits, summary.cache.misses) == (2 * LENGTH, LENGTH)
    calls = {row.name: row.calls for row in summary.ops if row.kind != "collation" and row.name != "(rest)"}
    assert calls == {"Loader": 3 * LENGTH, "(not cached)": LENGTH, "(after the cache)": 2 * LENGTH}
