"""Iterators: several at once, left early, left alone; and batches that stay what they are."""

from __future__ import annotations

import pickle

import pytest
import torch

from .checks import lists
from .data import Counted, Indices, LoaderInside, Rows, ShardedStream

PINNED_WITHOUT_ACCELERATOR = "'pin_memory' argument is set as true but no accelerator is found"


def test_every_loop_is_a_whole_epoch(loader_class, num_workers):
    loader = loader_class(Indices(5), batch_size=2, num_workers=num_workers)
    assert [lists(loader) for _ in range(3)] == [[[0, 1], [2, 3], [4]]] * 3


def test_an_iterator_is_its_own_iterator(loader_class, num_workers):
    iterator = iter(loader_class(Indices(2), num_workers=num_workers))
    assert iter(iterator) is iterator
    assert [batch.item() for batch in iterator] == [0, 1]


def test_the_end_stays_the_end(loader_class, num_workers):
    iterator = iter(loader_class(Indices(2), num_workers=num_workers))
    assert len(list(iterator)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_iterator_knows_the_length_of_its_loader(loader_class, num_workers):
    loader = loader_class(Indices(5), batch_size=2, num_workers=num_workers)
    iterator = iter(loader)
    assert len(iterator) == len(loader) == 3
    next(iterator)
    assert len(iterator) == 3


def test_two_iterators_of_one_loader_do_not_disturb_each_other(loader_class, num_workers):
    loader = loader_class(Indices(6), batch_size=2, num_workers=num_workers)
    pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4, 5], [4, 5])]


def test_a_loop_inside_a_loop_over_the_same_loader(loader_class, num_workers):
    loader = loader_class(Indices(3), num_workers=num_workers)
    assert [(a.item(), b.item()) for a in loader for b in loader] == [(a, b) for a in range(3) for b in range(3)]


def test_two_loaders_share_a_dataset(loader_class, num_workers):
    rows = Rows(4)
    forwards = loader_class(rows, batch_size=2, num_workers=num_workers)
    backwards = loader_class(rows, batch_size=2, sampler=[3, 2, 1, 0], num_workers=num_workers)
    for one, other in zip(forwards, backwards, strict=True):
        assert torch.equal(one + other, torch.full((2, 2, 3), 3.0))


def test_a_loop_may_be_left_early_and_begun_again(loader_class, num_workers):
    loader = loader_class(Rows(40), batch_size=2, num_workers=num_workers)
    for stop in (1, 2, 5):
        for place, batch in enumerate(loader, start=1):
            assert batch[0, 0, 0] == 2 * (place - 1)
            if place == stop:
                break
    assert len(list(loader)) == 20


def test_an_iterator_nobody_reads_does_no_harm(loader_class, num_workers):
    loader = loader_class(Indices(6), batch_size=2, num_workers=num_workers)
    idle = iter(loader)
    assert lists(loader) == lists(idle) == [[0, 1], [2, 3], [4, 5]]


def test_an_iterator_outlives_its_loader(loader_class, num_workers):
    iterator = iter(loader_class(Indices(4), batch_size=2, num_workers=num_workers))
    assert lists(iterator) == [[0, 1], [2, 3]]


def test_a_stream_may_be_left_early(loader_class):
    loader = loader_class(ShardedStream(1000), batch_size=2, num_workers=2)
    assert [next(iter(loader)).tolist() for _ in range(2)] == [[0, 2]] * 2


def test_a_loader_inside_a_dataset(loader_class, num_workers):
    loader = loader_class(LoaderInside(loader_class), batch_size=2, num_workers=num_workers)
    assert lists(loader) == [[1, 3], [6, 10]]


def test_the_sampler_is_started_once_per_epoch_and_not_before(loader_class, num_workers):
    sampler = Counted(range(6))
    loader = loader_class(Indices(6), batch_size=2, sampler=sampler, num_workers=num_workers)
    assert (sampler.starts, sampler.drawn) == (0, 0)
    for epoch in (1, 2):
        assert lists(loader) == [[0, 1], [2, 3], [4, 5]]
        assert (sampler.starts, sampler.drawn) == (epoch, 6 * epoch)


