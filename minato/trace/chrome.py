"""Chrome/Perfetto JSON: a track per process, arrows from preprocessing to consumption; alone, or put into the trace
that `torch.profiler` wrote.

A batch that several workers made has a span on each of their tracks; its arrow begins at the first of them. Ids of
arrows are -1 - batch: they cannot collide with those of the profiler, which are positive. Timestamps are microseconds
after `baseTimeNanoseconds`, as torch 2.4 and later write them.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._instrument import NONE, Flag, Kind
from .batches import MADE, BatchLife, batches
from .reading import ProcessTrace, Records, RunTrace, TraceError

FINE = (Kind.SAMPLE, Kind.LOADER, Kind.OP, Kind.COLLATION)
_MAIN_SPANS = (Kind.WAIT, Kind.CONSUMED, Kind.TRANSFER, Kind.MARK, Kind.OFFLOADED)
_MOMENTS = (Kind.WORKER, Kind.PARKED, Kind.RESUMED, Kind.CACHE, Kind.EPOCH)
_LANE_TRACKS = 100  # number of the first track for calls to other machines; threads have lower ones
_SHORTEST_US = 1.0  # of a span that an arrow ends at
_PROCESS_METADATA = ("process_name", "process_sort_index")
Json = dict[str, Any]
Key = tuple[int, int, int]
"""Rank, pool and number of a batch."""


def export(run: RunTrace, out: Path, granularity: str = "op") -> int:
    """Write a run as a file of its own; `granularity` "batch" leaves out samples and operations. Returns the number of
    events."""
    base_ns = run.start_ns
    written = 0
    with _open(out, "wt") as stream:
        stream.write(f'{{"displayTimeUnit": "ms", "baseTimeNanoseconds": {base_ns}, "traceEvents": [\n')
        for written, event in enumerate(events(run, base_ns, granularity), 1):
            stream.write((",\n" if written > 1 else "") + json.dumps(event))
        stream.write("\n]}\n")
    return written


def merge(run: RunTrace, profile: Path, out: Path, granularity: str = "op") -> int:
    """Write the profiler's trace with the run's events added. Returns the number of events added."""
    try:
        with _open(profile, "rt") as stream:
            trace = json.load(stream)
    except ValueError as error:
        raise TraceError(f"{profile} is no JSON as torch.profiler's export_chrome_trace writes it: {error}") from None
    trace = trace if isinstance(trace, dict) else {"traceEvents": trace}
    theirs = trace.get("traceEvents")
    if not isinstance(theirs, list):
        raise TraceError(f"{profile} has no traceEvents: a file of torch.profiler's export_chrome_trace was needed")
    named = {event.get("pid") for event in theirs if event.get("name") == "process_name"}
    ours = [
        event
        for event in events(run, int(trace.get("baseTimeNanoseconds", 0)), granularity)
        if not (event["name"] in _PROCESS_METADATA and event["pid"] in named)
    ]
    theirs.extend(ours)
    with _open(out, "wt") as stream:
        json.dump(trace, stream)
    return len(ours)


def _open(path: Path, mode: str) -> IO[Any]:
    try:
        if path.suffix == ".gz":
            return io.TextIOWrapper(gzip.GzipFile(path, mode[0] + "b"), encoding="utf-8")
        return path.open(mode, encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path} cannot be opened: {error}") from None


def events(run: RunTrace, base_ns: int, granularity: str = "op") -> Iterator[Json]:
    """All events of a run; metadata first, then process by process."""
    if granularity not in ("batch", "op"):
        raise ValueError(f"granularity must be 'batch' or 'op', got {granularity!r}")
    ids = {(life.rank, life.pool, life.number): life for life in batches(run)}
    begun: dict[int, tuple[float, int, int]] = {}
    """Where each batch's arrow begins."""
    pids = _shown_pids(run)
    for process, pid in zip(run.processes, pids, strict=True):
        yield from _metadata(process, pid, several=len(run.ranks) > 1)
    for process, pid in zip(run.processes, pids, strict=True):
        track = _Track(process, pid, base_ns, ids)
        for event in track.made():
            number, start = event["args"]["batch"], (event["ts"], event["pid"], event["tid"])
            begun[number] = min(begun.get(number, start), start)
            yield event
        yield from track.main_spans()
        yield from track.moments()
        if granularity == "op":
            yield from track.fine()
    mains = {process.header.rank: pid for process, pid in zip(run.processes, pids, strict=True) if _is_main(process)}
    for life in ids.values():
        if life.id in begun and life.consumed_ns is not None:
            main = mains[life.rank]
            yield _arrow("s", life.id, *begun[life.id])
            yield {**_arrow("f", life.id, (life.consumed_ns - base_ns) / 1000, main, main), "bp": "e"}


