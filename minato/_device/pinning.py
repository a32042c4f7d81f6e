"""Page-locked memory for batches, so that copies to an accelerator are fast and can overlap with compute.

Slots of the arena are registered with the CUDA runtime once, when they are first lent; tensors over them are pinned
without a copy. Everything else in a batch (small tensors that were copied, custom types with a `pin_memory` method) is
pinned the way torch does it. Written against the public runtime; its logic is tested with a fake one, and it has not
been run on an accelerator.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data._utils import pin_memory as torch_pinning


class Pinner:
    """Pins batches, or does nothing."""

    def __init__(self, pin: Callable[[Any], Any] | None) -> None:
        self._pin = pin

    def pin(self, batch: Any) -> Any:
        """The batch in page-locked memory, if pinning is on."""
        return batch if self._pin is None else self._pin(batch)


def make_pinner(wanted: bool, device: str) -> Pinner:
    """A pinner for this machine. Warns, as torch does, where pinning was asked for and is not possible."""
    if not wanted:
        return Pinner(None)
    if device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            stacklevel=4,
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=4,
        )
        return Pinner(None)
    if accelerator.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used.",
            stacklevel=4,
        )
        return Pinner(None)
    return Pinner(lambda batch: torch_pinning.pin_memory(batch, accelerator.type))  # type: ignore[no-untyped-call]


class PinningRuntime(Protocol):
    """The two calls of an accelerator's runtime that page-lock memory allocated by others. Addresses and bytes."""

    def register(self, address: int, nbytes: int) -> bool:
        """Page-lock a range. False: not possible, and batches are copied into page-locked memory instead."""
        ...

    def unregister(self, address: int) -> None:
        """Undo `register`, before the memory is unmapped."""
        ...


class CudaRuntime:
    """CUDA's (and through torch also HIP's) runtime."""

    def register(self, address: int, nbytes: int) -> bool:
        return int(self._calls().cudaHostRegister(address, nbytes, 0)) == 0

    def unregister(self, address: int) -> None:
        self._calls().cudaHostUnregister(address)

    def _calls(self) -> Any:
        return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class SlotPinner:
    """Page-locks slots of the arena: each once, when it is first lent, and again only if a batch needs more of it.

    Only the used part is registered: a slot's mapping is far longer than its batches, and page-locking takes real
    memory for every page.
    """

    def __init__(self, runtime: PinningRuntime) -> None:
        self._runtime = runtime
        self._registered: dict[int, int] = {}
        """Bytes registered, by address."""
        self._possible = True

    def cover(self, memory: npt.NDArray[np.uint8], nbytes: int) -> None:
        """Make sure that the first `nbytes` bytes of `memory` are page-locked."""
        address = int(memory.ctypes.data)
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        before = self._registered.get(address, 0)
        if not self._possible or before >= nbytes:
            return
        if before:
            self._runtime.unregister(address)
        self._possible = self._runtime.register(address, nbytes)
        if self._possible:
            self._registered[address] = nbytes
        else:
            self._registered.pop(address, None)

    def release(self) -> None:
        """Undo all registrations. To be called before the arena is given up."""
        for address in self._registered:
            self._runtime.unregister(address)
        self._registered.clear()


def make_slot_pinner(wanted: bool) -> SlotPinner | None:
    """A pinner of slots, where there is a runtime that can do it."""
    return SlotPinner(CudaRuntime()) if wanted and torch.cuda.is_available() else None
