"""The codec: anything picklable comes back the same, large buffers without a copy."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minato._queues import codec
from minato._queues.rows import ALIGNMENT

from .samples import ARRAY_DTYPES, MAKERS, SHAPES, TENSOR_DTYPES, Maker, array_of, fingerprint, tensor_of

PROPERTY = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def memory_for(packed: codec.Packed, offset: int) -> Any:
    """Memory that is 64-byte aligned, as the arena's is, and full of old bytes."""
    room = np.full(offset + packed.nbytes + 2 * ALIGNMENT, 0xCD, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + offset + packed.nbytes + ALIGNMENT]


def through(value: Any, keep: Any = codec.copy_all, offset: int = ALIGNMENT) -> Any:
    packed = codec.pack(value)
    memory = memory_for(packed, offset)
    codec.write(packed, memory, offset)
    assert (memory[:offset] == 0xCD).all(), "written before its place"
    assert (memory[offset + packed.nbytes :] == 0xCD).all(), "written beyond its size"
    return codec.read(memory, offset, keep)


def always(_nbytes: int) -> bool:
    return True


KEEP = pytest.mark.parametrize("keep", [codec.copy_all, codec.keep_large, always])


@PROPERTY
@given(MAKERS, st.sampled_from([codec.copy_all, codec.keep_large, always]), st.integers(0, 5))
def test_samples_come_back_bit_for_bit(maker: Maker, keep: Any, place: int) -> None:
    value = maker.make(3)
    assert fingerprint(through(value, keep, place * ALIGNMENT)) == fingerprint(value)


@PROPERTY
@given(st.sampled_from(TENSOR_DTYPES), SHAPES, st.integers(1, 40), st.data())
def test_tensors_of_any_strides_come_back_with_their_strides(
    dtype: torch.dtype, shape: tuple[int, ...], scale: int, data: st.DataObject
) -> None:
    """Dense ones in any order of dimensions; others come back dense."""
    base = tensor_of(dtype, tuple(n * scale if i == 0 else n for i, n in enumerate(shape)), 1)
    order = data.draw(st.permutations(range(base.dim())))
    tensor = base.permute(order)
    found = through(tensor)
    assert fingerprint(found) == fingerprint(tensor)
    if tensor.numel() and not tensor.is_contiguous():
        assert found.stride() == tensor.stride()


