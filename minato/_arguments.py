"""Checks of minato's arguments; `_planning` makes the plan of them. Pure: nothing is started.

torch's own checks are done by torch (`torch.utils.data.DataLoader.__init__`). Every message says what was needed, what
was found, and which argument to change.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils.data import (
    IterableDataset,
)

from ._instrument import TraceOptions

OPTIONS = (
    "in_order",
    "slow_timeout",
    "slow_fallback",
    "warmup_samples",
    "max_deferral",
    "profile",
    "slow_hint",
    "adaptive",
    "queue_size",
    "min_workers",
    "max_workers",
    "fetcher",
    "num_fetch_workers",
    "batch_pool",
    "thread_copies",
    "memory_budget",
    "device",
    "device_prefetch",
    "on_error",
    "sample_retries",
    "max_worker_restarts",
    "worker_affinity",
    "worker_nice",
    "trace",
    "cache",
    "cache_bytes",
    "cache_dir",
    "cache_token",
    "offload",
)
"""Arguments that torch's loader does not have, or means more by."""
MOST_NICE = 19  # of Linux
MOST_AUTO = 12  # workers that num_workers="auto" begins with at most, as in the MinatoLoader paper
TORCH_ARGUMENTS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
)


def check_num_workers(num_workers: Any, min_workers: Any, max_workers: Any, cores: Callable[[], int]) -> int:
    """A plain int, before torch compares it with numbers; for "auto", how many workers to begin with."""
    if isinstance(num_workers, str) and num_workers == "auto":
        _check_count("min_workers", min_workers, least=1)
        _check_count("max_workers", max_workers, least=1, optional=True)
        return int(max(min_workers, min(cores(), MOST_AUTO, max_workers or MOST_AUTO)))
    try:
        return operator.index(num_workers)
    except TypeError:
        raise TypeError(f"num_workers must be an integer or 'auto', got {num_workers!r}") from None


def check_options(options: dict[str, Any], num_workers: int) -> None:
    """Refuse values of minato's own arguments that make no sense, and those whose work is not there yet."""
    _check_in_order(options["in_order"])
    _check_threshold("slow_timeout", options["slow_timeout"], optional=True)
    _check_threshold("slow_fallback", options["slow_fallback"], optional=True)
    _check_count("warmup_samples", options["warmup_samples"], least=1, optional=True)
    _check_count("max_deferral", options["max_deferral"], least=1, optional=True)
    _check_profile(options["profile"])
    _check_slow_hint(options["slow_hint"])
    _check_count("queue_size", options["queue_size"], least=1)
    _check_count("memory_budget", options["memory_budget"], least=1, optional=True)
    _check_count("device_prefetch", options["device_prefetch"], least=1)
    _check_count("sample_retries", options["sample_retries"], least=0)
    _check_count("max_worker_restarts", options["max_worker_restarts"], least=0)
    _check_worker_range(options, num_workers)
    _check_worker_place(options)
    _check_adaptation(options["adaptive"])
    _check_fetching(options)
    _check_cache(options)
    _check_on_error(options["on_error"])
    accelerators(options["device"])
    _check_trace(options["trace"])


def _check_in_order(value: Any) -> None:
    if value not in (True, False, None):
        raise ValueError(f"in_order must be True, False or None, got {value!r}")


def _check_threshold(name: str, value: Any, optional: bool) -> None:
    if optional and value is None:
        return
    if isinstance(value, str):
        number = value[1:]
        if not value.startswith("p") or not number.replace(".", "", 1).isdecimal() or not 0 < float(number) < 100:
            raise ValueError(f"{name} as a percentile must be 'p' and a number between 0 and 100, got {value!r}")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a percentile such as 'p75', seconds, or None, got {value!r}")
    elif not value > 0:
        raise ValueError(f"{name} in seconds must be positive, got {value!r}")


def _check_profile(path: Any) -> None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"profile must be the path of a file, or None, got {path!r}")


def _check_slow_hint(hint: Any) -> None:
    sequence = hasattr(hint, "__len__") and hasattr(hint, "__getitem__") and not isinstance(hint, (str, bytes, Mapping))
    if hint is not None and not callable(hint) and not sequence:
        raise TypeError(
            f"slow_hint must be a function of an index that says whether its sample is slow, a sequence with one bool "
            f"or cost for each sample, or None, got {hint!r}"
        )


