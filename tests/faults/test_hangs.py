"""Samples that never come back: `timeout` finds them, replaces their workers, and names or leaves out the samples.

torch's loader only raises: the worker stays stuck, and so does the batch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest
import torch
from torch.utils.data import IterableDataset

from minato import DataLoader
from minato.errors import MinatoError, SampleTimeout

from .data import Rows, row
from .tools import caught_warnings, running, until

TIMEOUT_S = 1.5  # far more than a sample takes, even on a busy machine
FOR_EVER_S = 600


def sleep_with_the_gil():
    """C calls that let no other Python code run. A signal ends one of them."""
    while True:
        ctypes.PyDLL(None).sleep(FOR_EVER_S)


def sleep_without_it():
    time.sleep(FOR_EVER_S)


class Hanging(Rows):
    """Samples in `stuck` never come back; with marks: only the first time."""

    def __init__(self, length, stuck, hang=sleep_without_it, marks=None):
        super().__init__(length)
        self.stuck, self.hang, self.marks = frozenset(stuck), hang, marks

    def __getitem__(self, index):
        if index in self.stuck and (self.marks is None or self.marks.once(f"hang-{index}", os.getpid())):
            self.hang()  # here it hangs
        return row(index)


class HangingTogether(Hanging):
    """Fetches whole batches."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class HangsCollating:
    """Stacks samples; the batch with sample `stuck` in it never comes back, the first time or always."""

    def __init__(self, stuck, marks, always):
        self.stuck, self.marks, self.always = stuck, marks, always

    def __call__(self, samples):
        rows = torch.stack(samples)
        if (rows == self.stuck).any() and (self.marks.once("hang") or self.always):
            time.sleep(FOR_EVER_S)
        return rows


class HangingStream(IterableDataset):
    def __iter__(self):
        yield 1
        time.sleep(FOR_EVER_S)


def hang_at_start(worker_id):
    time.sleep(FOR_EVER_S)


def numbers(batches):
    return [batch[:, 0].tolist() for batch in batches]


def assert_all_but(batches, left_out, length, size):
    """Each sample once but for those left out, and all batches full but the last."""
    got = numbers(batches)
    assert sorted(number for batch in got for number in batch) == sorted(set(range(length)) - set(left_out))
    assert {len(batch) for batch in got[:-1]} <= {size}


@pytest.mark.parametrize("collate", [None, torch.stack], ids=["default-collate", "custom-collate"])
def test_skip_leaves_a_sample_that_hangs_out(collate, in_order):
    loader = DataLoader(
        Hanging(20, [9]),
        4,
        num_workers=2,
        in_order=in_order,
        collate_fn=collate,
        timeout=TIMEOUT_S,
        on_error="skip",
    )
    with caught_warnings() as caught:
        assert_all_but(list(loader), [9], 20, 4)
    assert loader.stats().skipped == (9,)
    assert loader.stats().worker_restarts == 1
    ((_, text),) = caught
    assert "sample index 9 failed (timeout: SampleTimeout: DataLoader timed out after" in text


def test_samples_of_all_workers_that_hang_are_left_out(in_order):
    loader = DataLoader(
        Hanging(20, [0, 1, 19]), 4, num_workers=2, in_order=in_order, timeout=TIMEOUT_S, on_error="skip"
    )
    with caught_warnings():
        assert_all_but(list(loader), [0, 1, 19], 20, 4)


def test_a_sample_that_hangs_once_is_fetched_again(in_order, marks):
    dataset = Hanging(20, [9], marks=marks)
    loader = DataLoader(dataset, 4, num_workers=2, in_order=in_order, timeout=TIMEOUT_S, sample_retries=1)
    assert_all_but(list(loader), [], 20, 4)
    assert loader.stats().samples_retried == 1
    until(lambda: not running([int(marks.read("hang-9"))]), "the stuck worker to end")


@pytest.mark.parametrize("hang", [sleep_without_it, sleep_with_the_gil])
def test_the_error_names_sample_worker_and_stack(hang, in_order):
    iterator = iter(DataLoader(Hanging(4, [1], hang), 2, num_workers=1, in_order=in_order, timeout=TIMEOUT_S))
    with pytest.raises(SampleTimeout) as caught:
        next(iterator)
    error = caught.value
    assert isinstance(error, MinatoError)
    assert isinstance(error, TimeoutError)
    assert str(error).startswith(
        f"DataLoader timed out after {TIMEOUT_S} seconds: sample index 1 was being fetched by "
    )
    assert "worker 0 (pid " in str(error)
    assert f"in {hang.__name__}" in str(error)
    assert "in __getitem__" in "\n".join(error.__notes__)
    assert "in __getitem__" in str(error.__cause__)


