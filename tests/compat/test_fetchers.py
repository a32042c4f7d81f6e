"""Concurrent fetchers give torch's batches, errors and random numbers; what they cannot do is said at once."""

from __future__ import annotations

import asyncio
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, IterableDataset, SequentialSampler, Subset
from torch.utils.data import DataLoader as Reference

import minato
from minato import DataLoader
from minato._planning import make_plan

from .checks import assert_same_outcomes, lists, outcomes

WORKERS = [0, 2]


@pytest.fixture(params=["threaded", "asyncio"])
def fetcher(request):
    return request.param


class Both(Dataset):
    """Can be asked and awaited. Key 7 fails where it is told to."""

    def __init__(self, length=23, fails=False):
        self.length, self.fails = length, fails

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.fails and index == 7:
            raise LookupError("seven")
        return {"x": torch.full((3,), index), "i": index, "name": f"sample {index}"}

    async def __getitem_async__(self, index):
        await asyncio.sleep(0.002 * (index % 3))
        return self[index]


class Lists(Both):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def names(samples):
    return [sample["name"] for sample in samples]


ARGUMENTS = {
    "batches": lambda: {"batch_size": 4},
    "drop_last": lambda: {"batch_size": 4, "drop_last": True},
    "without batching": lambda: {"batch_size": None},
    "custom collate": lambda: {"batch_size": 5, "collate_fn": names},
    "duplicates": lambda: {"batch_size": 4, "sampler": [3, 3, 3, 3, 3, 1, 0, 3, 22]},
    "batch sampler": lambda: {"batch_sampler": [[1, 2, 3], [4], [3, 3], [5, 6]]},
    "BatchSampler": lambda: {"batch_sampler": BatchSampler(SequentialSampler(range(23)), 6, drop_last=False)},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True, "in_order": True},
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_batches_are_torchs(fetcher, workers, name):
    def arguments():
        return {**ARGUMENTS[name](), "generator": torch.Generator().manual_seed(1)}

    expected = [*Reference(Both(), **arguments())]
    got = [*DataLoader(Both(), num_workers=workers, fetcher=fetcher, num_fetch_workers=5, **arguments())]
    assert_same_outcomes(got, expected)


@pytest.mark.parametrize("workers", WORKERS)
def test_datasets_that_fetch_lists_give_torchs_batches(fetcher, workers):
    got = [*DataLoader(Lists(), 4, num_workers=workers, fetcher=fetcher)]
    assert_same_outcomes(got, [*Reference(Lists(), 4)])


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("collate", [None, names], ids=["default-collate", "custom-collate"])
def test_an_error_comes_in_place_of_its_batch_and_names_its_sample(fetcher, workers, collate):
    loader = DataLoader(Both(fails=True), 4, num_workers=workers, fetcher=fetcher, collate_fn=collate)
    got = outcomes(loader)
    assert_same_outcomes(got, outcomes(Reference(Both(fails=True), 4, collate_fn=collate)))
    assert "sample index 7" in "".join(got[1].__notes__)


class Stops(Both):
    """Raises what is no Exception."""

    def __init__(self, error):
        super().__init__(8)
        self.error = error

    def __getitem__(self, index):
        if index == 5:
            raise self.error("no Exception")
        return index

    async def __getitem_async__(self, index):
        return self[index]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_base_exceptions_arrive_as_themselves(fetcher, workers, error):
    loader = DataLoader(Stops(error), 4, num_workers=workers, fetcher=fetcher)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(error, match="no Exception") as caught:
        next(iterator)
    assert "sample index 5" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [Both, Lists])
