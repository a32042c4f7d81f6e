"""Writes the events of one process into its trace files. Standard library only.

Records are packed as they come and written per batch (`flush`), by one `write` each time: a process that is killed
leaves a readable file that lacks at most what belongs to its last batch. Nothing here ever raises into the loader: when
a file cannot be written (disk full, directory gone), recording ends with one warning.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from typing import Any

from ._instrument import BLOCK, FORMAT, NONE, RECORD, SUFFIX, VERSION, Block, Kind, TraceSpec

MOST_BUFFERED = 64 << 10  # bytes; more is written before the batch is done
_MOST_NAMES = 0xFFFF
_pack, _pack_header = RECORD.pack, BLOCK.pack
_RECORDS = int(Block.RECORDS)
_log = logging.getLogger("minato.trace")

_this_process = os.getpid()
"""Kept here, since asking is a system call."""


def _in_a_fork() -> None:
    global _this_process
    _this_process = os.getpid()


os.register_at_fork(after_in_child=_in_a_fork)

Pending = tuple[int, int, int, int, int, int, int, int, int]
"""An event whose batch is not known yet: kind, flags, name, thread, cpu_us, start_ns, duration_ns, index, nbytes."""


class Recorder:
    """The trace files of this process. One per process and directory; shared by the loaders of the main process."""

    __minato_random__ = False  # as by `minato.deterministic`: what is recorded is none of a sample's making

    def __init__(self, spec: TraceSpec, role: str, worker: int = NONE, pid: int | None = None) -> None:
        """`pid`: what the files say, if not this process's."""
        self.spec = spec
        self.index = NONE
        self.pending: list[Pending] | None = None
        """Spans that wait for the number of their batch; None: nobody will tell it."""
        self.looks = [0, 0]
        """Misses and hits of the cache since they were told last."""
        self._role = role
        self._worker = worker
        self._made_in = os.getpid()
        self.pid = self._made_in if pid is None else pid
        self._lock = threading.RLock()  # over the file; `record` does without
        self._buffer = bytearray()
        self.extend = self._buffer.extend
        """Add packed records: for what happens so often that a call more counts."""
        self.thread = 0
        self._names: dict[str, int] = {"": 0}
        self._unwritten_names: dict[str, int] = {}
        self._threads: dict[int, int] = {threading.get_ident(): 0}
        self._holders = 0
        self._file = -1
        self._segment = 0
        self._segment_bytes = 0
        self._kept: deque[str] = deque()
        """Files of this process, oldest first."""
        self._most_in_segment = spec.segment_bytes
        self._most_kept = max(2, spec.max_bytes // spec.segment_bytes)
        self._ended = False
        self._complaint = ""

    # ---- events -----------------------------------------------------------------------------------------------------

    def record(
        self,
        kind: Kind,
        start_ns: int,
        duration_ns: int = 0,
        *,
        name: str = "",
        batch: int = NONE,
        index: int = NONE,
        nbytes: int = 0,
        count: int = 1,
        cpu_ns: int = 0,
        flags: int = 0,
        pool: int | None = None,
        thread: int = 0,
    ) -> None:
        """Leave an event. See `Instrument`."""
        number = self._names.get(name)
        if number is None:
            number = self.name(name)
        pool = self.spec.pool if pool is None else pool
        cpu_us = min(cpu_ns // 1000, 0xFFFFFFFF)
        self._buffer.extend(
            _pack(
                kind, flags, number, pool & 0xFFFF, thread, count, cpu_us, start_ns, duration_ns, batch, index, nbytes
            )
        )

    def put(
        self,
        kind: int,
        start_ns: int,
        duration_ns: int,
        batch: int,
        count: int,
        pool: int,
        cpu_ns: int = 0,
        nbytes: int = 0,
        flags: int = 0,
        thread: int = 0,
    ) -> None:
        """`record` for what happens with every batch: without a name, and in less time."""
        self._buffer.extend(
            _pack(kind, flags, 0, pool, thread, count, cpu_ns // 1000, start_ns, duration_ns, batch, NONE, nbytes)
        )

    def span(self, kind: Kind, name: str, start_ns: int, duration_ns: int, cpu_ns: int, flags: int) -> None:
        """Leave a span of the calling thread; one of a sample waits until its batch is known."""
        if self._ended:
            return
        thread = self._thread()
        number, cpu_us = self.name(name), min(cpu_ns // 1000, 0xFFFFFFFF)
        if self.pending is not None and kind is not Kind.MARK:
            self.pending.append((kind, flags, number, thread, cpu_us, start_ns, duration_ns, self.index, 0))
            return
        pool = self.spec.pool & 0xFFFF
        self._buffer.extend(
            _pack(kind, flags, number, pool, thread, 1, cpu_us, start_ns, duration_ns, NONE, self.index, 0)
        )
        if len(self._buffer) > MOST_BUFFERED:
            self.flush()

    def settle(self, spans: list[Pending], batch: int, pool: int | None = None) -> None:
        """The batch of spans that waited for it."""
        pool = (self.spec.pool if pool is None else pool) & 0xFFFF
        extend = self._buffer.extend
        for kind, flags, name, thread, cpu_us, start_ns, duration_ns, index, nbytes in spans:
            extend(_pack(kind, flags, name, pool, thread, 1, cpu_us, start_ns, duration_ns, batch, index, nbytes))

    def looked_up(self, hit: bool, samples: int = 1) -> None:
        """Count samples that were found in the cache, or were not."""
        self.looks[hit] += samples

    def tell_looks(self, batch: int, pool: int | None = None, thread: int = 0, looks: list[int] | None = None) -> None:
        """Leave what was counted, of a run of samples of `batch`."""
        counted = self.looks if looks is None else looks
        for name, number in (("miss", 0), ("hit", 1)):
            count, counted[number] = counted[number], 0
            if count:
                self.record(
                    Kind.CACHE, time.monotonic_ns(), name=name, batch=batch, count=count, pool=pool, thread=thread
                )

    def tell_starved(self, pool: int | None = None) -> None:
        """Leave how long this process's threads have wanted a core and had none, if the system tells."""
        starved_ns = _starved_ns()
        if starved_ns is not None:
            self.record(Kind.STARVED, time.monotonic_ns(), nbytes=starved_ns, pool=pool)

    def note(self, kind: Kind, start_ns: int, **fields: Any) -> None:
        """Leave an event with fields of its own."""
        text = json.dumps({"kind": int(kind), "start_ns": start_ns, "pool": self.spec.pool, **fields}, default=str)
        self.flush(_block(Block.NOTE, text.encode()))

    def name(self, name: str) -> int:
        """The number that stands for a name in records."""
        number = self._names.get(name)
        if number is None:
            with self._lock:
                if len(self._names) >= _MOST_NAMES:
                    name = "(more names than a trace can hold)"
                number = self._names.setdefault(name, len(self._names))
                self._unwritten_names[name] = number
        return number

    def keep_threads(self, count: int) -> None:
        """Give the numbers from 1 to `count` to no thread: they are those of lanes."""
        self._threads |= {-number: number for number in range(1, count + 1)}  # no thread's ident is negative

    def _thread(self) -> int:
        ident = threading.get_ident()
        number = self._threads.get(ident)
        if number is None:
            number = self._threads[ident] = len(self._threads) & 0xFFFF
        return number

    # ---- files ------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keep the file open, until as many `let_go`."""
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """Write what there is, and close the file if nobody else holds it."""
        self.flush()
        with self._lock:
            self._holders -= 1
            self._close_unheld()

    @property
    def ended(self) -> bool:
        """Whether nothing is recorded any more, since a file could not be written."""
        return self._ended

    def flush(self, extra: bytes = b"") -> None:
        """Write what was recorded so far, and a further block."""
        if self._made_in != _this_process:
            return  # a forked copy
        with self._lock:
            data = bytes(self._buffer)
            del self._buffer[: len(data)]  # not clear(): another thread may have added since
            if self._ended or not (data or extra):
                return
            try:
                size = self._segment_bytes + len(data) + BLOCK.size
                if extra or self._unwritten_names or self._file < 0 or size > self._most_in_segment:
                    self._write(data, extra)
                else:  # as nearly always: with no call more than this needs, see TracedBoard
                    out = _pack_header(_RECORDS, len(data)) + data
                    self._segment_bytes += len(out)
                    if (written := os.write(self._file, out)) < len(out):
                        self._write_all(out[written:])
            except OSError as error:
                self._end(error)
            finally:
                if self._holders <= 0:
                    self._close()

    def _write(self, data: bytes, extra: bytes) -> None:
        out = (_block(Block.RECORDS, data) if data else b"") + extra
        if self._unwritten_names:
            names = {str(number): name for name, number in self._unwritten_names.items()}
            out = _block(Block.NAMES, json.dumps(names).encode()) + out
            self._unwritten_names = {}
        if self._segment_bytes and self._segment_bytes + len(out) > self._most_in_segment:
            self._begin_next()
        if self._file < 0:
            self._open()
        self._write_new(out)

    def _write_new(self, out: bytes) -> None:
        self._segment_bytes += len(out)
        self._write_all(out)

    def _write_all(self, out: bytes) -> None:
        while out:
            out = out[os.write(self._file, out) :]

    def _open(self) -> None:
        os.makedirs(self.spec.directory, exist_ok=True)
        path = self._path()
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        if path not in self._kept:
            self._kept.append(path)
        if not os.fstat(self._file).st_size:  # new, or deleted by the user since a loader before this one wrote to it
            self._segment_bytes = 0
            self._write_new(_block(Block.HEADER, json.dumps(self._header()).encode()))
            known = {str(number): name for name, number in self._names.items() if name}
            self._unwritten_names = {}
            if known:
                self._write_new(_block(Block.NAMES, json.dumps(known).encode()))

    def _begin_next(self) -> None:
        """Begin another file; the oldest goes when there are too many."""
        self._close()
        self._segment += 1
        self._segment_bytes = 0
        while len(self._kept) >= self._most_kept:
            with suppress(FileNotFoundError):  # the user was faster
                os.unlink(self._kept.popleft())

    def _path(self) -> str:
        spec = self.spec
        who = "main" if self._worker == NONE else f"pool{spec.pool}-worker{self._worker}"
        name = f"rank{spec.rank}-{spec.session}-{who}-pid{self.pid}.{self._segment:04d}{SUFFIX}"
        return os.path.join(spec.directory, name)

    def _header(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "format": FORMAT,
            "version": VERSION,
            "session": spec.session,
            "role": self._role,
            "rank": spec.rank,
            "pid": self.pid,
            "worker": self._worker,
            "pool": spec.pool,
            "segment": self._segment,
            "wall_offset_ns": spec.wall_offset_ns,
            "granularity": spec.granularity,
            "host": platform.node(),
            "python": platform.python_version(),
            "record_bytes": RECORD.size,
        }

    def _close_unheld(self) -> None:
        if self._holders <= 0:
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _end(self, error: OSError) -> None:
        self._ended = True
        self.pending = None
        self._close()
        self._complaint = f"tracing ends: {self.spec.directory} cannot be written ({error}); the loader goes on without"
        _log.info("%s %d: %s", self._role, self._worker, self._complaint)

    def tell(self) -> None:
        """Warn, once, if recording has ended. For a moment at which an exception does no harm: warnings may be errors.
        Workers leave it to the main process, which fails to write as well."""
        complaint, self._complaint = self._complaint, ""
        if complaint:
            warnings.warn(complaint, RuntimeWarning, stacklevel=4)


def _starved_ns() -> int | None:
    """Of the threads that there are; None: the system does not tell."""
    try:
        tasks = [f"/proc/self/task/{task}/schedstat" for task in os.listdir("/proc/self/task")]
        return sum(_second_number(task) for task in tasks)
    except (OSError, IndexError, ValueError):  # no such files here, or a thread ended meanwhile
        return None


def _second_number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read().split()[1])


def _block(kind: Block, payload: bytes) -> bytes:
    return BLOCK.pack(kind, len(payload)) + payload
