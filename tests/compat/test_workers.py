"""What a worker knows, and how workers come and go."""

from __future__ import annotations

import multiprocessing
import pickle
import random

import pytest
import torch
from torch.utils.data import get_worker_info

from .checks import assert_same, lists
from .data import Indices, Rows, Samples, Witness
from .gates import AfterRollCall, Gated, RollCall
from .pieces import as_is

SEED = 17


@pytest.fixture
def roll_call(tmp_path):
    return RollCall(tmp_path)


def base_seed():
    """The number every loader draws first from its generator, to seed its workers."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(SEED)))


class Marking(torch.utils.data.Sampler):
    """Leaves a mark on the dataset as soon as it is asked for a sample."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        self.dataset.mark = 1
        yield from range(len(self.dataset))


class Marked(torch.utils.data.Dataset):
    mark = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.mark


def test_all_workers_are_forked_before_a_sampler_of_the_users_is_asked(loader_class):
    """None of them inherits what it does then."""
    dataset = Marked()
    loader = loader_class(dataset, 2, sampler=Marking(dataset), num_workers=3, multiprocessing_context="fork")
    assert torch.cat(list(loader)).tolist() == [0] * 12
    assert dataset.mark == 1


# -------------------------------------------------------------------------------------------------- what a worker knows


def test_worker_init_fn_is_called_once_in_every_worker_with_its_id(loader_class, roll_call):
    dataset = AfterRollCall(6, roll_call, 3)
    loader = loader_class(dataset, batch_size=2, num_workers=3, worker_init_fn=roll_call)
    assert len(list(loader)) == 3
    assert [int(words[0]) for words in roll_call.signed()] == [0, 1, 2]


def test_worker_init_fn_finds_worker_info_filled_and_generators_seeded(loader_class, roll_call):
    dataset = AfterRollCall(6, roll_call, 2)
    generator = torch.Generator().manual_seed(SEED)
    loader = loader_class(dataset, batch_size=2, num_workers=2, worker_init_fn=roll_call, generator=generator)
    list(loader)
    for worker, words in enumerate(roll_call.signed()):
        seed = base_seed() + worker
        assert words[1:6] == [str(worker), "2", str(seed), str(seed), str(random.Random(seed).random())]
        assert words[7] == "AfterRollCall"


def test_worker_info_and_seeds_are_there_for_every_sample(loader_class, roll_call):
    dataset = AfterRollCall(8, roll_call, 2)
    generator = torch.Generator().manual_seed(SEED)
    loader = loader_class(dataset, 2, num_workers=2, worker_init_fn=roll_call, generator=generator, collate_fn=as_is)
    for sample in (sample for batch in loader for sample in batch):
        assert sample["worker"] in (0, 1)
        assert sample["workers"] == 2
        assert sample["seed"] == sample["initial_seed"] == base_seed() + sample["worker"]
        assert sample["own_dataset"]
        assert sample["threads"] == 1


def test_workers_of_the_next_epoch_have_another_seed(loader_class):
    loader = loader_class(Witness(2), batch_size=2, num_workers=1)
    assert next(iter(loader))["seed"][0] != next(iter(loader))["seed"][0]


def test_without_workers_there_is_no_worker_info_and_no_worker_init_fn(loader_class, roll_call):
    loader = loader_class(Witness(2), batch_size=2, worker_init_fn=roll_call, collate_fn=as_is)
    assert [sample["worker"] for sample in next(iter(loader))] == [-1, -1]
    assert roll_call.signed() == []
    assert get_worker_info() is None


def test_what_workers_do_to_the_dataset_stays_with_them(loader_class):
    dataset = Samples([0, 1, 2, 3])
    loader = loader_class(dataset, batch_size=2, num_workers=1, worker_init_fn=forget)
    assert lists(loader) == [[-1, -1], [-1, -1]]
    assert dataset.items == [0, 1, 2, 3]


def forget(worker_id):
    get_worker_info().dataset.items[:] = [-1] * 4


# ----------------------------------------------------------------------------------------------------- coming and going


def test_every_epoch_has_fresh_workers(loader_class, roll_call):
    dataset = AfterRollCall(4, roll_call, 2)
    loader = loader_class(dataset, batch_size=2, num_workers=2, worker_init_fn=roll_call)
    for dataset.count in (2, 4):
        list(loader)
    assert len({words[6] for words in roll_call.signed()}) == 4


def test_persistent_workers_live_through_all_epochs(loader_class, roll_call):
    dataset = AfterRollCall(6, roll_call, 2)
    loader = loader_class(dataset, 1, num_workers=2, worker_init_fn=roll_call, persistent_workers=True, shuffle=True)
    seen = {int(batch["pid"]) for _ in range(3) for batch in loader}
    signed = {int(words[6]) for words in roll_call.signed()}
    assert len(roll_call.signed()) == 2
    assert seen <= signed


