"""torch's own samplers, without a Python step per sample: the same batches, the same draws."""

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from minato._engine.sampling import batches_of
from minato._queues.keys import Indices


def samplers(kind, length, **arguments):
    """Two equal batch samplers over `length` samples."""
    make = {
        "random": lambda: RandomSampler(range(length), **arguments),
        "sequential": lambda: SequentialSampler(range(length)),
    }[kind]
    return make(), make()


@pytest.mark.parametrize("kind", ["random", "sequential"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "size"), [(1, 1), (10, 3), (12, 4), (5, 8), (1000, 64)])
def test_gives_torchs_batches_and_leaves_the_default_generator_where_torch_does(kind, length, size, drop_last):
    theirs, ours = samplers(kind, length)
    torch.manual_seed(3)
    expected = list(BatchSampler(theirs, size, drop_last))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    batches = list(batches_of(BatchSampler(ours, size, drop_last)))
    assert [batch.tolist() for batch in batches] == expected
    assert all(isinstance(batch, Indices) for batch in batches)
    assert torch.equal(torch.get_rng_state(), after)


def test_draws_nothing_before_the_first_batch_is_asked_for():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    batches = batches_of(BatchSampler(RandomSampler(range(10)), 2, False))
    assert torch.equal(torch.get_rng_state(), before)
    next(batches)
    assert not torch.equal(torch.get_rng_state(), before)


class OwnBatchSampler(BatchSampler):
    """A user's subclass may do anything."""


@pytest.mark.parametrize(
    "sampler",
    [
        BatchSampler(RandomSampler(range(9), replacement=True), 2, False),
        BatchSampler(RandomSampler(range(9), num_samples=4), 2, False),
        BatchSampler(RandomSampler(range(9), generator=torch.Generator()), 2, False),
        BatchSampler(SubsetRandomSampler([1, 2, 3]), 2, False),
        OwnBatchSampler(SequentialSampler(range(9)), 2, False),
        RandomSampler(range(9)),
    ],
    ids=["replacement", "num_samples", "generator", "subset", "subclass", "unbatched"],
)
def test_leaves_everything_else_to_the_sampler_itself(sampler):
    assert not any(isinstance(batch, Indices) for batch in batches_of(sampler))
