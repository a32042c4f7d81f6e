"""How workers come up: in the background, all at once, with one pickle of the dataset, and with errors that tell."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from minato import DataLoader
from minato._queues.posting import PostingBoard
from minato._workers.pool import WorkerPool

from .data import DiesOnce, Rows, Signs
from .tools import caught_warnings


class BehindGate:
    """As worker_init_fn: signs, then waits at a gate."""

    def __init__(self, gate, marks):
        self.gate, self.marks = gate, marks

    def __call__(self, worker_id):
        self.marks.sign("started")
        self.gate.wait()
        self.marks.sign("passed")


class SignsSamples(Rows):
    """Signs for every sample that is made."""

    def __init__(self, length, marks):
        super().__init__(length)
        self.marks = marks

    def __getitem__(self, index):
        self.marks.sign("fetched")
        return super().__getitem__(index)


class SignsStream(IterableDataset):
    """The same, as a stream."""

    def __init__(self, length, marks):
        self.rows = SignsSamples(length, marks)

    def __iter__(self):
        return (self.rows[index] for index in range(len(self.rows)))


def signed_first(method, marks):
    """Sign before the method is called."""

    def call(self, index):
        marks.sign("fetched")
        return method(self, index)

    return call


def test_iter_returns_while_workers_are_starting(gate, marks):
    loader = DataLoader(Rows(8), 4, num_workers=2, worker_init_fn=BehindGate(gate, marks))
    iterator = iter(loader)
    marks.wait_for("started", 2)
    assert marks.pids("passed") == []
    assert loader.stats().batches_in_flight == 2
    assert loader.stats().batches_ready == 0
    gate.open()
    assert len(list(iterator)) == 2


def test_iter_returns_before_workers_are_spawned(gate, marks):
    """A worker that is spawned imports torch again, for seconds; the caller does not wait for that."""
    loader = DataLoader(
        Rows(8), 4, num_workers=2, worker_init_fn=BehindGate(gate, marks), multiprocessing_context="spawn"
    )
    iterator = iter(loader)
    assert marks.pids("started") == []
    gate.open()
    assert len(list(iterator)) == 2


def test_an_iterator_may_be_left_while_its_workers_are_starting(gate, marks):
    loader = DataLoader(Rows(8), 4, num_workers=2, worker_init_fn=BehindGate(gate, marks))
    iterator = iter(loader)
    marks.wait_for("started", 2)
    started = time.monotonic()
    del iterator
    assert time.monotonic() - started < 5
    assert marks.pids("passed") == []


def hold_back_second_fork(monkeypatch, until):
    """Call `until` before the second worker is forked."""
    start_one = WorkerPool._start_one

    def start(pool, worker):
        if worker == 1:
            until()
        start_one(pool, worker)

    monkeypatch.setattr(WorkerPool, "_start_one", start)


@pytest.mark.parametrize("shuffle", [False, True], ids=["sequential", "shuffled"])
def test_the_first_worker_has_work_before_others_are_forked(shuffle, marks, monkeypatch):
    hold_back_second_fork(monkeypatch, lambda: marks.wait_for("fetched", 1))
    loader = DataLoader(SignsSamples(8, marks), 4, shuffle=shuffle, num_workers=2)
    assert sorted(torch.cat(list(loader))[:, 0].tolist()) == list(range(8))


def test_a_stream_begins_before_the_workers_of_others_are_forked(marks, monkeypatch):
    hold_back_second_fork(monkeypatch, lambda: marks.wait_for("fetched", 1))
    loader = DataLoader(SignsStream(8, marks), 4, num_workers=2)
    assert sorted(torch.cat(list(loader))[:, 0].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]


def test_a_worker_that_dies_before_others_are_forked_loses_nothing(in_order, marks, monkeypatch):
    hold_back_second_fork(monkeypatch, lambda: marks.wait_for("fetched", 1))
    dataset = DiesOnce(8, range(8), marks)
    monkeypatch.setattr(DiesOnce, "__getitem__", signed_first(DiesOnce.__getitem__, marks))
    loader = DataLoader(dataset, 4, shuffle=True, in_order=in_order, num_workers=2, max_worker_restarts=100)
    with caught_warnings():
        assert sorted(torch.cat(list(loader))[:, 0].tolist()) == list(range(8))


def test_an_error_while_the_first_batches_are_posted_leaves_nothing_behind(monkeypatch):
    """Between the first fork and the second: the worker that is there is ended again."""

    def fail(*_, **__):
        raise MemoryError("no room for tickets")

    monkeypatch.setattr(PostingBoard, "publish", fail)
    with pytest.raises(MemoryError, match="no room for tickets"):
        iter(DataLoader(Rows(8), 4, num_workers=2))
    assert multiprocessing.active_children() == []


# ------------------------------------------------------------------------------------------------------------- pickles


class CountsPickles(Rows):
    """Counts how often it was pickled in this process."""

    pickled = 0

    def __getstate__(self):
        type(self).pickled += 1
        return self.__dict__


class SharedState(Dataset):
    """Sample i is counted in a shared tensor and in a shared number."""

    def __init__(self, context):
        self.seen = torch.zeros(8, dtype=torch.int64).share_memory_()
        self.total = context.Value("q", 0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.seen[index] += 1
        with self.total.get_lock():
            self.total.value += index
        return index


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_the_dataset_is_pickled_once_for_all_workers(start_method, marks):
    """torch pickles it once per worker. (The check at construction keeps no pickle.)"""
    loader = DataLoader(
        CountsPickles(8), 4, num_workers=3, worker_init_fn=Signs(marks), multiprocessing_context=start_method
    )
    CountsPickles.pickled = 0
    iterator = iter(loader)
    marks.wait_for("started", 3)
    assert CountsPickles.pickled == 1
    assert len(list(iterator)) == 2


@pytest.mark.leaks_ok("multiprocessing keeps the memory of a Value in an arena of its own for ever")
def test_what_is_shared_stays_shared_with_spawned_workers():
    """As with torch's loader."""
    dataset = SharedState(multiprocessing.get_context("spawn"))
    loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context="spawn")
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(8))
    assert dataset.seen.tolist() == [1] * 8
    assert dataset.total.value == 28


