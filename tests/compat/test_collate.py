"""default_collate through the loader: the same types, structures and bits, whoever wrote the rows."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from .checks import assert_same, outcomes
from .data import Samples
from .pieces import Frozen, Labelled, Pair, Reading, Whimsical

BATCH = 3


class Colour(enum.IntEnum):
    RED, GREEN, BLUE = 1, 2, 3


def assert_collates(loader_class, num_workers, samples):
    """Batches of the loader against default_collate of the samples, the last batch a short one."""
    loader = loader_class(Samples(samples), batch_size=BATCH, num_workers=num_workers)
    cuts = [samples[start : start + BATCH] for start in range(0, len(samples), BATCH)]
    for place, (batch, cut) in enumerate(zip(loader, cuts, strict=True)):
        assert_same(batch, default_collate(cut), f"batch {place}")


# -------------------------------------------------------------------------------------------------------------- tensors

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


def numbers(dtype, *shape, seed=0):
    """Bits of every kind, for any dtype."""
    count = int(np.prod(shape))
    values = torch.randint(0, 120, (count,), generator=torch.Generator().manual_seed(seed))
    return (values > 60 if dtype is torch.bool else values).to(dtype).reshape(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_tensors_of_every_dtype(loader_class, num_workers, dtype):
    assert_collates(loader_class, num_workers, [numbers(dtype, 2, 5, seed=seed) for seed in range(7)])


def tensors(make):
    return [make(number) for number in range(7)]


TENSORS = {
    "without dimensions": tensors(lambda i: torch.tensor(i)),
    "without elements": tensors(lambda i: torch.empty(0)),
    "without elements in the middle": tensors(lambda i: torch.empty(2, 0, 3)),
    "of one element": tensors(lambda i: torch.tensor([[i]])),
    "of odd sizes": tensors(lambda i: numbers(torch.uint8, 7, 3, seed=i)),
    "of many dimensions": tensors(lambda i: numbers(torch.float32, 1, 2, 1, 3, 1, 2, seed=i)),
    "larger than a page": tensors(lambda i: numbers(torch.float32, 3, 50, 60, seed=i)),
    "transposed": tensors(lambda i: numbers(torch.float32, 4, 5, seed=i).t()),
    "with gaps": tensors(lambda i: numbers(torch.int32, 6, 6, seed=i)[1::2, ::3]),
    "expanded": tensors(lambda i: torch.tensor([float(i)]).expand(4)),
    "that are views into one": list(torch.arange(70.0).reshape(7, 10)[:, 3:]),
    "channels last": tensors(lambda i: numbers(torch.float32, 4, 5, 3, seed=i).permute(2, 0, 1)),
    "with nan, infinity and minus zero": tensors(lambda i: torch.tensor([float("nan"), float("inf"), -0.0, i])),
    "of a subclass": tensors(lambda i: torch.full((2,), float(i)).as_subclass(Whimsical)),
}


@pytest.mark.parametrize("samples", TENSORS.values(), ids=TENSORS)
def test_tensors(loader_class, num_workers, samples):
    assert_collates(loader_class, num_workers, samples)


LAZY = {
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "requiring gradients": lambda: torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_tensors_with_a_flag_keep_their_meaning_or_are_refused(loader_class, num_workers, make):
    """torch's workers refuse all three with a RuntimeError; collating them right is fine, losing the flag is not."""
    (got,) = outcomes(loader_class(Samples([make(), make()]), batch_size=2, num_workers=num_workers))
    if num_workers == 0 or not isinstance(got, RuntimeError):
        assert torch.equal(got, torch.stack([make(), make()]))


# ---------------------------------------------------------------------------------------------------------------- numpy

NUMPY_DTYPES = ["float16", "float32", "float64", "complex64", "complex128", "bool"]
NUMPY_DTYPES += ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_arrays_of_every_dtype(loader_class, num_workers, dtype):
    assert_collates(loader_class, num_workers, [np.arange(i, i + 6).reshape(2, 3).astype(dtype) for i in range(7)])


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMPY_DTYPES if dtype != "uint64"])
def test_numpy_scalars_of_every_dtype(loader_class, num_workers, dtype):
    assert_collates(loader_class, num_workers, [np.dtype(dtype).type(i % 2) for i in range(7)])


