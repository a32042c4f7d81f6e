"""What prefetching needs of an accelerator, as a protocol, and torch's accelerators in that form.

Streams and events have the methods of `torch.Stream` and `torch.Event`. Nothing here has been run on an accelerator:
the prefetcher's logic is tested with a fake runtime, and the calls below against stand-ins for torch's functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream's work."""

    def query(self) -> bool:
        """Whether the work before it is done."""
        ...

    def synchronize(self) -> None:
        """Let this thread wait until it is."""
        ...


class Stream(Protocol):
    """Work that a device does one after the other."""

    def record_event(self) -> Event:
        """A point after all work given to the stream so far."""
        ...

    def wait_event(self, event: Any) -> None:
        """What is given to the stream from now on begins after `event`. This thread does not wait."""
        ...


class DeviceRuntime(Protocol):
    """The calls to an accelerator."""

    def resolve(self, device: torch.device) -> torch.device:
        """The device with its number: without one, the current device of its kind."""
        ...

    def new_stream(self, device: torch.device) -> Stream: ...

    def current_stream(self, device: torch.device) -> Stream:
        """The stream this thread gives the device its work on."""
        ...

    def working_on(self, stream: Any, device: torch.device) -> AbstractContextManager[None]:
        """Inside, `stream` is the device's current stream; afterwards streams and current device are as before."""
        ...

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in page-locked memory: itself, if it is there already."""
        ...

    def copy(self, value: Any, device: torch.device) -> Any:
        """Begin a copy on the current stream, and return without waiting for it."""
        ...

    def mark_used(self, copied: Any, stream: Any) -> None:
        """Memory of `copied` must not be used anew before `stream` is done with the work it has by then."""
        ...


class AcceleratorRuntime:
    """torch's accelerators: CUDA, ROCm, XPU and others with streams."""

    def resolve(self, device: torch.device) -> torch.device:
        number: int | None = device.index
        return torch.accelerator.current_stream().device if number is None else device

    def new_stream(self, device: torch.device) -> Stream:
        return torch.Stream(device)

    def current_stream(self, device: torch.device) -> Stream:
        return torch.accelerator.current_stream(device)

    @contextmanager
    def working_on(self, stream: Any, device: torch.device) -> Iterator[None]:
        # Setting a stream also makes its device the current one, and each device has a current stream of its own: that
        # of `device` is put back first, then the device that was current.
        current = torch.accelerator.current_stream()
        there = torch.accelerator.current_stream(device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(there)
            torch.accelerator.set_stream(current)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_pinned() else tensor.pin_memory()

    def copy(self, value: Any, device: torch.device) -> Any:
        return value.to(device, non_blocking=True)

    def mark_used(self, copied: Any, stream: Any) -> None:
        copied.record_stream(stream)
