"""Every kind of dataset that torch's loader takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ChainDataset, ConcatDataset, StackDataset, Subset, TensorDataset

from .checks import assert_same, flat, lists
from .data import (
    ByKey,
    Counted,
    Draws,
    Endless,
    Indices,
    ManyAtOnce,
    ManyAtOnceRefused,
    Rows,
    Samples,
    ShardedStream,
    Stream,
    UnevenStream,
)
from .pieces import as_is

# ------------------------------------------------------------------------------------------------------------ map-style


def test_map_style_samples_come_in_batches_and_the_last_may_be_short(loader_class, num_workers):
    loader = loader_class(Indices(7), batch_size=3, num_workers=num_workers)
    assert lists(loader) == [[0, 1, 2], [3, 4, 5], [6]]


def test_drop_last_leaves_the_short_batch_out(loader_class, num_workers):
    loader = loader_class(Indices(7), batch_size=3, drop_last=True, num_workers=num_workers)
    assert lists(loader) == [[0, 1, 2], [3, 4, 5]]


def test_batch_size_is_one_unless_said_otherwise(loader_class, num_workers):
    assert lists(loader_class(Indices(3), num_workers=num_workers)) == [[0], [1], [2]]


def test_a_batch_larger_than_the_dataset_holds_it_all(loader_class, num_workers):
    assert lists(loader_class(Indices(3), batch_size=10, num_workers=num_workers)) == [[0, 1, 2]]


def test_an_empty_dataset_gives_no_batches(loader_class, num_workers):
    loader = loader_class(Indices(0), batch_size=2, num_workers=num_workers)
    assert len(loader) == 0
    assert lists(loader) == []


def test_a_plain_list_is_a_dataset(loader_class, num_workers):
    assert lists(loader_class([5, 6, 7], batch_size=2, num_workers=num_workers)) == [[5, 6], [7]]


def test_more_workers_than_samples_do_no_harm(loader_class):
    assert lists(loader_class(Indices(2), batch_size=1, num_workers=3)) == [[0], [1]]


def test_tensor_dataset(loader_class, num_workers):
    columns = torch.arange(10.0).reshape(5, 2), torch.arange(5)
    batches = list(loader_class(TensorDataset(*columns), batch_size=2, num_workers=num_workers))
    assert [type(batch) for batch in batches] == [list, list, list]
    for column, parts in zip(columns, zip(*batches, strict=True), strict=True):
        assert_same(torch.cat(parts), column)


def test_subset_maps_its_own_indices(loader_class, num_workers):
    loader = loader_class(Subset(Rows(10), [9, 1, 5]), batch_size=2, num_workers=num_workers)
    assert [batch[:, 0, 0].tolist() for batch in loader] == [[9.0, 1.0], [5.0]]


def test_subset_of_a_dataset_that_fetches_lists(loader_class, num_workers):
    loader = loader_class(Subset(ManyAtOnce(10), [9, 1, 5]), batch_size=3, num_workers=num_workers)
    ((indices, kinds, _),) = loader
    assert indices.tolist() == [9, 1, 5]
    assert set(kinds) == {"list"}


def test_concat_dataset_goes_through_its_parts(loader_class, num_workers):
    both = ConcatDataset([Indices(2), Samples([10, 11, 12])])
    assert lists(loader_class(both, batch_size=2, num_workers=num_workers)) == [[0, 1], [10, 11], [12]]


def test_stack_dataset_keeps_its_names(loader_class, num_workers):
    loader = loader_class(StackDataset(a=Indices(4), b=Rows(4)), batch_size=4, num_workers=num_workers)
    (batch,) = loader
    assert list(batch) == ["a", "b"]
    assert batch["a"].tolist() == batch["b"][:, 1, 2].tolist() == [0, 1, 2, 3]


def test_a_dataset_without_length_needs_only_a_sampler(loader_class, num_workers):
    loader = loader_class(Endless(), batch_size=2, sampler=[3, 1, 1000], num_workers=num_workers)
    assert len(loader) == 2
    assert lists(loader) == [[9, 1], [1_000_000]]


def test_the_sampler_may_be_longer_than_the_dataset(loader_class, num_workers):
    loader = loader_class(Indices(3), batch_size=4, sampler=[0, 1, 2] * 3, num_workers=num_workers)
    assert lists(loader) == [[0, 1, 2, 0], [1, 2, 0, 1], [2]]


# ----------------------------------------------------------------------------------------------------- lists of indices


def test_getitems_is_called_with_lists_and_getitem_is_not(loader_class, num_workers):
    batches = list(loader_class(ManyAtOnce(10), batch_size=4, num_workers=num_workers))
    assert [index for indices, _, _ in batches for index in indices.tolist()] == list(range(10))
    assert {kind for _, kinds, _ in batches for kind in kinds} == {"list"}


def test_getitems_in_process_gets_whole_batches(loader_class):
    batches = list(loader_class(ManyAtOnce(10), batch_size=4))
    assert [sizes.tolist() for _, _, sizes in batches] == [[4] * 4, [4] * 4, [2] * 2]


def test_getitems_set_to_none_means_it_is_not_there(loader_class, num_workers):
    assert lists(loader_class(ManyAtOnceRefused(4), batch_size=2, num_workers=num_workers)) == [[0, 1], [2, 3]]


def test_getitems_is_not_for_single_samples(loader_class, num_workers):
    loader = loader_class(ManyAtOnce(3), batch_size=None, num_workers=num_workers)
    assert [sample[1] for sample in loader] == ["one"] * 3


# ----------------------------------------------------------------------------------------------------------------- keys

KEYS = {
    "strings": (["a", "b", "long " * 50], ["str:a", "str:b", "str:" + "long " * 50]),
    "tuples": ([(0, "x"), (1, "y"), ()], ["tuple:(0, 'x')", "tuple:(1, 'y')", "tuple:()"]),
    "numpy integers": (list(np.arange(3)), ["int64:0", "int64:1", "int64:2"]),
    "small numpy integers": (list(np.arange(3, dtype=np.uint8)), ["uint8:0", "uint8:1", "uint8:2"]),
    "tensors": (list(torch.arange(3)), ["Tensor:0", "Tensor:1", "Tensor:2"]),
    "floats": ([0.5, -1.0, 2.0], ["float:0.5", "float:-1.0", "float:2.0"]),
    "booleans": ([True, False, True], ["bool:True", "bool:False", "bool:True"]),
    "huge and negative integers": ([-1, 2**70, 0], ["int:-1", f"int:{2**70}", "int:0"]),
    "none": ([None, None, None], ["NoneType:None"] * 3),
    "a mixture": ([1, "one", (1,)], ["int:1", "str:one", "tuple:(1,)"]),
}


@pytest.mark.parametrize(("keys", "expected"), KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_keys_reach_the_dataset_as_what_they_are(loader_class, num_workers, batch_size, keys, expected):
    loader = loader_class(ByKey(), batch_size=batch_size, sampler=keys, num_workers=num_workers)
    whole = list(loader)
    assert whole == (expected if batch_size is None else [expected[:2], expected[2:]])


def test_a_batch_sampler_as_sampler_hands_whole_lists_to_the_dataset(loader_class, num_workers):
    sampler = BatchSampler(range(5), batch_size=2, drop_last=False)
    loader = loader_class(ByKey(), batch_size=None, sampler=sampler, num_workers=num_workers)
    assert list(loader) == ["list:[0, 1]", "list:[2, 3]", "list:[4]"]


# ----------------------------------------------------------------------------------------------------- without batching


def test_without_batching_map_style_samples_come_one_by_one_as_tensors(loader_class, num_workers):
    samples = [np.arange(3), {"a": np.float32(1), "b": "text"}, (1, [2.5, None]), "plain", b"bytes", None, 7]
    loader = loader_class(Samples(samples), batch_size=None, num_workers=num_workers)
    assert len(loader) == len(samples)
    expected = [torch.arange(3), {"a": torch.tensor(1.0), "b": "text"}, [1, [2.5, None]], "plain", b"bytes", None, 7]
    for got, reference in zip(loader, expected, strict=True):
        assert_same(got, reference)


def test_without_batching_collate_fn_sees_the_sample_itself(loader_class, num_workers):
    loader = loader_class(Indices(3), batch_size=None, collate_fn=as_is, num_workers=num_workers)
    assert list(loader) == [0, 1, 2]


def test_without_batching_shapes_may_differ_from_sample_to_sample(loader_class, num_workers):
    samples = [torch.ones(size) for size in (3, 0, 5, 1)] + [torch.ones(2, 2, dtype=torch.int16)]
    loader = loader_class(Samples(samples), batch_size=None, num_workers=num_workers)
    for got, reference in zip(loader, samples, strict=True):
        assert_same(got, reference)


def test_without_batching_streams_come_sample_by_sample_worker_after_worker(loader_class):
    loader = loader_class(ShardedStream(7), batch_size=None, num_workers=3)
    assert list(loader) == [0, 1, 2, 3, 4, 5, 6]
    loader = loader_class(UnevenStream(1, 4, 0), batch_size=None, num_workers=3)
    assert list(loader) == [0, 100, 101, 102, 103]


# -------------------------------------------------------------------------------------------------------------- streams


def test_a_stream_in_process_is_cut_into_batches(loader_class):
    assert lists(loader_class(Stream(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert lists(loader_class(Stream(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]
    assert list(loader_class(Stream(3), batch_size=None)) == [0, 1, 2]


def test_each_worker_has_the_whole_stream_unless_the_dataset_shards_it(loader_class):
    assert lists(loader_class(Stream(3), batch_size=2, num_workers=2)) == [[0, 1], [0, 1], [2], [2]]


def test_sharded_streams_take_turns_worker_by_worker(loader_class):
    loader = loader_class(ShardedStream(10), batch_size=2, num_workers=3)
    assert lists(loader) == [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]


def test_drop_last_drops_the_short_batch_of_every_worker(loader_class):
    loader = loader_class(ShardedStream(10), batch_size=2, num_workers=3, drop_last=True)
    assert lists(loader) == [[0, 3], [1, 4], [2, 5], [6, 9]]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((5, 1, 3), [0, 100, 200, 1, 201, 2, 202, 3, 4]),
        ((0, 2, 1), [100, 200, 101]),
        ((1, 0, 6), [0, 200, 201, 202, 203, 204, 205]),
        ((0, 0, 0), []),
    ],
    ids=str,
)
def test_workers_that_end_early_drop_out_of_the_turn(loader_class, lengths, expected):
    assert flat(loader_class(UnevenStream(*lengths), batch_size=1, num_workers=3)) == expected


@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_the_turn_does_not_depend_on_prefetching(loader_class, prefetch_factor):
    loader = loader_class(UnevenStream(7, 2), batch_size=2, num_workers=2, prefetch_factor=prefetch_factor)
    assert lists(loader) == [[0, 1], [100, 101], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh workers", "persistent workers"])
def test_a_stream_starts_again_with_every_epoch(loader_class, persistent):
    loader = loader_class(ShardedStream(6), batch_size=2, num_workers=2, persistent_workers=persistent)
    assert [lists(loader) for _ in range(3)] == [[[0, 2], [1, 3], [4], [5]]] * 3


def test_chained_streams_follow_each_other_in_every_worker(loader_class):
    chain = ChainDataset([ShardedStream(4), UnevenStream(1, 1)])
    assert lists(loader_class(chain, batch_size=3, num_workers=2)) == [[0, 2, 0], [1, 3, 100]]


def test_a_stream_of_tensors_is_collated_like_any_other(loader_class):
    rows = Rows(6)
    loader = loader_class(ChainDataset([StreamOf(rows)]), batch_size=4, num_workers=1)
    for batch, indices in zip(loader, [range(4), range(4, 6)], strict=True):
        assert_same(batch, torch.stack([rows[index] for index in indices]))


class StreamOf(Stream):
    """The samples of a map-style dataset, one after the other."""

    def __init__(self, dataset):
        super().__init__(len(dataset))
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in super().__iter__())


def test_an_endless_sampler_is_read_only_as_far_as_needed(loader_class, num_workers):
    sampler = Counted(range(10**9))
    iterator = iter(loader_class(Endless(), batch_size=2, sampler=sampler, num_workers=num_workers))
    assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [4, 9], [16, 25]]
    assert sampler.drawn < 1000


def test_random_draws_in_a_dataset_are_samples_like_any_other(loader_class, num_workers):
    batches = list(loader_class(Draws(6), batch_size=4, num_workers=num_workers))
    assert [batch.shape for batch in batches] == [(4, 4), (2, 4)]
    assert torch.cat(batches)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
