"""The calls to torch's accelerator module, with stand-ins for its functions: there is no accelerator here."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from minato._device.runtime import AcceleratorRuntime

ONE, TWO = torch.device("cuda:0"), torch.device("cuda:1")


class Stream(NamedTuple):
    device: torch.device
    name: str


class Accelerators:
    """Two devices, each with a current stream, of which one is the current device."""

    def __init__(self) -> None:
        self.current = ONE
        self.streams = {ONE: Stream(ONE, "user"), TWO: Stream(TWO, "user")}

    def current_stream(self, device: torch.device | None = None) -> Any:
        return self.streams[self.current if device is None else device]

    def set_stream(self, stream: Stream) -> None:
        self.current = stream.device
        self.streams[stream.device] = stream


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> Accelerators:
    fake = Accelerators()
    for name in ("current_stream", "set_stream"):
        monkeypatch.setattr(torch.accelerator, name, getattr(fake, name))
    return fake


@pytest.mark.parametrize("device", [ONE, TWO])
def test_streams_and_current_device_are_put_back_also_after_an_error(
    accelerators: Accelerators, device: torch.device
) -> None:
    before = dict(accelerators.streams)
    with pytest.raises(ValueError, match="inside"), AcceleratorRuntime().working_on(Stream(device, "side"), device):
        assert accelerators.current == device
        assert accelerators.current_stream() == Stream(device, "side")
        raise ValueError("inside")
    assert accelerators.streams == before
    assert accelerators.current == ONE


def test_a_device_without_number_is_the_current_one(accelerators: Accelerators) -> None:
    accelerators.current = TWO
    assert AcceleratorRuntime().resolve(torch.device("cuda")) == TWO
    assert AcceleratorRuntime().resolve(ONE) == ONE


class Recorder:
    """A tensor's methods that the runtime calls."""

    def __init__(self, pinned: bool) -> None:
        self.calls: list[Any] = []
        self.pinned = pinned

    def is_pinned(self) -> bool:
        return self.pinned

    def pin_memory(self) -> str:
        return "pinned"

    def to(self, device: torch.device, non_blocking: bool = False) -> None:
        self.calls.append(("to", device, non_blocking))

    def record_stream(self, stream: Any) -> None:
        self.calls.append(("record_stream", stream))


def test_tensors_are_pinned_once_copied_without_waiting_and_marked() -> None:
    runtime: Any = AcceleratorRuntime()
    pinned = Recorder(pinned=True)
    assert runtime.pin(pinned) is pinned
    assert runtime.pin(Recorder(pinned=False)) == "pinned"
    runtime.copy(pinned, TWO)
    runtime.mark_used(pinned, "stream")
    assert pinned.calls == [("to", TWO, True), ("record_stream", "stream")]


def test_streams_are_torchs() -> None:
    with pytest.raises(RuntimeError, match="cuda"):  # of a build without CUDA
        AcceleratorRuntime().new_stream(ONE)
