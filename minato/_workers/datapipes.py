"""Data pipes: datasets that torch shards over ranks and workers, and shuffles by a seed they all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterDataPipe, MapDataPipe, get_worker_info
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding


def is_data_pipe(dataset: Any) -> bool:
    """Whether a dataset is to be sharded by the loader."""
    return isinstance(dataset, (IterDataPipe, MapDataPipe))


def draw_shared_seed(generator: torch.Generator | None) -> int:
    """A seed for shuffling pipes, the same on all ranks."""
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
    if dist.is_available() and dist.is_initialized():
        dist.broadcast(seed, src=0, group=dist.new_group(backend="gloo"))
    return int(seed.item())


def seed_pipe(dataset: Any, seed: int) -> None:
    """Let the pipes of a graph shuffle by `seed`."""
    apply_random_seed(dataset, torch.Generator().manual_seed(seed))


def shard_here(dataset: Any) -> None:
    """Leave to this process, which has no workers, its rank's share of a graph."""
    world_size, rank = _world()
    apply_sharding(dataset, world_size, rank)


class ShardingInit:
    """A `worker_init_fn` that leaves to each worker its share of a graph, then calls the user's."""

    def __init__(self, worker_init_fn: Callable[[int], Any] | None) -> None:
        self._then = worker_init_fn
        self._world_size, self._rank = _world()

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None, "called in a worker"
        pipe: Any = info.dataset
        # Over ranks first, then over workers: shares are even across ranks.
        apply_sharding(pipe, info.num_workers * self._world_size, worker * self._world_size + self._rank)
        if self._then is not None:
            self._then(worker)


def _world() -> tuple[int, int]:
    return (dist.get_world_size(), dist.get_rank()) if dist.is_available() and dist.is_initialized() else (1, 0)
