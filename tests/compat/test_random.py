"""minato's promise about chance: what a sample draws depends on the seed and the sample, never on who made it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Reference
from torch.utils.data import Dataset

from .data import Draws, DrawsNow, Indices

WORKERS = [1, 2, 3]


def draws(loader):
    """One epoch as {index: (from random, from numpy, from torch)}."""
    return {int(row[0]): tuple(row[1:].tolist()) for batch in loader for row in batch}


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("order", [{}, {"shuffle": True}], ids=["sequential", "shuffled"])
@pytest.mark.parametrize("workers", WORKERS, ids="{} workers".format)
def test_the_same_seed_gives_the_same_samples_for_any_number_of_workers(minato_class, workers, order):
    alone = minato_class(Draws(20), batch_size=4, generator=seeded(), **order)
    together = minato_class(Draws(20), batch_size=4, generator=seeded(), num_workers=workers, **order)
    for _ in range(2):
        assert draws(together) == draws(alone)


@pytest.mark.parametrize("workers", WORKERS, ids="{} workers".format)
def test_the_default_generator_is_as_good_a_seed(minato_class, workers):
    torch.manual_seed(42)
    alone = draws(minato_class(Draws(20), batch_size=4))
    torch.manual_seed(42)
    assert draws(minato_class(Draws(20), batch_size=4, num_workers=workers)) == alone


@pytest.mark.parametrize("workers", [0, *WORKERS], ids="{} workers".format)
def test_rare_draws_do_not_depend_on_workers_either(minato_class, workers):
    dataset = DrawsNow(200, period=50)
    alone = draws(minato_class(dataset, batch_size=16, generator=seeded()))
    assert len({alone[index] for index in (0, 50, 100, 150)}) == 4
    assert alone[1] == (0.0, 0.0, 0.0)
    assert draws(minato_class(dataset, batch_size=16, generator=seeded(), num_workers=workers)) == alone


def test_samples_differ_from_each_other_in_every_generator(minato_class, num_workers):
    epoch = draws(minato_class(Draws(30), batch_size=4, generator=seeded(), num_workers=num_workers))
    for column in zip(*epoch.values(), strict=True):
        assert len(set(column)) == 30


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh workers", "persistent workers"])
def test_epochs_differ_in_every_sample(minato_class, persistent):
    loader = minato_class(Draws(12), batch_size=4, generator=seeded(), num_workers=2, persistent_workers=persistent)
    first, second, third = draws(loader), draws(loader), draws(loader)
    assert all(len({first[index], second[index], third[index]}) == 3 for index in first)


def test_persistent_workers_draw_the_same_however_many_they_are(minato_class):
    def two_epochs(workers):
        loader = minato_class(Draws(12), batch_size=4, generator=seeded(), num_workers=workers, persistent_workers=True)
        return draws(loader), draws(loader)

    assert two_epochs(1) == two_epochs(3)


def test_another_seed_gives_other_samples(minato_class, num_workers):
    one, other = (
        draws(minato_class(Draws(12), batch_size=4, generator=seeded(seed), num_workers=num_workers)) for seed in (1, 2)
    )
    assert all(one[index] != other[index] for index in one)


def test_batch_size_and_prefetching_do_not_matter(minato_class):
    alone = draws(minato_class(Draws(20), batch_size=4, generator=seeded()))
    for batch_size, prefetch_factor in [(1, 1), (7, 4), (20, 2)]:
        loader = minato_class(Draws(20), batch_size, generator=seeded(), num_workers=2, prefetch_factor=prefetch_factor)
        assert draws(loader) == alone


def test_a_sample_without_batching_draws_what_it_draws_in_a_batch(minato_class, num_workers):
    batched = draws(minato_class(Draws(6), batch_size=3, generator=seeded()))
    loader = minato_class(Draws(6), batch_size=None, generator=seeded(), num_workers=num_workers)
    assert {int(row[0]): tuple(row[1:].tolist()) for row in loader} == batched


def test_draws_in_this_process_leave_its_generators_alone(minato_class):
    def states():
        _, keys, *rest = np.random.get_state()
        return random.getstate(), keys.tolist(), rest, torch.get_rng_state().tolist()

    before = states()
    assert len(draws(minato_class(Draws(12), batch_size=4, generator=seeded()))) == 12
    assert states() == before


def test_the_default_generator_moves_by_the_loaders_own_draws_only(minato_class):
    torch.manual_seed(8)
    draws(minato_class(Draws(12), batch_size=4, shuffle=True))
    after = torch.get_rng_state()
    torch.manual_seed(8)
    list(Reference(Indices(12), batch_size=4, shuffle=True))
    assert torch.equal(after, torch.get_rng_state())


def test_the_users_own_draws_between_batches_go_on_undisturbed(minato_class):
    def walk(loader):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        return [(random.random(), np.random.random(), torch.rand(()).item()) for _ in loader]

    undisturbed = walk(range(3))
    assert walk(minato_class(Draws(12), batch_size=4, generator=seeded())) == undisturbed


class _DrawsLater(Dataset):
    """Leaves the generators alone until it is told to draw, as augmentation that begins after some epochs."""

    def __init__(self):
        self.draws = False

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return (random.random(), np.random.rand(), float(torch.rand(()))) if self.draws else (0.0, 0.0, 0.0)


def _collate_with_draws(samples):
    """Draws where the samples do."""
    mixed = float(torch.rand(())) if samples[0][0] else 0.0
    return torch.tensor(samples, dtype=torch.float64), mixed


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_begins_to_draw_in_a_later_epoch_draws_the_same_with_any_number_of_workers(
    minato_class, num_workers
):
    def third_epoch(workers):
        dataset = _DrawsLater()
        loader = minato_class(
            dataset,
            batch_size=10,
            num_workers=workers,
            in_order=True,
            collate_fn=_collate_with_draws,
            generator=seeded(),
        )
        with loader:
            for _ in range(2):  # by the end of them it is known that nothing draws
                assert all(not batch.any() and mixed == 0 for batch, mixed in loader)
            dataset.draws = True
            batches = list(loader)
        return torch.cat([batch for batch, _ in batches]), [mixed for _, mixed in batches]

    samples, mixed = third_epoch(num_workers)
    expected, expected_mixed = third_epoch(2)
    assert torch.equal(samples, expected)
    assert mixed == expected_mixed
    assert all(len(set(column)) == 100 for column in samples.T.tolist())
    assert len(set(mixed)) == 10


@pytest.mark.parametrize("quiet_epochs", [0, 1, 2])
def test_what_the_program_draws_beside_persistent_workers_is_never_repeated(loader_class, quiet_epochs):
    """The epoch after a quiet one was foreseen; the program's own draws in it must not be undone at its end."""

    def draws_beside(cls):
        torch.manual_seed(11)
        loader = cls(Indices(60), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
        return [torch.rand(()).item() for epoch in range(4) for _ in loader if epoch >= quiet_epochs]

    drawn = draws_beside(loader_class)
    assert len(set(drawn)) == len(drawn)
    assert drawn == draws_beside(Reference)