def known_costs(loader: Any) -> tuple[str | None, Any, int | None]:
    """What may be known of single samples before they are made: the path of a profile, the user's hint, and the length
    of the dataset that they go with. Refuses a hint of another length."""
    hint, path = loader.slow_hint, None if loader.profile is None else os.fspath(loader.profile)
    is_table = hint is not None and not callable(hint)
    sized = (is_table or path is not None) and hasattr(loader.dataset, "__len__")
    length = len(loader.dataset) if sized else None
    if is_table and length != len(hint):
        raise ValueError(f"slow_hint must have one value for each of the {length} samples, got {len(hint)} values")
    return path, hint, length


def _check_count(name: str, value: Any, least: int, optional: bool = False) -> None:
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer{' or None' if optional else ''}, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_worker_place(options: dict[str, Any]) -> None:
    affinity, nice = options["worker_affinity"], options["worker_nice"]
    if affinity not in ("none", "spread"):
        raise ValueError(f"worker_affinity must be 'none' or 'spread', got {affinity!r}")
    _check_count("worker_nice", nice, least=0)
    if nice > MOST_NICE:
        raise ValueError(f"worker_nice must be at most {MOST_NICE}, the system's lowest priority, got {nice}")


def _check_worker_range(options: dict[str, Any], num_workers: int) -> None:
    least, most = options["min_workers"], options["max_workers"]
    _check_count("min_workers", least, least=1)
    _check_count("max_workers", most, least=1, optional=True)
    if most is not None and most < least:
        raise ValueError(f"max_workers must be at least min_workers, got max_workers={most} and min_workers={least}")
    if most is not None and most < num_workers:
        raise ValueError(f"max_workers must be at least num_workers, got max_workers={most}, num_workers={num_workers}")


def _check_adaptation(adaptive: Any) -> None:
    if adaptive not in (None, False, True) and not (
        callable(getattr(adaptive, "begin", None)) and hasattr(adaptive, "period_s")
    ):
        raise TypeError(
            f"adaptive must be True, False, None or a policy such as minato.PaperPolicy(), got {adaptive!r}"
        )


def check_adaptable(adaptive: Any, dataset: Any, num_workers: int) -> None:
    """Refuse to adapt what cannot be adapted."""
    if not adaptive:
        return
    if num_workers == 0:
        raise ValueError("adaptive needs workers to begin with; set num_workers > 0 or 'auto', or adaptive=None")
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "adaptive cannot change the number of workers of an IterableDataset: each worker has a stream of its own; "
            "leave adaptive=None"
        )


def check_offload(offload: Any, dataset: Any, num_workers: int, fetcher: str) -> None:
    """Refuse to offload what cannot be offloaded."""
    if offload is None:
        return
    if not callable(getattr(offload, "open", None)) or not hasattr(offload, "most_remote"):
        raise TypeError(f"offload must be None or an object such as minato.offload.Ray(), got {offload!r}")
    if num_workers == 0:
        raise ValueError("offload needs workers on this machine too; set num_workers > 0, or offload=None")
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "offload cannot divide the work of an IterableDataset: each worker has a stream of its own; leave "
            "offload=None"
        )
    offload.check(dataset, fetcher)


def _check_fetching(options: dict[str, Any]) -> None:
    fetcher = options["fetcher"]
    if fetcher not in ("sequential", "threaded", "asyncio"):
        raise ValueError(f"fetcher must be 'sequential', 'threaded' or 'asyncio', got {fetcher!r}")
    if not isinstance(options["thread_copies"], bool):
        raise TypeError(f"thread_copies must be True or False, got {options['thread_copies']!r}")
    if options["thread_copies"] and fetcher != "threaded":
        raise ValueError(f"thread_copies=True is for fetcher='threaded', got fetcher={fetcher!r}")
    _check_count("num_fetch_workers", options["num_fetch_workers"], least=1)
    _check_count("batch_pool", options["batch_pool"], least=0)