class Holder:
    """Any object with an attribute."""

    def __init__(self, content):
        self.content = content


class Holding(Rows):
    """A dataset with something in it."""

    def __init__(self, transform):
        super().__init__(4)
        self.transform = transform


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("transform", "path"),
    [
        (lambda value: value, "dataset.transform "),
        (Holder([1, {"key": lambda: 0}]), "dataset.transform.content[1]['key'] "),
    ],
    ids=["attribute", "nested"],
)
def test_a_dataset_that_cannot_be_pickled_is_refused_by_name(start_method, transform, path):
    with pytest.raises(Exception) as caught:
        DataLoader(Holding(transform), 2, num_workers=2, multiprocessing_context=start_method)
    assert any(path in note for note in caught.value.__notes__)


def test_a_function_that_cannot_be_pickled_is_refused_by_name():
    with pytest.raises(Exception) as caught:
        DataLoader(Rows(4), 2, num_workers=2, multiprocessing_context="spawn", collate_fn=lambda samples: samples)
    assert any("collate_fn " in note for note in caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_a_dataset_that_became_unpicklable_is_refused_by_iter_and_leaves_nothing_behind():
    dataset = Holding(None)
    loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context="spawn")
    dataset.transform = lambda value: value
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            iter(loader)
        assert any("dataset.transform " in note for note in caught.value.__notes__)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Exception, match="pickle"):
        iter(loader)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


def test_what_needs_no_pickle_is_not_pickled_under_fork():
    assert len(list(DataLoader(Holding(lambda value: value), 2, num_workers=2, multiprocessing_context="fork"))) == 2


# -------------------------------------------------------------------------------------------------------------- errors


class Refusal(Exception):
    """An error that cannot be built from one message."""

    def __init__(self, code, worker):
        super().__init__(f"code {code}")
        self.code, self.worker = code, worker


def refuse(worker_id):
    raise Refusal(7, worker_id)


class RefusesInOne:
    """As worker_init_fn: worker 1 refuses, the others sign."""

    def __init__(self, marks):
        self.marks = marks

    def __call__(self, worker_id):
        if worker_id == 1:
            raise FileNotFoundError(2, "no such file", "/data/index")
        self.marks.sign("started")


def test_an_error_in_worker_init_fn_arrives_as_its_own_type():
    """torch's loader gives a type that takes one message only."""
    with pytest.raises(Refusal) as caught:
        list(DataLoader(Rows(8), 4, num_workers=2, worker_init_fn=refuse))
    assert caught.value.code == 7
    assert caught.value.worker in (0, 1)
    assert "starting" in " ".join(caught.value.__notes__)
    assert "in refuse" in str(caught.value.__cause__)


def test_an_error_in_worker_init_fn_arrives_from_spawned_workers():
    with pytest.raises(Refusal, match="code 7"):
        list(DataLoader(Rows(8), 4, num_workers=1, worker_init_fn=refuse, multiprocessing_context="spawn"))


def test_an_error_in_the_start_of_one_worker_is_not_swallowed(marks):
    loader = DataLoader(Together(marks, 2, 2), 2, num_workers=2, worker_init_fn=RefusesInOne(marks))
    with pytest.raises(FileNotFoundError) as caught:
        list(loader)
    assert (caught.value.errno, caught.value.filename) == (2, "/data/index")
    marks.once("here-1")  # lets the other worker's sample go


# ------------------------------------------------------------------------------------------------------ the first batch


class Together(Dataset):
    """A sample is ready when `count` workers hold one; it tells which worker made it."""

    def __init__(self, marks, length, count):
        self.marks, self.length, self.count = marks, length, count

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.marks.sign("here")
        self.marks.wait_for("here", self.count)
        return get_worker_info().id


@pytest.mark.parametrize("size", [3, 12])
@pytest.mark.parametrize("collate", [None, torch.tensor], ids=["default-collate", "custom-collate"])
def test_the_first_batch_is_spread_over_all_workers(collate, size, marks):
    """torch gives each batch to one worker: the first is not there before that worker has made all of it."""
    loader = DataLoader(Together(marks, 3 * size, 3), size, num_workers=3, collate_fn=collate)
    first = next(iter(loader))
    assert set(first.tolist()) == {0, 1, 2}


def test_workers_that_are_up_do_not_wait_for_one_that_is_not(gate, marks):
    loader = DataLoader(Rows(40), 4, num_workers=2, worker_init_fn=LateStart(gate))
    assert [batch[0, 0].item() for batch in loader] == list(range(0, 40, 4))


class LateStart:
    """As worker_init_fn: worker 0 waits at a gate."""

    def __init__(self, gate):
        self.gate = gate

    def __call__(self, worker_id):
        if worker_id == 0:
            self.gate.wait()
