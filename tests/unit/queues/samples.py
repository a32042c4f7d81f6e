"""Generated samples: nested structures of everything that `default_collate` takes."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st


class Pair(NamedTuple):
    left: Any
    right: Any


Single = namedtuple("Single", ["only"])

TENSOR_DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.float8_e4m3fn,
]
ARRAY_DTYPES = ["u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bit patterns, NaNs among them; a plain 0 or 1 for bool."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.random.RandomState(seed).randint(0, 2 if dtype is torch.bool else 256, count).astype(np.uint8)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw.tobytes()), dtype=dtype).reshape(shape)


def array_of(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.random.RandomState(seed).randint(0, 2 if dtype == "?" else 256, count).astype(np.uint8)
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape).copy()


class Maker:
    """Makes samples that are alike in structure, and differ in what they hold."""

    def __init__(self, blueprint: Any) -> None:
        self.blueprint = blueprint

    def make(self, seed: int) -> Any:
        return self._make(self.blueprint, seed)

    def __repr__(self) -> str:
        return f"Maker({self.blueprint!r})"

    def _make(self, node: Any, seed: int) -> Any:
        kind, *rest = node
        values = np.random.RandomState(seed)
        match kind:
            case "tensor":
                return tensor_of(*rest, seed)
            case "array":
                return array_of(*rest, seed)
            case "scalar":
                if np.dtype(rest[0]).kind in "fc":  # torch makes numbers of them, which changes what kind of NaN it is
                    return np.dtype(rest[0]).type(values.standard_normal())
                return array_of(rest[0], (1,), seed)[0]
            case "int":
                return int(values.randint(-(2**62), 2**62))
            case "float":
                return float(values.standard_normal())
            case "bool":
                return bool(values.randint(2))
            case "str":
                return "é" * int(values.randint(3)) + str(seed)
            case "bytes":
                return bytes(values.bytes(int(values.randint(4))))
            case "dict":
                return {key: self._make(child, seed + i) for i, (key, child) in enumerate(rest[0])}
            case "list":
                return [self._make(child, seed + i) for i, child in enumerate(rest[0])]
            case "tuple":
                return tuple(self._make(child, seed + i) for i, child in enumerate(rest[0]))
            case "pair":
                return Pair(self._make(rest[0], seed), self._make(rest[1], seed + 1))
            case "single":
                return Single(self._make(rest[0], seed))
        raise AssertionError(kind)


LEAVES = st.one_of(
    st.tuples(st.just("tensor"), st.sampled_from(TENSOR_DTYPES), SHAPES),
    st.tuples(st.just("array"), st.sampled_from(ARRAY_DTYPES), SHAPES),
    st.tuples(st.just("scalar"), st.sampled_from(ARRAY_DTYPES)),
    st.sampled_from([("int",), ("float",), ("bool",), ("str",), ("bytes",)]),
)
BLUEPRINTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("list"), st.lists(inner, max_size=3)),
        st.tuples(st.just("tuple"), st.lists(inner, max_size=3)),
        st.tuples(
            st.just("dict"),
            st.lists(
                st.tuples(st.one_of(st.text(max_size=3), st.integers(-5, 5)), inner),
                max_size=3,
                unique_by=lambda pair: pair[0],
            ),
        ),
        st.tuples(st.just("pair"), inner, inner),
        st.tuples(st.just("single"), inner),
    ),
    max_leaves=6,
)
MAKERS = BLUEPRINTS.map(Maker)


def fingerprint(value: Any) -> Any:
    """Equal exactly if two values are of the same types and hold the same bits."""
    if isinstance(value, torch.Tensor):
        bits = b""
        if value.numel():
            bits = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return type(value), value.dtype, tuple(value.shape), value.requires_grad, bits
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, dict):
        return type(value), [(fingerprint(k), fingerprint(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [fingerprint(v) for v in value]
    return type(value), repr(value)
