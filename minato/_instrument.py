"""What a trace is made of, and how anything that runs leaves an event in it. Standard library only.

Covers: the kinds of events, the layout of a record, the file's blocks (docs/trace-format.md describes them for readers
in other languages), the recorder that is active in this process, `traced` and `mark` for users' own spans, and
`count_bytes` for what users' own code reads.
Does not cover: writing files (_recording.py), reading them (trace/reading.py).

A process records when a traced loader has made it active: `active()` is None otherwise, and that look is all an unused
hook costs.
"""

from __future__ import annotations

import enum
import functools
import operator
import os
import struct
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, ParamSpec, Protocol, TypeVar

FORMAT: Final = "minato-trace"
VERSION: Final = 1
SUFFIX: Final = ".mtrace"

RECORD: Final = struct.Struct("<BBHHHIIqqqqq")
"""One event: kind, flags, name, pool, thread, count, cpu_us, start_ns, duration_ns, batch, index, nbytes."""
BLOCK: Final = struct.Struct("<II")
"""In front of every block: what it holds, and its bytes without this header."""
NONE: Final = -1
"""Of a batch or an index: there is none, or it is not an integer."""


class Block(enum.IntEnum):
    """What a block of a file holds."""

    HEADER = 0x4D54_0001
    """JSON object: who wrote the file, when, and the offset to the wall clock. The first block of every file."""
    NAMES = 0x4D54_0002
    """JSON object: names by number, for the records that follow."""
    RECORDS = 0x4D54_0003
    """Whole records, one after the other."""
    NOTE = 0x4D54_0004
    """JSON object: one event with fields of its own, `kind` and `start_ns` among them."""


class Kind(enum.IntEnum):
    """Kinds of events. Numbers are part of the format: new ones are added at the end."""

    SAMPLE = 1
    """Span: one sample from its index to the finished sample. `nbytes`: of the finished sample."""
    LOADER = 2
    """Span: the part of a sample before its first transform. `nbytes`: that `count_bytes` was told in it."""
    OP = 3
    """Span: one transform of one sample, or a user's `traced` span."""
    RUN = 4
    """Span: a worker takes samples, makes them and writes them into rows of `batch`. `count`: samples; 0 for the part
    of a sample before it was parked."""
    COLLATION = 5
    """Span: the collate function on the samples of `batch`."""
    WAIT = 6
    """Span in the main process: the consumer asks for a batch until `batch` is there."""
    CONSUMED = 7
    """Moment the consumer takes `batch`. `count`: samples; `nbytes`: of memory that the batch takes."""
    TRANSFER = 8
    """Span: `batch` is pinned and its copy to a device begun."""
    QUEUE = 9
    """Length of the queue `name` at a moment, in `count`: batches ready, batches in_flight, workers, samples parked."""
    WORKER = 10
    """A worker's life: `name` is start, stop or end (seen by the main process); `index`: its number, `nbytes`: pid."""
    DECISION = 11
    """A note: the scheduler changed the number of workers; or (`of` is "offload") what goes to other machines changes.
    With reason and inputs."""
    PARKED = 12
    """A slow sample was put aside between two stages."""
    RESUMED = 13
    """It is gone on with."""
    CACHE = 14
    """Looks into the cache of samples while a run was made; `name`: hit or miss, `count`: how many."""
    OFFLOADED = 15
    """Span in the main process: work that another machine did, until it came back; `name`: the actor, `count`: samples,
    `index`: the lane, which has one call at a time, `nbytes`: that came back, `cpu_us`: the time the actor worked."""
    MARK = 16
    """A user's `mark` span, such as a training step."""
    EPOCH = 17
    """An epoch begins; `index`: its number among those of its pool."""
    STARVED = 18
    """How long the threads of this process have wanted a core and had none since they began, in `nbytes`: nanoseconds.
    Left when a process begins and ends to make samples; not where the system does not tell."""


class Flag(enum.IntFlag):
    """Bits of a record's flags."""

    READY = 1
    """WAIT: the batch was there when it was asked for."""
    FAILED = 2
    """The span ended with an exception."""
    USER = 4
    """OP: from the user's `traced`, inside whatever else goes on."""
    PARKED = 8
    """SAMPLE: it was put aside in between; the span has the length of its work, and ends when it ended."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What to record, and where; `trace="run1/"` stands for `TraceOptions("run1/")`."""

    directory: str | os.PathLike[str]
    granularity: str = "auto"
    """"batch": no spans of samples and operations. "op": those of every sample. "auto": of as many samples as cost at
    most half a percent of the time; of all of them from a few milliseconds per sample on."""
    segment_bytes: int = 64 << 20
    """A process begins another file when one is this long."""
    max_bytes: int = 1 << 30
    """What the files of one process may take together; its oldest file is deleted for a new one."""

    def __post_init__(self) -> None:
        directory: Any = self.directory  # whatever the caller gave
        if not isinstance(directory, (str, os.PathLike)):
            raise TypeError(f"trace must be a directory (str or Path) or TraceOptions, got {directory!r}")
        if not os.fspath(directory):
            raise ValueError("trace must name a directory, got an empty string; leave trace=None to record nothing")
        if self.granularity not in ("auto", "batch", "op"):
            raise ValueError(f"granularity must be 'auto', 'batch' or 'op', got {self.granularity!r}")
        if self.segment_bytes < 1 << 16:
            raise ValueError(f"segment_bytes must be at least 65536, got {self.segment_bytes}")
        if self.max_bytes < 2 * self.segment_bytes:
            raise ValueError(
                f"max_bytes must hold two files of segment_bytes={self.segment_bytes}, got max_bytes={self.max_bytes}"
            )


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """All a process needs to know to record: made by the main process, carried to workers."""

    directory: str
    session: str
    """Common to all files of one main process and its workers: when it began, and its process id."""
    rank: int
    wall_offset_ns: int
    """From the monotonic clock to the wall clock: one for the session, so that its processes agree."""
    granularity: str
    segment_bytes: int
    max_bytes: int
    pool: int = 0
    """Number of the pool of workers (or of the epoch without workers) in its session; batches are counted in it."""


