"""Any loader against a plain model of what it should deliver, with workers killed at any time.

MINATO_FUZZ_CASES sets the number of cases per test (default 40, always the same ones; if set, new ones each time).
"""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from minato import DataLoader
from minato._queues import columns

from .tools import running

CASES = int(os.environ.get("MINATO_FUZZ_CASES", "40"))
FOR_EVER = 10**6

fuzz = settings(
    max_examples=CASES,
    deadline=None,
    derandomize="MINATO_FUZZ_CASES" not in os.environ,  # the same cases each time, unless more are asked for
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:DataLoader worker .* its samples go to other workers:RuntimeWarning"),
    pytest.mark.timeout(180 + 3 * CASES),
]


# ------------------------------------------------------------------------------------------------ samples and datasets

STRUCTURES = {
    "int": lambda i: i,
    "float": lambda i: float(i),
    "tensor": lambda i: torch.full((3, 2), i),
    "scalar tensor": lambda i: torch.tensor(i, dtype=torch.int16),
    "empty tensor": lambda i: (torch.zeros(0), i),
    "array": lambda i: np.full((2,), i, dtype=np.float32),
    "pair": lambda i: (torch.full((40,), i, dtype=torch.uint8), i),
    "dict": lambda i: {"x": torch.ones(5) * i, "name": f"sample {i}", "meta": {"i": i, "t": (i, -i)}},
    "text": lambda i: f"number {i} " * (i % 4),
    "list": lambda i: [i, [torch.full((1,), i), float(i)]],
    "large": lambda i: torch.full((20_000,), i, dtype=torch.int32),
    "bool": lambda i: {"even": i % 2 == 0, "i": np.int64(i)},
}
RAGGED = {"ragged": lambda i: torch.full((1 + i % 5,), i), "none": lambda i: None if i % 3 else i}
"""Samples that torch's collation refuses."""


class Fuzzed(Dataset):
    def __init__(self, length, structure):
        self.length, self.structure = length, structure

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {**STRUCTURES, **RAGGED}[self.structure](index)


class FuzzedLists(Fuzzed):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class FuzzedStream(IterableDataset):
    """Worker w gives lengths[w] numbers."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return iter(range(1000 * worker, 1000 * worker + self.lengths[worker]))


def as_list(samples):
    return list(samples)


# --------------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """The arguments of a loader, what its samples are, and after which batches which workers are killed."""

    length: int
    structure: str
    lists: bool
    batch_size: int | None
    workers: int
    custom: bool
    drop_last: bool
    in_order: bool | None
    shuffle: bool
    prefetch_factor: int
    persistent: bool
    epochs: int
    memory_budget: int | None
    kills: dict[int, int] = field(default_factory=dict)
    """Batch number, -1 for none yet: how many workers are killed after it."""

    def collate(self):
        return as_list if self.custom and self.batch_size is not None else None


@st.composite
def cases(draw, kills=False):
    ragged = draw(st.integers(0, 5)) == 0
    workers = draw(st.integers(1 if kills else 0, 3))
    batch_size = draw(st.sampled_from([None, 1, 2, 3, 7, 16]))
    return Case(
        length=draw(st.integers(0, 40)),
        structure=draw(st.sampled_from(sorted(RAGGED if ragged else STRUCTURES))),
        lists=draw(st.booleans()),
        batch_size=batch_size,
        workers=workers,
        custom=draw(st.booleans()) or ragged,
        drop_last=draw(st.booleans()) and batch_size is not None,
        in_order=draw(st.sampled_from([None, True, False])),
        shuffle=draw(st.booleans()),
        prefetch_factor=draw(st.integers(1, 4)),
        persistent=draw(st.booleans()) and workers > 0,
        epochs=draw(st.integers(1, 2)),
        memory_budget=draw(st.sampled_from([None, None, 1, 10_000])),
        kills=draw(st.dictionaries(st.integers(-1, 8), st.integers(1, 3), min_size=1, max_size=4)) if kills else {},
    )


def make_loader(loader_class, case, seed, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more workers than cores
        return loader_class(
            (FuzzedLists if case.lists else Fuzzed)(case.length, case.structure),
            batch_size=case.batch_size,
            shuffle=case.shuffle and case.length > 0,
            num_workers=case.workers,
            collate_fn=case.collate(),
            drop_last=case.drop_last,
            prefetch_factor=case.prefetch_factor if case.workers else None,
            persistent_workers=case.persistent,
            generator=torch.Generator().manual_seed(seed),
            **options,
        )


def ours(case, seed):
    return make_loader(
        DataLoader,
        case,
        seed,
        in_order=case.in_order,
        memory_budget=case.memory_budget,
        max_worker_restarts=FOR_EVER,
        sample_retries=FOR_EVER,
    )


def kept_in_order(case):
    """Whether torch's exact batches are promised."""
    return (
        case.workers == 0 or case.in_order or (case.in_order is None and (not case.shuffle or case.batch_size is None))
    )


# --------------------------------------------------------------------------------------------------------- the model


def model_epochs(case, seed):
    """Batches of each epoch as torch makes them in this process, without workers."""
    plain = Case(**{**vars(case), "workers": 0, "persistent": False})
    loader = make_loader(torch.utils.data.DataLoader, plain, seed)
    if case.persistent:  # whose base seed is drawn once, where this one draws before each epoch
        return persistent_epochs(loader, case, seed)
    return [list(loader) for _ in range(case.epochs)]


