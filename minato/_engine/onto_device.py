"""Between a loader's batches and a device: what `device=` puts behind `next()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .._device.pinning import Pinner
from .._device.prefetch import DevicePrefetcher
from .._device.runtime import AcceleratorRuntime, DeviceRuntime
from .engine import Engine
from .tracing import TracedEngine, TracedInline

make_runtime: Callable[[], DeviceRuntime] = AcceleratorRuntime
"""Replaced by tests: there is no accelerator to test with."""


class _Batches(Protocol):
    def next_batch(self) -> Any: ...


def make_prefetcher(
    batches: _Batches, pinner: Pinner, devices: Sequence[torch.device], depth: int
) -> DevicePrefetcher | None:
    """Copies batches to `devices` ahead of use; None if there are no devices to copy to."""
    if not devices:
        return None
    # Without workers every batch is ready: fetching it is what `next()` is there for.
    is_ready = batches.has_batch if isinstance(batches, Engine) else lambda: True
    watch = batches.log if isinstance(batches, (TracedEngine, TracedInline)) else None
    if watch is not None:
        watch.goes_to_device = True
    return DevicePrefetcher(lambda: pinner.pin(batches.next_batch()), is_ready, devices, depth, make_runtime(), watch)