def test_after_the_error_the_sample_is_tried_again_and_nothing_is_lost(in_order, marks):
    """As with torch's loader, one may go on waiting."""
    dataset = Hanging(12, [1], marks=marks)
    iterator = iter(DataLoader(dataset, 4, num_workers=1, in_order=in_order, timeout=TIMEOUT_S))
    batches = []
    with pytest.raises(SampleTimeout, match="sample index 1 "):
        while True:
            batches.append(next(iterator))
    assert_all_but([*batches, *iterator], [], 12, 4)


def test_a_function_is_told_of_a_sample_that_hangs(in_order):
    seen = []

    def decide(error):
        seen.append(error)
        return "retry" if len(seen) == 1 else "skip"

    loader = DataLoader(Hanging(8, [5]), 4, num_workers=1, in_order=in_order, timeout=TIMEOUT_S, on_error=decide)
    with caught_warnings():
        assert_all_but(list(loader), [5], 8, 4)
    assert [(error.index, error.stage, error.tries, type(error.error)) for error in seen] == [
        (5, "timeout", 1, SampleTimeout),
        (5, "timeout", 2, SampleTimeout),
    ]
    assert "in sleep_without_it" in seen[0].traceback


def test_a_dataset_that_fetches_batches_loses_only_what_hangs():
    loader = DataLoader(HangingTogether(8, [5]), 4, num_workers=1, timeout=TIMEOUT_S, on_error="skip")
    with caught_warnings():
        assert_all_but(list(loader), [5], 8, 4)


def test_a_batch_whose_collation_hangs_is_left_out(in_order, marks):
    collate = HangsCollating(5, marks, always=True)
    loader = DataLoader(
        Rows(12), 4, num_workers=2, in_order=in_order, collate_fn=collate, timeout=TIMEOUT_S, on_error="skip"
    )
    with caught_warnings():
        got = numbers(loader)
    assert 5 in loader.stats().skipped
    assert sorted([*loader.stats().skipped, *(number for batch in got for number in batch)]) == list(range(12))


def test_a_collation_that_hangs_once_is_done_again(in_order, marks):
    collate = HangsCollating(5, marks, always=False)
    loader = DataLoader(
        Rows(12), 4, num_workers=2, in_order=in_order, collate_fn=collate, timeout=TIMEOUT_S, sample_retries=1
    )
    assert_all_but(list(loader), [], 12, 4)


def test_a_stream_that_hangs_is_named_with_its_stack():
    iterator = iter(DataLoader(HangingStream(), 1, num_workers=1, timeout=TIMEOUT_S, on_error="skip"))
    assert next(iterator).tolist() == [1]
    with pytest.raises(SampleTimeout, match=r"worker 0 is busy with its stream, at File .* in __iter__"):
        next(iterator)


def test_a_start_that_hangs_is_named_with_its_stack():
    iterator = iter(DataLoader(Rows(4), 2, num_workers=1, timeout=TIMEOUT_S, worker_init_fn=hang_at_start))
    with pytest.raises(SampleTimeout, match=r"worker 0 is busy with its start, at File .* in hang_at_start"):
        while True:
            try:
                next(iterator)
            except RuntimeError as error:
                if isinstance(error, SampleTimeout):
                    raise


def test_kills_and_hangs_together_lose_nothing(in_order, marks):
    dataset = Hanging(60, [5, 33], marks=marks)
    loader = DataLoader(dataset, 4, num_workers=2, in_order=in_order, timeout=TIMEOUT_S, sample_retries=2)
    batches = []
    with caught_warnings():
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            batches.append(batch)
            if number in (2, 6):
                os.kill(iterator.worker_pids[number % 2], signal.SIGKILL)
    assert_all_but(batches, [], 60, 4)


def test_a_hang_is_found_under_spawn():
    # A worker that imports torch takes its time to start.
    loader = DataLoader(Hanging(8, [5]), 4, num_workers=1, timeout=4, multiprocessing_context="spawn", on_error="skip")
    with caught_warnings():
        iterator, batches = iter(loader), []
        while len(batches) < 2:
            try:
                batches.append(next(iterator))
            except RuntimeError as error:
                assert "timed out" in str(error)
    assert_all_but(batches, [5], 8, 4)
