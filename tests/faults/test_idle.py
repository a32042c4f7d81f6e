"""Waiting costs nothing: neither in workers that have no room, nor in a main process that has no batch."""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from minato import DataLoader
from tests.compat.gates import Gated

from .data import Counting, Rows
from .tools import until

WATCHED_S = 1.5
MOST_CPU_S = 0.1
MOST_WAKEUPS = WATCHED_S / 0.05  # invariant 10: nothing polls faster than every 50 ms


def used(processes):
    """CPU seconds and voluntary switches of processes."""
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times), sum(process.num_ctx_switches().voluntary for process in processes)


def assert_quiet(processes):
    cpu, switches = used(processes)
    main = time.process_time()
    time.sleep(WATCHED_S)
    cpu_after, switches_after = used(processes)
    assert cpu_after - cpu < MOST_CPU_S
    assert time.process_time() - main < MOST_CPU_S
    assert switches_after - switches <= MOST_WAKEUPS * len(processes)


@pytest.mark.parametrize("dataset", [Rows(1000), Counting([1000, 1000])], ids=["map", "stream"])
def test_a_loader_nobody_reads_from_rests(dataset):
    loader = DataLoader(dataset, 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    until(lambda: loader.stats().batches_ready == loader.stats().batches_in_flight, "the window to fill up")
    assert_quiet([psutil.Process(pid) for pid in iterator.worker_pids.values()])


def test_persistent_workers_rest_between_epochs():
    loader = DataLoader(Rows(40), 4, num_workers=2, persistent_workers=True, shuffle=True)
    list(loader)
    time.sleep(0.2)  # whatever was begun ahead is done
    assert_quiet([psutil.Process(pid) for pid in loader._iterator.worker_pids.values()])


def test_a_consumer_that_waits_rests(gate):
    """Sample 0 is held; its reader and the worker with nothing left to do wait for it."""
    loader = DataLoader(Gated(4, gate), 4, num_workers=2)
    iterator = iter(loader)
    time.sleep(0.3)
    opener = threading.Timer(WATCHED_S, gate.open)
    before = time.process_time()
    opener.start()
    assert next(iterator).tolist() == [0, 1, 2, 3]
    assert time.process_time() - before < MOST_CPU_S
    opener.join()
