"""Records that cross threads, processes and the public surface. Frozen; every unit is in its field's note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class Asked(list[Any]):
    """The keys of a batch, and the sampler's own object that they came in: torch gives that to `__getitems__`."""

    def __init__(self, given: Any, keys: Iterable[Any]) -> None:
        super().__init__(keys)
        self.given = given

    def __reduce__(self) -> tuple[Any, ...]:
        return Asked, (self.given, list(self))  # both: a set may have another order elsewhere


def keys_of(batch: Any, together: bool) -> list[Any]:
    """The keys of a sampler's batch. `together`: they are asked for by one `__getitems__` call."""
    if type(batch) is Asked:
        return batch
    if type(batch) is list or not together or not hasattr(batch, "__len__"):  # the last: it can be read only once
        return list(batch)
    return Asked(batch, batch)


@dataclass(frozen=True, slots=True)
class Run:
    """Tickets that a worker took from the board: consecutive places of one batch."""

    batch: int
    """Number of the batch the tickets belong to, counted from the pool's start."""
    first: int
    """First row of the run within that batch."""
    epoch: int
    seed: int
    """Seed of the epoch, from which each sample's own seed is derived."""
    position: int
    """Position in the epoch of the first ticket of the run."""
    keys: list[object]
    place: Place | None = None
    """Rows for all samples of the run, if they were claimed with the tickets."""
    shift: int = 0
    """From positions to those that seeds are derived from."""
    is_early: bool = False
    """The run is one sample that was known to be slow, taken before its turn."""
    origins: Sequence[int] | None = None
    """Positions that seeds are derived from, if they do not follow on each other."""
    alone: bool = False
    """Nothing else is to be fetched by the same process meanwhile: its sample may be what kills workers."""

    def origin(self, number: int) -> int:
        """The position that the seed of a sample of the run is derived from."""
        return self.position + self.shift + number if self.origins is None else self.origins[number]


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """Tickets of a batch that are to be begun before their turn."""

    places: Sequence[int]
    """In the batch, the slowest first."""
    lead: int
    """Batches: how long before the turn of their own batch."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream as it was after some batch, or after its end."""

    of: str = ""
    """Whose `state_dict()` it is: "dataset" or "iterator"; "": neither has one."""
    state: object = None
    generators: Mapping[str, object] | None = None
    """States of the process's random generators; None: as they were when the stream began."""
    began: Mapping[str, object] | None = None
    """The same when the stream began, in the first state of a stream that did not begin with its worker."""
    ended: bool = False
    """Whether the stream is known to have nothing left."""
    error: object = None
    """What `state_dict()` raised, captured."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a worker's stream begins when it was interrupted: the key of the first batch that is asked of it."""

    skip: int
    """Batches that were delivered, if there is no state."""
    saved: StreamState | None
    generators: Mapping[str, object] | None
    """States of the process's random generators to begin with; None: leave them."""
    ended: bool = False
    """The stream is over: its worker is only put where it was."""
    is_new: bool = False
    """The stream begins anew, after an epoch that left its worker as `saved` says."""


@dataclass(frozen=True, slots=True)
class Hand:
    """Tickets a worker has in hand: `count` of them, from place `first` of `batch` on."""

    batch: int
    first: int
    count: int
    keys: list[object]
    current: int | None = None
    """Place in `batch` of the ticket whose sample was being made, if that is known."""
    collating: int | None = None
    """The batch that was being collated."""
    uncommitted: range = range(0)
    """Positions of the samples that were being collated, if they were in hand and not yet in rows."""

    @property
    def key(self) -> object:
        """The key of the current ticket."""
        return None if self.current is None else self.keys[self.current - self.first]


@dataclass(frozen=True, slots=True)
class Place:
    """Consecutive rows of one batch that a worker may write."""

    batch: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class CollateTask:
    """All rows of `batch` are there, but the worker that should have collated them is gone."""

    batch: int


