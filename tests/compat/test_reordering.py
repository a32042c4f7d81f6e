"""Where order is nobody's wish, minato may change it: but never what is delivered, how often, and in what company."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .checks import lists
from .data import Indices, Ragged, Rows
from .gates import Gated

LENGTH = 50
SHUFFLED = {
    "shuffle": lambda: {"shuffle": True},
    "RandomSampler": lambda: {"sampler": RandomSampler(range(LENGTH))},
    "SubsetRandomSampler": lambda: {"sampler": SubsetRandomSampler(range(LENGTH))},
}


@pytest.mark.parametrize("workers", [0, 1, 2, 3], ids="{} workers".format)
@pytest.mark.parametrize("make", SHUFFLED.values(), ids=SHUFFLED)
def test_every_index_once_in_full_batches_with_the_short_one_last(minato_class, make, workers):
    loader = minato_class(Indices(LENGTH), batch_size=8, num_workers=workers, **make())
    for _ in range(2):
        batches = lists(loader)
        assert [len(batch) for batch in batches] == [8] * 6 + [2]
        assert len(loader) == 7
        assert sorted(index for batch in batches for index in batch) == list(range(LENGTH))


def test_drop_last_drops_what_does_not_fill_a_batch(minato_class):
    loader = minato_class(Indices(LENGTH), batch_size=8, shuffle=True, drop_last=True, num_workers=2)
    batches = lists(loader)
    assert [len(batch) for batch in batches] == [8] * 6
    assert len({index for batch in batches for index in batch}) == 48


def test_what_a_sampler_repeats_is_delivered_as_often(minato_class):
    sampler = WeightedRandomSampler([1.0] * 5 + [50.0], 40, generator=torch.Generator().manual_seed(1))
    expected = sorted(WeightedRandomSampler([1.0] * 5 + [50.0], 40, generator=torch.Generator().manual_seed(1)))
    loader = minato_class(Indices(6), batch_size=7, sampler=sampler, num_workers=2)
    assert sorted(index for batch in lists(loader) for index in batch) == expected


def test_rows_are_whole_wherever_they_land(minato_class):
    loader = minato_class(Rows(LENGTH), batch_size=8, shuffle=True, num_workers=3)
    rows = torch.cat(list(loader))
    assert all(row.unique().numel() == 1 for row in rows)
    assert sorted(rows[:, 0, 0].tolist()) == list(range(LENGTH))


def test_sequential_order_may_be_given_up(minato_class):
    batches = lists(minato_class(Indices(LENGTH), batch_size=8, num_workers=2, in_order=False))
    assert [len(batch) for batch in batches] == [8] * 6 + [2]
    assert sorted(index for batch in batches for index in batch) == list(range(LENGTH))


def test_a_custom_batch_sampler_keeps_its_batches_together(minato_class):
    loader = minato_class(Indices(LENGTH), batch_sampler=Ragged(LENGTH), num_workers=2, in_order=False)
    assert sorted(lists(loader)) == sorted(Ragged(LENGTH))


@pytest.mark.parametrize("order", [{"in_order": False}, {"shuffle": True}], ids=["in_order=False", "shuffle"])
def test_a_slow_sample_delays_itself_and_not_its_batch(minato_class, gate, order):
    loader = minato_class(Gated(12, gate, held=0), batch_size=2, num_workers=2, **order)
    iterator = iter(loader)
    before = [index for _ in range(3) for index in next(iterator).tolist()]
    gate.open()
    after = [index for batch in iterator for index in batch.tolist()]
    assert 0 not in before
    assert sorted(before + after) == list(range(12))


def test_a_slow_batch_of_a_custom_batch_sampler_is_overtaken_whole(minato_class, gate):
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader = minato_class(Gated(8, gate, held=0), batch_sampler=pairs, num_workers=2, in_order=False)
    iterator = iter(loader)
    before = [next(iterator).tolist() for _ in range(2)]
    gate.open()
    after = lists(iterator)
    assert [0, 1] not in before
    assert sorted(before + after) == pairs
