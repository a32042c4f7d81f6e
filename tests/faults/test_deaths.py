"""A worker that dies costs a restart and a warning, never a sample. (torch's loader ends the epoch with an error.)"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
import torch

from minato import DataLoader
from minato._queues.taking import TakingBoard
from minato.errors import WorkerDied

from .data import (
    WAYS,
    AfterMarks,
    Counting,
    DiesAlways,
    DiesCollating,
    DiesOnce,
    DiesStarting,
    DiesStartingOften,
    Rows,
    Sleepy,
)
from .tools import caught_warnings, running, until

LENGTH, BATCH = 42, 4


def numbers(batches):
    """The samples of each batch, as numbers; every one was whole."""
    result = []
    for batch in batches:
        assert (batch == batch[:, :1]).all(), "a row was mixed from two samples"
        result.append(batch[:, 0].tolist())
    return result


def assert_whole_epoch(batches, in_order, length=LENGTH, size=BATCH):
    """Each sample exactly once, full batches but for the last, and in order when asked."""
    expected = [list(range(at, min(at + size, length))) for at in range(0, length, size)]
    got = numbers(batches)
    if in_order:
        assert got == expected
    else:
        assert [len(batch) for batch in got] == [len(batch) for batch in expected]
        assert sorted(number for batch in got for number in batch) == list(range(length))


def assert_one_death_told(caught, pid, way):
    """One RuntimeWarning, which says who died and how."""
    assert len(caught) == 1, caught
    category, text = caught[0]
    assert category is RuntimeWarning
    assert f"DataLoader worker (pid {pid}) {WAYS[way][1]}" in text


# --------------------------------------------------------------------------------------------- one death, somewhere


@pytest.mark.parametrize("way", WAYS)
def test_death_while_fetching_loses_nothing(way, in_order, marks):
    loader = DataLoader(DiesOnce(LENGTH, [13], marks, way), BATCH, num_workers=2, in_order=in_order)
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order)
    assert_one_death_told(caught, marks.read("death-13"), way)
    assert loader.stats().worker_restarts == 1


@pytest.mark.parametrize("way", ["SIGKILL", "sys.exit"])
def test_death_while_collating_loses_nothing(way, in_order, marks):
    collate = DiesCollating(13, marks, way)
    loader = DataLoader(Rows(LENGTH), BATCH, num_workers=2, in_order=in_order, collate_fn=collate)
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order)
    assert_one_death_told(caught, marks.read("death-13"), way)
    assert loader.stats().worker_restarts == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_death_between_handing_in_a_batch_and_telling_of_it_loses_nothing(workers, in_order, marks, monkeypatch):
    tell, consumer = TakingBoard.tell, os.getpid()

    def die_instead(board):
        if board._untold and os.getpid() != consumer and marks.once("death-telling", os.getpid()):
            os.kill(os.getpid(), signal.SIGKILL)
        tell(board)

    monkeypatch.setattr(TakingBoard, "tell", die_instead)
    loader = DataLoader(Rows(LENGTH), BATCH, num_workers=workers, in_order=in_order, multiprocessing_context="fork")
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order)
    assert_one_death_told(caught, marks.read("death-telling"), "SIGKILL")


def test_death_while_fetching_for_a_custom_collate_loses_nothing(in_order, marks):
    dataset = DiesOnce(LENGTH, [0, 13, 41], marks)
    loader = DataLoader(dataset, BATCH, num_workers=2, in_order=in_order, collate_fn=torch.stack)
    with pytest.warns(RuntimeWarning, match="is killed by signal"):
        batches = list(loader)
    assert_whole_epoch(batches, in_order)
    assert loader.stats().worker_restarts == 3


def test_death_without_batching_keeps_the_order(marks):
    loader = DataLoader(DiesOnce(12, [5], marks), batch_size=None, num_workers=2)
    with pytest.warns(RuntimeWarning, match="sample index 5"):
        samples = list(loader)
    assert [sample.tolist() for sample in samples] == [[index] * 5 for index in range(12)]
    assert loader.stats().worker_restarts == 1


@pytest.mark.parametrize("way", WAYS)
def test_death_at_the_start_is_followed_by_another_start(way, marks):
    dataset = AfterMarks(LENGTH, marks, "started", 2)  # so that nothing is done before both workers are up
    loader = DataLoader(dataset, BATCH, num_workers=2, worker_init_fn=DiesStarting(marks, way))
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order=True)
    assert_one_death_told(caught, marks.read("death-start"), way)
    assert loader.stats().worker_restarts == 1


def test_a_worker_that_dies_again_and_again_in_its_start_comes_up_at_last(in_order, marks):
    dataset = AfterMarks(LENGTH, marks, "started", 2)
    init = DiesStartingOften(marks, times=4)
    loader = DataLoader(dataset, BATCH, num_workers=2, in_order=in_order, worker_init_fn=init)
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order)
    assert len(caught) == loader.stats().worker_restarts == 4


def test_death_of_all_workers_while_they_sleep_loses_nothing(in_order):
    loader = DataLoader(Rows(LENGTH), BATCH, num_workers=2, in_order=in_order)
    iterator = iter(loader)
    batches = [next(iterator)]
    until(lambda: loader.stats().batches_ready == loader.stats().batches_in_flight, "the window to fill up")
    pids = list(iterator.worker_pids.values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pids), "both to die")
    with caught_warnings() as caught:
        batches += list(iterator)
    assert_whole_epoch(batches, in_order)
    assert sorted(text.split(")")[0] for _, text in caught) == sorted(f"DataLoader worker (pid {pid}" for pid in pids)
    assert loader.stats().worker_restarts == 2


def test_death_between_epochs_is_noticed_in_the_next(in_order):
    loader = DataLoader(Rows(LENGTH), BATCH, num_workers=2, in_order=in_order, persistent_workers=True)
    assert_whole_epoch(loader, in_order)
    pids = list(iter(loader).worker_pids.values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not running(pids), "both to die")
    with pytest.warns(RuntimeWarning, match="is killed by signal: Killed"):
        assert_whole_epoch(loader, in_order)
        assert_whole_epoch(loader, in_order)
    assert loader.stats().worker_restarts == 2


def test_death_under_spawn_loses_nothing(marks):
    dataset = DiesOnce(LENGTH, [13], marks, "SIGSEGV")
    loader = DataLoader(dataset, BATCH, num_workers=1, multiprocessing_context="spawn")
    with caught_warnings() as caught:
        batches = list(loader)
    assert_whole_epoch(batches, in_order=True)
    assert_one_death_told(caught, marks.read("death-13"), "SIGSEGV")


# ------------------------------------------------------------------------------------------------------ too many deaths


def test_a_sample_that_always_kills_is_named(in_order, marks):
    dataset = DiesAlways(LENGTH, 17, marks)
    loader = DataLoader(dataset, BATCH, num_workers=2, in_order=in_order)
    iterator = iter(loader)
    with pytest.warns(RuntimeWarning), pytest.raises(WorkerDied, match=r"sample index 17\b") as caught:
        list(iterator)
    assert str(caught.value).startswith("DataLoader worker (pid ")
    assert len(marks.pids("death")) <= 3  # in company, alone, and once more: it may have been chance
    with pytest.raises(WorkerDied, match=r"sample index 17\b"):
        next(iterator)


def test_sample_retries_gives_a_deadly_sample_further_chances(marks):
    dataset = DiesAlways(LENGTH, 17, marks)
    with pytest.warns(RuntimeWarning), pytest.raises(WorkerDied, match=r"sample index 17\b"):
        list(DataLoader(dataset, BATCH, num_workers=2, sample_retries=3))
    assert 4 <= len(marks.pids("death")) <= 6


def test_a_batch_that_always_kills_in_collate_ends_by_the_limit_on_restarts(in_order, marks):
    collate = DiesCollating(13, marks, always=True)
    loader = DataLoader(
        Rows(LENGTH), BATCH, num_workers=2, in_order=in_order, collate_fn=collate, max_worker_restarts=3
    )
    with pytest.warns(RuntimeWarning), pytest.raises(WorkerDied, match=r"DataLoader worker \(pid \d+\)"):
        list(loader)
    assert loader.stats().worker_restarts <= 3


def test_a_worker_that_always_dies_at_its_start_ends_by_the_limit_on_restarts(marks):
    loader = DataLoader(
        AfterMarks(LENGTH, marks, "started", 2),
        BATCH,
        num_workers=2,
        worker_init_fn=DiesStarting(marks, always=True),
        max_worker_restarts=3,
    )
    with pytest.warns(RuntimeWarning), pytest.raises(WorkerDied, match="max_worker_restarts=3"):
        list(loader)
    assert loader.stats().worker_restarts == 3
    marks.once("started-1")  # lets the surviving worker's sample go


def test_without_restarts_the_first_death_is_an_error(in_order, marks):
    dataset = DiesOnce(LENGTH, [13], marks)
    iterator = iter(DataLoader(dataset, BATCH, num_workers=2, in_order=in_order, max_worker_restarts=0))
    with pytest.raises(WorkerDied, match=r"DataLoader worker \(pid \d+\) is killed") as caught:
        list(iterator)
    assert f"pid {marks.read('death-13')})" in str(caught.value)
    with pytest.raises(WorkerDied):
        next(iterator)


@pytest.mark.parametrize(("limit", "survives"), [(3, True), (2, False)])
def test_the_limit_on_restarts_is_exact(limit, survives, marks):
    loader = DataLoader(DiesOnce(LENGTH, [3, 17, 31], marks), BATCH, num_workers=2, max_worker_restarts=limit)
    with pytest.warns(RuntimeWarning):
        if survives:
            assert_whole_epoch(loader, in_order=True)
        else:
            with pytest.raises(WorkerDied, match="max_worker_restarts=2"):
                list(loader)
    assert loader.stats().worker_restarts == limit


def test_a_loader_works_again_after_its_workers_died(marks):
    loader = DataLoader(DiesOnce(LENGTH, [13], marks), BATCH, num_workers=2, max_worker_restarts=0)
    with pytest.raises(WorkerDied):
        list(loader)
    assert_whole_epoch(loader, in_order=True)


# ------------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("batch_size", [4, None])
def test_death_in_a_stream_is_an_error_each_time_one_asks(batch_size):
    """As with torch's loader, whose message this is: a stream cannot be replayed."""
    iterator = iter(DataLoader(Counting([20, 20], deadly=1009), batch_size, num_workers=2))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed") as caught:
        list(iterator)
    assert type(caught.value) is WorkerDied
    for _ in range(2):
        with pytest.raises(WorkerDied, match=r"DataLoader worker \(pid \d+\)"):
            next(iterator)


