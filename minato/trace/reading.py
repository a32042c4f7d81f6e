"""Trace files to typed events.

    run = read_run("run1/")
    for process in run.processes:
        for event in process.events(Kind.OP): ...

A run directory may hold several sessions (a program that was started again with the same `trace=`, each with files of
its own); the newest of each rank is read unless another is asked for. A file that ends in the middle of a record was
left by a killed process: what is whole is read. The records of a process are also there as one numpy array, which is
what tables over millions of events are made from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._instrument import BLOCK, FORMAT, NONE, RECORD, SUFFIX, VERSION, Block, Flag, Kind

DTYPE = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("name", "<u2"),
        ("pool", "<u2"),
        ("thread", "<u2"),
        ("count", "<u4"),
        ("cpu_us", "<u4"),
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("batch", "<i8"),
        ("index", "<i8"),
        ("nbytes", "<i8"),
    ]
)
"""One record as numpy sees it; times are of the monotonic clock."""
assert DTYPE.itemsize == RECORD.size
Records = npt.NDArray[np.void]


class TraceError(Exception):
    """A directory or file that cannot be read as a trace: the text says why."""


@dataclass(frozen=True, slots=True)
class Event:
    """One record. Times in nanoseconds of the session's monotonic clock; see `Kind` for what the fields mean."""

    kind: Kind
    name: str
    start_ns: int
    duration_ns: int
    batch: int
    """Number in its pool; NONE (-1) if it belongs to no batch."""
    index: int
    nbytes: int
    count: int
    cpu_ns: int
    flags: Flag
    pool: int
    thread: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Note:
    """An event with fields of its own: a decision with its reason and inputs, a worker's end."""

    kind: Kind
    start_ns: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote a file."""

    session: str
    role: str
    """"main" or "worker"."""
    rank: int
    pid: int
    worker: int
    """Number of the worker in its pool; NONE for the main process."""
    pool: int
    """Of a worker: the pool it belongs to."""
    segment: int
    wall_offset_ns: int
    """From the monotonic clock to the wall clock."""
    granularity: str
    host: str


@dataclass(frozen=True)
class ProcessTrace:
    """All that one process recorded, its files put together."""

    header: Header
    names: Sequence[str]
    """Names by number."""
    records: Records
    """Of type DTYPE, in the order of writing."""
    notes: Sequence[Note]
    dropped_segments: int = 0
    """Oldest files that were deleted to keep the size bound."""
    torn: bool = False
    """The last file ends in the middle of a block: the process was killed, or the disk was full."""
    file_bytes: int = 0
    """Of all its files."""

    def of(self, *kinds: Kind) -> Records:
        """The records of some kinds."""
        return self.records[np.isin(self.records["kind"], kinds)]

    def events(self, *kinds: Kind) -> Iterator[Event]:
        """Records as typed events, of some kinds or of all, in order of their start."""
        chosen = self.of(*kinds) if kinds else self.records
        known = Kind._value2member_map_
        for record in chosen[np.argsort(chosen["start_ns"], kind="stable")].tolist():
            if record[0] in known:  # a newer minato may have written kinds that this one does not know
                yield _event(record, self.names)

    @property
    def label(self) -> str:
        """What to call the process: "main" or "worker 3"."""
        return self.header.role if self.header.worker == NONE else f"worker {self.header.worker}"


@dataclass(frozen=True)
class RunTrace:
    """A run: the processes of one session per rank."""

    path: Path
    processes: Sequence[ProcessTrace]
    unreadable: Sequence[str] = field(default=())
    """Files that could not be read, each with the reason."""

    @property
    def ranks(self) -> list[int]:
        return sorted({process.header.rank for process in self.processes})

    def of_rank(self, rank: int) -> list[ProcessTrace]:
        return [process for process in self.processes if process.header.rank == rank]

    @property
    def mains(self) -> list[ProcessTrace]:
        return [process for process in self.processes if process.header.role == "main"]

    @property
    def workers(self) -> list[ProcessTrace]:
        return [process for process in self.processes if process.header.role == "worker"]

    @property
    def start_ns(self) -> int:
        """Wall clock of the first event."""
        return min((_first(process) + process.header.wall_offset_ns for process in self._with_records), default=0)

    @property
    def end_ns(self) -> int:
        """Wall clock of the last event's end."""
        return max((_last(process) + process.header.wall_offset_ns for process in self._with_records), default=0)

    @property
    def _with_records(self) -> list[ProcessTrace]:
        return [process for process in self.processes if len(process.records)]


def sessions(path: str | Path) -> dict[int, list[str]]:
    """The sessions in a run directory, oldest first, by rank."""
    found: dict[int, set[str]] = {}
    for file in _files(Path(path)):
        header = _try_header(file)
        if header is not None:
            found.setdefault(header.rank, set()).add(header.session)
    return {rank: sorted(names) for rank, names in sorted(found.items())}


