"""Loaders made from loaders: the same content with other arguments, and loaders of our own to measure with."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import IterableDataset, Sampler

from .._arguments import OPTIONS
from .._dataloader import DataLoader
from .._plan import Order
from .._planning import decide_order

_TORCH = (
    "dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
    "generator", "prefetch_factor", "persistent_workers", "pin_memory_device",
)  # fmt: skip
_INLINE = frozenset(
    {"dataset", "batch_size", "sampler", "collate_fn", "in_order", "fetcher", "num_fetch_workers", "thread_copies"}
)
_NEED_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None, "timeout": 0}


def arguments_of(loader: Any) -> dict[str, Any]:
    """Arguments that make a loader with the same content. Its sampler is passed on as it is."""
    arguments = {name: getattr(loader, name) for name in _TORCH}
    arguments |= {name: getattr(loader, name) for name in OPTIONS if hasattr(loader, name)}
    iterable = isinstance(loader.dataset, IterableDataset)
    if loader.batch_size is None and loader.batch_sampler is not None:
        arguments["batch_sampler"] = loader.batch_sampler
    else:
        arguments |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
        if not iterable:
            arguments["sampler"] = loader.sampler
    if not isinstance(loader, DataLoader):
        arguments["in_order"] = getattr(loader, "in_order", True)
    return arguments


def rebuilt(loader: Any, **changes: Any) -> DataLoader[Any]:
    """A loader of minato's with the content of another, and some arguments changed."""
    with no_word_of_workers():
        return DataLoader(**_consistent({**arguments_of(loader), **changes}))


@contextlib.contextmanager
def no_word_of_workers() -> Iterator[None]:
    """torch warns of more workers than cores; here their number was measured, or is being measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create .* worker processes")
        yield


def _consistent(arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what makes no sense for this number of workers."""
    if arguments["num_workers"] == 0:
        arguments = {**arguments, **_NEED_WORKERS, "adaptive": None}
    if arguments.get("fetcher") == "sequential":
        arguments = {**arguments, "thread_copies": False}
    most = arguments.get("max_workers")
    if most is not None and isinstance(arguments["num_workers"], int) and most < arguments["num_workers"]:
        arguments = {**arguments, "max_workers": arguments["num_workers"]}
    return arguments


class _Repeated(Sampler[int]):
    """The same indices over and over."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = list(indices)

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(self._indices)

    def __len__(self) -> int:
        return 1 << 40


def measuring_loader(loader: Any, indices: Sequence[int], **changes: Any) -> Any:
    """A loader to measure with: batches of these indices for ever, in the order mode of `loader`, which is left alone,
    its sampler and generator included. Of torch's class if `loader` is."""
    arguments = _measuring_arguments(loader, indices, changes)
    if isinstance(loader, DataLoader) or changes:
        return DataLoader(**arguments)
    return torch.utils.data.DataLoader(**_torchs(arguments))


def inline_arguments(loader: Any, indices: Sequence[int]) -> tuple[type[Any], dict[str, Any]]:
    """The class and the arguments of such a loader without workers, of minato's or torch's as `loader` is. Without what
    matters to workers only: what is left can be sent to another process if workers can be started there."""
    arguments = _measuring_arguments(loader, indices, {"num_workers": 0})
    ours = isinstance(loader, DataLoader)
    arguments = {
        name: value
        for name, value in (arguments if ours else _torchs(arguments)).items()
        if name in _INLINE and value is not None
    }
    return (DataLoader if ours else torch.utils.data.DataLoader), arguments


def _torchs(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in OPTIONS or name == "in_order"}


def _measuring_arguments(loader: Any, indices: Sequence[int], changes: dict[str, Any]) -> dict[str, Any]:
    arguments = {
        name: value for name, value in arguments_of(loader).items() if name not in ("sampler", "batch_sampler")
    }
    arguments["batch_size"] = arguments.get("batch_size") or typical_batch(loader)
    arguments["sampler"] = _Repeated(indices)
    arguments |= {"drop_last": False, "generator": torch.Generator().manual_seed(0), "persistent_workers": False}
    arguments |= {"cache": None, "cache_bytes": None, "cache_dir": None, "trace": None}  # a trace is of the user's run
    if isinstance(loader, DataLoader):
        order = decide_order(loader.in_order, loader.dataset, loader.sampler, loader.batch_size is not None)
        arguments["in_order"] = order is Order.IN_ORDER
    return _consistent({**arguments, **changes})


def typical_batch(loader: Any) -> int:
    """Samples per batch: as given, or as a custom batch sampler says, or one."""
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if isinstance(size, int) and size > 0:
        return size
    if loader.batch_sampler is None:
        return 1
    try:
        return max(1, round(len(loader.dataset) / len(loader.batch_sampler)))
    except TypeError:
        return 1
