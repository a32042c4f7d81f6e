"""collate_fn of the user's own, and samples that are not collated at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, get_worker_info

from .checks import assert_same, lists
from .data import Indices, Rows, Samples, Stream
from .pieces import Parcel, as_is, with_worker


class Dozen:
    """A collate function can be any callable."""

    def __call__(self, samples):
        return [12 * sample for sample in samples]


def to_parcel(samples):
    return Parcel(samples)


def to_none(samples):
    return None


def to_shared_memory(samples):
    return torch.stack(samples).share_memory_()


def to_views(samples):
    """Two overlapping views of one storage."""
    whole = torch.cat(samples)
    return whole[:, :2], whole[:, 1:], whole.t()


def tally(samples):
    return {
        "sum": sum(samples),
        "sizes": {len(samples)},
        "array": np.array(samples, dtype=np.int16),
        "text": f"{samples}",
    }


def test_collate_fn_gets_the_list_of_samples(loader_class, num_workers):
    loader = loader_class(Indices(5), batch_size=2, collate_fn=as_is, num_workers=num_workers)
    batches = list(loader)
    assert batches == [[0, 1], [2, 3], [4]]
    assert {type(batch) for batch in batches} == {list}


def test_collate_fn_runs_in_a_worker(loader_class):
    loader = loader_class(Indices(6), batch_size=2, collate_fn=with_worker, num_workers=2)
    workers = {worker for worker, _ in loader}
    assert workers <= {0, 1}


def test_collate_fn_runs_here_when_there_are_no_workers(loader_class):
    loader = loader_class(Indices(6), batch_size=2, collate_fn=with_worker)
    assert [worker for worker, _ in loader] == [None] * 3
    assert get_worker_info() is None


def test_collate_fn_for_streams_runs_in_the_worker_of_the_stream(loader_class):
    loader = loader_class(Stream(3), batch_size=2, collate_fn=with_worker, num_workers=2)
    assert list(loader) == [(0, [0, 1]), (1, [0, 1]), (0, [2]), (1, [2])]


def test_collate_fn_may_be_any_callable(loader_class, num_workers):
    loader = loader_class(Indices(4), batch_size=2, collate_fn=Dozen(), num_workers=num_workers)
    assert list(loader) == [[0, 12], [24, 36]]


def test_collate_fn_may_be_a_lambda_where_workers_are_forked(loader_class, num_workers):
    loader = loader_class(Indices(4), batch_size=2, collate_fn=lambda samples: sum(samples), num_workers=num_workers)
    assert list(loader) == [1, 5]


def test_default_collate_can_be_given_by_name(loader_class, num_workers):
    loader = loader_class(Indices(3), batch_size=2, collate_fn=default_collate, num_workers=num_workers)
    assert lists(loader) == [[0, 1], [2]]


def test_a_batch_may_be_an_object_of_any_class(loader_class, num_workers):
    parcels = list(loader_class(Indices(5), batch_size=2, collate_fn=to_parcel, num_workers=num_workers))
    assert [type(parcel) for parcel in parcels] == [Parcel] * 3
    assert [parcel.total for parcel in parcels] == [1, 5, 4]


def test_a_batch_may_be_none(loader_class, num_workers):
    loader = loader_class(Indices(3), batch_size=1, collate_fn=to_none, num_workers=num_workers)
    assert list(loader) == [None, None, None]


def test_a_batch_may_be_a_mixture_of_things(loader_class, num_workers):
    loader = loader_class(Indices(4), batch_size=2, collate_fn=tally, num_workers=num_workers)
    for got, samples in zip(loader, [[0, 1], [2, 3]], strict=True):
        assert_same(got, tally(samples))


def test_a_batch_may_live_in_shared_memory_of_its_own(loader_class, num_workers):
    loader = loader_class(Rows(4), batch_size=2, collate_fn=to_shared_memory, num_workers=num_workers)
    assert [batch[:, 0, 0].tolist() for batch in loader] == [[0.0, 1.0], [2.0, 3.0]]


def test_a_batch_may_consist_of_views(loader_class, num_workers):
    rows = Rows(4)
    loader = loader_class(rows, batch_size=2, collate_fn=to_views, num_workers=num_workers)
    for got, members in zip(loader, [(0, 1), (2, 3)], strict=True):
        for mine, reference in zip(got, to_views([rows[index] for index in members]), strict=True):
            assert torch.equal(mine, reference)


def test_a_batch_may_be_empty(loader_class, num_workers):
    loader = loader_class(Indices(4), batch_sampler=[[0, 1], [], [2]], collate_fn=as_is, num_workers=num_workers)
    assert list(loader) == [[0, 1], [], [2]]


def test_samples_reach_collate_fn_as_the_dataset_made_them(loader_class, num_workers):
    samples = [
        np.arange(3),
        torch.ones(2),
        1,
        2.5,
        True,
        "text",
        b"bytes",
        None,
        (1, 2),
        [3],
        {"k": {4}},
        np.float16(1),
        2**80,
    ]
    loader = loader_class(Samples(samples), batch_size=len(samples), collate_fn=as_is, num_workers=num_workers)
    assert_same(next(iter(loader)), samples)


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"]
)
def test_samples_that_are_not_batched_keep_their_strides(loader_class, num_workers, memory_format):
    samples = [torch.rand(2, 3, 4, 5).to(memory_format=memory_format) for _ in range(3)]
    loader = loader_class(Samples(samples), batch_size=None, num_workers=num_workers)
    for got, expected in zip(loader, samples, strict=True):
        assert_same(got, expected)


VIEWS = {
    "transposed": lambda base: base.t(),
    "strided": lambda base: base[::2, 1::3],
    "expanded": lambda base: base[:1].expand(3, 7),
    "a row": lambda base: base[2],
    "one element": lambda base: base[2, 3],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_samples_that_are_views_keep_their_values(loader_class, num_workers, view):
    samples = [view(torch.arange(42.0).reshape(6, 7) + i) for i in range(3)]
    loader = loader_class(Samples(samples), batch_size=None, num_workers=num_workers)
    for got, expected in zip(loader, samples, strict=True):
        assert torch.equal(got, expected)


def test_gradients_can_be_required_of_a_batch(loader_class, num_workers):
    (batch,) = loader_class(Rows(2), batch_size=2, num_workers=num_workers)
    batch.requires_grad_().sum().backward()
    assert torch.equal(batch.grad, torch.ones(2, 2, 3))