def read_run(path: str | Path, session: str | None = None) -> RunTrace:
    """Read a run directory: the newest session of each rank, or the one that is named. TraceError if there is none."""
    path = Path(path)
    by_process: dict[tuple[int, str, int, int, int], list[Path]] = {}
    unreadable = []
    for file in _files(path):
        try:
            header = _read_header(file)
        except TraceError as error:
            unreadable.append(f"{file.name}: {error}")
            continue
        who = (header.rank, header.session, header.pool, header.worker, header.pid)
        by_process.setdefault(who, []).append(file)
    newest: dict[int, str] = {}
    for rank, name, *_ in by_process:
        newest[rank] = max(newest.get(rank, ""), name)
    wanted = {(rank, name) for rank, name, *_ in by_process if name == (session or newest[rank])}
    if not wanted:
        raise TraceError(_nothing_in(path, session, sorted({name for _, name, *_ in by_process}), unreadable))
    chosen = sorted(who for who in by_process if who[:2] in wanted)
    return RunTrace(path, [_read_process(by_process[who]) for who in chosen], unreadable)


def _nothing_in(path: Path, session: str | None, known: list[str], unreadable: list[str]) -> str:
    if session is not None and known:
        return f"{path} has no session {session!r}, but {', '.join(known)}"
    why = f" ({'; '.join(unreadable)})" if unreadable else ""
    return f"{path} holds no trace: a directory was needed that a loader wrote with trace={str(path)!r}{why}"


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        raise TraceError(f"{path} is no directory: give the one that trace= named")
    return sorted(path.glob(f"*{SUFFIX}"))


def _try_header(file: Path) -> Header | None:
    try:
        return _read_header(file)
    except TraceError:
        return None


def _read_header(file: Path) -> Header:
    with file.open("rb") as stream:
        head = stream.read(BLOCK.size)
        if len(head) < BLOCK.size:
            raise TraceError("it is empty")
        kind, length = BLOCK.unpack(head)
        if kind != Block.HEADER or length > 1 << 16:
            raise TraceError("it does not begin as a trace does")
        payload = stream.read(length)
    try:
        told = json.loads(payload)
    except ValueError:
        raise TraceError("its header is cut off") from None
    if told.get("format") != FORMAT:
        raise TraceError("it does not begin as a trace does")
    if told["version"] > VERSION:
        raise TraceError(f"it has version {told['version']} of the format, this minato reads up to {VERSION}")
    return Header(**{name: told[name] for name in Header.__slots__})


def _read_process(files: list[Path]) -> ProcessTrace:
    """Put the files of one process together, in order of their segments."""
    parts: list[Records] = []
    names: dict[int, str] = {0: ""}
    notes: list[Note] = []
    torn, file_bytes = False, 0
    headers = sorted(((_read_header(file), file) for file in files), key=lambda pair: pair[0].segment)
    for _, file in headers:
        torn = False
        data = file.read_bytes()
        file_bytes += len(data)
        for kind, payload, whole in _blocks(data):
            torn = torn or not whole
            if kind == Block.RECORDS:
                parts.append(np.frombuffer(payload[: len(payload) // RECORD.size * RECORD.size], DTYPE))
            elif kind == Block.NAMES and whole:
                names.update((int(number), name) for number, name in json.loads(bytes(payload)).items())
            elif kind == Block.NOTE and whole:
                notes.append(_note(json.loads(bytes(payload))))
    records = np.concatenate(parts) if parts else np.empty(0, DTYPE)
    listed = [names.get(number, f"name {number}") for number in range(max(names) + 1)]
    return ProcessTrace(headers[0][0], listed, records, notes, headers[0][0].segment, torn, file_bytes)


def _blocks(data: bytes) -> Iterator[tuple[int, memoryview, bool]]:
    """Each block of a file: what it holds, its bytes, and whether it is all there."""
    view, at = memoryview(data), 0
    while at < len(view):
        if len(view) - at < BLOCK.size:
            yield 0, view[at:], False
            return
        kind, length = BLOCK.unpack_from(view, at)
        at += BLOCK.size
        payload = view[at : at + length]
        yield kind, payload, len(payload) == length
        at += length


def _note(told: dict[str, Any]) -> Note:
    kind, start_ns = Kind(told.pop("kind")), told.pop("start_ns")
    return Note(kind, start_ns, told)


def _event(record: tuple[int, ...], names: Sequence[str]) -> Event:
    kind, flags, name, pool, thread, count, cpu_us, start_ns, duration_ns, batch, index, nbytes = record
    return Event(
        kind=Kind(kind),
        name=names[name] if name < len(names) else f"name {name}",
        start_ns=start_ns,
        duration_ns=duration_ns,
        batch=batch,
        index=index,
        nbytes=nbytes,
        count=count,
        cpu_ns=cpu_us * 1000,
        flags=Flag(flags),
        pool=pool,
        thread=thread,
    )


def _first(process: ProcessTrace) -> int:
    return int(process.records["start_ns"].min())


def _last(process: ProcessTrace) -> int:
    return int((process.records["start_ns"] + process.records["duration_ns"]).max())