def test_death_of_an_idle_worker_in_mid_stream_is_an_error():
    loader = DataLoader(Counting([40, 40]), 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    until(lambda: loader.stats().batches_ready == loader.stats().batches_in_flight, "the window to fill up")
    os.kill(iterator.worker_pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"DataLoader worker \(pid \d+\)"):
        list(iterator)


def test_death_of_a_worker_whose_stream_has_ended_does_no_harm():
    loader = DataLoader(Counting([2, 60]), 2, num_workers=2, persistent_workers=True, timeout=10)
    iterator = iter(loader)
    batches = [next(iterator).tolist() for _ in range(8)]
    os.kill(iterator.worker_pids[0], signal.SIGKILL)
    with caught_warnings():  # whether the death is noticed now or when the next epoch begins is a matter of moments
        batches += [batch.tolist() for batch in iterator]
    assert sorted(number for batch in batches for number in batch) == [0, 1, *range(1000, 1060)]
    # The next epoch needs that worker again: it has begun nothing yet, so another may take its place, or its death is
    # an error. What must not happen is waiting for it for ever.
    try:
        with caught_warnings():
            again = sorted(number for batch in loader for number in batch.tolist())
    except WorkerDied:
        return
    assert again == [0, 1, *range(1000, 1060)]


# --------------------------------------------------------------------------------------------------------------- chaos


class Killer(threading.Thread):
    """Kills a random worker, a random moment after each time it is told to."""

    def __init__(self, iterator, seed):
        super().__init__(daemon=True)
        self._iterator, self._random = iterator, random.Random(seed)
        self._orders = threading.Semaphore(0)
        self._done = False
        self.kills = 0

    def order(self):
        self._orders.release()

    def run(self):
        while True:
            self._orders.acquire()
            if self._done:
                return
            time.sleep(self._random.random() * 0.01)
            pids = list(self._iterator.worker_pids.values())
            if pids:
                try:
                    os.kill(self._random.choice(pids), signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    pass

    def stop(self):
        self._done = True
        self._orders.release()
        self.join()


@pytest.mark.parametrize("collate", [None, torch.stack], ids=["default-collate", "custom-collate"])
def test_random_kills_lose_nothing(in_order, collate):
    length, size = 240, 4
    loader = DataLoader(
        Sleepy(length, 0.003),
        size,
        num_workers=2,
        in_order=in_order,
        collate_fn=collate,
        persistent_workers=True,
        max_worker_restarts=1000,
        sample_retries=1000,
    )
    killer = None
    with caught_warnings() as caught:
        for _ in range(3):
            batches = []
            iterator = iter(loader)
            if killer is None:
                killer = Killer(iterator, seed=in_order)
                killer.start()
            for number, batch in enumerate(iterator):
                batches.append(batch)
                if number % 8 == 3:
                    killer.order()
            assert_whole_epoch(batches, in_order, length, size)
    killer.stop()
    assert killer.kills >= 10
    assert 5 <= loader.stats().worker_restarts <= killer.kills
    assert {category for category, _ in caught} == {RuntimeWarning}
    assert all("is killed by signal: Killed" in text for _, text in caught)


def test_killing_all_workers_again_and_again_loses_nothing(in_order):
    loader = DataLoader(
        Sleepy(80, 0.002), 4, num_workers=2, in_order=in_order, max_worker_restarts=1000, sample_retries=1000
    )
    batches = []
    with pytest.warns(RuntimeWarning):
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            batches.append(batch)
            if number < 8:
                for pid in running(iterator.worker_pids.values()):
                    os.kill(pid, signal.SIGKILL)
    assert_whole_epoch(batches, in_order, length=80)
