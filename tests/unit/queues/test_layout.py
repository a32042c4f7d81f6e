"""Layouts: rows written in place give, bit for bit and type for type, what torch's `default_collate` gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from minato._queues.codec import copy_all, keep_large
from minato._queues.columns import Columns, build
from minato._queues.layout import Layout, is_of, learn
from minato._queues.rows import ALIGNMENT

from .samples import LEAVES, MAKERS, Maker, Pair, Single, fingerprint

PROPERTY = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def always(_nbytes: int) -> bool:
    return True


class Slot:
    """A slot for `rows` samples of a layout, full of old bytes."""

    def __init__(self, layout: Layout, rows: int) -> None:
        self.layout, self.rows = layout, rows
        self.memory = np.full(layout.offsets(rows)[-1] + 256, 0xAB, np.uint8)
        self.columns = Columns(layout, self.memory, rows)
        self.texts: list[list[Any]] = [[None] * rows for _ in range(layout.texts)]

    def write(self, samples: list[Any], row: int) -> bool:
        texts = self.columns.write(samples, row)
        if texts is None:
            return False
        assert len(texts) == self.layout.texts
        for column, part in zip(self.texts, texts, strict=True):
            column[row : row + len(samples)] = part
        return True

    def read(self, row: int) -> Any:
        return self.columns.read(row, [column[row] for column in self.texts])

    def build(self, filled: int, keep: Any = copy_all) -> Any:
        return build(
            self.layout, self.memory, self.layout.offsets(self.rows), filled, [t[:filled] for t in self.texts], keep
        )


def torchs(samples: list[Any]) -> Any:
    """What `default_collate` makes of samples, or None where it raises."""
    try:
        return default_collate(samples)
    except Exception:
        return None


@PROPERTY
@given(MAKERS, st.lists(st.integers(1, 3), min_size=1, max_size=4), st.sampled_from([copy_all, keep_large, always]))
def test_a_batch_written_in_runs_equals_torchs(maker: Maker, runs: list[int], keep: Any) -> None:
    samples = [maker.make(seed) for seed in range(sum(runs))]
    expected = torchs(samples)
    assume(expected is not None)
    layout = learn(samples[0])
    assert layout is not None
    slot = Slot(layout, len(samples))
    row = 0
    for length in runs:
        assert slot.write(samples[row : row + length], row)
        row += length
    assert fingerprint(slot.build(len(samples), keep)) == fingerprint(expected)


@PROPERTY
@given(MAKERS, MAKERS, st.integers(0, 3))
def test_a_sample_said_to_be_of_a_layout_is_given_that_layout(maker: Maker, other: Maker, seed: int) -> None:
    for one, another in ((maker, maker), (maker, other)):
        layout, sample = learn(one.make(0)), another.make(seed)
        assume(layout is not None)
        assert layout is not None
        assert is_of(layout, sample) == (learn(sample) == layout)


@PROPERTY
@given(MAKERS, st.integers(1, 4))
def test_a_row_read_back_is_the_sample_that_was_written(maker: Maker, rows: int) -> None:
    samples = [maker.make(seed) for seed in range(rows)]
    layout = learn(samples[0])
    assume(layout is not None)
    slot = Slot(layout, rows)
    assert slot.write(samples, 0)
    found = [slot.read(row) for row in range(rows)]
    slot.memory[:] = 0
    assert fingerprint(found) == fingerprint(samples)


@PROPERTY
@given(MAKERS, MAKERS, st.integers(0, 2))
def test_an_odd_sample_is_refused_or_fits_and_leaves_other_rows_alone(maker: Maker, other: Maker, row: int) -> None:
    """A sample of any other structure: whatever becomes of its own row, its neighbours stay."""
    samples = [maker.make(seed) for seed in range(3)]
    layout = learn(samples[0])
    assume(layout is not None)
    slot = Slot(layout, 3)
    assert slot.write(samples, 0)
    odd = other.make(77)
    if slot.write([odd], row):
        assert learn(odd) == layout
        samples[row] = odd
        assert fingerprint(slot.read(row)) == fingerprint(odd)
    neighbours = [r for r in range(3) if r != row]
    assert fingerprint([slot.read(r) for r in neighbours]) == fingerprint([samples[r] for r in neighbours])
    assert (slot.memory[layout.offsets(3)[-1] :] == 0xAB).all()


@PROPERTY
@given(st.lists(LEAVES, min_size=1, max_size=3), LEAVES, st.integers(0, 2), st.integers(0, 2))
def test_one_odd_leaf_in_a_run_refuses_the_run(leaves: list[Any], leaf: Any, at: int, who: int) -> None:
    at %= len(leaves)
    maker = Maker(("list", leaves))
    samples = [maker.make(seed) for seed in range(3)]
    layout = learn(samples[0])
    assume(layout is not None)
    samples[who][at] = Maker(leaf).make(5)
    alike = all(learn(sample) == layout for sample in samples)
    slot = Slot(layout, 5)
    before = slot.memory.copy()
    assert slot.write(samples, 1) is alike
    if not alike:
        assert untouched(slot, before, rows=(0, 4))


def untouched(slot: Slot, before: Any, rows: tuple[int, ...]) -> bool:
    """Whether no byte of these rows, nor anything outside the columns, has changed."""
    writable = np.zeros(len(before), np.bool_)
    for offset, leaf in zip(slot.layout.offsets(slot.rows), slot.layout.leaves, strict=False):
        for row in set(range(slot.rows)) - set(rows):
            writable[offset + row * leaf.row_bytes : offset + (row + 1) * leaf.row_bytes] = True
    return bool(((slot.memory == before) | writable).all())


@given(MAKERS, st.integers(1, 9))
@settings(max_examples=40)
def test_columns_are_aligned_and_apart(maker: Maker, rows: int) -> None:
    layout = learn(maker.make(0))
    assume(layout is not None)
    offsets = layout.offsets(rows)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for leaf, begin, end in zip(layout.leaves, offsets, offsets[1:], strict=False):
        assert end - begin >= leaf.row_bytes * rows


@given(MAKERS)
@settings(max_examples=40)
def test_samples_alike_have_equal_layouts(maker: Maker) -> None:
    first, second = learn(maker.make(1)), learn(maker.make(2))
    assert first == second
    assert first is None or hash(first) == hash(second)


class Dict(dict):
    pass


WITHOUT_LAYOUT = {
    "None": None,
    "object": object(),
    "set": {1},
    "range": range(3),
    "complex": 1j,
    "dict subclass": Dict(a=1),
    "sparse": torch.eye(2).to_sparse(),
    "gradient": torch.ones(2, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "meta": torch.empty(2, device="meta"),
    "array of str": np.array(["a"]),
    "array of objects": np.array([object()]),
    "array of dates": np.array(["2020-01-01"], "M8[D]"),
    "array of records": np.zeros(2, [("a", "i4")]),
    "array of the other byte order": np.zeros(2, ">i4"),
    "masked array": np.ma.ones(2),
    "str subclass": type("S", (str,), {})("x"),
    "int subclass": type("I", (int,), {})(3),
}


@pytest.mark.parametrize("value", WITHOUT_LAYOUT.values(), ids=WITHOUT_LAYOUT)
def test_what_only_default_collate_understands_has_no_layout(value: Any) -> None:
    assert learn(value) is None
    assert learn({"a": [1, (2, value)]}) is None


ODD = {
    "gradient": torch.ones(2, requires_grad=True),
    "sparse": torch.ones(2).to_sparse(),
    "other shape": torch.ones(3),
    "broadcastable shape": torch.ones(1),
    "more dimensions": torch.ones(1, 2),
    "other dtype": torch.ones(2, dtype=torch.float64),
    "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "array": np.ones(2, np.float32),
    "number": 1.0,
    "None": None,
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a run"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_tensor_that_is_not_like_the_others_is_refused(odd: Any, alone: bool) -> None:
    slot = Slot(learn(torch.zeros(2)), 3)
    before = slot.memory.copy()
    assert not slot.write([odd] if alone else [torch.zeros(2), odd], 0)
    assert untouched(slot, before, rows=(2,))


@pytest.mark.parametrize(
    ("sample", "odd"),
    [
        (1, 2**63),
        (1, 1.0),
        (1, True),
        (True, 1),
        (1.0, 1),
        (1.0, np.float64(1)),
        (np.float32(1), np.float64(1)),
        (np.zeros(2), np.zeros(2)[::-1]),
        (np.zeros(2), np.zeros(2, ">f8")),
        ("a", b"a"),
        ([1], (1,)),
        ([1], [1, 2]),
        ((1, 2), Pair(1, 2)),
        (Pair(1, 2), (1, 2)),
        (Single(1), Pair(1, 2)),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": [1]}, {"a": []}),
    ],
)
def test_a_value_that_is_not_like_the_others_is_refused(sample: Any, odd: Any) -> None:
    slot = Slot(learn(sample), 3)
    assert slot.write([sample], 0)
    assert not slot.write([odd], 1)
    assert not slot.write([sample, odd], 1)
    assert fingerprint(slot.read(0)) == fingerprint(sample)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6.0).reshape(2, 3).T,
        lambda: torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)[0],
        lambda: torch.ones(3).expand(2, 3),
        lambda: torch.tensor([1 + 2j]).conj(),
        lambda: torch.tensor([1 + 2j]).conj().imag,
        lambda: np.arange(6.0).reshape(2, 3).T,
        lambda: np.broadcast_to(np.float32(3), (2, 2)),
        lambda: np.array(5),
    ],
    ids=["transposed", "channels last", "expanded", "conjugate", "negative", "F order", "broadcast", "0-d array"],
)
def test_strides_and_lazy_bits_do_not_matter(make: Any) -> None:
    samples = [make(), make()]
    for runs in ([samples], [[s] for s in samples]):
        slot = Slot(learn(samples[0]), 2)
        row = 0
        for run in runs:
            assert slot.write(run, row)
            row += len(run)
        assert torch.equal(slot.build(2), default_collate(samples))


def test_a_batch_over_the_slot_shares_its_memory_and_a_copied_one_does_not() -> None:
    slot = Slot(learn(torch.zeros(4)), 2)
    slot.write([torch.zeros(4), torch.zeros(4)], 0)
    kept, copied = slot.build(2, always), slot.build(2, copy_all)
    slot.write([torch.ones(4)], 1)
    assert kept.sum() == 4 and copied.sum() == 0


def test_a_batch_cut_short_has_only_what_is_filled() -> None:
    slot = Slot(learn((torch.zeros(2), 1, "a")), 4)
    slot.write([(torch.ones(2), 5, "x"), (torch.ones(2), 6, "y")], 0)
    tensor, number, text = slot.build(2)
    assert (tuple(tensor.shape), number.tolist(), text) == ((2, 2), [5, 6], ("x", "y"))


def test_large_rows_are_written_wherever_they_fall() -> None:
    """Rows of several pages are mapped ahead; that must not touch what is in them."""
    slot = Slot(learn(torch.zeros(20_000)), 4)
    for row in (2, 0, 3, 1):
        assert slot.write([torch.full((20_000,), float(row))], row)
    assert torch.equal(slot.build(4), torch.arange(4.0)[:, None].expand(4, 20_000))