class Instrument(Protocol):
    """Where events go. Any thread may call; nothing is raised, whatever happens to the files."""

    index: int
    """Key of the sample being made, NONE if that is not known."""

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
    ) -> None:
        """Leave an event; times are of `time.monotonic_ns`. `pool` None: that of the process."""

    def note(self, kind: Kind, start_ns: int, **fields: Any) -> None:
        """Leave an event with fields of its own; they must fit into JSON."""

    def span(self, kind: Kind, name: str, start_ns: int, duration_ns: int, cpu_ns: int, flags: int) -> None:
        """Leave a span of code that may be at work on a sample whose batch is not known yet."""

    def looked_up(self, hit: bool, samples: int = 1) -> None:
        """Count samples that were found in the cache, or were not."""


_active: Instrument | None = None


def active() -> Instrument | None:
    """What records in this process, if anything does."""
    return _active


def activate(instrument: Instrument | None) -> None:
    """Let events of this process go to `instrument`."""
    global _active
    _active = instrument


os.register_at_fork(after_in_child=lambda: activate(None))  # its files are the parent's

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Span:
    """A span with a name: a context manager and a decorator. May be entered again while it is open."""

    __minato_random__ = False  # as by `minato.deterministic`: its clocks are none of what it spans

    def __init__(self, kind: Kind, name: Any) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"a span needs a name, such as 'decode', got {name!r}")
        self._kind = kind
        self._name = name
        self._open = threading.local()

    def __enter__(self) -> _Span:
        if _active is not None:
            if not hasattr(self._open, "starts"):
                self._open.starts = []
            self._open.starts.append((time.monotonic_ns(), time.thread_time_ns()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        starts = getattr(self._open, "starts", None)
        if not starts:
            return
        start, cpu = starts.pop()
        if _active is not None:
            flags = (Flag.USER if self._kind is Kind.OP else 0) | (0 if kind is None else Flag.FAILED)
            spent, used = time.monotonic_ns() - start, time.thread_time_ns() - cpu
            _active.span(self._kind, self._name, start, spent, used, flags)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def spanned(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if _active is None:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return spanned

    def __reduce__(self) -> tuple[type[_Span], tuple[Kind, str]]:
        return _Span, (self._kind, self._name)


def traced(name: str) -> _Span:
    """A span of a dataset's own code in the trace: `with minato.traced("decode"):`, or `@minato.traced("decode")`.

    Shows up among the operations of the sample at hand. Without tracing it costs a look.
    """
    return _Span(Kind.OP, name)


def mark(name: str) -> _Span:
    """A span of the program's own code in the trace: `with minato.mark("train_step"):`, or as a decorator."""
    return _Span(Kind.MARK, name)


class Tally:
    """Adds up what `count_bytes` is told inside its `with` block: by this thread or task, and by whatever runs in a
    copy of its context (tasks begun there, `asyncio.to_thread`). The one around it is told as well."""

    __slots__ = ("_lock", "_outer", "_token", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()
        self._outer: Tally | None = None
        self._token: Token[Tally | None] | None = None

    def __enter__(self) -> Tally:
        self._token = token = _tally.set(self)
        self._outer = None if token.old_value is Token.MISSING else token.old_value
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        assert self._token is not None
        _tally.reset(self._token)
        self._token = None

    def add(self, nbytes: int) -> None:
        """So many more."""
        with self._lock:
            self.nbytes += nbytes
        if self._outer is not None:
            self._outer.add(nbytes)


_tally: ContextVar[Tally | None] = ContextVar("minato_tally", default=None)


def count_bytes(n: int) -> None:
    """Say that `n` bytes were read for the sample at hand: `minato.count_bytes(len(body))`.

    For ways of reading that nobody can see from outside: a client in C, a memory map, a socket. Bytes that Python or a
    library reads from a file by `read` are seen anyway, and are not to be told again. Counts in `minato.diagnose` and
    in traces, while they look at the sample; otherwise it costs a look. To be called where the sample is made, in its
    thread or task, in tasks that it begins, or in `asyncio.to_thread`; in other threads nobody knows for which sample
    it is.
    """
    tally = _tally.get()
    if tally is None:
        return
    try:
        nbytes = operator.index(n)
    except TypeError:
        raise TypeError(f"count_bytes needs a number of bytes, an int, got {n!r}") from None
    if nbytes < 0:
        raise ValueError(f"count_bytes needs a number of bytes, 0 or more, got {nbytes}")
    tally.add(nbytes)