@PROPERTY
@given(st.sampled_from(ARRAY_DTYPES), SHAPES, st.data())
def test_arrays_of_any_strides_come_back(dtype: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    """Negative strides stay negative: torch refuses such arrays, and has to refuse them here too."""
    array = array_of(dtype, shape, 2)
    steps = [data.draw(st.sampled_from([1, -1, 2, -2])) for _ in shape]
    view = array[tuple(slice(None, None, step) for step in steps)] if shape else array
    found = through(view)
    assert fingerprint(found) == fingerprint(view)
    assert [s < 0 for s in found.strides] == [s < 0 for s in view.strides]


@KEEP
@pytest.mark.parametrize("bytes_", [1, 1023, 1024, 1025, codec.SMALL, codec.SMALL + 1, 1 << 20])
def test_any_size_of_buffer_comes_back_writable(bytes_: int, keep: Any) -> None:
    array = np.random.RandomState(0).randint(0, 256, bytes_).astype(np.uint8)
    found = through({"t": torch.from_numpy(array.copy()), "a": array, "b": bytearray(array)}, keep)
    assert found["t"].numpy().tobytes() == found["a"].tobytes() == bytes(found["b"]) == array.tobytes()
    found["t"][0] = found["a"][0] = 7


def test_large_buffers_are_aligned_and_stay_where_they_are() -> None:
    tensors = [torch.arange(n) for n in (3000, 5001, 4096)]
    packed = codec.pack(tensors)
    memory = memory_for(packed, 128)
    codec.write(packed, memory, 128)
    found = codec.read(memory, 128, codec.keep_large)
    assert all(t.data_ptr() % ALIGNMENT == 0 for t in found)
    memory[:] = 0
    assert not any(t.any() for t in found)


def test_small_buffers_are_copied_out() -> None:
    packed = codec.pack([torch.ones(2), torch.ones(1000)])
    memory = memory_for(packed, 0)
    codec.write(packed, memory, 0)
    found = codec.read(memory, 0, codec.keep_large)
    memory[:] = 0
    assert all(t.all() for t in found)


@KEEP
def test_channels_last_stays_channels_last(keep: Any) -> None:
    image = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    found = through(image, keep)
    assert torch.equal(found, image)
    assert found.is_contiguous(memory_format=torch.channels_last) and not found.is_contiguous()


SPECIAL = {
    "sparse": torch.eye(4).to_sparse(),
    "conjugate": torch.randn(5, dtype=torch.complex64).conj(),
    "conjugate and strided": torch.randn(4, 5, dtype=torch.complex128).T.conj(),
    "negative": torch.randn(5, dtype=torch.complex64).conj().imag,
    "gradient": torch.randn(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "expanded": torch.randn(3, 1).expand(3, 5000),
    "overlapping": torch.arange(10.0).as_strided((4, 3), (1, 2)),
    "with a hole": torch.arange(100.0)[::7],
    "0-d": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "empty, transposed": torch.empty(3, 0).T,
    "bool": torch.tensor([True, False]),
    "meta": torch.empty(3, device="meta"),
    "dtype": torch.float32,
}


@pytest.mark.parametrize("value", SPECIAL.values(), ids=SPECIAL)
def test_special_tensors_come_back(value: Any) -> None:
    found = through(value)
    if not isinstance(value, torch.Tensor):
        assert found is value
        return
    assert (type(found), found.dtype, found.shape) == (type(value), value.dtype, value.shape)
    assert (found.layout, found.device, found.requires_grad) == (value.layout, value.device, value.requires_grad)
    if value.device.type == "cpu":
        assert torch.equal(found.to_dense(), value.to_dense())


def test_attributes_of_a_tensor_come_back() -> None:
    tensor = torch.ones(2)
    tensor.label = "x"  # type: ignore[attr-defined]
    assert through(tensor).label == "x"


@pytest.mark.parametrize("size", [4, 40_000])
def test_shared_structure_stays_shared(size: int) -> None:
    tensor, array, inner = torch.zeros(size), np.zeros(size), [1]
    found = through([tensor, tensor, array, array, inner, inner, (tensor,)])
    assert found[0] is found[1] is found[6][0]
    assert found[2] is found[3]
    assert found[4] is found[5]


def test_a_structure_that_holds_itself_comes_back() -> None:
    value: list[Any] = [torch.zeros(3000)]
    value.append(value)
    found = through(value)
    assert found[1] is found


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "bcd"]),
        np.array([1, "a", None], object),
        np.array([1, "a", None], object)[::-1],
        np.array(["2020-01-01", "2021-02-03"], "M8[D]")[::-1],
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
        np.arange(4, dtype=">i4"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(5.0),
    ],
    ids=["str", "object", "object, reversed", "dates, reversed", "records", "byte order", "F order", "0-d"],
)
def test_arrays_of_any_dtype_come_back(array: Any) -> None:
    found = through(array)
    assert found.dtype == array.dtype and found.tolist() == array.tolist()
    assert found.flags.f_contiguous == array.flags.f_contiguous or min(array.strides, default=0) < 0


def test_what_cannot_be_pickled_raises_its_own_error() -> None:
    with pytest.raises(TypeError, match="pickle"):
        codec.pack(io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(AttributeError, match="lambda"):
        codec.pack([torch.ones(3), lambda: None])


def test_many_objects_lie_side_by_side() -> None:
    values = [torch.arange(n * 700) for n in range(1, 6)]
    packed = [codec.pack(value) for value in values]
    offsets, end = [], 0
    for one in packed:
        offsets.append(end)
        end += -(-one.nbytes // ALIGNMENT) * ALIGNMENT
    memory = np.zeros(end, np.uint8)
    for one, offset in zip(packed, offsets, strict=True):
        codec.write(one, memory, offset)
    for value, offset in zip(values, offsets, strict=True):
        assert torch.equal(codec.read(memory, offset, always), value)