ARRAYS = {
    "without dimensions": [np.array(i * 0.5) for i in range(7)],
    "without elements": [np.empty((0, 2)) for _ in range(7)],
    "transposed": [np.arange(6.0).reshape(2, 3).T + i for i in range(7)],
    "with gaps": [np.arange(20)[i::3][:4] for i in range(7)],
    "in Fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3) * i) for i in range(7)],
    "matrices": [np.ones((2, 2)).view(np.matrix) * i for i in range(7)],
    "strings of numpy": [np.str_(f"text {i}") for i in range(7)],
    "bytes of numpy": [np.bytes_(f"text {i}") for i in range(7)],
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("samples", ARRAYS.values(), ids=ARRAYS)
def test_numpy_arrays(loader_class, num_workers, samples):
    assert_collates(loader_class, num_workers, samples)


# -------------------------------------------------------------------------------------------------- plain Python values

VALUES = {
    "integers": [0, 1, -1, 2**63 - 1, -(2**63), 5, 6],
    "booleans": [True, False, True, True, False, False, True],
    "floats": [0.1, -0.0, float("inf"), 1e308, 5e-324, float("nan"), 3.0],
    "enum members": [Colour.RED, Colour.BLUE, Colour.GREEN, Colour.RED, Colour.RED, Colour.BLUE, Colour.GREEN],
    "strings": ["", "a", "ü", "語" * 100, "\0", "line\nline", "🚢"],
    "bytes": [b"", b"a", b"\xff\x00", b"x" * 5000, b"1", b"2", b"3"],
    "byte arrays": [bytearray([i, i + 1]) for i in range(7)],
    "ranges": [range(i, i + 3) for i in range(7)],
}


@pytest.mark.parametrize("samples", VALUES.values(), ids=VALUES)
def test_plain_values(loader_class, num_workers, samples):
    assert_collates(loader_class, num_workers, samples)


# ----------------------------------------------------------------------------------------------------------- containers


def labelled(i):
    mapping = Labelled(x=torch.tensor([i]), y=f"{i}")
    mapping.label = f"made for {i}"
    return mapping


CONTAINERS = {
    "dicts": lambda i: {"z": i, "a": float(i), "m": torch.full((2,), i)},
    "dicts with keys of many types": lambda i: {1: i, "one": i, (1, 1): i, None: i},
    "dicts whose keys come in another order later": lambda i: {"a": i, "b": -i} if i % 3 == 0 else {"b": -i, "a": i},
    "ordered dicts": lambda i: OrderedDict(b=i, a=torch.ones(1)),
    "default dicts": lambda i: defaultdict(list, a=i),
    "mappings with attributes": labelled,
    "mappings that cannot change": lambda i: Frozen({"a": i, "b": "text"}),
    "named tuples": lambda i: Pair(torch.ones(2) * i, {"deep": i}),
    "tuples": lambda i: (torch.ones(2) * i, i),
    "lists": lambda i: [torch.ones(2) * i, i, "text"],
    "deques": lambda i: deque([i, float(i)]),
    "image and label": lambda i: (numbers(torch.uint8, 3, 4, 4, seed=i), i % 10),
    "nested": lambda i: {
        "image": torch.ones(2, 2) * i,
        "meta": [Pair(i, (f"{i}", np.float32(i))), {"deep": {"er": b"x"}}],
    },
    "six tensors, two integers, one string": lambda i: (
        {f"t{k}": torch.full((k,), i) for k in range(6)} | {"i": i, "j": i, "s": f"{i}"}
    ),
    "empty dicts": lambda i: {},
    "empty lists": lambda i: [],
    "empty tuples": lambda i: (),
    "empty containers inside": lambda i: {"a": [], "b": {}, "c": i},
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_containers(loader_class, num_workers, make):
    assert_collates(loader_class, num_workers, [make(number) for number in range(7)])


def test_a_mapping_keeps_the_attributes_of_its_first_sample(loader_class, num_workers):
    loader = loader_class(Samples([labelled(i) for i in range(4)]), batch_size=2, num_workers=num_workers)
    assert [batch.label for batch in loader] == ["made for 0", "made for 2"]


# ------------------------------------------------------------------------------------------------ the register of types


def collate_readings(batch, *, collate_fn_map=None):
    return torch.tensor([reading.value for reading in batch], dtype=torch.int32)


def collate_negated(batch, *, collate_fn_map=None):
    return -collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def test_a_registered_type_is_collated_its_own_way(loader_class, num_workers, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Reading, collate_readings)
    loader = loader_class(Samples([{"r": Reading(i)} for i in range(5)]), batch_size=3, num_workers=num_workers)
    for batch, values in zip(loader, [[0, 1, 2], [3, 4]], strict=True):
        assert_same(batch, {"r": torch.tensor(values, dtype=torch.int32)})


def test_a_subclass_of_a_registered_type_counts_as_that_type(loader_class, num_workers, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, Reading, collate_readings)
    loader = loader_class(Samples([FinerReading(4), FinerReading(5)]), batch_size=2, num_workers=num_workers)
    assert_same(next(iter(loader)), torch.tensor([4, 5], dtype=torch.int32))


class FinerReading(Reading):
    pass


def test_a_new_rule_for_tensors_replaces_the_old_one(loader_class, num_workers, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, collate_negated)
    loader = loader_class(Samples([torch.tensor([i]) for i in range(4)]), batch_size=2, num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == [[[0], [-1]], [[-2], [-3]]]


def test_a_new_rule_for_integers_replaces_the_old_one(loader_class, num_workers, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, int, lambda batch, *, collate_fn_map=None: sum(batch))
    loader = loader_class(Samples(range(6)), batch_size=3, num_workers=num_workers)
    assert list(loader) == [3, 12]
