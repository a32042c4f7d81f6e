"""Samples that cannot be pickled, and results of `__getitems__` that are no lists: torch's workers hand them to the
collate function as they are, since they have all samples of a batch."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from .checks import assert_same, lists

# ------------------------------------------------------------------------------------------- samples nobody can pickle


class Secretive(Dataset):
    """Sample i is a function that returns i and a random number; every `slow`-th takes a while, so that other workers
    have samples of the same batch. Each call of `__getitem__` leaves a mark."""

    def __init__(self, length, marks=None, slow=5, kind="function"):
        self.length, self.marks, self.slow, self.kind = length, marks, slow, kind

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index % self.slow == 0:
            time.sleep(0.02)
        if self.marks is not None:
            (self.marks / f"{index}-{os.getpid()}-{time.monotonic_ns()}").touch()
        drawn = float(torch.rand(()))
        if self.kind == "mixed" and index % 3:
            return (index, drawn)
        if self.kind == "lock":
            return threading.Lock(), index, drawn
        return lambda: (index, drawn)


def ask(samples):
    """The indices; random numbers aside, for with torch they are the worker's."""
    found = [sample() if callable(sample) else sample[-2:] for sample in samples]
    return torch.tensor([index for index, _ in found])


def ask_all(samples):
    return [sample() if callable(sample) else sample[-2:] for sample in samples]


def nothing_to_collate(samples):
    return samples[0]


@pytest.mark.parametrize("kind", ["function", "mixed", "lock"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_collate_fn_may_be_given_what_cannot_be_pickled(loader_class, kind, workers):
    loader = loader_class(Secretive(22, kind=kind), batch_size=4, num_workers=workers, collate_fn=ask)
    assert lists(loader) == [list(range(first, min(first + 4, 22))) for first in range(0, 22, 4)]


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_also_in_workers_that_were_not_forked(loader_class, context):
    dataset = Secretive(9)
    loader = loader_class(dataset, batch_size=3, num_workers=2, collate_fn=ask, multiprocessing_context=context)
    assert lists(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"in_order": False}, {"shuffle": True, "drop_last": True}])
@pytest.mark.parametrize("persistent", [False, True])
def test_re_ordered_each_comes_once_in_full_batches(minato_class, arguments, persistent):
    loader = minato_class(
        Secretive(46), batch_size=4, num_workers=3, collate_fn=ask, persistent_workers=persistent, **arguments
    )
    for _ in range(2):
        batches = lists(loader)
        assert [len(batch) for batch in batches[:-1]] == [4] * (len(loader) - 1)
        delivered = sorted(index for batch in batches for index in batch)
        assert len(set(delivered)) == len(delivered) == (44 if arguments.get("drop_last") else 46)


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"fetcher": "threaded", "num_fetch_workers": 3}])
def test_after_the_first_ones_no_sample_is_made_twice(minato_class, tmp_path, arguments):
    """A sample that was made by another worker than the one that collates is made again; from then on whole batches
    are made by one worker."""
    length = 400
    dataset = Secretive(length, tmp_path, slow=10**9)
    batches = lists(minato_class(dataset, batch_size=4, num_workers=2, collate_fn=ask, **arguments))
    assert sorted(index for batch in batches for index in batch) == list(range(length))
    assert len(list(tmp_path.iterdir())) <= length + 100


@pytest.mark.parametrize("in_order", [True, False])
def test_a_sample_that_is_made_again_has_the_same_random_numbers(minato_class, in_order):
    def drawn(workers):
        generator = torch.Generator().manual_seed(3)
        arguments = {"collate_fn": ask_all, "in_order": in_order, "generator": generator}
        batches = minato_class(Secretive(30), batch_size=6, num_workers=workers, **arguments)
        return sorted(pair for batch in batches for pair in batch)

    assert drawn(0) == drawn(1) == drawn(3)


def test_a_sample_that_cannot_be_made_again_is_an_error(minato_class, tmp_path):
    """Its first maker has made it, and could not send it."""
    loader = minato_class(Fleeting(12, tmp_path), batch_size=12, num_workers=3, collate_fn=ask)
    with pytest.raises(FileExistsError, match="sample index"):
        list(loader)


