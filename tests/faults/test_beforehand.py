"""Batches made ready by a thread while the consumer works: nothing else about a loader changes by it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from minato import DataLoader
from minato._engine import beforehand
from minato._engine.beforehand import Beforehand
from minato._scheduler.leisure import Leisure

from .data import Big, Rows
from .tools import assert_gone, caught_warnings, forked, until

ORDERS = pytest.mark.parametrize("order", [{"in_order": True}, {"shuffle": True}], ids=["in order", "re-ordered"])


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """However short the consumer's steps are."""
    monkeypatch.setattr(Leisure, "is_enough", property(lambda _: True))


@pytest.fixture
def taken(monkeypatch):
    """Counts batches that were ready when they were asked for."""
    found = []
    take = Beforehand.take

    def counted(self):
        batch = take(self)
        if batch is not None:
            found.append(batch)
        return batch

    monkeypatch.setattr(Beforehand, "take", counted)
    return found


def engine_of(iterator):
    return iterator._engine


def wait_until_ready(iterator):
    """Until the thread has made the next batch ready."""
    ahead = engine_of(iterator)._beforehand

    def is_ready():
        if not len(ahead):
            ahead.arrived()  # as if it had just been asked: there was no batch yet the last time
        return len(ahead) == 1

    until(is_ready, "a batch made ready")


def indices(batches):
    return [int(row[0]) for batch in batches for row in batch]


@ORDERS
@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
def test_every_sample_comes_once_whether_its_batch_was_ready_or_not(order, persistent, taken):
    with DataLoader(Rows(400), 4, num_workers=2, persistent_workers=persistent, **order) as loader:
        for _ in range(3):
            seen = []
            for number, batch in enumerate(iterator := iter(loader)):
                seen += indices([batch])
                if number == 20:
                    wait_until_ready(iterator)
            assert sorted(seen) == list(range(400))
            assert seen == list(range(400)) or "in_order" not in order
        assert loader.stats().batches_delivered == 300
        assert loader.stats().samples_delivered == 1200
    assert len(taken) >= 3  # one of each epoch was waited for


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from (torch.tensor([n]) for n in range(info.id, 101, info.num_workers))


def test_streams_end_as_ever(taken):
    for _ in range(2):
        assert sorted(indices(DataLoader(Stream(), 4, num_workers=3))) == list(range(101))


@ORDERS
def test_a_batch_that_is_ready_and_not_asked_for_counts_as_not_delivered(order):
    with DataLoader(Rows(80), 4, num_workers=2, **order) as loader:
        iterator = iter(loader)
        first = indices([next(iterator), next(iterator)])
        wait_until_ready(iterator)
        state = loader.state_dict()
        assert loader.stats().batches_delivered == 2
    with DataLoader(Rows(80), 4, num_workers=1, **order) as resumed:
        resumed.load_state_dict(state)
        assert sorted(first + indices(resumed)) == list(range(80))


@ORDERS
def test_a_batch_that_is_ready_counts_among_those_that_the_memory_budget_allows(order, taken):
    two_batches = 2 * 4 * 300 * 1024
    with DataLoader(Big(80), 4, num_workers=2, memory_budget=two_batches, **order) as loader:
        seen = []
        for number, batch in enumerate(iterator := iter(loader)):
            seen += batch[:, 0].tolist()
            if 8 <= number < 16:
                wait_until_ready(iterator)
                assert loader.stats().batches_in_flight <= loader.stats().window == 2
        assert sorted(seen) == list(range(80))
    assert len(taken) >= 8


def test_the_last_batch_counts_as_ready_until_it_is_asked_for():
    with DataLoader(Rows(8), 4, num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        wait_until_ready(iterator)
        assert (loader.stats().batches_ready, loader.stats().batches_in_flight) == (1, 1)
        next(iterator)
        assert (loader.stats().batches_ready, loader.stats().batches_in_flight) == (0, 0)


@ORDERS
def test_an_abandoned_epoch_takes_its_ready_batch_with_it(order):
    with DataLoader(Rows(80), 4, num_workers=2, persistent_workers=True, **order) as loader:
        iterator = iter(loader)
        next(iterator)
        wait_until_ready(iterator)
        assert sorted(indices(loader)) == list(range(80))


class FailsAt(Rows):
    def __init__(self, length, bad):
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index):
        if index == self.bad:
            raise LookupError(f"no sample {index}")
        return super().__getitem__(index)


def test_an_error_comes_in_its_place_and_the_epoch_goes_on():
    with DataLoader(FailsAt(40, bad=13), 4, num_workers=2) as loader:
        iterator = iter(loader)
        seen = indices(next(iterator) for _ in range(3))
        wait_until_ready(iterator)
        with pytest.raises(LookupError, match="no sample 13") as raised:
            next(iterator)
        assert "worker" in "".join(raised.value.__notes__)
        assert seen + indices(iterator) == [*range(12), *range(16, 40)]


class Draws(Sampler):
    """Asked lazily, and remembers by whom."""

    def __init__(self, length):
        self.length = length
        self.threads = set()

    def __len__(self):
        return self.length

    def __iter__(self):
        for index in range(self.length):
            self.threads.add(threading.get_ident())
            yield index


