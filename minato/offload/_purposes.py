"""What actors may be asked for: samples, whole batches, or the transforms of samples that were read here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .._errors import CapturedError
from .._plan import Collate
from .._records import Run
from ._actor import RESULT, Reply
from ._lanes import Desk, Lane
from ._splitting import Reading, begin_sample, finish, read
from ._wire import unwrap, weigh, wrap


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an actor is asked for."""

    method: str | None
    """None: nothing is left to be done there."""
    argument: Any = None
    payload: Any = None
    """What is kept here until it answers; without a method, the samples."""
    nbytes: int = 0
    """Of samples that are sent along."""


class Purpose(Protocol):
    """One kind of work."""

    name: str
    """Actors that can do one kind of work may fail at another: data may be missing on their machine."""
    whole: bool
    """Whether whole batches are asked for."""

    def prepare(self, desk: Desk, lane: Lane, run: Run, /) -> Prepared: ...

    def take_in(self, desk: Desk, lane: Lane, payload: Any, reply: Reply, /) -> None: ...


class Fetching:
    """Samples, or whole batches: read and transformed there."""

    name = "read"

    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def prepare(self, desk: Desk, lane: Lane, run: Run) -> Prepared:
        return Prepared("fetch", desk.job(lane, run, self.whole))

    def take_in(self, desk: Desk, lane: Lane, _payload: Any, reply: Reply) -> None:
        kind, _, parcel = reply
        if kind == RESULT:
            desk.hand_in_batch(lane, parcel)
        else:
            desk.hand_in(lane, unwrap(parcel, writable=desk.collate is not Collate.ROWS))


class Transforming:
    """Read here, transformed there."""

    name = "transform"
    whole = False

    def prepare(self, desk: Desk, _lane: Lane, run: Run) -> Prepared:
        seeds = desk.seeds(run)
        kept = [_begin(desk.program.dataset, key, seed) for key, seed in zip(run.keys, seeds, strict=True)]
        halves = [one.half for one in kept if isinstance(one, Reading)]
        if halves:
            parcel = wrap(halves)
            return Prepared("transform", parcel, (kept, seeds), weigh(parcel))
        samples = [make_here(desk.program.dataset, key, seed) for key, seed in zip(run.keys, seeds, strict=True)]
        return Prepared(None, payload=samples)

    def take_in(self, desk: Desk, lane: Lane, payload: Any, reply: Reply) -> None:
        (kept, seeds), run = payload, lane.run
        assert run is not None
        values = iter(unwrap(reply[2], writable=desk.collate is not Collate.ROWS))
        desk.hand_in(
            lane,
            [
                _complete(desk.program.dataset, key, seed, one, values)
                for key, seed, one in zip(run.keys, seeds, kept, strict=True)
            ],
        )


def _begin(dataset: Any, key: Any, seed: int) -> Reading | None:
    """None: the sample is to be made as a whole, error and all."""
    try:
        return read(dataset, key, seed)
    except Exception:
        return None


def _complete(dataset: Any, key: Any, seed: int, reading: Reading | None, values: Any) -> Any:
    if reading is None:
        return make_here(dataset, key, seed)
    value = next(values)
    if type(value) is CapturedError:
        return make_here(dataset, key, seed)  # its error is to be the one it has here
    done, sample = finish(reading, value)
    return sample if done else make_here(dataset, key, seed)


def make_here(dataset: Any, key: Any, seed: int) -> Any:
    """A sample, made here."""
    begin_sample(seed)
    try:
        return dataset[key]
    except Exception as error:
        return CapturedError.capture(error, f"in minato's agent, fetching sample index {key!r}")


def purpose_of(placement: str) -> Purpose:
    """The kind of work that a placement means."""
    if placement == "transform":
        return Transforming()
    return Fetching(whole=placement == "batch")