def _shown_pids(run: RunTrace) -> list[int]:
    """What to show as each process's id: its own, unless another process of the run has that. Ranks on several machines
    or in containers often have the same."""
    taken: dict[int, None] = {}
    for process in run.processes:
        pid = process.header.pid
        taken[pid if pid not in taken else max(taken) + 1] = None
    return list(taken)


def _is_main(process: ProcessTrace) -> bool:
    return process.header.role == "main"


def _arrow(phase: str, batch: int, ts: float, pid: int, tid: int) -> Json:
    return {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": -1 - batch, "ts": ts, "pid": pid, "tid": tid}


def _metadata(process: ProcessTrace, pid: int, several: bool) -> Iterator[Json]:
    """Names of the process and of its further tracks."""
    header = process.header
    name = f"minato {process.label}" + (f" of rank {header.rank}" if several else "")
    order = header.rank * 10_000 + header.pool * 100 + header.worker + 1
    for what, args in zip(_PROCESS_METADATA, ({"name": name}, {"sort_index": order}), strict=True):
        yield {"ph": "M", "name": what, "pid": pid, "tid": pid, "args": args}
    spans = process.of(*MADE, *FINE, Kind.MARK)
    kind = "thread" if _is_main(process) else "lane"
    tracks = {thread: f"{kind} {thread}" for thread in np.unique(spans["thread"]).tolist() if thread}
    lanes = np.unique(process.of(Kind.OFFLOADED)["index"]).tolist()
    tracks |= {_LANE_TRACKS + lane: f"other machines, call {lane}" for lane in lanes}
    for thread, label in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": _track_id(pid, thread), "args": {"name": label}}


def _track_id(pid: int, thread: int) -> int:
    """A process's first track has its own number."""
    return pid if thread == 0 else pid * 100 + thread


class _Track:
    """The events of one process."""

    def __init__(self, process: ProcessTrace, pid: int, base_ns: int, ids: dict[Key, BatchLife]) -> None:
        self._process = process
        self._pid = pid
        self._shift_ns = process.header.wall_offset_ns - base_ns
        self._ids = ids

    def made(self) -> Iterator[Json]:
        """What this process did for each batch, in each of its lanes."""
        made = self._process.of(*MADE)
        made = made[made["batch"] != NONE]
        for thread in np.unique(made["thread"]).tolist():
            yield from self._made_in(made[made["thread"] == thread], thread)

    def _made_in(self, made: Records, thread: int) -> Iterator[Json]:
        """Runs on a batch that follow on each other are one span."""
        # By time, not as written: what was done for a parked sample is written when all of it is.
        made = made[np.argsort(made["start_ns"], kind="stable")]
        spans: list[list[int]] = []
        """Start, end, pool, batch, samples."""
        for kind, pool, count, start, duration, batch in zip(
            *(made[name].tolist() for name in ("kind", "pool", "count", "start_ns", "duration_ns", "batch")),
            strict=True,
        ):
            samples = count if kind == Kind.RUN else 0
            if spans and spans[-1][2:4] == [pool, batch]:
                spans[-1][1] = max(spans[-1][1], start + duration)
                spans[-1][4] += samples
            else:
                spans.append([start, start + duration, pool, batch, samples])
        last = 0
        for start, end, pool, batch, samples in sorted(spans):
            start, last = max(start, last), max(end, last)  # a track cannot show two at once
            life = self._life(pool, batch)
            if life is not None:
                args = {"batch": life.id, "samples": samples, "workers": len(life.workers), **_external(life.id)}
                if life.preprocess_ns is not None:
                    args["whole batch, ms"] = life.preprocess_ns / 1e6
                yield self._span(f"SBatchPreprocessed_{life.id}", start, max(end, start) - start, args, thread)

    def main_spans(self) -> Iterator[Json]:
        """Waits, consumed batches, transfers, marks, calls to other machines."""
        for event in self._process.events(*_MAIN_SPANS):
            life = self._life(event.pool, event.batch)
            args: Json = {} if life is None else {"batch": life.id, **_external(life.id)}
            name, duration_ns = event.name, event.duration_ns
            if event.kind in (Kind.WAIT, Kind.CONSUMED, Kind.TRANSFER):
                name = f"SBatch{event.kind.name.capitalize()}_{args.get('batch', event.batch)}"
            if event.kind is Kind.WAIT:
                args["ready"] = bool(event.flags & Flag.READY)
            elif event.kind is Kind.CONSUMED:
                args |= {"samples": event.count, "bytes": event.nbytes}
                duration_ns = int(_SHORTEST_US * 1000)
            thread = event.thread
            if event.kind is Kind.OFFLOADED:  # many at once: a track for each lane
                args |= {"samples": event.count, "bytes": event.nbytes}
                thread = _LANE_TRACKS + event.index
            yield self._span(name or event.kind.name.lower(), event.start_ns, duration_ns, args, thread)

    def moments(self) -> Iterator[Json]:
        """Queue lengths, workers' lives, decisions and other moments."""
        pid = self._pid
        for event in self._process.events(Kind.QUEUE, *_MOMENTS):
            ts = (event.start_ns + self._shift_ns) / 1000
            if event.kind is Kind.QUEUE:
                yield {"ph": "C", "name": event.name, "ts": ts, "pid": pid, "args": {event.name: event.count}}
            else:
                name = f"{event.kind.name.lower()} {event.name}".strip()
                args = {"count": event.count} if event.kind is Kind.CACHE else {"index": event.index}
                yield {"ph": "i", "s": "p", "name": name, "ts": ts, "pid": pid, "tid": pid, "args": args}
        for note in self._process.notes:
            ts = (note.start_ns + self._shift_ns) / 1000
            name = note.kind.name.lower()
            yield {"ph": "i", "s": "g", "name": name, "ts": ts, "pid": pid, "tid": pid, "args": dict(note.fields)}

    def fine(self) -> Iterator[Json]:
        """Samples and operations."""
        names = self._process.names
        for kind, flags, name, pool, thread, _, cpu_us, start, duration, batch, index, nbytes in self._process.of(
            *FINE
        ).tolist():
            if kind == Kind.SAMPLE and flags & Flag.PARKED:
                continue  # others were at work in between; its stages show it
            args: Json = {"index": index, "cpu_us": cpu_us}
            if nbytes:
                args["bytes"] = nbytes
            if flags & Flag.FAILED:
                args["failed"] = True
            life = self._life(pool, batch)
            if life is not None:
                args["batch"] = life.id
            label = "Sample" if kind == Kind.SAMPLE else f"S{names[name]}"
            yield self._span(label, start, duration, args, thread)

    def _life(self, pool: int, batch: int) -> BatchLife | None:
        return self._ids.get((self._process.header.rank, pool, batch))

    def _span(self, name: str, start_ns: int, duration_ns: int, args: Json, thread: int = 0) -> Json:
        pid = self._pid
        return {
            "ph": "X",
            "cat": "user_annotation",
            "name": name,
            "pid": pid,
            "tid": _track_id(pid, thread),
            "ts": (start_ns + self._shift_ns) / 1000,
            "dur": duration_ns / 1000,
            "args": args,
        }


def _external(batch: int) -> Json:
    return {"External id": -1 - batch, "correlation": -1 - batch}
