"""Page-locked memory for batches, so that copies to an accelerator are fast and can overlap with compute.

Slots of the arena are registered with the CUDA runtime once, when they are first lent; tensors over them are pinned
without a copy. Everything else in a batch (small tensors that were copied, custom types with a `pin_memory` method) is
pinned the way torch does it. Written against the public runtime; there is no accelerator where it was tested.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import pin_memory as torch_pinning


class Pinner:
    """Pins batches, or does nothing."""

    def __init__(self, pin: Callable[[Any], Any] | None) -> None:
        self._pin = pin

    def pin(self, batch: Any) -> Any:
        """The batch in page-locked memory, if pinning is on."""
        return batch if self._pin is None else self._pin(batch)

    @property
    def active(self) -> bool:
        return self._pin is not None


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


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def register_memory(address: int, nbytes: int) -> bool:
    """Page-lock memory that is already allocated. False where the accelerator's runtime has no such call."""
    return torch.cuda.is_available() and int(_runtime().cudaHostRegister(address, nbytes, 0)) == 0


def unregister_memory(address: int) -> None:
    """Undo `register_memory`, before the memory is unmapped."""
    _runtime().cudaHostUnregister(address)
