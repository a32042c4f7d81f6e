"""What `minato bench` loads: each workload is a dataset, a batch size and the appetite of a simulated accelerator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import realistic
from .datasets import BigImages, CheapImages, Reader, Tokens, pad_tokens

_WAIT_WORKERS = 8
"""For samples that wait and use no core, many workers fit on few cores."""


@dataclass(frozen=True)
class Workload:
    """A dataset and how it is loaded. `make` takes the number of samples of an epoch."""

    name: str
    title: str
    make: Callable[[int], Any]
    length: int
    batch_size: int
    waits: bool = False
    """Samples wait (storage, network) instead of using a core."""
    load: float | None = None
    """Share of the workers' capacity that the simulated accelerator asks for; None: it takes batches as they come."""
    fixed_step_s: float = 0.0
    """Seconds of a step of the simulated accelerator where `load` is None; 0: it takes batches as they come."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Given to every loader, e.g. `collate_fn`."""

    def workers(self, cores: int) -> int:
        """Worker processes of the arms that are compared."""
        return _WAIT_WORKERS if self.waits else max(1, min(cores, _WAIT_WORKERS))


@dataclass(frozen=True)
class Built:
    """A workload made for this machine."""

    workload: Workload
    dataset: Any
    short: Any
    """The same with fewer samples, for arms without workers."""
    workers: int
    cost_s: float
    """Mean seconds that one sample takes in one process."""
    step_s: float
    """Seconds of one step of the simulated accelerator; 0: it takes batches as they come."""
    capacity: float
    """Processes that can work at once: workers, or cores if the samples use them."""

    @property
    def bound(self) -> float:
        """Samples per second that no loader can pass: what the workers or the accelerator can do at most."""
        made = self.capacity / self.cost_s
        return made if not self.step_s else min(made, self.workload.batch_size / self.step_s)

    def reader(self, dataset: Any) -> Reader:
        """How the indices of a batch are read."""
        reader: Reader = dataset.read
        return reader


def build(workload: Workload, cores: int) -> Built:
    """Make the dataset, time a few of its samples, and choose the accelerator's step by it."""
    workers = workload.workers(cores)
    dataset = workload.make(workload.length)
    cost_s = mean_cost(dataset)
    capacity = workers if workload.waits else min(workers, cores)
    step_s = workload.fixed_step_s
    if workload.load is not None:
        step_s = workload.batch_size * cost_s / capacity / workload.load
    short = workload.make(max(workload.batch_size * 2, workload.length // (workers if workload.waits else 2)))
    return Built(workload, dataset, short, workers, cost_s, step_s, capacity)


def mean_cost(dataset: Any, at_most_s: float = 0.5) -> float:
    """Mean seconds of one sample, timed in this process on samples spread over the dataset. Known costs are used."""
    known = getattr(dataset, "costs", None)
    if known is not None:
        return float(known.mean())
    dataset[0]  # what is imported or opened at the first access
    length, count = len(dataset), 0
    began = time.perf_counter()
    while count < min(length, 256) and (count < 8 or time.perf_counter() - began < at_most_s):
        dataset[(count * 7919) % length]
        count += 1
    return (time.perf_counter() - began) / count


WORKLOADS: tuple[Workload, ...] = (
    Workload("cheap", "3x32x32 images in memory", CheapImages, 16_000, 256),
    Workload("large", "3x224x224 float images", BigImages, 768, 64),
    Workload(
        "tokens", "16 to 512 tokens, padded by collate_fn", Tokens, 10_000, 64, arguments={"collate_fn": pad_tokens}
    ),
    Workload("images", "JPEG decoding", realistic.JpegImages, 112, 16, load=0.9),
    Workload("volumes", "3D crops, one in five slow", realistic.Volumes, 40, 4, load=0.9),
    Workload(
        "uneven",
        "waits of 5 ms on average, log-normal",
        lambda length: realistic.UnevenWaits(realistic.lognormal_costs(length, 0.005)),
        480,
        16,
        waits=True,
        load=0.9,
    ),
    Workload(
        "tail",
        "2 ms, one sample in a hundred 100 times that",
        lambda length: realistic.UnevenWaits(realistic.heavy_tailed_costs(length, 0.002)),
        600,
        16,
        waits=True,
        load=0.9,
    ),
    Workload("remote", "115 kB objects, 20 ms away", realistic.RemoteObjects, 160, 16, waits=True, load=0.9),
)
