"""What to know about a loader beside DistributedSampler and under torchrun: `minato.compat.notes(loader)`.

    $ torchrun --nproc-per-node 2 train.py

    sampler = DistributedSampler(dataset)                       # rank and world size come from the process group
    loader = minato.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4, persistent_workers=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)                                # as with torch's loader; another order each epoch
        for batch in loader: ...

Each rank has a loader of its own with workers of its own; loaders of different ranks know nothing of each other. What
keeps ranks in step is the sampler: it gives each the same number of positions, and minato delivers each position once,
in `len(loader)` batches, whatever the order. A slow sample of one rank lands in a later batch of that rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ._engine.cores import allowed_cores

__all__ = ["notes"]


def notes(loader: Any, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What may surprise you about this loader in a distributed run; empty: nothing.

    `environment` (default: that of the process) is where torchrun leaves WORLD_SIZE and LOCAL_WORLD_SIZE. Works for
    torch's loader as well. Looks, and changes nothing.
    """
    environment = os.environ if environment is None else environment
    world = _number(environment, "WORLD_SIZE")
    sampler = _sampler_of(loader)
    if isinstance(sampler, DistributedSampler):
        return (*_of_sampler(loader, sampler, world), *_of_rank(loader, environment))
    if world > 1:
        return (*_without_sampler(loader, world), *_of_rank(loader, environment))
    return ()


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "1")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} in the environment should be a number of processes, found {text!r}") from None


def _sampler_of(loader: Any) -> Any:
    """The sampler; below a batch sampler, the one it draws from if it says so."""
    if getattr(loader, "batch_size", None) is None and loader.batch_sampler is not None:
        return getattr(loader.batch_sampler, "sampler", loader.batch_sampler)
    return loader.sampler


def _without_sampler(loader: Any, world: int) -> Iterator[str]:
    if isinstance(loader.dataset, IterableDataset):
        yield (
            f"{world} ranks each read the whole stream, unless the dataset splits it by rank, and within a rank by "
            "get_worker_info()."
        )
        return
    yield (
        f"{world} ranks are running and the sampler is no DistributedSampler: unless it splits the samples itself, "
        "every rank gets all of them. Accelerate and Lightning put one in; without them, give "
        "sampler=DistributedSampler(dataset)."
    )


def _of_sampler(loader: Any, sampler: DistributedSampler[Any], world: int) -> Iterator[str]:
    if world > 1 and sampler.num_replicas != world:
        yield (
            f"The sampler splits over {sampler.num_replicas} ranks and {world} are running: samples are repeated or "
            "left out."
        )
    if sampler.shuffle:
        yield "Call sampler.set_epoch(epoch) before each epoch: without it every epoch has the same order."
    surplus = sampler.total_size - len(loader.dataset)
    if surplus > 0:
        yield (
            f"Samples given to two ranks, so that all have equally many: {surplus}. minato delivers each position "
            "of a rank once; drop_last=True of the sampler leaves the surplus out instead."
        )
    if getattr(loader, "on_error", "raise") != "raise":
        yield (
            "on_error may leave samples out, on one rank and not on another: ranks that take unequal numbers of steps "
            "wait for each other for ever. Use torch.distributed.algorithms.Join, or on_error='raise'."
        )


def _of_rank(loader: Any, environment: Mapping[str, str]) -> Iterator[str]:
    here = _number(environment, "LOCAL_WORLD_SIZE")
    cores = allowed_cores(environment).cores if here > 1 else 0.0
    if here > 1 and loader.num_workers > max(1.0, cores):
        yield (
            f"{loader.num_workers} workers on each of {here} ranks of this machine are more than its share of cores "
            f"({cores:.1f} for a rank): fine for samples that wait, too many for samples that compute. "
            "num_workers='auto' counts the ranks."
        )