class Eager(Counted):
    """Counts already when iter() is called, not only when the first key is taken."""

    def __iter__(self):
        self.starts += 1
        return iter(self.keys)


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh workers", "persistent workers"])
def test_every_kind_of_sampler_is_started_once_per_epoch(minato_class, persistent):
    """torch's loader with workers calls iter() of a batch_sampler twice in its first epoch, and drops the first."""
    for arguments in (
        {"batch_sampler": Eager([[0, 1], [2]])},
        {"batch_size": None, "sampler": Eager([0, 1, 2])},
        {"batch_size": 2, "sampler": Eager([0, 1, 2])},
    ):
        sampler = arguments.get("batch_sampler", arguments.get("sampler"))
        loader = minato_class(Indices(3), num_workers=1, persistent_workers=persistent, **arguments)
        for epoch in (1, 2):
            list(loader)
            assert sampler.starts == epoch


def test_the_sampler_is_started_by_iter_at_the_latest_by_the_first_batch(loader_class):
    sampler = Counted(range(6))
    iterator = iter(loader_class(Indices(6), batch_size=2, sampler=sampler))
    assert sampler.drawn == 0
    next(iterator)
    assert sampler.drawn == 2


def test_pinning_without_an_accelerator_is_a_warning_and_nothing_else(loader_class, num_workers):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = loader_class(Rows(4), batch_size=2, pin_memory=True, num_workers=num_workers)
    with pytest.warns(UserWarning, match=PINNED_WITHOUT_ACCELERATOR):
        batches = list(loader)
    assert [batch[:, 0, 0].tolist() for batch in batches] == [[0.0, 1.0], [2.0, 3.0]]


# -------------------------------------------------------------------------------------------------------------- batches


def test_batches_that_are_kept_do_not_change(loader_class, num_workers):
    loader = loader_class(Rows(60), batch_size=2, num_workers=num_workers)
    kept = [batch for _ in range(2) for batch in loader]
    assert [batch[:, 1, 1].tolist() for batch in kept] == [[i, i + 1] for i in range(0, 60, 2)] * 2


def test_parts_of_batches_that_are_kept_do_not_change(loader_class, num_workers):
    kept = [batch[1:, 0].numpy() for batch in loader_class(Rows(60), batch_size=2, num_workers=num_workers)]
    assert [part[0, 0] for part in kept] == list(range(1, 60, 2))


def test_a_batch_belongs_to_whoever_got_it(loader_class, num_workers):
    loader = loader_class(Rows(20), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        for place, batch in enumerate(loader):
            assert batch[:, 0, 0].tolist() == [2 * place, 2 * place + 1]
            batch.fill_(-1)


def test_a_batch_outlives_its_loader(loader_class, num_workers):
    batch = next(iter(loader_class(Rows(20), batch_size=2, num_workers=num_workers)))
    assert batch[:, 1, 2].tolist() == [0.0, 1.0]


def test_a_batch_can_be_pickled_cloned_shared_and_resized(loader_class, num_workers):
    first, second, third, fourth = loader_class(Rows(8), batch_size=2, num_workers=num_workers)
    assert torch.equal(pickle.loads(pickle.dumps(first)), first)
    assert torch.equal(second.clone(), second)
    assert torch.equal(third.share_memory_()[0], Rows(8)[4])
    assert fourth.reshape(4, 3).unsqueeze_(0).shape == (1, 4, 3)


def test_a_subclass_may_keep_an_iterator_of_its_own(loader_class, num_workers):
    """As some trainers do: they call torch's `_get_iterator` and `_shutdown_workers`, and look at `_workers`."""

    class Keeping(loader_class):
        def reset(self):
            self.kept = self._get_iterator()

    loader = Keeping(Indices(6), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        loader.reset()
        first = next(loader.kept)
        assert first.tolist() == [0, 1]
        if num_workers:
            assert len(loader.kept._workers) == num_workers
            assert all(worker.is_alive() for worker in loader.kept._workers)
            loader.kept._shutdown_workers()
