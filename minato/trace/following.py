"""`TraceSource`: a run looked at while it is being recorded, from its files, by any process that may read them."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._instrument import BLOCK, NONE, RECORD, SUFFIX, Block, Flag, Kind
from .live import HISTORY, WINDOW_S, OpLine, Snapshot, WorkerLine
from .reading import DTYPE, Header, Records, TraceError, _blocks, _read_header
from .tables import STEPS

QUEUES = {"workers": "workers", "ready": "ready", "in_flight": "in flight", "parked": "parked"}


@dataclass(slots=True)
class _Follow:
    """One file, read as far as it is whole; its records of the last seconds."""

    path: Path
    header: Header
    offset: int = 0
    names: dict[int, str] = field(default_factory=lambda: {0: ""})
    recent: Records = field(default_factory=lambda: np.empty(0, DTYPE))
    last_ns: int = 0
    """End of the last event, on the wall clock."""
    ended: str = ""

    def read_on(self) -> tuple[Records, list[dict[str, Any]]]:
        """New records, with times on the wall clock, and new notes."""
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read()
        parts: list[Records] = []
        notes: list[dict[str, Any]] = []
        for kind, payload, whole in _blocks(data):
            if not whole:
                break  # it is being written
            self.offset += BLOCK.size + len(payload)
            if kind == Block.RECORDS:
                parts.append(np.frombuffer(payload[: len(payload) // RECORD.size * RECORD.size], DTYPE).copy())
            elif kind == Block.NAMES:
                self.names.update((int(number), name) for number, name in json.loads(bytes(payload)).items())
            elif kind == Block.NOTE:
                notes.append(json.loads(bytes(payload)))
        new = np.concatenate(parts) if parts else np.empty(0, DTYPE)
        new["start_ns"] += self.header.wall_offset_ns
        if len(new):
            self.last_ns = max(self.last_ns, int((new["start_ns"] + new["duration_ns"]).max()))
        return new, notes

    def named(self, number: int) -> str:
        return self.names.get(number, f"name {number}")


class TraceSource:
    """Looks at a run directory. The newest session of each rank counts, also one that begins later."""

    def __init__(self, directory: Path, pid: int | None = None) -> None:
        """`pid`: only the session of this main process."""
        self._directory = directory
        self._pid = pid
        self._files: dict[Path, _Follow] = {}
        self._queues: dict[tuple[int, int, str], int] = {}
        self._samples = self._batches = 0
        self._first_ns = 0
        self._news: deque[str] = deque(maxlen=5)
        self._history: deque[float] = deque(maxlen=HISTORY)

    def snapshot(self) -> Snapshot:
        """Read what is new, and say how things are. `TraceError` if there is no trace yet."""
        self._find_files()
        for file in self._files.values():
            self._take(file)
        last_ns = max((file.last_ns for file in self._files.values()), default=0)
        # A run that has ended is shown as it was at its end; one that stands still goes down to nothing slowly.
        has_ended = all(file.ended or not _alive(file.header) for file in self._files.values())
        now_ns = last_ns if has_ended else min(time.time_ns(), last_ns + int(WINDOW_S * 1e9 / 2))
        for file in self._files.values():
            ends = file.recent["start_ns"] + file.recent["duration_ns"]
            file.recent = file.recent[ends > now_ns - WINDOW_S * 1e9]
        return self._summed(now_ns, last_ns)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _find_files(self) -> None:
        headers: dict[Path, Header] = {}
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            known = self._files.get(path)
            try:
                headers[path] = known.header if known else _read_header(path)
            except (TraceError, OSError):
                continue  # being written, or just deleted to keep the size bound
        newest: dict[int, str] = {}
        for header in headers.values():
            if self._pid is None or f"-{self._pid}-" in header.session:
                newest[header.rank] = max(newest.get(header.rank, ""), header.session)
        wanted = {path: header for path, header in headers.items() if newest.get(header.rank) == header.session}
        if not wanted:
            raise TraceError(f"{self._directory} holds no trace: give the directory that a loader's trace= names")
        if any(path not in wanted and path.exists() for path in self._files):
            self._begin_anew()  # another session has begun
        self._files = {path: self._files.get(path) or _Follow(path, header) for path, header in wanted.items()}

    def _begin_anew(self) -> None:
        self._files.clear()
        self._queues.clear()
        self._samples = self._batches = self._first_ns = 0

    def _take(self, file: _Follow) -> None:
        try:
            new, notes = file.read_on()
        except OSError:
            return  # deleted to keep the size bound
        if len(new):
            first = int(new["start_ns"].min())
            self._first_ns = min(self._first_ns or first, first)
        taken = new[new["kind"] == Kind.CONSUMED]
        self._samples += int(taken["count"].sum())
        self._batches += len(taken)
        for record in new[new["kind"] == Kind.QUEUE]:
            self._queues[file.header.rank, int(record["pool"]), file.named(int(record["name"]))] = int(record["count"])
        for record in new[new["kind"] == Kind.WORKER]:
            self._note_worker(file, file.named(int(record["name"])), int(record["index"]))
        for note in notes:
            if note.get("kind") == Kind.DECISION:
                self._news.append(str(note.get("text") or note.get("reason", "")))
        file.recent = np.concatenate([file.recent, new])

    def _note_worker(self, file: _Follow, what: str, number: int) -> None:
        if what == "stop":
            file.ended = "stopped"
        elif what == "end":
            self._news.append(f"worker {number} ended unexpectedly")

    # ---- summing up -------------------------------------------------------------------------------------------------

    def _summed(self, now_ns: int, last_ns: int) -> Snapshot:
        window_s = min(WINDOW_S, max(0.05, (now_ns - self._first_ns) * 1e-9))
        mains = [file for file in self._files.values() if file.header.worker == NONE]
        taken, waits = (_joined(mains, kind) for kind in (Kind.CONSUMED, Kind.WAIT))
        rate = float(taken["count"].sum()) / window_s
        self._history.append(rate)
        ranks = max(1, len({file.header.rank for file in self._files.values()}))
        silent_s = time.time() - last_ns * 1e-9
        details = {"last event": f"{silent_s:,.0f} s ago"} if silent_s > 3 else {}
        return Snapshot(
            title=str(self._directory),
            seconds=(last_ns - self._first_ns) * 1e-9,
            samples=self._samples,
            batches=self._batches,
            samples_per_s=rate,
            batches_per_s=len(taken) / window_s,
            bytes_per_s=float(taken["nbytes"].sum()) / window_s,
            wait_share=min(1.0, float(waits["duration_ns"].sum()) * 1e-9 / window_s / ranks),
            ready_share=float(np.mean((waits["flags"] & Flag.READY) > 0)) if len(waits) else None,
            queues=self._lengths(),
            details=details,
            workers=self._workers(window_s),
            ops=self._ops(),
            news=tuple(self._news),
            history=tuple(self._history),
        )

    def _lengths(self) -> dict[str, int]:
        """Queues of the newest pool of each rank."""
        newest: dict[int, int] = {}
        for rank, pool, _ in self._queues:
            newest[rank] = max(newest.get(rank, 0), pool)
        found: dict[str, int] = {}
        for (rank, pool, name), length in self._queues.items():
            if newest[rank] == pool and name in QUEUES:
                found[QUEUES[name]] = found.get(QUEUES[name], 0) + length
        return {name: found[name] for name in QUEUES.values() if name in found}

    def _workers(self, window_s: float) -> tuple[WorkerLine, ...]:
        newest: dict[int, int] = {}
        for file in self._files.values():
            newest[file.header.rank] = max(newest.get(file.header.rank, 0), file.header.pool)
        several = len(newest) > 1
        current: dict[tuple[int, int], _Follow] = {}  # a worker may have taken the place of another, and begin files
        for file in sorted(self._files.values(), key=lambda file: (file.last_ns, file.header.segment)):
            if file.header.worker == NONE or file.header.pool == newest[file.header.rank]:
                current[file.header.rank, file.header.worker] = file
        lines = []
        for _, file in sorted(current.items()):
            runs = file.recent[file.recent["kind"] == Kind.RUN]
            header = file.header
            if header.worker == NONE and not len(runs):
                continue
            samples, spent = int(runs["count"].sum()), float(runs["duration_ns"].sum()) * 1e-9
            lanes = max(1, len(np.unique(runs["thread"])))
            each = np.repeat(runs["duration_ns"] / np.maximum(1, runs["count"]), runs["count"])
            name = "main" if header.worker == NONE else f"worker {header.worker}"
            lines.append(
                WorkerLine(
                    name=f"rank {header.rank} {name}" if several else name,
                    samples_per_s=samples / window_s,
                    busy_share=min(1.0, spent / window_s / lanes),
                    median_ms=float(np.median(each)) * 1e-6 if len(each) else 0.0,
                    ended=file.ended or ("" if _alive(header) else "gone"),
                )
            )
        return tuple(lines)

    def _ops(self) -> tuple[OpLine, ...]:
        spent: dict[str, list[Any]] = {}
        for file in self._files.values():
            steps = file.recent[np.isin(file.recent["kind"], STEPS) & ((file.recent["flags"] & Flag.USER) == 0)]
            for number in np.unique(steps["name"]).tolist():
                spent.setdefault(file.named(number), []).append(steps["duration_ns"][steps["name"] == number] * 1e-6)
        joined = {name: np.concatenate(parts) for name, parts in spent.items()}
        whole = sum(float(each.sum()) for each in joined.values()) or 1.0
        lines = [
            OpLine(name, float(each.mean()), float(np.percentile(each, 90)), float(each.sum()) / whole)
            for name, each in joined.items()
        ]
        return tuple(sorted(lines, key=lambda line: -line.share))


def _joined(files: list[_Follow], kind: Kind) -> Records:
    parts = [file.recent[file.recent["kind"] == kind] for file in files]
    return np.concatenate(parts) if parts else np.empty(0, DTYPE)


def _alive(header: Header) -> bool:
    """Whether the process is there; one of another machine is taken to be."""
    return header.host != os.uname().nodename or os.path.exists(f"/proc/{header.pid}")


def running() -> dict[int, Path]:
    """Processes of this user that are writing a trace, by the id of the main process, with its directory."""
    found: dict[int, Path] = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue  # closed meanwhile
        process = link.parts[2]  # forked workers have the file open too
        if target.endswith(SUFFIX) and f"-main-pid{process}." in os.path.basename(target):
            found[int(process)] = Path(target).parent
    return found
