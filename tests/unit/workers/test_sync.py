"""Attribute changes of the dataset reach persistent workers."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from minato._workers.sync import SMALL_ITEMS, DatasetWatch, apply_patch


class Data:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 3


class Transform(Data):
    def __call__(self, value: Any) -> Any:
        return value


class Pool:
    """A dataset and a worker's copy of it, which gets every patch as the worker would."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.copy = copy.deepcopy(dataset)
        self.watch = DatasetWatch(dataset)

    def send(self) -> bool:
        changes = self.watch.changes()
        if changes is not None:
            apply_patch(self.copy, pickle.loads(pickle.dumps(changes)))
        return changes is not None


def test_nothing_is_sent_where_nothing_changed() -> None:
    pool = Pool(Data(a=1, b=[1], c=Transform(p=0.5), d=torch.ones(2), e=np.ones(2), f=None, g={1: 2}, h=lambda: 1))
    assert [pool.send(), pool.send()] == [False, False]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, 1.0),
        (1, True),
        (None, 3),
        ("a", "b"),
        ([1], [2]),
        ((1, 2), (1, 3)),
        ({"k": 1}, {"k": 2}),
        ({1}, {2}),
        (torch.zeros(2), torch.ones(2)),
        (np.zeros(2), np.ones(2)),
        (list(range(5000)), list(range(4999))),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_an_attribute_bound_anew_is_sent_once(before: Any, after: Any) -> None:
    pool = Pool(Data(a=before, other=5))
    pool.dataset.a = after
    assert [pool.send(), pool.send()] == [True, False]
    assert type(pool.copy.a) is type(after)
    assert str(pool.copy.a) == str(after)


def test_a_new_attribute_is_sent() -> None:
    pool = Pool(Data())
    pool.dataset.epoch = 3
    assert pool.send()
    assert pool.copy.epoch == 3


CHANGES_IN_PLACE = {
    "list": ([1, 2], lambda v: v.append(3)),
    "dict": ({"a": 1}, lambda v: v.update(a=2)),
    "set": ({1}, lambda v: v.add(2)),
    "nested": ([[1], {"k": [2]}], lambda v: v[1]["k"].append(3)),
    "tensor": (torch.zeros(3), lambda v: v.add_(1)),
    "growing list of many": (list(range(SMALL_ITEMS + 5)), lambda v: v.append(1)),
    "tuple of lists": (([1],), lambda v: v[0].append(2)),
}


@pytest.mark.parametrize(("value", "change"), CHANGES_IN_PLACE.values(), ids=CHANGES_IN_PLACE)
def test_a_small_value_changed_in_place_is_sent(value: Any, change: Any) -> None:
    pool = Pool(Data(a=copy.deepcopy(value)))
    change(pool.dataset.a)
    assert pool.send()
    assert str(pool.copy.a) == str(pool.dataset.a) != str(value)


NESTED = {
    "Subset": (lambda d: Subset(d, [0, 1]), lambda s: s.dataset),
    "Subset of Subset": (lambda d: Subset(Subset(d, [0, 1]), [0]), lambda s: s.dataset.dataset),
    "ConcatDataset": (lambda d: ConcatDataset([Data(), d]), lambda s: s.datasets[1]),
    "ConcatDataset of Subset": (lambda d: ConcatDataset([Subset(d, [0])]), lambda s: s.datasets[0].dataset),
    "transform": (lambda d: Data(transform=d), lambda s: s.transform),
    "list of transforms": (
        lambda d: Data(transform=Transform(transforms=[Transform(), d])),
        lambda s: s.transform.transforms[1],
    ),
}


@pytest.mark.parametrize(("wrap", "inner"), NESTED.values(), ids=NESTED)
def test_changes_deep_inside_are_sent(wrap: Any, inner: Any) -> None:
    pool = Pool(wrap(Data(epoch=0)))
    inner(pool.dataset).epoch = 7
    assert pool.send()
    assert inner(pool.copy).epoch == 7


def test_a_part_replaced_as_a_whole_is_sent_as_a_whole() -> None:
    pool = Pool(Data(transform=Transform(p=1, q=2)))
    pool.dataset.transform = Transform(p=5, r=3)
    assert pool.send()
    assert vars(pool.copy.transform) == {"p": 5, "r": 3}