def test_persistent_workers_keep_what_their_dataset_has_learned(loader_class):
    loader = loader_class(Counting(), batch_size=None, num_workers=1, persistent_workers=True)
    assert [list(loader) for _ in range(3)] == [[1, 2], [3, 4], [5, 6]]


class Counting(Indices):
    """How often this copy of the dataset has been asked."""

    def __init__(self):
        super().__init__(2)
        self.asked = 0

    def __getitem__(self, index):
        self.asked += 1
        return self.asked


def test_persistent_workers_start_anew_after_an_epoch_left_early(loader_class):
    loader = loader_class(Rows(40), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(3):
        first = next(iter(loader))
        assert first[:, 0, 0].tolist() == [0.0, 1.0]
    assert [batch[0, 0, 0].item() for batch in loader] == list(range(0, 40, 2))


# -------------------------------------------------------------------------------------------------------------- timeout


def test_timeout_raises_in_the_main_process(loader_class, gate):
    iterator = iter(loader_class(Gated(4, gate), batch_size=2, num_workers=1, timeout=0.2))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iterator)
    gate.open()


def test_after_a_timeout_one_may_go_on_waiting(loader_class, gate):
    iterator = iter(loader_class(Gated(4, gate), batch_size=2, num_workers=1, timeout=0.2))
    with pytest.raises(RuntimeError, match="DataLoader timed out after"):
        next(iterator)
    gate.open()
    assert patiently(iterator) == [0, 1]
    assert patiently(iterator) == [2, 3]


def patiently(iterator):
    for _ in range(100):
        try:
            return next(iterator).tolist()
        except RuntimeError as error:
            assert "timed out" in str(error)
    raise AssertionError("the batch never came")


def test_a_timeout_that_is_not_reached_changes_nothing(loader_class):
    assert lists(loader_class(Indices(4), batch_size=2, num_workers=1, timeout=60)) == [[0, 1], [2, 3]]


# -------------------------------------------------------------------------------------------------------- start methods


def stamp(samples):
    """Picklable, and different from default_collate."""
    return torch.stack(samples), multiprocessing.get_start_method(allow_none=True), get_worker_info().num_workers


def test_every_start_method_gives_the_same_batches(loader_class, start_method, roll_call):
    loader = loader_class(
        Rows(5),
        batch_size=2,
        num_workers=1,
        collate_fn=stamp,
        worker_init_fn=roll_call,
        multiprocessing_context=start_method,
        persistent_workers=True,
    )
    for _ in range(2):
        for (batch, _, workers), members in zip(loader, [[0, 1], [2, 3], [4]], strict=True):
            assert_same(batch, torch.stack([Rows(5)[index] for index in members]))
            assert workers == 1
    assert len(roll_call.signed()) == 1


def test_a_context_object_does_as_well_as_its_name(loader_class):
    for context in (multiprocessing.get_context("fork"), torch.multiprocessing.get_context("fork")):
        loader = loader_class(Indices(4), batch_size=2, num_workers=2, multiprocessing_context=context)
        assert loader.multiprocessing_context is context
        assert lists(loader) == [[0, 1], [2, 3]]


def test_the_name_of_a_start_method_becomes_its_context(loader_class):
    loader = loader_class(Indices(4), num_workers=1, multiprocessing_context="forkserver")
    assert loader.multiprocessing_context.get_start_method() == "forkserver"
    loader.multiprocessing_context = "fork"
    assert loader.multiprocessing_context.get_start_method() == "fork"
    loader.multiprocessing_context = None
    assert loader.multiprocessing_context is None


WRONG_CONTEXTS = {
    "unknown name": (
        1,
        "teleport",
        ValueError,
        "multiprocessing_context option should specify a valid start method in",
    ),
    "no context": (
        1,
        object(),
        TypeError,
        "multiprocessing_context option should be a valid context object or a string",
    ),
    "no workers": (0, "fork", ValueError, "multiprocessing_context can only be used with multi-process loading"),
}


@pytest.mark.parametrize(("workers", "context", "kind", "words"), WRONG_CONTEXTS.values(), ids=WRONG_CONTEXTS)
def test_a_wrong_multiprocessing_context_is_refused(loader_class, workers, context, kind, words):
    with pytest.raises(kind, match=words):
        loader_class(Indices(4), num_workers=workers, multiprocessing_context=context)
    loader = loader_class(Indices(4), num_workers=workers)
    with pytest.raises(kind, match=words):
        loader.multiprocessing_context = context


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_a_dataset_that_cannot_be_pickled_cannot_be_spawned(loader_class):
    dataset = Samples([lambda: None])
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):  # minato says so at construction
        next(iter(loader_class(dataset, num_workers=1, multiprocessing_context="spawn")))


def test_a_worker_that_somebody_keeps_can_be_asked_whether_it_has_ended(loader_class):
    """Trainers that end workers early hold on to them."""
    iterator = iter(loader_class(Indices(40), batch_size=2, num_workers=2))
    next(iterator)
    workers = iterator._workers
    del iterator
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0, 0]
