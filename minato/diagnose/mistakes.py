"""The classic mistakes: what makes a loader slow, or large, whatever its stages cost."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import torch

from .._workers.copies import _weigh_if_large
from .._workers.walk import search
from .measuring import Seen
from .records import Advice
from .wording import cores_in_words, mostly_waits

COPIED_BYTES = 200 << 20  # in each worker, from which on copies are worth a word
INNER_THREADS = 0.3  # CPU time of other threads per CPU time of the stages


def mistakes(loader: Any, seen: Seen, is_told: bool) -> Iterator[Advice]:
    """`is_told`: that workers be kept."""
    measurement = seen.measurement
    present, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    if allowed == 1 < present:
        yield Advice(
            "let this process use more cores",
            f"it is pinned to one of {present} cores, and its workers with it: something called sched_setaffinity, or "
            f"it was started with taskset or by a scheduler that binds it (OMP_PROC_BIND, numactl, srun --cpu-bind)",
            None,
            "high",
            is_urgent=True,
        )
    if measurement.others_cores and not mostly_waits(measurement):
        yield Advice(
            "let the loader have the cores to itself",
            f"other programs on this machine, or other guests of its host, used {measurement.others_cores:.1f} of "
            f"{cores_in_words(measurement.cores)} while this was measured; predictions count on all of it",
            None,
            "high",
        )
    if loader.pin_memory and not torch.accelerator.is_available():
        yield Advice(
            "leave pin_memory=False",
            "there is no accelerator here that could copy from page-locked memory",
            None,
            "high",
            {"pin_memory": False},
        )
    if seen.inner_threads > INNER_THREADS and measurement.workers > 0:
        yield Advice(
            "let libraries use one thread in each worker (set OMP_NUM_THREADS=1 before Python starts)",
            f"for each CPU second of a stage other threads of the same process used {seen.inner_threads:.1f} s: with "
            f"{measurement.workers} workers they take each other's cores. Or in worker_init_fn: cv2.setNumThreads(0), "
            f"threadpoolctl.threadpool_limits(1)",
            None,
            "medium",
            is_urgent=True,
        )
    method = (loader.multiprocessing_context or multiprocessing).get_start_method()
    copied = sum(weight.bytes for _, weight in search(loader.dataset, "dataset", _weigh_if_large))
    if measurement.workers > 1 and copied > COPIED_BYTES:
        how = "every use of one writes its reference count"
        if method != "fork":
            how = f"{method} packs them for each worker at each start, which waits for it"
        yield Advice(
            "keep the dataset's lists in arrays",
            f"each worker comes to hold its own copy of about {copied / 1e6:,.0f} MB of Python objects: {how}. numpy "
            f"arrays and tensors are shared" + ("" if method == "fork" else ", or copied in one piece"),
            None,
            "high",
            is_urgent=method != "fork",
        )
    if measurement.workers > 0 and method == "spawn" and not loader.persistent_workers and not is_told:
        yield Advice(
            "keep workers from epoch to epoch",
            "they are started by spawn, which imports everything anew, at each epoch",
            None,
            "high",
            {"persistent_workers": True},
        )
