"""What a loader is going to do, as frozen data: made once from the arguments, read by everything that runs."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._errors import SampleError
from ._instrument import TraceOptions, TraceSpec


class Order(enum.Enum):
    """How far delivery may depart from the sampler's order."""

    IN_ORDER = "in_order"
    """torch's exact batches, in torch's order."""
    BATCHES_OVERTAKE = "batches_overtake"
    """Batches keep their members; a complete batch may overtake an incomplete one."""
    SAMPLES_OVERTAKE = "samples_overtake"
    """A sample lands in the batch that is open when it is done."""


class Source(enum.Enum):
    """The two kinds of dataset."""

    MAP = "map"
    ITERABLE = "iterable"


class Fetcher(enum.Enum):
    """How a worker fetches from a map-style dataset."""

    SEQUENTIAL = "sequential"
    """One sample after the other."""
    THREADED = "threaded"
    """Many at once, in threads."""
    ASYNCIO = "asyncio"
    """Many at once, in one event loop."""


class Collate(enum.Enum):
    """Who makes a batch of samples."""

    ROWS = "rows"
    """torch's `default_collate`: samples of a fixed layout are written in place, nothing else is to be done."""
    FUNCTION = "function"
    """The user's `collate_fn`, called by the worker that completes the batch."""
    NONE = "none"
    """`batch_size=None`: the function gets one sample and its result is delivered."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker needs to know; plain values and the user's own objects."""

    source: Source
    order: Order
    collate: Collate
    collate_fn: Callable[[Any], Any]
    num_workers: int
    worker_init_fn: Callable[[int], Any] | None
    batch_size: int | None
    """Samples per batch of an iterable dataset's stream; None delivers single samples."""
    drop_last: bool
    short_batch_last: bool
    """A batch with fewer samples than the first is delivered last, whatever may overtake: torch's own batching."""
    mends: bool = False
    """Samples that fail may be fetched again or left out; so failures are handed in sample by sample."""
    skips: bool = False
    """Samples that fail may be left out."""
    tells_stack: bool = False
    """Workers that are stuck are asked for their stack."""
    fetcher: Fetcher = Fetcher.SEQUENTIAL
    lanes: int = 1
    """Fetches that a worker has under way at once."""
    most_in_run: int = 1 << 30
    """Samples that are taken together, however cheap they are."""
    batch_pool: int = 0
    """Most samples that are under way or done and not in a batch yet; 0: as many as it takes. For `num_workers=0`: of
    workers it has become the two above."""
    thread_copies: bool = False
    """Every fetch thread has a deep copy of the dataset."""
    together: bool = False
    """The dataset is asked for whole batches, by its `__getitems__`."""
    parks: bool = False
    """Slow samples may be put aside between two stages."""
    max_deferral: int = 1
    """Most batches a sample may fall behind its own place, when samples may overtake."""
    queue_size: int = 100
    """Most samples that may be put aside."""
    spread: bool = False
    """Each worker is kept on one core."""
    nice: int = 0
    """How much lower the priority of workers is."""
    spare_bytes: int = 0
    """Freed memory that a worker may keep for its next large samples and batches."""
    trace: TraceSpec | None = None
    """Where workers record what they do; None: they do not."""


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """The whole plan of a loader with worker processes."""

    worker: WorkerPlan
    window: int
    """Most batches in flight: dispatched and not yet delivered."""
    most_workers: int
    """Workers there may be at once: more than the plan's number only where it is adapted."""
    least_workers: int
    per_worker: int
    """Batches in flight for each worker."""
    adaptive: Any
    """The policy that changes the number of workers; None: it stays."""
    most_window: int
    """The same with the most workers there may be."""
    first_window: int
    """Batches in flight before the size of a batch is known."""
    depth: float
    """Samples that workers fetch at once, for each batch of the window; 0: one worker is at one batch."""
    max_deferral: int
    """Most batches a sample may fall behind its own place, when samples may overtake."""
    memory_budget: int | None
    """Bytes of batches in flight; None: a share of what is available."""
    timeout: float
    """Seconds to wait for a batch; 0 waits for ever."""
    persistent: bool
    max_worker_restarts: int
    sample_retries: int
    on_error: str | Callable[[SampleError], str] = "raise"
    """"raise", "skip", or the user's function."""
    trace: TraceOptions | None = None
    """What to record; `worker.trace` is made from it for each pool."""
