"""Objects without fixed layout, in the heap of a slot: pickle protocol 5 with large buffers out of band.

    count of buffers | length of the pickle | (offset, length) per buffer | pickle | buffers, 64-byte aligned

Tensors and arrays travel as their bytes: one copy into the heap, none out of it. A plain tensor is not pickled the way
`torch.multiprocessing` does it (a file descriptor and a segment per tensor); tensors that are more than bytes (sparse,
on a device, with gradient, subclasses) take torch's ordinary pickle.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .mapping import Bytes
from .rows import align

SMALL = 16 * 1024  # bytes; below it copying is cheaper than what a lease costs and holds on to
_HEAD = 16  # bytes: two words

_DTYPES: tuple[torch.dtype, ...] = tuple(
    dict.fromkeys(value for value in vars(torch).values() if isinstance(value, torch.dtype))
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@dataclass(frozen=True, slots=True)
class Packed:
    """A serialised object that still has to be written somewhere."""

    stream: bytes
    buffers: list[memoryview]
    nbytes: int


def copy_all(_nbytes: int) -> bool:
    """For `read`: nothing stays where it is, so that the result may outlive the memory it was read from."""
    return False


def keep_large(nbytes: int) -> bool:
    """For `read`: large buffers stay, small ones are copied, so that keeping a label does not keep a batch."""
    return nbytes > SMALL


def pack(value: object, pickler: type[TensorPickler] | None = None) -> Packed:
    """Serialise `value`. Raises whatever pickling it raises."""
    pickler = pickler or TensorPickler
    buffers: list[memoryview] = []
    sink = io.BytesIO()

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < SMALL // 16:
            return True  # in band: cheaper than a table entry and an aligned place
        buffers.append(raw)
        return False

    pickler(sink, protocol=5, buffer_callback=take).dump(value)
    return repack(sink.getvalue(), buffers)


def repack(stream: bytes, buffers: list[memoryview]) -> Packed:
    """A packed object that has come by another way."""
    end = _HEAD + 16 * len(buffers) + len(stream)
    for buffer in buffers:
        end = align(end) + buffer.nbytes
    return Packed(stream, buffers, end)


def write(packed: Packed, memory: Bytes, offset: int) -> None:
    """Write a packed object at `offset`, where its `nbytes` bytes are free."""
    count = len(packed.buffers)
    start = offset + _HEAD + 16 * count
    words = memory[offset:start].view(np.int64)
    words[0], words[1] = count, len(packed.stream)
    end = start + len(packed.stream)
    memory[start:end] = np.frombuffer(packed.stream, np.uint8)
    for i, buffer in enumerate(packed.buffers):
        begin = align(end - offset) + offset
        end = begin + buffer.nbytes
        words[2 + 2 * i], words[3 + 2 * i] = begin, buffer.nbytes
        memory[begin:end] = np.frombuffer(buffer, np.uint8)


def read(memory: Bytes, offset: int, keep: Callable[[int], bool]) -> Any:
    """The object at `offset`. Buffers for whose size in bytes `keep` says yes stay where they are (and keep `memory`
    alive); others are copied."""
    count, length = memory[offset : offset + _HEAD].view(np.int64).tolist()
    start = offset + _HEAD + 16 * count
    entries = memory[offset + _HEAD : start].view(np.int64).reshape(count, 2).tolist()
    buffers = [
        memory[begin : begin + size] if keep(size) else bytearray(memory[begin : begin + size].data)
        for begin, size in entries
    ]
    return pickle.loads(memory[start : start + length].data, buffers=buffers)


class TensorPickler(pickle.Pickler):
    """Sends plain tensors as buffers."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and min(obj.strides, default=0) < 0:
            axes = tuple(axis for axis, stride in enumerate(obj.strides) if stride < 0)
            return np.flip, (np.flip(obj, axes).copy(), axes)  # pickle forgets them, and torch refuses them
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        flat, stride = _flat(obj)
        return _rebuild, (pickle.PickleBuffer(flat), _CODES[obj.dtype], tuple(obj.shape), stride)


class ResultPickler(TensorPickler):
    """Arrays are as torch's loader gives them to the user, whatever `collate_fn` made: writable, in this machine's byte
    order, with strides that torch takes."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and not (
            obj.flags.writeable and obj.dtype.isnative and min(obj.strides, default=0) >= 0
        ):
            obj = obj.astype(obj.dtype.newbyteorder("="), order="K")  # a copy
            return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not tensor.__dict__
        and tensor.dtype in _CODES
    )


def _flat(tensor: torch.Tensor) -> tuple[Any, tuple[int, ...] | None]:
    """The tensor's elements as one contiguous array, and its strides if they are not the usual ones."""
    stride = None
    if not tensor.is_contiguous():
        dense = torch.empty_like(tensor)  # keeps the strides of dense tensors, e.g. channels last
        stride = dense.stride() if dense.stride() != _usual_stride(tensor) else None
        tensor = dense.copy_(tensor).as_strided((tensor.numel(),), (1,))
    flat = tensor.detach().reshape(-1)
    return flat.view(_AS_INTEGERS[tensor.dtype.itemsize]).numpy(), stride


def _usual_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def _rebuild(buffer: Any, code: int, shape: tuple[int, ...], stride: tuple[int, ...] | None) -> torch.Tensor:
    if not isinstance(buffer, (bytearray, np.ndarray)):
        buffer = bytearray(buffer)  # came in band; tensors must be writable
    if len(buffer) == 0:
        return torch.empty(shape, dtype=_DTYPES[code])
    flat = torch.frombuffer(buffer, dtype=_DTYPES[code])
    # Detached: to torch it is nobody's view, and may be changed in every way.
    return (flat.view(shape) if stride is None else flat.as_strided(shape, stride)).detach()