def _check_cache(options: dict[str, Any]) -> None:
    cache = options["cache"]
    named = isinstance(cache, str) and (cache in ("auto", "source") or (cache.startswith("after:") and len(cache) > 6))
    if cache is not None and not named:
        raise ValueError(f"cache must be 'auto', 'source', 'after:<stage>' or None, got {cache!r}")
    _check_count("cache_bytes", options["cache_bytes"], least=1, optional=True)
    folder = options["cache_dir"]
    if folder is not None and not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"cache_dir must be a path or None, got {folder!r}")
    if cache is not None and options["fetcher"] != "sequential":
        raise ValueError(
            f"cache={cache!r} needs fetcher='sequential', got fetcher={options['fetcher']!r}; leave one of the two"
        )
    for name in ("cache_bytes", "cache_dir"):
        if cache is None and options[name] is not None:
            raise ValueError(f"{name}={options[name]!r} needs a cache; give cache='auto', or leave {name}=None")


def check_cacheable(cache: Any, dataset: Any) -> None:
    """Refuse to cache what has no indices."""
    if cache is not None and isinstance(dataset, IterableDataset):
        raise ValueError(
            f"cache={cache!r} needs a dataset with indices, and this is an IterableDataset; leave cache=None"
        )


def _check_on_error(value: Any) -> None:
    if isinstance(value, type) or not (value in ("raise", "skip") or callable(value)):
        raise ValueError(
            f"on_error must be 'raise', 'skip', or a function that takes a minato.errors.SampleError and returns "
            f"'raise', 'skip' or 'retry'; got {value!r}"
        )


def trace_options(trace: Any) -> TraceOptions | None:
    """What `trace` asks to record; None: nothing."""
    return trace if trace is None or isinstance(trace, TraceOptions) else TraceOptions(trace)


def _check_trace(trace: Any) -> None:
    options = trace_options(trace)
    if options is None:
        return
    at = os.path.abspath(os.fspath(options.directory))
    while not os.path.lexists(at):
        at = os.path.dirname(at)
    if not os.path.isdir(at):
        raise ValueError(f"trace={trace!r}: a directory was needed, and {at} is none; give trace another one")
    if not os.access(at, os.W_OK | os.X_OK):
        raise ValueError(f"trace={trace!r}: {at} cannot be written to; give trace another directory")


def accelerators(device: Any) -> tuple[torch.device, ...]:
    """The accelerators that `device` names, after a look whether they are there; none for None and for the CPU."""
    if device is None:
        return ()
    if not isinstance(device, (list, tuple)):
        return () if _is_cpu(one := _device(device, device)) else (_existing(one, device),)
    devices = [_device(one, device) for one in device]
    if not devices:
        raise ValueError(f"device must name a device, or be None, got {device!r}")
    if all(map(_is_cpu, devices)):
        return ()
    return tuple(_existing(one, device) for one in devices)


def _is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _device(value: Any, given: Any) -> torch.device:
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        raise TypeError(
            f"device must be a device such as 'cuda:0', its number, a list of these, or None, got {given!r}"
        )
    if isinstance(value, int):
        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if kind is None:
            raise ValueError(f"device={given!r}: {_NO_ACCELERATOR}")
        return torch.device(f"{kind.type}:{value}") if value >= 0 else _unknown(given)
    try:
        return torch.device(value)
    except RuntimeError:
        return _unknown(given)


_NO_ACCELERATOR = "this machine has no accelerator that torch can use; leave device=None, or give device='cpu'"


def _unknown(given: Any) -> NoReturn:
    raise ValueError(f"device={given!r} is no device; give one such as 'cuda', 'cuda:0' or 0, or leave device=None")


def _existing(device: torch.device, given: Any) -> torch.device:
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        raise ValueError(f"device={given!r}: {_NO_ACCELERATOR}")
    if device.type != kind.type:
        raise ValueError(f"device={given!r}: the accelerators here are of type {kind.type!r}, not {device.type!r}")
    if device.type == "mps":
        raise ValueError(f"device={given!r}: MPS has no streams to copy on; leave device=None and copy in the loop")
    count = torch.accelerator.device_count()
    number: int | None = device.index
    if number is not None and number >= count:
        raise ValueError(f"device={given!r}: there are {count} accelerators here, numbered from 0")
    return device
