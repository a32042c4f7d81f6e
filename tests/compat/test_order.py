"""Which samples come when: torch's order to the last element, for the same seed."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as Reference
from torch.utils.data.distributed import DistributedSampler

from .checks import lists
from .data import Indices, Ragged, RandomPairs

LENGTH = 23
DATASET = Indices(LENGTH)
WEIGHTS = [1.0 + i % 4 for i in range(LENGTH)]


class EveryOther:
    """A sampler that is no Sampler."""

    def __iter__(self):
        yield from range(0, LENGTH, 2)
        yield from range(1, LENGTH, 2)

    def __len__(self):
        return LENGTH


class Noisy:
    """A custom sampler that draws from torch's default generator while it goes."""

    def __iter__(self):
        for _ in range(12):
            yield int(torch.randint(LENGTH, ()))

    def __len__(self):
        return 12


# Each makes its arguments anew, since samplers have a state. `g` is a generator, or None for torch's own.
RANDOM = {
    "shuffle": lambda g: {"batch_size": 4, "shuffle": True, "generator": g},
    "shuffle, drop_last": lambda g: {"batch_size": 4, "shuffle": True, "drop_last": True, "generator": g},
    "RandomSampler": lambda g: {"batch_size": 4, "sampler": RandomSampler(DATASET, generator=g)},
    "RandomSampler with replacement": lambda g: {
        "batch_size": 5,
        "sampler": RandomSampler(DATASET, replacement=True, num_samples=40, generator=g),
        "generator": g,
    },
    "RandomSampler of more than there is": lambda g: {
        "batch_size": 5,
        "sampler": RandomSampler(DATASET, num_samples=50, generator=g),
    },
    "WeightedRandomSampler": lambda g: {"batch_size": 4, "sampler": WeightedRandomSampler(WEIGHTS, 30, generator=g)},
    "SubsetRandomSampler": lambda g: {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 17), generator=g)},
    "shuffle, without batching": lambda g: {"batch_size": None, "shuffle": True, "generator": g},
    "BatchSampler of a RandomSampler": lambda g: {
        "batch_sampler": BatchSampler(RandomSampler(DATASET, generator=g), 6, drop_last=False),
    },
}
FIXED = {
    "sequential": lambda g: {"batch_size": 4, "generator": g},
    "sequential, drop_last": lambda g: {"batch_size": 4, "drop_last": True},
    "sequential, without batching": lambda g: {"batch_size": None},
    "SequentialSampler": lambda g: {"batch_size": 4, "sampler": SequentialSampler(DATASET)},
    "DistributedSampler without shuffling": lambda g: {
        "batch_size": 4,
        "sampler": DistributedSampler(DATASET, num_replicas=2, rank=1, shuffle=False),
    },
    "list as sampler": lambda g: {"batch_size": 4, "sampler": [5, 3, 3, 22, 0, 1]},
    "custom sampler": lambda g: {"batch_size": 4, "sampler": EveryOther()},
    "custom sampler that draws": lambda g: {"batch_size": 4, "sampler": Noisy(), "generator": g},
    "list of lists as batch_sampler": lambda g: {"batch_sampler": [[3, 1], [2], [7, 7, 7, 0]]},
    "tuples and ranges as batches": lambda g: {"batch_sampler": [(3, 1), range(4), [5]]},
    "ragged batch_sampler": lambda g: {"batch_sampler": Ragged(LENGTH)},
    "random batch_sampler": lambda g: {"batch_sampler": RandomPairs(LENGTH)},
}


def epochs(loader_class, make, seeded, count=2, **arguments):
    """The batches of several epochs, and the state of both generators after each."""
    torch.manual_seed(1234)
    generator = torch.Generator().manual_seed(99) if seeded else None
    loader = loader_class(DATASET, **make(generator), **arguments)
    seen = []
    for _ in range(count):
        batches = lists(loader)
        own = None if generator is None else generator.get_state().tolist()
        seen.append((batches, torch.get_rng_state().tolist(), own))
    return seen