def use_some_that_are_ready(loader):
    """An epoch, in which some batches are waited for until they are ready."""
    with loader:
        for number, _ in enumerate(iterator := iter(loader)):
            if number in (20, 50):
                wait_until_ready(iterator)


def test_a_sampler_of_the_users_is_only_asked_in_the_users_thread(taken):
    sampler = Draws(200)
    use_some_that_are_ready(DataLoader(Rows(200), 2, sampler=sampler, num_workers=2))
    assert sampler.threads == {threading.get_ident()}
    assert taken


def test_a_function_that_tells_slow_samples_is_only_asked_in_the_users_thread(taken):
    threads = set()

    def is_slow(index):
        threads.add(threading.get_ident())
        return index % 50 == 0

    use_some_that_are_ready(DataLoader(Rows(200), 2, num_workers=2, slow_hint=is_slow))
    assert threads <= {threading.get_ident()}
    assert taken


def test_the_programs_own_random_numbers_are_those_it_draws_beside_torchs_loader():
    def drawn(cls):
        torch.manual_seed(3)
        loader = cls(Rows(120), 2, shuffle=True, num_workers=2, persistent_workers=True)
        return [torch.rand(()).item() for _ in range(3) for _ in loader]

    assert drawn(DataLoader) == drawn(torch.utils.data.DataLoader)


@ORDERS
def test_killed_workers_cost_nothing(order, taken):
    with caught_warnings(), DataLoader(Rows(600), 4, num_workers=2, max_worker_restarts=50, **order) as loader:
        iterator, seen = iter(loader), []
        for number, batch in enumerate(iterator):
            seen += indices([batch])
            time.sleep(0.001)
            if number % 25 == 10:
                os.kill(next(iter(iterator.worker_pids.values())), signal.SIGKILL)
        assert sorted(seen) == list(range(600))


def test_closing_while_a_batch_is_ready_ends_thread_and_workers():
    loader = DataLoader(Rows(400), 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    wait_until_ready(iterator)
    pids = list(iterator.worker_pids.values())
    loader.close()
    assert_gone(pids, 5)
    assert not any(thread.name == "minato-beforehand" for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


def test_an_iterator_that_is_garbage_ends_its_thread():
    iterator = iter(DataLoader(Rows(400), 4, num_workers=2))
    next(iterator)
    wait_until_ready(iterator)
    del iterator
    gc.collect()
    assert not any(thread.name == "minato-beforehand" for thread in threading.enumerate())


def test_ctrl_c_before_a_ready_batch_is_taken_loses_nothing(monkeypatch):
    with DataLoader(Rows(40), 4, num_workers=2) as loader:
        iterator = iter(loader)
        seen = indices([next(iterator)])
        wait_until_ready(iterator)
        with monkeypatch.context() as patch:
            patch.setattr(engine_of(iterator), "_take_prepared", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iterator)
        state = loader.state_dict()
        assert seen + indices(iterator) == list(range(40))
    with DataLoader(Rows(40), 4, num_workers=2) as resumed:
        resumed.load_state_dict(state)
        assert seen + indices(resumed) == list(range(40))


def _interrupt():
    raise KeyboardInterrupt


def test_a_forked_copy_gets_no_batch_of_the_original():
    with DataLoader(Rows(40), 4, num_workers=2) as loader:
        iterator = iter(loader)
        seen = indices([next(iterator)])
        wait_until_ready(iterator)

        def in_the_copy():
            with pytest.raises(RuntimeError, match="another process"):
                next(iterator)
            loader.state_dict()

        assert forked(in_the_copy) == 0
        assert seen + indices(iterator) == list(range(40))


def test_a_fork_does_not_wait_for_ever_for_the_thread(monkeypatch):
    """What it does may take long: unpickling something of the user's."""
    monkeypatch.setattr(beforehand, "_PATIENCE_S", 0.05)
    goes_on = threading.Event()
    at_it = threading.Event()

    def prepare():
        at_it.set()
        goes_on.wait()
        return "a batch"

    ready = Beforehand(prepare, threading.RLock())
    ready.asked()
    ready.arrived()
    assert at_it.wait(30)
    try:
        assert forked(lambda: None) == 0
        assert not len(ready)
    finally:
        goes_on.set()
    until(lambda: len(ready), "the batch that was under way")
    assert forked(lambda: None) == 0  # with nothing under way
    assert ready.take() == "a batch"
    assert ready.end(lambda: None)


class Large(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((64, 1024), float(index))


def test_batches_that_the_user_keeps_never_change():
    with DataLoader(Large(), 2, num_workers=2, shuffle=True, prefetch_factor=1) as loader:
        kept = []
        for batch in loader:
            kept.append((batch, batch.clone()))
            time.sleep(0.001)
        assert all(torch.equal(batch, copy) for batch, copy in kept)
        assert loader.stats().batches_delivered == loader.stats().batches_copied + loader.stats().batches_zero_copy
