"""Between a loader's batches and a device: what `device=` puts behind `next()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .._device.pinning import Pinner
from .._device.prefetch import DevicePrefetcher
from .._device.runtime import AcceleratorRuntime, DeviceRuntime
from .engine import Engine
from .progress import MapProgress, StreamProgress, Track

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
    is_ready = _Readiness(batches) if isinstance(batches, Engine) else lambda: True
    return DevicePrefetcher(lambda: pinner.pin(batches.next_batch()), is_ready, devices, depth, make_runtime())


class HandedOut:
    """An epoch's progress as the user has seen it: what was copied ahead and not handed out is not delivered."""

    def __init__(self, track: Track) -> None:
        self._source, self._lock = track.source, track.lock
        self._mark: MapProgress | StreamProgress | Exception | None = self.take()
        """None: the user has everything."""
        track.source = self

    def take(self) -> MapProgress | StreamProgress | Exception:
        try:
            with self._lock:
                return self._source.progress()
        except Exception as error:  # of the user's `state_dict()`: raised where a state is asked for, as without device
            return error

    def handed_out(self, mark: MapProgress | StreamProgress | Exception) -> None:
        self._mark = mark

    def ended(self) -> None:
        self._mark = None

    def progress(self) -> MapProgress | StreamProgress:
        if isinstance(self._mark, Exception):
            raise self._mark
        return self._source.progress() if self._mark is None else self._mark


class _Readiness:
    """Whether an engine can deliver a batch without waiting."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self) -> bool:
        engine = self._engine
        with engine._in_use:
            engine._check_open()
            return engine._pick() is not None
