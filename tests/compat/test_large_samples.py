"""Samples so large that each is written by itself, as soon as it is made: what torch gives, odd ones included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Reference
from torch.utils.data import IterableDataset

from .checks import assert_as_reference, assert_same_outcomes, outcomes
from .data import Samples
from .pieces import Pair

SIDE = 160  # a square of float32: 100 kB
COUNT, BATCH = 36, 12


def square(number: int) -> torch.Tensor:
    return torch.arange(SIDE * SIDE, dtype=torch.float32).view(SIDE, SIDE) + number


class Broken:
    """A sample that cannot be had."""


class Fragile(Samples):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if isinstance(sample, Broken):
            raise ValueError(f"sample {index} is broken")
        return sample


class Streamed(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for sample in self.samples[first::step]:
            if isinstance(sample, Broken):
                raise ValueError("the stream is broken")
            yield sample


KINDS = {
    "tensor": square,
    "tensor and number": lambda n: (square(n), n),
    "numpy array": lambda n: square(n).numpy(),
    "dict of two": lambda n: {"image": square(n), "mask": square(n).numpy() > n + 7, "weight": n / 3},
    "named tuple": lambda n: Pair(square(n), np.float32(n)),
    "transposed": lambda n: square(n).T,
    "every other row": lambda n: torch.cat([square(n), square(-n)])[::2],
    "bfloat16": lambda n: torch.cat([square(n), square(-n)]).bfloat16(),
    "with text": lambda n: (square(n), f"number {n}"),
    "bytes of an image": lambda n: square(n).numpy().astype(np.uint8).repeat(4, axis=0),
}


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_torchs(loader_class, kind, in_order):
    samples = [KINDS[kind](n) for n in range(COUNT)]
    # One worker: without an order of its own, torch gives the same batches, and so does minato.
    arguments = {"batch_size": BATCH, "num_workers": 2 if in_order else 1, "in_order": in_order}
    got = outcomes(loader_class(Samples(samples), **arguments))
    assert_same_outcomes(got, outcomes(Reference(Samples(samples), **{**arguments, "in_order": True})))


ODD = {
    "fails": Broken(),
    "of another shape": (torch.zeros(SIDE, SIDE + 1), 1),
    "of another dtype": (torch.zeros(SIDE, SIDE, dtype=torch.float64), 1),
    "with a number of another type": (square(3), 1.5),
    "with a number too large": (square(3), 2**70),
    "that needs a gradient": (torch.zeros(SIDE, SIDE, requires_grad=True), 1),
    "sparse": (torch.eye(SIDE).to_sparse(), 1),
    "of one part": (square(3),),
    "none": None,
}


@pytest.mark.parametrize("at", [0, 17, COUNT - 1])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_one_is_what_torch_makes_of_it(loader_class, odd, at):
    samples = [(square(n), n) for n in range(COUNT)]
    samples[at] = ODD[odd]
    assert_as_reference(loader_class, Fragile(samples), batch_size=BATCH, num_workers=2)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("count", [COUNT, COUNT - 5])
def test_a_stream_of_them_is_torchs(loader_class, count, drop_last):
    stream = Streamed([(square(n), n) for n in range(count)])
    assert_as_reference(loader_class, stream, batch_size=BATCH, num_workers=2, drop_last=drop_last)


@pytest.mark.parametrize("at", [0, 30, COUNT - 1])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_one_in_a_stream_is_what_torch_makes_of_it(loader_class, odd, at):
    samples = [(square(n), n) for n in range(COUNT)]
    samples[at] = ODD[odd]
    assert_as_reference(loader_class, Streamed(samples), batch_size=BATCH, num_workers=2)


def test_re_ordered_each_comes_once_and_whole(minato_class):
    samples = [(square(n), n) for n in range(COUNT)]
    loader = minato_class(Samples(samples), batch_size=BATCH, shuffle=True, num_workers=2)
    seen = []
    for images, numbers in loader:
        for image, number in zip(images, numbers.tolist(), strict=True):
            assert torch.equal(image, square(number))
            seen.append(number)
    assert sorted(seen) == list(range(COUNT))


class Volumes(torch.utils.data.Dataset):
    """Samples of 17 to 22 MB, some of them of a length of their own, made in steps that take as much again."""

    def __init__(self, uneven=False):
        self.uneven = uneven

    def __len__(self):
        return 8

    def __getitem__(self, index):
        length = 4_500_000 + 150_000 * (index % 3 if self.uneven else 0)
        return torch.full((length,), float(index)).mul(2).add(index), index


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence([volume for volume, _ in samples]), [index for _, index in samples]


@pytest.mark.parametrize("collate_fn", [None, padded], ids=["rows", "collate_fn"])
@pytest.mark.parametrize("fetcher", ["sequential", "threaded"])
def test_volumes_for_which_workers_keep_their_memory_arrive_as_they_were_made(minato_class, collate_fn, fetcher):
    """Batches beyond what malloc has on its heap by itself."""
    arguments = {"batch_size": 2, "num_workers": 2, "collate_fn": collate_fn}
    loader = minato_class(
        Volumes(uneven=collate_fn is not None),
        **arguments,
        persistent_workers=True,
        fetcher=fetcher,
        num_fetch_workers=2,
    )
    expected = Reference(Volumes(uneven=collate_fn is not None), **{**arguments, "num_workers": 0})
    for _ in range(2):
        for batch, (volumes, indices) in zip(loader, expected, strict=True):
            assert torch.equal(batch[0], volumes)
            assert list(batch[1]) == list(indices)
    loader.close()