def test_a_member_of_a_list_of_parts_replaced_is_sent() -> None:
    pool = Pool(Data(transforms=[Transform(p=1), Transform(p=2)]))
    pool.dataset.transforms[1] = Transform(p=9)
    assert pool.send()
    assert [t.p for t in pool.copy.transforms] == [1, 9]


def test_a_late_worker_gets_all_changes_at_once() -> None:
    """A worker started anew has the dataset as it was at first, or as it is now; the patch suits both."""
    dataset = Data(a=1, transform=Transform(p=1))
    late = copy.deepcopy(dataset)
    watch = DatasetWatch(dataset)
    dataset.a = 2
    watch.changes()
    dataset.transform.p = 5
    patch = watch.changes()
    assert patch is not None
    for worker in (late, copy.deepcopy(dataset)):
        apply_patch(worker, patch)
        assert (worker.a, worker.transform.p) == (2, 5)


def test_a_part_changed_and_later_replaced_does_not_trip_the_next_patch() -> None:
    """The change inside the old part must not be applied to what took its place."""
    pool = Pool(Data(transform=Transform(p=1), epoch=0))
    pool.dataset.transform.p = 2
    pool.send()
    pool.dataset.transform = None
    pool.send()
    pool.dataset.epoch = 1
    assert pool.send()
    assert (pool.copy.transform, pool.copy.epoch) == (None, 1)


def test_a_list_of_parts_that_became_shorter_does_not_trip_the_next_patch() -> None:
    pool = Pool(Data(transforms=[Transform(p=1), Transform(p=2)], epoch=0))
    pool.dataset.transforms[1].p = 3
    pool.send()
    pool.dataset.transforms = [Transform(p=4)]
    pool.send()
    pool.dataset.epoch = 1
    assert pool.send()
    assert [t.p for t in pool.copy.transforms] == [4]


def test_what_cannot_be_pickled_is_told_once_and_the_rest_is_sent() -> None:
    pool = Pool(Data(fn=None, epoch=0))
    pool.dataset.fn, pool.dataset.epoch = lambda: 1, 1
    with pytest.warns(UserWarning, match="attribute 'fn' of the dataset changed, but cannot be sent"):
        assert pool.send()
    assert (pool.copy.fn, pool.copy.epoch) == (None, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool.dataset.fn = lambda: 2
        assert not pool.send()
    assert caught == []


def test_tensors_in_small_containers_are_told_apart_by_identity_and_changes() -> None:
    """One that takes the place, and the memory, of another is another."""
    pool = Pool(Data(table={n: torch.full((2,), float(n)) for n in range(3)}))
    assert not pool.send()
    pool.dataset.table[1].add_(1)
    assert pool.send()
    pool.dataset.table[2] = torch.tensor([7.0, 7.0])
    assert pool.send()
    assert not pool.send()
    assert [tensor.tolist() for tensor in pool.copy.table.values()] == [[0, 0], [2, 2], [7, 7]]


def test_inference_tensors_which_count_no_changes_are_told_apart_by_identity() -> None:
    with torch.inference_mode():
        first, second = torch.zeros(2), torch.ones(2)
    pool = Pool(Data(alone=first, listed=[first]))
    assert not pool.send()
    pool.dataset.alone, pool.dataset.listed = second, [second]
    assert pool.send()
    assert (pool.copy.alone.tolist(), pool.copy.listed[0].tolist()) == ([1, 1], [1, 1])


def test_large_containers_are_told_apart_by_identity_and_length_only() -> None:
    pool = Pool(Data(big=list(range(SMALL_ITEMS + 1))))
    pool.dataset.big[0] = -1
    assert not pool.send()


def test_a_dataset_that_refers_to_itself_is_no_trap() -> None:
    dataset = Data(epoch=0)
    dataset.me = dataset  # type: ignore[attr-defined]
    dataset.parts = [dataset, Data(owner=dataset)]  # type: ignore[attr-defined]
    watch = DatasetWatch(dataset)
    dataset.epoch = 1  # type: ignore[attr-defined]
    assert watch.changes() == {("epoch",): 1}


@pytest.mark.parametrize("dataset", [[1, 2, 3], (1, 2), range(5), {"a": 1}, "text"], ids=lambda d: type(d).__name__)
def test_a_dataset_without_attributes_is_watched_in_vain(dataset: Any) -> None:
    assert DatasetWatch(dataset).changes() is None
