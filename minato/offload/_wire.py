"""What the main process, its agent and the actors say to each other. Plain frozen records."""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._plan import Collate, Order
from .._queues import codec

MOST_MESSAGE = 1 << 16  # bytes; messages between the main process and its agent are small
MOST_FDS = 8


# ---- main process to agent -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """How to reach the cluster, and what may be used of it. The first message."""

    address: str
    or_local: bool
    """Whether to start a cluster here if nobody answers there."""
    most_actors: int
    most_bytes: int
    """Bytes of samples under way."""
    bytes_per_s: float | None
    call_timeout_s: float
    ranks: int
    """Processes of a distributed training, which share the cluster."""
    use_this_node: bool | None
    local_cpus: int | None
    namespace: str
    runtime_env: dict[str, Any] | None
    resources: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class Attach:
    """An engine to work for. Its descriptors come along, in the order of the fields of `Seat`; then the program's."""

    order: Order
    collate: Collate
    mends: bool
    together: bool
    """Samples are fetched by whole batches."""
    fetches: int
    """Samples that a worker fetches at once."""
    is_traced: bool
    num_workers: int
    base_seed: int
    batches: int
    workers: int
    first_lane: int
    cargo: str
    """Digest of the pickled dataset and functions."""
    has_cargo: bool
    """Whether they come along: not if they are what they were."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is to be done from now on."""

    phase: int
    """Counts the assignments; reports name the one they are about."""
    placement: str
    actors: int
    beyond: bool
    """Whether to take work that is not set aside, if there is nothing else to do."""


@dataclass(frozen=True, slots=True)
class Detach:
    """The engine ends; to be answered with Detached."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End."""


# ---- agent to main process -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The cluster was joined or started."""

    nodes: tuple[str, ...]
    """Name and CPUs of each node that may be used."""
    actors: int
    """Actors they have room for."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was done, from time to time. Counters are of one phase, but for the total."""

    time_s: float
    """Monotonic clock of this machine."""
    phase: int
    actors: int
    """Actors that can be given work in this placement."""
    calls: int
    samples: int
    nbytes: int
    cpu_s: float
    """CPU time of the agent."""
    total_samples: int
    idle_s: float = 0.0
    """Seconds of this phase, times the share of the actors, without work to be given to them."""
    refused: str = ""
    """Why no actor can be given work in this placement, if that is certain."""


@dataclass(frozen=True, slots=True)
class Span:
    """A call that came back, for the trace."""

    start_ns: int
    """Monotonic clock of this machine."""
    duration_ns: int
    work_ns: int
    """That the actor worked."""
    batch: int
    samples: int
    nbytes: int
    actor: int
    lane: int


@dataclass(frozen=True, slots=True)
class Spans:
    """Calls that came back since the last time; only if the loader is traced."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Returned:
    """Tickets were given back."""

    samples: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something is wrong with the cluster."""

    text: str
    fatal: bool
    """Whether the agent ends because of it."""


@dataclass(frozen=True, slots=True)
class Detached:
    """Nothing of the engine is in use any more."""


class Line:
    """A line between two processes: whole messages, with descriptors."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object, fds: tuple[int, ...] = (), within_s: float = 0.0) -> bool:
        """False: the other end is gone, or has not listened for long. `within_s`: it is listening just now, and may be
        waited for."""
        data = pickle.dumps(message)
        for last in (within_s == 0, True):
            try:
                socket.send_fds(self._socket, [data], fds)
            except BlockingIOError:
                if not last:
                    select.select([], [self._socket], [], within_s)
            except OSError:
                return False
            else:
                return True
        return False

    def receive(self) -> tuple[Any, list[int]] | None:
        """The next message and its descriptors, which belong to the caller; None: there is none at the moment.
        EOFError: the other end is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MOST_MESSAGE, MOST_FDS)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return pickle.loads(data), fds

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


# ---- agent and actors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """Samples to be made: read and transformed."""

    keys: list[Any]
    seeds: list[int]
    mends: bool
    together: bool
    """One `__getitems__` call for all."""
    collate: Collate | None
    """Hand back the batch made of them; None: the samples."""
    collate_seed: int


@dataclass(frozen=True, slots=True)
class Greeting:
    """What an actor says of itself."""

    versions: tuple[str, ...]
    node: str
    cpus: int


def versions() -> tuple[str, ...]:
    """What has to be the same everywhere, up to the last number of a version."""
    import platform

    import torch

    from .. import __version__

    named = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    short = [f"{name} {'.'.join(version.split('+')[0].split('.')[:2])}" for name, version in named.items()]
    return (*short, f"minato {__version__}")


Parcel = list[Any]
"""A packed object as Ray carries it: the pickle, then its buffers as arrays, which stay in the object store."""


def wrap(value: object) -> Parcel:
    """Raises whatever pickling the value raises."""
    packed = codec.pack(value)
    return [packed.stream, *(np.frombuffer(buffer, np.uint8) for buffer in packed.buffers)]


def weigh(parcel: Parcel) -> int:
    """Bytes of a parcel."""
    return sum(len(part) for part in parcel)


def unwrap(parcel: Parcel, writable: bool) -> Any:
    """The object. `writable`: it may be changed; otherwise its large buffers are in memory that is read-only."""
    stream, *buffers = parcel
    return pickle.loads(stream, buffers=[bytearray(b) if writable else b for b in buffers])


def as_packed(parcel: Parcel) -> codec.Packed:
    """For writing it into the arena as it is."""
    stream, *buffers = parcel
    views = [memoryview(buffer) for buffer in buffers]
    return codec.repack(stream, views)
