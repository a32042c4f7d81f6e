"""One arm, measured: epochs read by a simulated accelerator, each checked for exactly-once delivery."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arms import Arm
from .datasets import Reader, check_exactly_once
from .memory import PeakMemory, cpu_seconds
from .workloads import Built


@dataclass(frozen=True)
class Epoch:
    """One pass over the data. Seconds count from `iter()`; the gap is what passed between two epochs' batches."""

    seconds: float
    first_batch_s: float
    steps_s: float
    samples: int
    batches: int
    bytes: int
    gap_s: float | None


@dataclass(frozen=True)
class ArmResult:
    """Medians over the epochs of one arm, of all rounds."""

    workload: str
    arm: str
    against: str | None
    samples_per_s: float
    spread: tuple[float, float]
    """Lowest and highest rate of an epoch."""
    bytes_per_s: float
    utilisation: float | None
    """Share of the time in which the simulated accelerator worked; None if there is none."""
    first_batch_s: float
    epoch_gap_s: float | None
    cpu_cores: float
    """CPU seconds of the process tree per second."""
    memory_bytes: int
    bound_samples_per_s: float
    epochs: int


@dataclass(frozen=True)
class Visit:
    """What one round saw of an arm."""

    epochs: tuple[Epoch, ...]
    cpu_cores: float
    memory_bytes: int


def visit(arm: Arm, built: Built, seconds: float) -> Visit:
    """Make the arm's loader and read epochs for about `seconds`, two at least."""
    dataset = arm.dataset(built)
    reader = built.reader(dataset)
    epochs: list[Epoch] = []
    gc.collect()
    loader = arm.make(built)
    try:
        with PeakMemory() as memory:
            cpu, began = cpu_seconds(), time.perf_counter()
            ended: float | None = None
            while len(epochs) < 2 or time.perf_counter() - began < seconds * arm.epochs_s:
                epoch, ended = read_epoch(loader, reader, built.step_s, len(dataset), ended)
                epochs.append(epoch)
            cores = (cpu_seconds() - cpu) / (time.perf_counter() - began)
    finally:
        close = getattr(loader, "close", None)  # torch's has none
        if close is not None:
            close()
        del loader
        gc.collect()
    return Visit(tuple(epochs), cores, memory.peak_bytes)


def read_epoch(
    loader: Any, reader: Reader, step_s: float, length: int, ended_before: float | None
) -> tuple[Epoch, float]:
    """Read one epoch as an accelerator would that takes `step_s` per batch; also the moment its last step ended."""
    delivered: list[Tensor] = []
    nbytes = 0
    steps_s, first_s = 0.0, 0.0
    began = time.perf_counter()
    for batch in loader:
        now = time.perf_counter()
        if not delivered:
            first_s = now - began
        delivered.append(reader(batch))
        nbytes += tensor_bytes(batch)
        if step_s:
            began_step = time.perf_counter()
            time.sleep(step_s)
            steps_s += time.perf_counter() - began_step
        last = time.perf_counter()
    seconds = time.perf_counter() - began
    check_exactly_once(delivered, length)
    gap_s = None if ended_before is None else began + first_s - ended_before
    return Epoch(seconds, first_s, steps_s, length, len(delivered), nbytes, gap_s), last


def tensor_bytes(batch: Any) -> int:
    """Bytes of the tensors in a batch of tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, dict):
        return sum(map(tensor_bytes, batch.values()))
    if isinstance(batch, tuple | list):
        return sum(map(tensor_bytes, batch))
    return 0


def summarise(arm: Arm, built: Built, visits: list[Visit]) -> ArmResult:
    """The medians of all rounds."""
    epochs = [epoch for each in visits for epoch in each.epochs]
    # An adaptive arm is judged by the last epoch of each round: before that it was still finding its way.
    judged = epochs if arm.epochs_s == 1.0 else [each.epochs[-1] for each in visits]
    rates = [epoch.samples / epoch.seconds for epoch in judged]
    gaps = [epoch.gap_s for epoch in epochs if epoch.gap_s is not None]
    shares = [epoch.steps_s / epoch.seconds for epoch in judged]
    return ArmResult(
        workload=built.workload.name,
        arm=arm.name,
        against=arm.against,
        samples_per_s=statistics.median(rates),
        spread=(min(rates), max(rates)),
        bytes_per_s=statistics.median(epoch.bytes / epoch.seconds for epoch in judged),
        utilisation=statistics.median(shares) if built.step_s else None,
        first_batch_s=statistics.median(each.epochs[0].first_batch_s for each in visits),
        epoch_gap_s=statistics.median(gaps) if gaps else None,
        cpu_cores=statistics.median(each.cpu_cores for each in visits),
        memory_bytes=max(each.memory_bytes for each in visits),
        bound_samples_per_s=built.bound,
        epochs=len(epochs),
    )