def test_failed_samples_are_retried_and_left_out(fetcher, workers, kind):
    loader = DataLoader(
        kind(fails=True), 4, num_workers=workers, fetcher=fetcher, collate_fn=names, on_error="skip", sample_retries=1
    )
    with pytest.warns(RuntimeWarning, match="sample index 7"):
        got = [name for batch in loader for name in batch]
    assert sorted(got) == sorted(f"sample {index}" for index in range(23) if index != 7)
    assert (loader.stats().skipped, loader.stats().samples_retried) == ((7,), 1)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_may_be_started_afresh(fetcher, start_method):
    loader = DataLoader(Both(9), 4, num_workers=1, fetcher=fetcher, multiprocessing_context=start_method)
    assert [batch["i"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("workers", WORKERS)
def test_asyncio_looks_through_subsets_and_concatenations(workers):
    class OnlyAwaited(Both):
        def __getitem__(self, index):
            return {"i": index}  # called by __getitem_async__ alone

    parts = ConcatDataset([Subset(OnlyAwaited(), [5, 3]), OnlyAwaited(2)])
    loader = DataLoader(Subset(parts, [-1, 0, 1]), 3, num_workers=workers, fetcher="asyncio")
    assert [batch["i"].tolist() for batch in loader] == [[1, 5, 3]]


def test_datasets_that_cannot_be_awaited_are_refused():
    with pytest.raises(TypeError, match=r"__getitem_async__.*TensorDataset has no such method.*fetcher='threaded'"):
        dataset = torch.utils.data.TensorDataset(torch.zeros(3))
        DataLoader(Subset(ConcatDataset([Both(), dataset]), [0]), fetcher="asyncio")


def test_streams_are_refused(fetcher):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match=r"IterableDataset.*use fetcher='sequential'"):
        DataLoader(Stream(), fetcher=fetcher)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fetcher": "processes"}, "fetcher must be"),
        ({"num_fetch_workers": 0}, "num_fetch_workers must be at least 1"),
        ({"batch_pool": -1}, "batch_pool must be at least 0"),
        ({"thread_copies": True}, "for fetcher='threaded'"),
        ({"fetcher": "threaded", "thread_copies": 1}, "thread_copies must be True or False"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DataLoader(Both(), **arguments)


# ------------------------------------------------------------------------------------------------------ random numbers


class Drawing(Both):
    """Draws in every way that is promised to be the sample's own."""

    def __getitem__(self, index):
        rng = minato.get_sample_rng()
        own = [rng.python.random(), float(rng.numpy.random()), float(torch.rand((), generator=rng.torch))]
        with minato.seeded_sample():
            shared = [random.random(), float(np.random.rand())]
        with minato.seeded_sample():  # goes on where the block before ended
            shared.append(float(torch.rand(())))
            shared.append(random.gauss(0, 1))
        return torch.tensor([index, *own, *shared, minato.get_sample_rng().python.random()], dtype=torch.float64)


def drawn(dataset, **arguments):
    loader = DataLoader(dataset, 4, generator=torch.Generator().manual_seed(11), **arguments)
    return sorted(sample for batch in loader for sample in batch.tolist())


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("in_order", [True, False])
def test_a_samples_own_random_numbers_do_not_depend_on_the_fetcher(fetcher, workers, in_order):
    expected = drawn(Drawing(60))
    assert drawn(Drawing(60), num_workers=workers, fetcher=fetcher, in_order=in_order) == expected
    assert len({sample[1] for sample in expected}) == 60


class DrawsBetweenAwaits(Both):
    """Draws from the global generators, from some sample on, with others in between."""

    def __getitem__(self, index):
        raise NotImplementedError

    async def __getitem_async__(self, index):
        numbers = [0.0, 0.0]
        if index >= 50:
            numbers[0] = random.random()
            await asyncio.sleep(0.001 * (index % 4))
            numbers[1] = float(torch.rand(()))
        await asyncio.sleep(0)
        return torch.tensor([index, *numbers], dtype=torch.float64)


def test_in_an_event_loop_global_generators_are_the_samples_own():
    expected = drawn(DrawsBetweenAwaits(120), num_workers=1, fetcher="asyncio", num_fetch_workers=1)
    assert drawn(DrawsBetweenAwaits(120), num_workers=2, fetcher="asyncio", num_fetch_workers=20) == expected
    assert len({tuple(sample[1:]) for sample in expected[50:]}) == 70


def test_fetching_ahead_leaves_the_loops_own_random_numbers_alone():
    def loop(**arguments):
        torch.manual_seed(1)
        random.seed(1)
        loader = DataLoader(Drawing(60), 4, generator=torch.Generator().manual_seed(2), **arguments)
        return [(float(torch.rand(())), random.random()) for _ in loader]

    assert loop(fetcher="threaded") == loop()


class DrawingSampler:
    """Draws from the global generators while it goes."""

    def __iter__(self):
        for _ in range(40):
            yield [random.randrange(20), int(torch.randint(20, ()))]


def test_samplers_that_are_asked_ahead_find_their_own_random_numbers():
    def indices(**arguments):
        torch.manual_seed(1)
        random.seed(1)
        return [batch[:, 0].tolist() for batch in DataLoader(Drawing(20), batch_sampler=DrawingSampler(), **arguments)]

    assert indices(fetcher="threaded") == indices()


# --------------------------------------------------------------------------------------------------------- the details


@pytest.mark.parametrize("workers", WORKERS)
def test_every_thread_has_its_copy_of_the_dataset_if_asked_to(workers):
    class Unsafe(Dataset):
        """One thread at a time, or else."""

        def __init__(self):
            self.users = set()

        def __len__(self):
            return 60

        def __getitem__(self, index):
            self.users.add(threading.get_ident())
            threading.Event().wait(0.002)
            return len(self.users)

    loader = DataLoader(Unsafe(), 4, num_workers=workers, fetcher="threaded", thread_copies=True, num_fetch_workers=4)
    assert {number for batch in lists(loader) for number in batch} == {1}


def test_fetching_works_where_an_event_loop_runs():
    async def notebook():
        return [batch["i"].tolist() for batch in DataLoader(Both(8), 4, fetcher="asyncio")]

    assert asyncio.run(notebook()) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(("arguments", "most"), [({"batch_pool": 3}, 3), ({"num_fetch_workers": 4}, 4 + 2 * 2)])
def test_without_workers_only_so_much_is_fetched_ahead(arguments, most):
    asked = []

    class Noting(Both):
        def __getitem__(self, index):
            asked.append(index)
            return index

    iterator = iter(DataLoader(Noting(100), 2, fetcher="threaded", **arguments))
    for number in range(1, 10):
        next(iterator)
        assert len(asked) <= 2 * number + most


@pytest.mark.parametrize("fetches", [1, 2, 16])
def test_a_worker_holds_no_more_samples_than_batch_pool(fetcher, fetches):
    """With a single fetch, too."""
    loader = DataLoader(Both(40), 8, num_workers=1, fetcher=fetcher, num_fetch_workers=fetches, batch_pool=4)
    plan = make_plan(loader, lambda: 2).worker
    assert plan.lanes * plan.most_in_run <= 4
    assert sorted(index for batch in loader for index in batch["i"].tolist()) == list(range(40))


def test_an_error_of_the_sampler_comes_after_the_batches_before_it(fetcher):
    def sampler():
        yield [0, 1]
        yield [2]
        raise OSError("no more")

    class Sampler:
        def __iter__(self):
            return sampler()

    iterator = iter(DataLoader(Both(), batch_sampler=Sampler(), fetcher=fetcher))
    assert [next(iterator)["i"].tolist(), next(iterator)["i"].tolist()] == [[0, 1], [2]]
    with pytest.raises(OSError, match="no more"):
        next(iterator)


def test_attributes_changed_between_epochs_reach_all_threads():
    class WithEpoch(Both):
        epoch = 0

        def __init__(self):
            super().__init__(16)
            self.epoch = 0

        def __getitem__(self, index):
            return self.epoch

    for copies in (False, True):
        dataset = WithEpoch()
        loader = DataLoader(
            dataset, 4, num_workers=2, fetcher="threaded", persistent_workers=True, thread_copies=copies
        )
        for epoch in range(3):
            dataset.epoch = epoch
            assert {value for batch in loader for value in batch.tolist()} == {epoch}
        loader.close()