def persistent_epochs(loader, case, seed):
    """The same with the random draws of a loader whose workers live on."""
    generator = torch.Generator().manual_seed(seed)
    sampler = loader.batch_sampler if case.batch_size is not None else loader.sampler
    loader.sampler.__dict__["generator"] = generator
    epochs = []
    for epoch in range(case.epochs):
        if epoch == 0:
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        collate = loader.collate_fn
        epochs.append(
            [
                collate([loader.dataset[i] for i in keys]) if case.batch_size else collate(loader.dataset[keys])
                for keys in sampler
            ]
        )
    return epochs


def plain(value):
    """A value that can be compared and sorted by its text: tensors and arrays become lists with type and shape."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(plain(part) for part in value)]
    return (type(value).__name__, value)


def check_reordered(case, got):
    """Every index once (or all but the remainder), full batches but the last, and each sample whole."""
    make = {**STRUCTURES, **RAGGED}[case.structure]
    batches = len(got)
    size = case.batch_size or 1
    whole, rest = divmod(case.length, size)
    assert batches == whole + (1 if rest and not case.drop_last else 0)
    singles = []
    for number, batch in enumerate(got):
        expected = rest if number == whole else size
        singles += unpack(case, batch, expected)
    allowed = sorted(repr(plain(collated_alone(case, make(i)))) for i in range(case.length))
    found = sorted(repr(plain(single)) for single in singles)
    if case.drop_last:
        for one in found:
            allowed.remove(one)  # raises if it came twice
        assert len(allowed) == rest
    else:
        assert found == allowed


def collated_alone(case, sample):
    """A sample as a batch of one, or as it is where batches are lists or there are none."""
    if case.custom and case.batch_size is not None:
        return sample
    return default_collate([sample]) if case.batch_size is not None else torch.utils.data.default_convert(sample)


def unpack(case, batch, expected):
    if case.batch_size is None:
        return [batch]
    if case.custom:
        assert len(batch) == expected
        return batch
    return [part_of(batch, row) for row in range(expected)]


def part_of(batch, row):
    """Row `row` of a collated batch, as a batch of one."""
    if isinstance(batch, torch.Tensor):
        return batch[row : row + 1]
    if isinstance(batch, dict):
        return {key: part_of(value, row) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], str):
        return type(batch)(batch[row : row + 1])
    return type(batch)(part_of(value, row) for value in batch)


def read_epochs(loader, case):
    """All epochs; workers are killed after the batches the case names. Returns batches and kills."""
    epochs, kills = [], 0
    for _ in range(case.epochs):
        iterator = iter(loader)
        batches = []
        kills += strike(iterator, case.kills.get(-1, 0))
        for number, batch in enumerate(iterator):
            batches.append(batch)
            kills += strike(iterator, case.kills.get(number, 0))
        epochs.append(batches)
    return epochs, kills


def strike(iterator, count):
    """Kill some workers of an iterator; returns how many."""
    victims = running(iterator.worker_pids.values())[:count] if count else []
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    return len(victims)


def check(case, seed):
    loader = ours(case, seed)
    try:
        got, kills = read_epochs(loader, case)
        assert loader.stats().worker_restarts <= kills
    finally:
        loader.close()
    if kept_in_order(case):
        assert plain(got) == plain(model_epochs(case, seed))
    else:
        for batches in got:
            check_reordered(case, batches)


# ---------------------------------------------------------------------------------------------------------------- tests


@fuzz
@given(case=cases(), seed=st.integers(0, 1000))
def test_any_loader_delivers_what_the_model_says(case, seed):
    check(case, seed)


@fuzz
@given(case=cases(kills=True), seed=st.integers(0, 1000))
def test_any_loader_delivers_what_the_model_says_while_workers_are_killed(case, seed):
    check(case, seed)


@fuzz
@given(case=cases(kills=True), seed=st.integers(0, 1000))
def test_the_same_where_each_sample_is_written_by_itself(case, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_LARGE_LEAF", 0)
        check(case, seed)


@fuzz
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    batch_size=st.sampled_from([None, 1, 3, 5]),
    drop_last=st.booleans(),
    epochs=st.integers(1, 2),
    persistent=st.booleans(),
)
def test_any_stream_is_delivered_as_the_model_says(lengths, batch_size, drop_last, epochs, persistent):
    drop_last = drop_last and batch_size is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        loader = DataLoader(
            FuzzedStream(lengths),
            batch_size,
            num_workers=len(lengths),
            drop_last=drop_last,
            persistent_workers=persistent,
        )
    streams = [stream_batches(1000 * worker, length, batch_size, drop_last) for worker, length in enumerate(lengths)]
    expected = [batch for turn in range(13) for stream in streams for batch in stream[turn : turn + 1]]
    with loader:
        for _ in range(epochs):
            assert [batch if batch_size is None else batch.tolist() for batch in loader] == expected


def stream_batches(first, length, batch_size, drop_last):
    numbers = list(range(first, first + length))
    if batch_size is None:
        return numbers
    batches = [numbers[at : at + batch_size] for at in range(0, length, batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]
