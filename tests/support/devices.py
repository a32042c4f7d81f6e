"""An accelerator that is none: copies happen when a test says so, and read the host's memory only then."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


class DeviceTensor:
    """What a copy gives: its content is there when the copy is done."""

    def __init__(self, device: torch.device, stream: FakeStream) -> None:
        self.device = device
        self.stream = stream
        self.used_by: list[FakeStream] = []
        self._content: torch.Tensor | None = None

    def arrive(self, content: torch.Tensor) -> None:
        self._content = content.clone()

    @property
    def content(self) -> torch.Tensor:
        assert self._content is not None, "read before its copy was done"
        return self._content


@dataclass(eq=False)
class FakeStream:
    """Work in a row, done as far as the test has let it."""

    device: torch.device
    given: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    waited_for: list[FakeEvent] = field(default_factory=list)

    def record_event(self) -> FakeEvent:
        return FakeEvent(self, len(self.given))

    def wait_event(self, event: FakeEvent) -> None:
        self.waited_for.append(event)

    def work(self, until: int | None = None) -> None:
        """Do what was given, all of it or up to a point."""
        for step in self.given[self.done : until]:
            self.done += 1
            step()


@dataclass(frozen=True, eq=False)
class FakeEvent:
    stream: FakeStream
    point: int

    def query(self) -> bool:
        return self.stream.done >= self.point

    def synchronize(self) -> None:
        self.stream.work(self.point)


class FakeRuntime:
    """Keeps account of everything that is asked of it. `at_once`: copies are done when they are begun."""

    def __init__(self, at_once: bool = False) -> None:
        self.side: list[FakeStream] = []
        self.users: dict[torch.device, FakeStream] = {}
        self.begun: list[DeviceTensor] = []
        self.host: list[weakref.ref[Any]] = []
        """What was copied from, in order of the copies."""
        self.fail_at: int | None = None
        """Number of the copy that fails."""
        self._at_once = at_once
        self._current: FakeStream | None = None

    def resolve(self, device: torch.device) -> torch.device:
        return torch.device(device.type, 0) if device.index is None else device

    def new_stream(self, device: torch.device) -> FakeStream:
        self.side.append(FakeStream(device))
        return self.side[-1]

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.users.setdefault(device, FakeStream(device))

    @contextmanager
    def working_on(self, stream: FakeStream, device: torch.device) -> Iterator[None]:
        assert stream.device == device
        self._current = stream
        try:
            yield
        finally:
            self._current = None

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def copy(self, value: Any, device: torch.device) -> DeviceTensor:
        stream = self._current
        assert stream is not None, "copied on the user's stream"
        if self.fail_at == len(self.begun):
            self.fail_at = None
            raise RuntimeError("out of device memory")
        tensor, host = DeviceTensor(device, stream), weakref.ref(value)
        self.begun.append(tensor)
        self.host.append(host)

        def run() -> None:
            source = host()
            assert source is not None, "host memory was let go before it was copied"
            tensor.arrive(source)

        stream.given.append(run)
        if self._at_once:
            stream.work()
        return tensor

    def mark_used(self, copied: DeviceTensor, stream: FakeStream) -> None:
        copied.used_by.append(stream)

    @property
    def held(self) -> int:
        """Host tensors that are still alive."""
        return sum(host() is not None for host in self.host)
