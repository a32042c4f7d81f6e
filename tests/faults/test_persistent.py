"""Persistent workers: what changes between epochs reaches them, and nothing of one epoch shows up in another."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torch.utils.data
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    WeightedRandomSampler,
)

from minato import DataLoader

from .data import Rows
from .tools import assert_gone, running, until


class Epochal(Dataset):
    """Sample i: (i, the epoch this copy of the dataset believes in, its process)."""

    def __init__(self, length):
        self.length, self.epoch = length, 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([index, self.epoch, os.getpid()])

    def set_epoch(self, epoch):
        self.epoch = epoch


class Scale:
    """A transform with a setting."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, value):
        return value * self.factor


class Transformed(Dataset):
    """Sample i is i, transformed."""

    def __init__(self, length, transforms):
        self.length, self.transforms = length, transforms

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        value = index
        for transform in self.transforms:
            value = transform(value)
        return value


def persistent(dataset, size=4, **options):
    return DataLoader(dataset, size, num_workers=2, persistent_workers=True, timeout=30, **options)


def rows(batches):
    """Rows of one epoch, as lists."""
    return [row.tolist() for batch in batches for row in batch]


# ------------------------------------------------------------------------------------------------------ changes arrive


def wrapped_in_nothing(dataset):
    return dataset


def wrapped_in_a_subset(dataset):
    return Subset(dataset, range(len(dataset)))


def wrapped_in_a_concatenation(dataset):
    return ConcatDataset([Subset(dataset, range(20)), Subset(dataset, range(20, 40))])


@pytest.mark.parametrize(
    "wrap", [wrapped_in_nothing, wrapped_in_a_subset, wrapped_in_a_concatenation], ids=lambda f: f.__name__
)
def test_set_epoch_reaches_workers_that_live_on(wrap, in_order):
    """torch's persistent workers never hear of it."""
    dataset = Epochal(40)
    loader = persistent(wrap(dataset), in_order=in_order)
    pids = set()
    for epoch in (0, 1, 5, 5, 2):
        dataset.set_epoch(epoch)
        seen = rows(loader)
        assert sorted(index for index, _, _ in seen) == list(range(40))
        assert {believed for _, believed, _ in seen} == {epoch}
        pids |= {pid for _, _, pid in seen}
    assert pids <= set(iter(loader).worker_pids.values())


def test_the_setting_of_a_transform_reaches_workers_that_live_on():
    scale = Scale(1)
    loader = persistent(Transformed(12, [scale, Scale(10)]))
    for scale.factor in (1, 2, 3):
        assert sum(batch.sum().item() for batch in loader) == 66 * 10 * scale.factor


def test_a_transform_that_is_replaced_reaches_workers_that_live_on():
    dataset = Transformed(12, [Scale(1)])
    loader = persistent(dataset)
    for factor in (1, 2, 3):
        dataset.transforms = [Scale(factor), Scale(1)]
        assert sum(batch.sum().item() for batch in loader) == 66 * factor


def test_a_tensor_changed_in_place_reaches_workers_that_live_on():
    dataset = Weighted()
    loader = persistent(dataset)
    for weight in (1, 2, 3):
        dataset.weight.fill_(weight)
        assert sum(batch.sum().item() for batch in loader) == 66 * weight


class Weighted(Rows):
    """Sample i is i times a tensor that the dataset holds."""

    def __init__(self):
        super().__init__(12)
        self.weight = torch.ones(())

    def __getitem__(self, index):
        return self.weight * index


def test_changes_reach_a_worker_that_replaces_a_dead_one():
    dataset = Epochal(40)
    loader = persistent(dataset)
    list(loader)
    dataset.set_epoch(3)
    list(loader)
    pids = list(iter(loader).worker_pids.values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pids), "both to die")
    with pytest.warns(RuntimeWarning, match="killed"):
        seen = rows(loader)
    assert [index for index, _, _ in seen] == list(range(40))
    assert {epoch for _, epoch, _ in seen} == {3}


# ------------------------------------------------------------------------------------------------------- epochs ahead


AHEAD = {
    "sequential": lambda dataset: {},
    "shuffle": lambda dataset: {"shuffle": True},
    "shuffle with a generator": lambda dataset: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "RandomSampler": lambda dataset: {"sampler": RandomSampler(dataset, generator=torch.Generator())},
    "WeightedRandomSampler": lambda dataset: {"sampler": WeightedRandomSampler([1.0] * 40, 40)},
}


@pytest.mark.parametrize("options", AHEAD.values(), ids=AHEAD)
def test_the_next_epoch_is_under_way_before_it_is_asked_for(options):
    dataset = Epochal(40)
    loader = persistent(dataset, **options(dataset))
    for _ in range(4):
        assert len(rows(loader)) == 40
    assert loader.stats().epochs_started_ahead == 3
    assert loader.stats().samples_delivered == 160


def distributed(dataset):
    return DistributedSampler(dataset, num_replicas=2, rank=0)


class Own(Sampler):
    """A custom sampler that counts how often it was begun."""

    def __init__(self):
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        return iter(range(40))

    def __len__(self):
        return 40


def test_a_distributed_sampler_is_not_asked_before_set_epoch():
    dataset = Epochal(40)
    sampler = distributed(dataset)
    loader = persistent(dataset, sampler=sampler, in_order=True)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        assert [index for index, _, _ in rows(loader)] == list(sampler)
    assert loader.stats().epochs_started_ahead == 0


