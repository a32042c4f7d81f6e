"""The constructor: every argument kept, every mistake refused in torch's words, and len() of it all."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import torch
from torch.utils.data import DataLoader as Reference
from torch.utils.data import RandomSampler, SequentialSampler, default_collate, default_convert

from .checks import lists
from .data import Endless, Indices, Ragged, Rows, SizedStream, Stream
from .pieces import as_is

DATASET = Indices(10)


def do_nothing(worker_id):
    pass


# ----------------------------------------------------------------------------------------------------------- attributes

GENERATOR = torch.Generator()
KEPT = {
    "batch_size": (3, {}),
    "num_workers": (2, {}),
    "collate_fn": (as_is, {}),
    "pin_memory": (True, {}),
    "drop_last": (True, {}),
    "timeout": (2.5, {}),
    "worker_init_fn": (do_nothing, {}),
    "generator": (GENERATOR, {}),
    "sampler": ([1, 2, 3], {}),
    "batch_sampler": ([[1, 2], [3]], {}),
    "prefetch_factor": (5, {"num_workers": 1}),
    "persistent_workers": (True, {"num_workers": 1}),
    "pin_memory_device": ("cuda", {}),
    "in_order": (False, {}),
}


@pytest.mark.parametrize("name", KEPT)
def test_an_argument_is_an_attribute_of_the_same_name(loader_class, name):
    value, company = KEPT[name]
    assert getattr(loader_class(DATASET, **{name: value}, **company), name) is value


def test_the_dataset_is_the_one_that_was_given(loader_class):
    assert loader_class(DATASET).dataset is DATASET
    assert loader_class(dataset=DATASET).dataset is DATASET


def test_what_was_not_given_has_the_usual_value(loader_class):
    loader = loader_class(DATASET)
    assert (loader.batch_size, loader.num_workers, loader.timeout, loader.drop_last) == (1, 0, 0, False)
    assert (loader.pin_memory, loader.persistent_workers, loader.pin_memory_device) == (False, False, "")
    assert loader.worker_init_fn is loader.multiprocessing_context is loader.generator is loader.prefetch_factor is None
    assert loader.collate_fn is default_collate
    assert type(loader.sampler) is SequentialSampler
    assert loader.batch_sampler.batch_size == 1


def test_defaults_follow_from_other_arguments(loader_class):
    assert loader_class(DATASET, num_workers=1).prefetch_factor == 2
    assert loader_class(DATASET, batch_size=None).collate_fn is default_convert
    assert loader_class(DATASET, batch_size=None).batch_sampler is None
    assert loader_class(DATASET, batch_sampler=[[0]]).batch_size is None
    assert type(loader_class(DATASET, shuffle=True).sampler) is RandomSampler
    assert loader_class(DATASET, shuffle=True, generator=GENERATOR).sampler.generator is GENERATOR


def test_arguments_up_to_the_generator_may_be_positional(loader_class):
    loader = loader_class(DATASET, 3, False, None, None, 1, as_is, False, True, 5, do_nothing, "fork", GENERATOR)
    assert (loader.batch_size, loader.num_workers, loader.drop_last, loader.timeout) == (3, 1, True, 5)
    assert (loader.collate_fn, loader.worker_init_fn, loader.generator) == (as_is, do_nothing, GENERATOR)
    with pytest.raises(TypeError):
        loader_class(DATASET, 3, False, None, None, 1, as_is, False, True, 5, do_nothing, "fork", GENERATOR, 2)


def test_it_is_a_loader_to_everybody_who_asks(loader_class):
    assert isinstance(loader_class(DATASET), Reference)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_was_decided_cannot_be_set_later(loader_class, name):
    loader = loader_class(DATASET, batch_size=2)
    before = getattr(loader, name)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
        setattr(loader, name, before)
    assert getattr(loader, name) is before


def test_what_may_be_set_later_counts_from_the_next_epoch(loader_class, num_workers):
    loader = loader_class(DATASET, batch_size=5, num_workers=num_workers)
    assert lists(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    loader.collate_fn = sum
    assert list(loader) == [10, 35]
    loader.num_workers = 0
    loader.timeout = 0
    assert list(loader) == [10, 35]


def test_a_subclass_is_called_by_its_name(loader_class):
    class Mine(loader_class):
        pass

    with pytest.raises(ValueError, match="sampler attribute should not be set after Mine is initialized"):
        Mine(DATASET).sampler = []


# ------------------------------------------------------------------------------------------------------------- refusals

MISTAKES = {
    "negative num_workers": (DATASET, {"num_workers": -1}, "num_workers option should be non-negative"),
    "negative timeout": (DATASET, {"timeout": -1}, "timeout option should be non-negative"),
    "prefetch_factor without workers": (
        DATASET,
        {"prefetch_factor": 2},
        "prefetch_factor option could only be specified in multiprocessing",
    ),
    "negative prefetch_factor": (
        DATASET,
        {"num_workers": 1, "prefetch_factor": -1},
        "prefetch_factor option should be non-negative",
    ),
    "persistent_workers without workers": (
        DATASET,
        {"persistent_workers": True},
        "persistent_workers option needs num_workers > 0",
    ),
    "sampler and shuffle": (
        DATASET,
        {"sampler": [1], "shuffle": True},
        "sampler option is mutually exclusive with shuffle",
    ),
    "no batches, and drop_last": (
        DATASET,
        {"batch_size": None, "drop_last": True},
        "batch_size=None option disables auto-batching and is mutually exclusive with drop_last",
    ),
    "drop_last of another type": (
        DATASET,
        {"drop_last": 1},
        "drop_last should be a boolean value, but got drop_last=1",
    ),
    "nothing to shuffle": (Indices(0), {"shuffle": True}, "num_samples should be a positive integer value"),
    "stream and shuffle": (
        Stream(3),
        {"shuffle": True},
        "DataLoader with IterableDataset: expected unspecified shuffle option, but got shuffle=True",
    ),
    "stream and sampler": (
        Stream(3),
        {"sampler": [1]},
        r"DataLoader with IterableDataset: expected unspecified sampler option, but got sampler=\[1\]",
    ),
    "stream and batch_sampler": (
        Stream(3),
        {"batch_sampler": [[1]]},
        r"DataLoader with IterableDataset: expected unspecified batch_sampler option, but got batch_sampler=\[\[1\]\]",
    ),
}
MISTAKES |= {
    f"batch_size={size!r}": (DATASET, {"batch_size": size}, "batch_size should be a positive integer value, but got")
    for size in (0, -1, 1.5, True, "2")
}
MISTAKES |= {
    f"batch_sampler and {name}": (
        DATASET,
        {"batch_sampler": [[1]], name: value},
        "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last",
    )
    for name, value in {"batch_size": 2, "shuffle": True, "sampler": [1], "drop_last": True}.items()
}


@pytest.mark.parametrize(("dataset", "arguments", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_refused(loader_class, dataset, arguments, words):
    with pytest.raises(ValueError, match=words):
        loader_class(dataset, **arguments)


@pytest.mark.parametrize("arguments", [{"num_workers": "two"}, {"timeout": "long"}, {"no_such_argument": 1}], ids=str)
def test_values_of_the_wrong_type_are_refused(loader_class, arguments):
    with pytest.raises(TypeError):
        loader_class(DATASET, **arguments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's iterator dies half built
def test_a_generator_has_to_be_one(loader_class, num_workers):
    with pytest.raises(TypeError):
        next(iter(loader_class(DATASET, generator="not a generator", num_workers=num_workers)))


def test_too_many_workers_are_warned_about(loader_class):
    crowd = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match=f"This DataLoader will create {crowd} worker processes in total"):
        loader_class(DATASET, num_workers=crowd)


# ---------------------------------------------------------------------------------------------------------------- len()

LENGTHS = {
    "even": (DATASET, {"batch_size": 5}, 2),
    "uneven": (DATASET, {"batch_size": 4}, 3),
    "uneven, drop_last": (DATASET, {"batch_size": 4, "drop_last": True}, 2),
    "without batching": (DATASET, {"batch_size": None}, 10),
    "sampler": (DATASET, {"batch_size": 2, "sampler": [1, 2, 3]}, 2),
    "batch_sampler": (DATASET, {"batch_sampler": [[1], [2, 3], [4]]}, 3),
    "stream": (SizedStream(10), {"batch_size": 4}, 3),
    "stream, drop_last": (SizedStream(10), {"batch_size": 4, "drop_last": True}, 2),
    "stream without batching": (SizedStream(10), {"batch_size": None}, 10),
}


@pytest.mark.parametrize(("dataset", "arguments", "length"), LENGTHS.values(), ids=LENGTHS)
def test_the_length_is_the_number_of_batches(loader_class, dataset, arguments, length):
    loader = loader_class(dataset, **arguments)
    assert len(loader) == length
    assert len(list(loader)) == length


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [(Endless(), {}), (Stream(3), {}), (DATASET, {"batch_sampler": Ragged(10)})],
    ids=["dataset", "stream", "batch_sampler"],
)
def test_what_has_no_length_gives_none_to_its_loader(loader_class, dataset, arguments):
    with pytest.raises(TypeError):
        len(loader_class(dataset, **arguments))


def test_a_stream_longer_than_it_said_is_warned_about(loader_class):
    loader = loader_class(SizedStream(5, claims=3), batch_size=None)
    len(loader)
    with pytest.warns(UserWarning, match=r"Length of IterableDataset .* was reported to be 3") as caught:
        assert len(list(loader)) == 5
    assert ["but 4 samples" in str(caught[0].message), "but 5 samples" in str(caught[1].message)] == [True, True]


def test_a_stream_that_every_worker_repeats_is_warned_about_with_advice(loader_class):
    loader = loader_class(SizedStream(3), batch_size=None, num_workers=2)
    len(loader)
    with pytest.warns(UserWarning, match="not properly configuring the IterableDataset replica at each worker"):
        assert len(list(loader)) == 6


def test_nobody_is_warned_who_never_asked_for_the_length(loader_class):
    assert len(list(loader_class(SizedStream(5, claims=3), batch_size=None))) == 5


# ------------------------------------------------------------------------------------------------- copies of the loader


@pytest.mark.parametrize(
    "duplicate", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "pickle"]
)
def test_a_loader_can_be_copied_and_pickled(loader_class, num_workers, duplicate):
    loader = loader_class(DATASET, batch_size=4, num_workers=num_workers, collate_fn=as_is)
    twin = duplicate(loader)
    assert type(twin) is loader_class
    assert list(twin) == list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_loader_can_be_rebuilt_from_its_attributes(loader_class, num_workers):
    names = ["dataset", "batch_size", "sampler", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout"]
    names += ["worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"]
    names += ["in_order"]
    loader = loader_class(Rows(7), batch_size=3, sampler=[6, 0, 3, 2, 1], num_workers=num_workers, drop_last=True)
    twin = loader_class(**{name: getattr(loader, name) for name in names})
    assert lists(twin) == lists(loader)
