"""What subclasses of torch's loader do, and what they may find on iterators."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest
from torch.utils.data import Dataset

from .checks import lists
from .data import Indices
from .pieces import as_is


def test_get_iterator_may_be_overridden(loader_class, num_workers):
    class Counting(loader_class):
        made = 0

        def _get_iterator(self):
            Counting.made += 1
            return super()._get_iterator()

    loader = Counting(Indices(4), batch_size=2, num_workers=num_workers)
    assert [lists(loader), lists(loader)] == [[[0, 1], [2, 3]]] * 2
    assert Counting.made == 2


def test_get_iterator_is_asked_once_for_persistent_workers(loader_class):
    class Counting(loader_class):
        made = 0

        def _get_iterator(self):
            Counting.made += 1
            return super()._get_iterator()

    loader = Counting(Indices(4), batch_size=2, num_workers=2, persistent_workers=True)
    assert [lists(loader), lists(loader)] == [[[0, 1], [2, 3]]] * 2
    assert Counting.made == 1


@pytest.mark.parametrize("before", [True, False])
def test_a_subclass_may_have_an_attribute_called_shuffle(loader_class, num_workers, before):
    class Shuffling(loader_class):
        def __init__(self, dataset, shuffle, **arguments):
            if before:
                self.shuffle = shuffle
            super().__init__(dataset, **arguments)
            self.shuffle = shuffle

    loader = Shuffling(Indices(4), True, batch_size=2, num_workers=num_workers)
    assert loader.shuffle is True
    assert lists(loader) == [[0, 1], [2, 3]]


def test_auto_collation_may_be_switched_off(loader_class, num_workers):
    class Single(loader_class):
        _auto_collation = False

    assert list(Single(Indices(3), num_workers=num_workers, collate_fn=as_is)) == [0, 1, 2]


class ReadOnly(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        array = np.full((3, 2), index, order="F")
        array.flags.writeable = False
        return array


def test_arrays_that_workers_send_can_be_written_to(loader_class):
    (batch,) = loader_class(ReadOnly(), batch_size=4, num_workers=2, collate_fn=as_is)
    for index, array in enumerate(batch):
        assert array.flags.f_contiguous
        assert (array == index).all()
        array += 1


class Locked(Indices):
    def __init__(self, length):
        super().__init__(length)
        self.lock = threading.Lock()


def test_what_cannot_be_pickled_for_a_worker_is_told_by_a_warning_as_well(loader_class, monkeypatch):
    """Where the start method is the process's default; given by argument, minato refuses it when the loader is made."""
    spawn = multiprocessing.get_context("spawn")
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", spawn)
    loader = loader_class(Locked(4), num_workers=1)
    told = pytest.warns(UserWarning, match="Got pickle error when attempting to start a worker Process")
    with told, pytest.raises(TypeError, match="pickle"):
        next(iter(loader))