@functools.cache
def reference_epochs(name, seeded, **arguments):
    """The same from torch's loader, computed once for all who compare with it."""
    return epochs(Reference, (RANDOM | FIXED)[name], seeded, **arguments)


def assert_equal_epochs(got, expected):
    for mine, reference in zip(got, expected, strict=True):
        assert mine[0] == reference[0]
        assert mine[1] == reference[1], "torch's default generator was left in another state"
        assert mine[2] == reference[2], "the generator that was given was left in another state"


@pytest.mark.parametrize("seeded", [False, True], ids=["default generator", "own generator"])
@pytest.mark.parametrize("name", RANDOM)
def test_in_order_random_samplers_give_the_same_batches_for_the_same_seed(loader_class, num_workers, name, seeded):
    got = epochs(loader_class, RANDOM[name], seeded, num_workers=num_workers, in_order=True)
    assert_equal_epochs(got, reference_epochs(name, seeded, num_workers=num_workers))


@pytest.mark.parametrize("name", FIXED)
def test_orders_somebody_chose_are_kept_without_asking(loader_class, num_workers, name):
    got = epochs(loader_class, FIXED[name], seeded=True, num_workers=num_workers)
    assert_equal_epochs(got, reference_epochs(name, seeded=True, num_workers=num_workers))


@pytest.mark.parametrize("prefetch_factor", [1, 5])
@pytest.mark.parametrize("workers", [1, 3], ids="{} workers".format)
def test_neither_workers_nor_prefetching_change_the_order(loader_class, workers, prefetch_factor):
    arguments = {"num_workers": workers, "prefetch_factor": prefetch_factor, "in_order": True}
    got = epochs(loader_class, RANDOM["shuffle"], seeded=True, **arguments)
    assert_equal_epochs(got, reference_epochs("shuffle", seeded=True, num_workers=2))


@pytest.mark.parametrize("seeded", [False, True], ids=["default generator", "own generator"])
def test_persistent_workers_draw_their_seed_only_once(loader_class, seeded):
    arguments = {"num_workers": 2, "persistent_workers": True, "count": 3}
    got = epochs(loader_class, RANDOM["shuffle"], seeded, in_order=True, **arguments)
    assert_equal_epochs(got, reference_epochs("shuffle", seeded, **arguments))


def test_deterministic_algorithms_mean_deterministic_order(loader_class):
    torch.use_deterministic_algorithms(True)
    try:
        got = epochs(loader_class, RANDOM["shuffle"], seeded=True, num_workers=2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_equal_epochs(got, reference_epochs("shuffle", seeded=True, num_workers=2))


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh workers", "persistent workers"])
def test_two_ranks_share_the_epoch_and_set_epoch_reshuffles_it(loader_class, persistent):
    samplers = [DistributedSampler(DATASET, num_replicas=2, rank=rank, seed=3) for rank in range(2)]
    loaders = [
        loader_class(DATASET, 4, sampler=sampler, num_workers=1, persistent_workers=persistent, in_order=True)
        for sampler in samplers
    ]
    orders = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        halves = [[index for batch in loader for index in batch.tolist()] for loader in loaders]
        assert halves == [list(sampler) for sampler in samplers]
        assert set(halves[0]) | set(halves[1]) == set(range(LENGTH))
        orders.append(halves)
    assert orders[0] != orders[1]


def test_every_epoch_is_shuffled_anew(loader_class, num_workers):
    loader = loader_class(DATASET, batch_size=LENGTH, shuffle=True, num_workers=num_workers)
    first, second = lists(loader), lists(loader)
    assert first != second
    assert sorted(first[0]) == sorted(second[0]) == list(range(LENGTH))


def test_out_of_order_still_delivers_everything_once(loader_class, num_workers):
    loader = loader_class(DATASET, batch_size=4, num_workers=num_workers, in_order=False)
    batches = lists(loader)
    assert len(batches) == len(loader) == 6
    assert sorted(index for batch in batches for index in batch) == list(range(LENGTH))
    assert sorted(map(len, batches)) == [3, 4, 4, 4, 4, 4]
