"""Samples that do not fit together: torch's result, or torch's error, at the same number of workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Reference

from .checks import assert_as_reference, assert_same, assert_same_outcomes, heart, outcomes, told
from .data import Samples
from .pieces import Pair, Reading, as_is, pad

UNEQUAL = "stack expects each tensor to be equal size"
UNEQUAL_IN_A_WORKER = "Trying to resize storage that is not resizable"


# --------------------------------------------------------------------------------------------- two samples in one batch

MIXED = {
    "float32 then float64": (torch.ones(2), torch.full((2,), 0.1, dtype=torch.float64)),
    "float64 then float32": (torch.full((2,), 0.1, dtype=torch.float64), torch.ones(2)),
    "int64 then float32": (torch.ones(2).long(), torch.full((2,), 0.5)),
    "float32 then int64": (torch.full((2,), 0.5), torch.ones(2).long()),
    "uint8 then int64": (torch.ones(2).byte(), torch.full((2,), 300)),
    "bool then float": (torch.ones(2).bool(), torch.full((2,), 0.5)),
    "float then complex": (torch.ones(2), torch.ones(2) * 1j),
    "numpy float64 then int32": (np.ones(2), np.ones(2, dtype=np.int32)),
    "numpy int32 then float64": (np.ones(2, dtype=np.int32), np.full(2, 0.5)),
    "numpy scalars float32 then int64": (np.float32(1.5), np.int64(2)),
    "numpy scalars int64 then float32": (np.int64(2), np.float32(1.5)),
    "int then float": (1, 2.5),
    "float then int": (2.5, 1),
    "bool then int": (True, 2),
    "int then bool": (2, True),
    "int then numpy float": (1, np.float64(2.5)),
    "int then tensor": (1, torch.tensor(2.5)),
    "tensor then int": (torch.tensor(2.5), 1),
    "tensor then array": (torch.ones(2), np.ones(2)),
    "array then tensor": (np.ones(2), torch.ones(2)),
    "string then int": ("a", 1),
    "int then string": (1, "a"),
    "string then bytes": ("a", b"b"),
    "int then none": (1, None),
    "none then int": (None, 1),
    "huge int first": (2**63, 1),
    "huge int later": (1, 2**64),
    "float then huge int": (1.0, 2**70),
    "other shape, same size": (torch.ones(2, 3), torch.ones(3, 2)),
    "more dimensions": (torch.ones(2), torch.ones(1, 2)),
    "larger": (torch.ones(2), torch.ones(3)),
    "larger array": (np.ones(2), np.ones(3)),
    "longer list": ([1], [1, 2]),
    "shorter tuple": ((1, 2), (1,)),
    "list then tuple": ([1, 2], (3, 4)),
    "tuple then list": ((1, 2), [3, 4]),
    "named tuple then tuple": (Pair(1, 2), (3, 4)),
    "missing key": ({"a": 1, "b": 2}, {"a": 1}),
    "additional key": ({"a": 1}, {"a": 1, "b": 2}),
    "other key": ({"a": 1}, {"b": 1}),
    "dict then list": ({"a": 1}, [1]),
    "list then dict": ([1], {0: 1}),
    "odd one deep inside": ({"a": [torch.ones(2), 1]}, {"a": [torch.ones(2), 1.5]}),
    "none": (None, None),
    "set": ({1}, {2}),
    "unregistered type": (Reading(1), Reading(2)),
    "plain object": (Ellipsis, Ellipsis),
    "class": (int, int),
    "sparse": (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
    "array of strings": (np.array(["a"]), np.array(["b"])),
    "array of objects": (np.array([None]), np.array([None])),
    "dates": (np.array(["2020"], dtype="datetime64[Y]"), np.array(["2021"], dtype="datetime64[Y]")),
    "long doubles": (np.ones(2, np.longdouble), np.ones(2, np.longdouble)),
    "numpy scalars of uint64": (np.uint64(1), np.uint64(2)),
    "foreign byte order": (np.ones(2, ">f4"), np.ones(2, ">f4")),
    "negative strides": (np.arange(3)[::-1], np.arange(3)[::-1]),
}


@pytest.fixture(scope="module")
def reference_of_pairs():
    """What torch's loader makes of every pair, in one epoch, by number of workers."""
    samples = [sample for pair in MIXED.values() for sample in pair]
    epochs = {workers: outcomes(Reference(Samples(samples), 2, num_workers=workers)) for workers in (0, 2)}
    return {workers: dict(zip(MIXED, seen, strict=True)) for workers, seen in epochs.items()}


