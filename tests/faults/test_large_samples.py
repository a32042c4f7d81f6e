"""Samples that are written one by one: whoever dies or fails between two of them, none is lost, mixed or repeated.

Small samples take that way here as well: the bound from which on they do is lowered, which forked workers inherit.
"""

from __future__ import annotations

import os
import signal

import pytest
import torch

from minato import DataLoader
from minato._queues import columns
from minato._workers.writer import Sheet
from minato.errors import WorkerDied

from .data import Counting, DiesAlways, DiesOnce, Rows, row
from .test_deaths import BATCH, LENGTH, assert_one_death_told, assert_whole_epoch
from .tools import caught_warnings


@pytest.fixture(autouse=True)
def singly(monkeypatch):
    monkeypatch.setattr(columns, "_LARGE_LEAF", 0)


@pytest.fixture
def dies_writing(marks, monkeypatch):
    """The first worker that is about to write its third sample of a run, or has just done so, is killed."""
    put, consumer = Sheet.put, os.getpid()

    def install(after):
        def put_or_die(sheet, number, sample):
            if after:
                put(sheet, number, sample)
            if number == 2 and os.getpid() != consumer and marks.once("death-writing", os.getpid()):
                os.kill(os.getpid(), signal.SIGKILL)
            if not after:
                put(sheet, number, sample)

        monkeypatch.setattr(Sheet, "put", put_or_die)

    return install


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("workers", [1, 2])
def test_death_between_two_samples_of_a_run_loses_nothing(dies_writing, workers, after, in_order, marks):
    dies_writing(after)
    loader = DataLoader(Rows(400), 16, num_workers=workers, in_order=in_order, multiprocessing_context="fork")
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order, 400, 16)
    assert_one_death_told(caught, marks.read("death-writing"), "SIGKILL")


def test_death_while_fetching_one_of_a_run_loses_nothing(in_order, marks):
    deadly = [5, 130, 211, 399]
    loader = DataLoader(DiesOnce(400, deadly, marks), 16, num_workers=2, in_order=in_order)
    with caught_warnings():
        batches = list(loader)
    assert_whole_epoch(batches, in_order, 400, 16)
    assert loader.stats().worker_restarts == len(deadly)


def test_a_sample_that_always_kills_is_named(in_order, marks):
    loader = DataLoader(DiesAlways(LENGTH, 17, marks), BATCH, num_workers=2, in_order=in_order)
    with pytest.warns(RuntimeWarning), pytest.raises(WorkerDied, match=r"sample index 17\b"):
        list(loader)


@pytest.mark.parametrize("batch_size", [4, 8])
def test_death_in_a_stream_is_an_error(dies_writing, batch_size):
    dies_writing(after=True)
    iterator = iter(DataLoader(Counting([200, 200]), batch_size, num_workers=2, multiprocessing_context="fork"))
    with pytest.raises(WorkerDied, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed"):
        list(iterator)


class FailsAt(Rows):
    def __init__(self, length, failing):
        super().__init__(length)
        self.failing = failing

    def __getitem__(self, index):
        if index in self.failing:
            raise ValueError(f"no sample {index}")
        return row(index)


def test_failing_ones_are_left_out_and_batches_stay_full():
    failing = {3, 64, 65, 120, 199}
    loader = DataLoader(FailsAt(200, failing), 13, num_workers=2, on_error="skip")
    with pytest.warns(RuntimeWarning, match="left out"):
        batches = list(loader)
    assert [len(batch) for batch in batches] == [13] * 15
    assert sorted(torch.cat(batches)[:, 0].tolist()) == [n for n in range(200) if n not in failing]


@pytest.mark.parametrize("fetcher", ["sequential", "threaded"])
def test_a_resumed_epoch_gives_the_rest(fetcher):
    torch.manual_seed(3)
    loader = DataLoader(Rows(120), 8, shuffle=True, num_workers=2, fetcher=fetcher)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(6)]
    state = loader.state_dict()
    del iterator
    other = DataLoader(Rows(120), 8, shuffle=True, num_workers=1, fetcher=fetcher)
    other.load_state_dict(state)
    batches += list(other)
    assert sorted(torch.cat(batches)[:, 0].tolist()) == list(range(120))