class Fleeting(Secretive):
    """Can be made once."""

    def __getitem__(self, index):
        time.sleep(0.05)
        open(self.marks / str(index), "x").close()
        return lambda: (index, 0.0)


class Deadly(Secretive):
    """Every seventh kills the worker that is the first to make it."""

    def __getitem__(self, index):
        if index % 7 == 6:
            try:
                open(self.marks / str(index), "x").close()
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index) if index % 2 else lambda: (index, 0.0)


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"fetcher": "threaded", "num_fetch_workers": 3}])
def test_workers_may_die_over_them(minato_class, tmp_path, arguments):
    dataset = Deadly(40, tmp_path)
    batches = lists(minato_class(dataset, batch_size=4, num_workers=2, collate_fn=ask, **arguments))
    assert sorted(index for batch in batches for index in batch) == list(range(40))


def test_results_that_cannot_be_pickled_are_an_error_still(minato_class):
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        list(minato_class(Secretive(4), batch_size=2, num_workers=2, collate_fn=nothing_to_collate))


class Views(Dataset):
    """`default_collate` takes them for sequences; they cannot be pickled."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.002)
        return memoryview(bytes([index, 7]))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_default_collate_may_be_given_what_cannot_be_pickled(loader_class, workers):
    batches = list(loader_class(Views(), batch_size=4, num_workers=workers))
    assert [[column.tolist() for column in batch] for batch in batches] == [
        [list(range(first, first + 4)), [7] * 4] for first in (0, 4, 8)
    ]


# ----------------------------------------------------------------------------------------------- samples themselves


class Marked(Dataset):
    """Every third sample is one and the same object, known by that."""

    NOTHING = Secretive(0)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(0.002)
        return self.NOTHING if index % 3 == 0 else index


def without_nothing(samples):
    return torch.tensor([sample for sample in samples if sample is not Marked.NOTHING])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_collate_fn_is_given_the_samples_of_its_own_worker_themselves(loader_class, workers, shuffle):
    batches = lists(
        loader_class(Marked(), batch_size=6, num_workers=workers, collate_fn=without_nothing, shuffle=shuffle)
    )
    assert len(batches) == 4
    assert sorted(index for batch in batches for index in batch) == [i for i in range(24) if i % 3]


@pytest.mark.parametrize("workers", [1, 3])
def test_own_samples_are_not_taken_for_those_that_came_in_their_place(minato_class, workers):
    """Those that fail are left out, and replaced by the next ones."""
    loader = minato_class(
        Failing(), batch_size=4, num_workers=workers, collate_fn=as_given, shuffle=True, on_error="skip"
    )
    with pytest.warns(RuntimeWarning, match="left out"):
        batches = list(loader)
    assert [len(batch) for batch in batches] == [4] * 5
    assert sorted(index for batch in batches for index in batch) == [i for i in range(30) if i % 3]


class Failing(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        time.sleep(0.002)
        if index % 3 == 0:
            raise ValueError(index)
        return index


class OddArrays(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        numbers = np.arange(6, dtype=np.float32).reshape(2, 3) + index
        big, flipped, deep = numbers.astype(">f4"), numbers[::-1], {"x": numbers[:, ::-1]}
        return {"big": big, "flipped": flipped, "plain": numbers, "deep": deep}


def test_arrays_in_a_result_are_as_torchs_loader_gives_them(loader_class):
    """Of this machine's byte order, with strides that torch takes, and writable."""
    for batch in loader_class(OddArrays(), batch_size=2, num_workers=1, collate_fn=as_given):
        for sample in batch:
            for array in (sample["big"], sample["flipped"], sample["plain"], sample["deep"]["x"]):
                assert array.dtype.isnative
                torch.from_numpy(array).add_(1)