@dataclass(frozen=True, slots=True)
class QueueMoment:
    """Lengths of a loader's queues at one moment."""

    time_s: float
    """Seconds since the loader was made."""
    workers: int
    """That are meant to run."""
    batches_ready: int
    batches_in_flight: int
    samples_parked: int
    wait_seconds: float
    """That the consumer has spent waiting since the loader was made."""
    slow_threshold: float | None
    """Seconds from which on a sample counted as slow."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """What one stage of the pipeline took lately. Seconds."""

    name: str
    """"load", or the transform's."""
    median: float
    p75: float
    p95: float
    mean: float


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What `loader.stats()` returns: counters since the loader was made, and the state right now."""

    STATE: ClassVar[tuple[str, ...]] = (
        "workers",
        "batches_in_flight",
        "batches_ready",
        "slots",
        "slots_lent",
        "window",
        "memory_budget",
        "queue_fast",
        "queue_slow",
        "queue_temp",
        "queue_batch",
        "workers_slow",
    )
    """Fields that tell the state of running iterators; the others count."""

    workers: int = 0
    """Worker processes alive now."""
    worker_restarts: int = 0
    """Workers that died and were replaced."""
    batches_delivered: int = 0
    samples_delivered: int = 0
    bytes_delivered: int = 0
    """Bytes of shared memory that delivered batches took."""
    batches_in_flight: int = 0
    """Dispatched to workers and not yet delivered."""
    batches_ready: int = 0
    """Complete and waiting for the consumer. Near zero while the consumer waits: the workers are the bottleneck."""
    batches_zero_copy: int = 0
    """Delivered without being copied as a whole: large tensors are views of a lent slot, small ones (16 KiB or less)
    are copies."""
    batches_copied: int = 0
    """Copied out because the consumer still held earlier batches and no slot was free for lending."""
    slots: int = 0
    """Batch-sized pieces of the arena in existence; grows to what is in flight plus what the consumer holds."""
    slots_lent: int = 0
    """Slots under tensors that the consumer still holds."""
    waits: int = 0
    """Times the consumer found no batch ready."""
    wait_seconds: float = 0.0
    """Seconds the consumer spent waiting for batches."""
    steps: int = 0
    """Times the consumer came for another batch of the same epoch; with workers only, as the next."""
    step_seconds: float = 0.0
    """Seconds it was at its own work before it came: neither waiting for batches, nor for workers to start."""
    window: int = 0
    """Batches the loader currently keeps in flight; below the plan's when the memory budget is near."""
    memory_budget: int = 0
    """Bytes that batches in flight may take."""
    epochs_started_ahead: int = 0
    """Epochs whose first samples were under way before the consumer asked for them."""
    samples_fast: int = 0
    """Samples that workers finished within the threshold, or while there was none."""
    samples_slow: int = 0
    """Samples that took longer than the threshold of their time."""
    samples_parked: int = 0
    """Times a slow sample was put aside between two stages."""
    largest_deferral: int = 0
    """Batches: the furthest that a sample has fallen behind the batch it would have been in in order."""
    queue_fast: int = 0
    """Samples made within the threshold, in batches that are not complete, now."""
    queue_slow: int = 0
    """The same of samples that took longer."""
    queue_temp: int = 0
    """Slow samples put aside, unfinished, now."""
    queue_batch: int = 0
    """Complete batches that wait for the consumer, now: the same as `batches_ready`."""
    workers_slow: int = 0
    """Workers that are at a sample past the threshold, now."""
    slow_threshold: float | None = None
    """Seconds from which on a sample counts as slow; None: there are no slow samples, or not enough is known yet."""
    slow_share: float = 0.0
    """Share of the last samples that took longer."""
    sample_median: float = 0.0
    """Seconds that samples took lately; the median, and percentiles."""
    sample_p75: float = 0.0
    sample_p90: float = 0.0
    sample_p99: float = 0.0
    sample_bytes: float = 0.0
    """Bytes of shared memory that a sample takes in its batch, lately."""
    stages: tuple[StageTime, ...] = ()
    """What the stages of samples took lately, of those that were made stage by stage: dear ones (5 ms and more), where
    stages can be seen."""
    decisions: tuple[str, ...] = ()
    """Changes of the number of workers, the newest 100, each with its reason and what was measured before it."""
    cached_samples: int = 0
    """Samples that the cache can serve, now."""
    cached_bytes: int = 0
    """Bytes that they take."""
    cache_note: str = ""
    """After which stage samples are cached, or why none are."""
    history: tuple[QueueMoment, ...] = ()
    """Queues over time, oldest first, from the beginning on: at most 240 moments, further apart as time goes by."""
    batches_on_device: tuple[int, ...] = ()
    """Batches that were copied ahead and wait for the consumer, for each of several devices. Of one iterator."""
    samples_remote: int = 0
    """Samples made on other machines and handed in."""
    remote_actors: int = 0
    """Actors on other machines that work for this loader now."""
    remote_placement: str = "local"
    """What is done on other machines now: "local" (nothing), "transform", "sample" or "batch"."""
    remote_ratio: float = 0.0
    """Share of the samples that is set aside for them."""
    offload_decisions: tuple[str, ...] = ()
    """Decisions about offloading, the newest 100, each with its reason."""
    samples_retried: int = 0
    """Times a sample was fetched again because it failed."""
    samples_skipped: int = 0
    """Samples left out because they failed."""
    skipped: tuple[Any, ...] = ()
    """Indices of samples left out, the newest 100."""