def test_a_custom_sampler_is_begun_once_per_epoch_and_not_ahead():
    sampler = Own()
    loader = persistent(Epochal(40), sampler=sampler)
    for epoch in range(1, 4):
        assert len(rows(loader)) == 40
        assert sampler.begun == epoch
    assert loader.stats().epochs_started_ahead == 0


def test_a_generator_that_was_touched_takes_back_what_was_begun():
    expected, got = [], []
    for loader_class, seen in ((torch.utils.data.DataLoader, expected), (DataLoader, got)):
        generator = torch.Generator().manual_seed(11)
        loader = loader_class(
            Rows(40), 4, num_workers=1, persistent_workers=True, shuffle=True, generator=generator, in_order=True
        )
        for epoch in range(3):
            seen.append([row[0] for row in rows(loader)])
            generator.manual_seed(100 + epoch)
        if loader_class is DataLoader:
            assert loader.stats().epochs_started_ahead == 0
        del loader
    assert got == expected


def test_a_dataset_that_was_changed_takes_back_what_was_begun(in_order):
    dataset = Epochal(40)
    loader = persistent(dataset, shuffle=True, in_order=in_order)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        seen = rows(loader)
        assert sorted(index for index, _, _ in seen) == list(range(40))
        assert {believed for _, believed, _ in seen} == {epoch}
    assert loader.stats().epochs_started_ahead == 0


# --------------------------------------------------------------------------------------------- epochs do not get mixed


class OneIsHeld(Dataset):
    """Sample 0 waits at a gate the first time it is asked for; every sample that is done leaves a mark."""

    def __init__(self, length, gate, marks):
        self.length, self.gate, self.marks = length, gate, marks

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == 0 and self.marks.once("held"):
            self.gate.wait()
        self.marks.once(f"sample-{index}-{time.monotonic_ns()}")
        return index


def test_samples_begun_ahead_do_not_come_early(gate, marks):
    """One sample of the first epoch is held back until samples of the second are done."""
    loader = persistent(OneIsHeld(8, gate, marks), size=2, in_order=False, prefetch_factor=4)
    iterator = iter(loader)
    first = [index for _ in range(3) for index in next(iterator).tolist()]
    marks.wait_for("sample", 10)  # seven of this epoch, so three of the next
    gate.open()
    first += [index for batch in iterator for index in batch.tolist()]
    assert sorted(first) == list(range(8))
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(8))
    assert loader.stats().epochs_started_ahead == 1


@pytest.mark.parametrize("collate", [None, torch.tensor], ids=["default-collate", "custom-collate"])
def test_a_straggler_of_an_epoch_left_early_does_not_shorten_the_next(gate, marks, in_order, collate):
    """A worker still holds a sample that nobody waits for; the others may wait for it, but not end the epoch."""
    loader = persistent(OneIsHeld(400, gate, marks), in_order=in_order, collate_fn=collate)
    iter(loader)
    marks.wait_for("held")
    opener = threading.Timer(1.0, gate.open)
    opener.start()
    seen = [index for batch in loader for index in batch.tolist()]
    opener.join()
    assert sorted(seen) == list(range(400))
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(400))


def test_an_epoch_left_early_leaves_nothing_to_the_next(in_order):
    dataset = Epochal(400)
    loader = persistent(dataset, in_order=in_order, prefetch_factor=4)
    for epoch in range(8):
        dataset.set_epoch(epoch)
        for number, batch in enumerate(loader):
            assert batch[:, 1].tolist() == [epoch] * 4
            if number == epoch:
                break
    dataset.set_epoch(99)
    seen = rows(loader)
    assert sorted(index for index, _, _ in seen) == list(range(400))
    assert {epoch for _, epoch, _ in seen} == {99}


def test_an_epoch_left_after_its_last_batch_but_before_its_end_is_over():
    loader = persistent(Rows(12), shuffle=True)
    for _ in range(4):
        iterator = iter(loader)
        seen = [row[0] for _ in range(3) for row in next(iterator).tolist()]
        assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shared", [True, False], ids=["own-generator", "global-generator"])
def test_all_epochs_equal_those_of_torch(workers, shared):
    expected, got = [], []
    for loader_class, seen in ((torch.utils.data.DataLoader, expected), (DataLoader, got)):
        torch.manual_seed(5)
        loader = loader_class(
            Rows(42),
            4,
            num_workers=workers,
            persistent_workers=True,
            shuffle=True,
            generator=torch.Generator().manual_seed(5) if shared else None,
            in_order=True,
        )
        for epoch in range(5):
            for number, batch in enumerate(loader):
                seen.append(batch[:, 0].tolist())
                if epoch == 2 and number == 4:
                    break
        seen.append(torch.rand(3).tolist())
        del loader
    assert got == expected


def test_going_on_from_a_state_ends_the_workers_before():
    """Else there would be two sets of them, for as long as somebody holds the iterator."""
    with DataLoader(Rows(40), 4, num_workers=2, persistent_workers=True) as loader:
        held = iter(loader)
        next(held)
        pids = list(held.worker_pids.values())
        loader.load_state_dict(loader.state_dict())
        assert sum(len(batch) for batch in loader) == 36
        assert_gone(pids, 5)
        with pytest.raises(RuntimeError, match="closed"):
            next(held)