@pytest.mark.parametrize("arguments", [{}, {"collate_fn": lambda samples: torch.stack(samples)}, {"batch_size": None}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_a_batch_are_nobodys_views(loader_class, num_workers, arguments, dtype):
    images = [torch.full((64, 64), float(index), dtype=dtype) for index in range(6)]
    for tensor in loader_class(images, **{"batch_size": 3, **arguments}, num_workers=num_workers):
        assert tensor._base is None
        tensor.detach_()


# ------------------------------------------------------------------------------------------------- finished batches


class Finished(Dataset):
    """`__getitems__` returns a batch as it is to be, not a list of samples."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 6

    def __getitems__(self, indices):
        return MAKERS[self.how](torch.as_tensor(indices))


MAKERS = {
    "dict": lambda t: {"x": t, "y": t + 1},
    "tensor": lambda t: t,
    "tuple": lambda t: (t, t + 1),
    "array": lambda t: t.numpy(),
    "text": lambda t: "ab",
    "nothing": lambda t: None,
    "more": lambda t: [*t.tolist(), 99],
}


def as_given(batch):
    return batch


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("arguments", [{"collate_fn": as_given}, {}], ids=["as_given", "default"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_getitems_returns_goes_to_the_collate_function_as_it_is(minato_class, how, arguments, workers):
    expected = outcome(torch.utils.data.DataLoader(Finished(how), batch_size=3, **arguments))
    assert_same(outcome(minato_class(Finished(how), batch_size=3, num_workers=workers, **arguments)), expected)


def outcome(loader):
    try:
        return list(loader)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("fetcher", ["sequential", "threaded"])
@pytest.mark.parametrize("arguments", [{}, {"on_error": "skip"}], ids=["raise", "skip"])
@pytest.mark.parametrize("workers", [0, 2])
def test_finished_batches_go_with_every_fetcher_and_policy(minato_class, fetcher, arguments, workers):
    loader = minato_class(
        Finished("dict"), batch_size=3, num_workers=workers, collate_fn=as_given, fetcher=fetcher, **arguments
    )
    assert [batch["y"].tolist() for batch in loader] == [[1, 2, 3], [4, 5, 6]]
    assert loader.stats().samples_delivered == 6


class DeadlyOnce(Finished):
    """Kills the first worker that is asked for sample 4."""

    def __init__(self, marks):
        super().__init__("dict")
        self.marks = marks

    def __getitems__(self, indices):
        if 4 in indices:
            try:
                open(self.marks / "killed", "x").close()
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitems__(indices)


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
def test_parts_of_a_finished_batch_after_a_death_are_an_error(minato_class, tmp_path):
    """Samples of a dead worker are asked for one by one, and finished batches of one cannot be put together."""
    iterator = iter(minato_class(DeadlyOnce(tmp_path), batch_size=3, num_workers=2, collate_fn=as_given))
    assert next(iterator)["x"].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="after the death of a worker __getitems__ was asked for 1 sample"):
        next(iterator)
    assert list(iterator) == []


class NamesItsQuestion(Dataset):
    def __len__(self):
        return 6

    def __getitems__(self, indices):
        return [(type(indices).__name__, [int(index) for index in indices])]


QUESTIONS = {
    "tuple": (1, 2),
    "tensor": torch.tensor([1, 2]),
    "array": np.array([1, 2]),
    "range": range(1, 3),
    "set": {1, 2},
    "list": [1, 2],
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("fetcher", ["sequential", "threaded"])
@pytest.mark.parametrize("workers", [0, 2])
def test_getitems_is_asked_with_the_batch_samplers_own_object(minato_class, question, fetcher, workers):
    """As by torch's loader."""
    batches = [QUESTIONS[question], [3, 4]]
    expected = list(torch.utils.data.DataLoader(NamesItsQuestion(), batch_sampler=batches, collate_fn=as_given))
    loader = minato_class(
        NamesItsQuestion(), batch_sampler=batches, collate_fn=as_given, num_workers=workers, fetcher=fetcher
    )
    assert list(loader) == expected


def test_getitems_without_workers_is_asked_for_an_empty_batch_too(loader_class):
    assert list(loader_class(NamesItsQuestion(), batch_sampler=[[], [1]], collate_fn=as_given)) == [
        [("list", [])],
        [("list", [1])],
    ]


@pytest.mark.parametrize("batch", [{1, 2}, {1: "a", 2: "b"}, (1, 2), range(1, 3)], ids=lambda b: type(b).__name__)
def test_a_batch_sampler_may_give_anything_that_can_be_iterated(loader_class, num_workers, batch):
    assert lists(loader_class(list(range(5)), batch_sampler=[batch], num_workers=num_workers)) == [[1, 2]]