@pytest.mark.parametrize("name", MIXED)
def test_two_samples_that_differ(loader_class, reference_of_pairs, num_workers, name):
    got = outcomes(loader_class(Samples(MIXED[name]), batch_size=2, num_workers=num_workers))
    assert_same_outcomes(got, [reference_of_pairs[num_workers][name]])


def test_all_of_them_in_one_epoch(loader_class, reference_of_pairs, num_workers):
    samples = [sample for pair in MIXED.values() for sample in pair]
    got = outcomes(loader_class(Samples(samples), batch_size=2, num_workers=num_workers))
    assert_same_outcomes(got, list(reference_of_pairs[num_workers].values()))


SMALLER = {
    "smaller": (torch.ones(3), torch.ones(2)),
    "smaller array": (np.ones(3), np.ones(2)),
    "one that could be broadcast": (torch.ones(3), torch.ones(1)),
    "a scalar that could be broadcast": (torch.ones(3), torch.tensor(1.0)),
    "an empty one": (torch.ones(3), torch.ones(0)),
}


@pytest.mark.parametrize("pair", SMALLER.values(), ids=SMALLER)
def test_a_smaller_sample_is_an_error_however_it_might_fit(loader_class, num_workers, pair):
    """torch's workers stumble over their own buffer before they compare sizes; either wording will do."""
    (error,) = outcomes(loader_class(Samples(pair), batch_size=2, num_workers=num_workers))
    assert type(error) is RuntimeError
    assert UNEQUAL in told(error) or UNEQUAL_IN_A_WORKER in told(error)


# --------------------------------------------------------------------------------------- one odd sample in a long epoch

ODD = {
    "another shape": torch.ones(3),
    "another number of dimensions": torch.ones(2, 2),
    "another precision": torch.full((2,), 0.1, dtype=torch.float64),
    "another kind of number": torch.ones(2).long(),
    "an array": np.ones(2),
    "an integer": 1,
    "a string": "odd",
    "none": None,
    "a list": [torch.ones(2)],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("place", [0, 9, 11], ids="at {}".format)
def test_one_odd_sample_spoils_or_changes_its_own_batch_only(loader_class, num_workers, odd, place):
    samples = [torch.full((2,), float(i)) for i in range(20)]
    samples[place] = odd
    assert_as_reference(loader_class, Samples(samples), batch_size=3, num_workers=num_workers)


def test_one_integer_among_floats_and_one_float_among_integers(loader_class, num_workers):
    samples = [{"x": float(i), "y": i} for i in range(12)]
    samples[4] = {"x": 4, "y": 4.5}
    assert_as_reference(loader_class, Samples(samples), batch_size=3, num_workers=num_workers)


def test_whole_batches_may_differ_from_each_other(loader_class, num_workers):
    shapes = [(2,), (3,), (0,), (2, 2), (1,), ()]
    samples = [torch.full(shape, float(i)) for i, shape in enumerate(shapes) for _ in range(2)]
    samples += [torch.ones(2, dtype=torch.int8)] * 2 + ["text"] * 2 + [{"a": 1}] * 2 + [torch.ones(2)]
    assert_as_reference(loader_class, Samples(samples), batch_size=2, num_workers=num_workers)


def test_batches_may_grow_and_shrink(loader_class, num_workers):
    samples = [torch.full((size,), size) for size in (1, 10_000, 1, 200_000, 3, 1_000) for _ in range(2)]
    assert_as_reference(loader_class, Samples(samples), batch_size=2, num_workers=num_workers)


def test_variable_shapes_suit_a_collate_fn_that_pads(loader_class, num_workers):
    samples = [torch.arange(1, size + 1) for size in (3, 1, 4, 1, 5, 9, 2, 6)]
    assert_as_reference(loader_class, Samples(samples), batch_size=3, num_workers=num_workers, collate_fn=pad)


def test_variable_shapes_suit_a_collate_fn_that_makes_lists(loader_class, num_workers):
    samples = [torch.arange(size) for size in (3, 1, 0, 200, 5)]
    loader = loader_class(Samples(samples), batch_size=2, num_workers=num_workers, collate_fn=as_is)
    for got, expected in zip(loader, [samples[:2], samples[2:4], samples[4:]], strict=True):
        assert_same(got, expected)


def test_samples_nobody_can_collate_are_named(loader_class, num_workers):
    (error,) = outcomes(loader_class(Samples([None, None]), batch_size=2, num_workers=num_workers))
    words = (
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found <class 'NoneType'>"
    )
    assert type(error) is TypeError
    assert words in told(error)
    if loader_class is Reference:
        assert heart(error) == words
