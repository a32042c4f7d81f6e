"""Samples that kill their workers: named, or left out. (torch's loader ends with the first of them.)"""

from __future__ import annotations

import os
import re
import signal

import pytest
import torch

from minato import DataLoader
from minato.errors import WorkerDied

from .data import DiesAlways, DiesOnce, Rows, Sleepy, die, row
from .tools import caught_warnings

LENGTH, BATCH = 42, 4


class DeadlyTogether(Rows):
    """Fetches whole batches; sample `deadly` kills its worker."""

    def __init__(self, length, deadly):
        super().__init__(length)
        self.deadly = deadly

    def __getitems__(self, indices):
        if self.deadly in indices:
            die("SIGSEGV")
        return [row(index) for index in indices]


def assert_all_but(batches, left_out, length=LENGTH, size=BATCH):
    """Each sample once but for those left out, and all batches full but the last."""
    got = [batch[:, 0].tolist() for batch in batches]
    assert sorted(number for batch in got for number in batch) == sorted(set(range(length)) - set(left_out))
    assert {len(batch) for batch in got[:-1]} <= {size}


@pytest.mark.parametrize("collate", [None, torch.stack], ids=["default-collate", "custom-collate"])
@pytest.mark.parametrize("way", ["SIGKILL", "SIGSEGV", "os._exit"])
def test_skip_leaves_a_deadly_sample_out(way, collate, in_order, marks):
    dataset = DiesAlways(LENGTH, 17, marks, way)
    loader = DataLoader(dataset, BATCH, num_workers=2, in_order=in_order, collate_fn=collate, on_error="skip")
    with caught_warnings() as caught:
        assert_all_but(list(loader), [17])
    assert loader.stats().skipped == (17,)
    assert len(marks.pids("death")) == loader.stats().worker_restarts == (3 if way == "SIGKILL" else 2)
    assert sum("sample index 17 failed (death: WorkerDied" in text for _, text in caught) == 1


def test_a_crash_that_repeats_is_raised_with_the_sample(in_order, marks):
    loader = DataLoader(DiesAlways(LENGTH, 17, marks, "SIGSEGV"), BATCH, num_workers=2, in_order=in_order)
    with caught_warnings() as caught, pytest.raises(WorkerDied, match=r"while fetching sample index 17\b"):
        list(loader)
    assert len(caught) == 1
    assert len(marks.pids("death")) == 2


@pytest.mark.parametrize(("retries", "way", "deaths"), [(1, "SIGSEGV", 2), (3, "SIGSEGV", 4), (3, "SIGKILL", 4)])
def test_a_sample_is_poison_after_one_death_more_than_sample_retries(retries, way, deaths, marks):
    loader = DataLoader(DiesAlways(LENGTH, 17, marks, way), BATCH, num_workers=2, sample_retries=retries)
    with caught_warnings(), pytest.raises(WorkerDied, match=r"sample index 17\b"):
        list(loader)
    assert len(marks.pids("death")) == deaths


def test_the_warning_names_sample_signal_and_memory(marks):
    loader = DataLoader(DiesOnce(LENGTH, [13], marks, "SIGSEGV"), BATCH, num_workers=2)
    with caught_warnings() as caught:
        assert_all_but(list(loader), [])
    ((category, text),) = caught
    assert category is RuntimeWarning
    assert re.fullmatch(
        r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault while fetching sample index 13 "
        r"\(its memory reached \d+ MiB\); its samples go to other workers",
        text,
    )


def test_a_function_decides_about_a_deadly_sample(in_order, marks):
    seen = []

    def decide(error):
        seen.append(error)
        return "retry" if len(seen) == 1 else "skip"

    loader = DataLoader(
        DiesAlways(LENGTH, 17, marks, "SIGSEGV"), BATCH, num_workers=2, in_order=in_order, on_error=decide
    )
    with caught_warnings():
        assert_all_but(list(loader), [17])
    assert [(error.index, error.stage, type(error.error)) for error in seen] == [(17, "death", WorkerDied)] * 2
    assert [error.tries for error in seen] == [2, 3]


def test_several_deadly_samples_are_left_out(in_order, marks):
    class Deadly(Rows):
        def __getitem__(self, index):
            if index in (0, 1, 17, 41):
                die("os._exit")
            return row(index)

    loader = DataLoader(Deadly(LENGTH), BATCH, num_workers=2, in_order=in_order, on_error="skip")
    with caught_warnings():
        assert_all_but(list(loader), [0, 1, 17, 41])
    assert loader.stats().worker_restarts == 8


def test_a_batch_samplers_batch_loses_only_its_deadly_sample(marks):
    batches = [[0, 1], [16, 17, 18], [17], [40, 41]]
    loader = DataLoader(DiesAlways(LENGTH, 17, marks, "SIGSEGV"), batch_sampler=batches, num_workers=2, on_error="skip")
    with caught_warnings():
        got = [batch[:, 0].tolist() for batch in loader]
    assert got == [[0, 1], [16, 18], [40, 41]]


def test_without_batching_a_deadly_sample_is_missing(marks):
    loader = DataLoader(DiesAlways(8, 5, marks, "SIGSEGV"), batch_size=None, num_workers=2, on_error="skip")
    with caught_warnings():
        assert [sample[0].item() for sample in loader] == [0, 1, 2, 3, 4, 6, 7]


def test_a_dataset_that_fetches_batches_loses_only_its_deadly_sample():
    loader = DataLoader(DeadlyTogether(20, 9), 4, num_workers=2, on_error="skip")
    with caught_warnings():
        assert_all_but(list(loader), [9], length=20)


def test_the_limit_on_restarts_holds_whatever_on_error_says(marks):
    loader = DataLoader(DiesAlways(LENGTH, 17, marks), BATCH, num_workers=2, on_error="skip", max_worker_restarts=1)
    with caught_warnings(), pytest.raises(WorkerDied, match="max_worker_restarts=1"):
        list(loader)


def test_two_kills_from_outside_do_not_condemn_a_slow_sample(in_order):
    loader = DataLoader(Sleepy(6, 0.5), 2, num_workers=1, in_order=in_order)
    batches = []
    with caught_warnings():
        iterator = iter(loader)
        first = iterator.worker_pids[0]
        os.kill(first, signal.SIGKILL)
        batches.append(next(iterator))
        second = iterator.worker_pids[0]
        assert second != first
        os.kill(second, signal.SIGKILL)
        batches += list(iterator)
    assert_all_but(batches, [], length=6, size=2)
    assert loader.stats().worker_restarts == 2


def test_persistent_workers_meet_a_deadly_sample_in_every_epoch(in_order, marks):
    loader = DataLoader(
        DiesAlways(LENGTH, 17, marks, "SIGSEGV"),
        BATCH,
        num_workers=2,
        in_order=in_order,
        persistent_workers=True,
        on_error="skip",
    )
    with caught_warnings():
        for epoch in range(1, 4):
            assert_all_but(list(loader), [17])
            assert loader.stats().samples_skipped >= epoch  # the next epoch may be under way
