"""The seams between the engine and what users hand in: small protocols that side packages implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ._plan import WorkerPlan


@dataclass(frozen=True, slots=True)
class Seat:
    """What an engine offers to the process that works for other machines: descriptors, all of them the engine's own,
    and how to read what is behind them."""

    plan: WorkerPlan
    dataset: Any
    base_seed: int
    control: int
    batches: int
    """Batch records of the control block."""
    workers: int
    """Worker records of the control block, lanes included."""
    first_lane: int
    arena: int
    wake: int
    """eventfd: written by the engine when work is set aside."""
    ready: int
    """eventfd: to be written when a batch is ready, or something was given back."""
    worker_pids: Callable[[], Sequence[int]]
    cores: float
    """Cores that this process and its workers may use."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the remote side wants the engine to do now."""

    shared: bool = True
    """Whether workers here may take what is set aside."""
    extra_batches: int = 0
    """Batches in flight beyond the plan's."""
    wake: bool = False
    """Whether something was given back for workers here to take."""
    holder: int | None = None
    """pidfd of the process that has the lanes; None: none has, and what they had in hand is to be posted again."""


class RemoteWork(Protocol):
    """The remote side of one engine. Called by the consuming thread; no call waits, but for `detach`."""

    due: float
    """When to call `look` again, on the monotonic clock, while the consumer waits."""

    def set_aside(self, tickets: int) -> int:
        """How many of the next batch's tickets go to the remote side."""

    def asked(self) -> None:
        """The consumer asks for a batch."""

    def returned(self, samples: int, waited_s: float) -> None:
        """It got one, and waited so many seconds for it: what `next` itself takes is not among them."""

    def look(self) -> Orders:
        """See what has happened since the last call."""

    def recall(self, why: str) -> Orders:
        """Have everything that is in hand given up at once."""

    def detach(self) -> None:
        """The engine ends: nothing of the seat may be used once this returns."""


class RemoteSide(Protocol):
    """Other machines, as a loader sees them. Lives as long as the loader, with one engine at a time."""

    lanes: int
    """Pieces of work that may be under way at once."""

    def attach(self, seat: Seat) -> RemoteWork | None:
        """Begin to work for an engine. None: it works for another one at the moment."""

    def stats(self) -> dict[str, Any]:
        """Fields of `LoaderStats` that are about offloading."""

    def close(self) -> None:
        """End everything that was started. Idempotent."""


class Offload(Protocol):
    """The `offload` argument."""

    most_remote: int
    """Actors there may be."""
    keeps_batches: bool
    """Whether batches are made as a whole elsewhere, so that only whole batches may overtake."""

    def check(self, dataset: Any, fetcher: str) -> None:
        """Raise ValueError if what is asked for cannot be done with a dataset and a way to fetch from it."""

    def open(self) -> RemoteSide:
        """For one loader."""
