"""Ways for an iteration to end inside one process: early, by error, by garbage, in another thread.

The leak check around every test looks for processes, threads and descriptors left behind; tests here also look at how
soon workers are gone.
"""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.utils.data import Dataset

from minato import DataLoader
from minato.errors import LoaderClosed

from .data import Counting, Rows, Signs, Sleepy
from .tools import assert_gone, running, until

SOON_S = 2.0  # invariant 7 says within a second; a busy machine needs a little more


@pytest.fixture
def endless():
    """A loader far from its end, and slow enough never to get there."""
    with DataLoader(Sleepy(100_000, 0.001), 4, num_workers=2) as loader:
        yield loader


def pids_of(iterator):
    return list(iterator.worker_pids.values())


def leave_early(loader, pids):
    for _ in loader:
        break


def raise_in_the_loop(loader, pids):
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError


def delete_the_iterator(loader, pids):
    iterator = iter(loader)
    next(iterator)
    pids += pids_of(iterator)
    del iterator


def never_begin(loader, pids):
    pids += pids_of(iter(loader))


def lose_in_a_cycle(loader, pids):
    iterator = iter(loader)
    next(iterator)
    pids += pids_of(iterator)
    iterator.myself = [iterator]
    del iterator
    gc.collect()


@pytest.mark.parametrize(
    "leave",
    [leave_early, raise_in_the_loop, delete_the_iterator, never_begin, lose_in_a_cycle],
    ids=lambda f: f.__name__,
)
def test_an_abandoned_iterator_stops_its_workers(leave, endless, marks):
    """As with torch's loader."""
    endless.worker_init_fn = Signs(marks)
    pids = []
    leave(endless, pids)
    pids += marks.pids("started")
    assert_gone(pids, SOON_S)


def test_an_abandoned_iterator_does_not_wait_for_a_long_sample():
    loader = DataLoader(Sleepy(8, 60), 2, num_workers=2)
    iterator = iter(loader)
    pids = pids_of(iterator)
    started = time.monotonic()
    del iterator
    assert time.monotonic() - started < SOON_S
    assert running(pids) == []


def test_a_persistent_loader_as_garbage_stops_its_workers():
    loader = DataLoader(Rows(20), 4, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 5
    pids = pids_of(iter(loader))
    assert running(pids) == pids
    del loader
    gc.collect()
    assert_gone(pids, SOON_S)


# --------------------------------------------------------------------------------------------------------------- close


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("in_order", [True, False])
def test_workers_end_while_the_user_has_the_last_batch(context, in_order):
    """Taking down processes with much memory takes the system a while, which need not come on top of the epoch."""
    loader = DataLoader(Rows(24), 4, num_workers=2, multiprocessing_context=context, in_order=in_order)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(len(loader) - 1)]
    pids = pids_of(iterator)
    assert pids
    batches.append(next(iterator))
    until(lambda: not running(pids), "the workers end")
    assert sorted(value for batch in batches for value in batch[:, 0].tolist()) == list(range(24))
    assert list(iterator) == []
    assert len(list(loader)) == len(loader)


def test_persistent_workers_do_not_end_with_the_last_batch():
    with DataLoader(Rows(24), 4, num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        assert len([next(iterator) for _ in range(len(loader))]) == len(loader)
        pids = pids_of(iterator)
        assert len(list(iterator)) == 0
        assert len(list(loader)) == len(loader)
        assert pids_of(loader._iterator) == pids
        assert running(pids) == pids


def test_close_twice_is_as_good_as_once(endless):
    iterator = iter(endless)
    held = next(iterator)
    pids = pids_of(iterator)
    endless.close()
    endless.close()
    assert running(pids) == []
    assert held.tolist() == [[index] * 5 for index in range(4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_refuses_to_begin(workers):
    loader = DataLoader(Rows(8), 4, num_workers=workers)
    loader.close()
    with pytest.raises(LoaderClosed):
        iter(loader)


def test_an_iterator_of_a_closed_loader_refuses_to_go_on(endless):
    iterator = iter(endless)
    next(iterator)
    endless.close()
    for _ in range(2):
        with pytest.raises(LoaderClosed):
            next(iterator)


def test_a_closed_iterator_is_at_its_end_and_its_loader_begins_anew():
    loader = DataLoader(Rows(8), 4, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)
    assert len(list(loader)) == 2
    loader.close()


def test_with_closes_the_loader_also_after_an_error(endless):
    with pytest.raises(ZeroDivisionError), endless as loader:
        iterator = iter(loader)
        next(iterator)
        pids = pids_of(iterator)
        raise ZeroDivisionError
    assert running(pids) == []
    with pytest.raises(LoaderClosed):
        iter(endless)


def test_closing_from_a_second_iterator_ends_both(endless):
    first, second = iter(endless), iter(endless)
    next(first), next(second)
    pids = pids_of(first) + pids_of(second)
    assert len(set(pids)) == 4
    endless.close()
    assert running(pids) == []


def test_stream_workers_stop_with_their_iterator():
    iterator = iter(DataLoader(Counting([10**9, 10**9]), 4, num_workers=2))
    next(iterator)
    pids = pids_of(iterator)
    del iterator
    assert_gone(pids, SOON_S)


# -------------------------------------------------------------------------------------------------------------- threads


def test_an_iterator_outlives_the_thread_that_made_it():
    """The kernel's own "die with the parent" would fire here: it means the thread that started the process."""
    loader = DataLoader(Sleepy(40, 0.001), 4, num_workers=2)
    made = []
    thread = threading.Thread(target=lambda: made.append(iter(loader)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    iterator = made.pop()
    assert [batch[0, 0].item() for batch in iterator] == list(range(0, 40, 4))


def test_threads_with_an_iterator_each_do_not_disturb_each_other():
    loaders = [DataLoader(Rows(200), 4, num_workers=1) for _ in range(3)]

    def consume(loader):
        return [sample[0].item() for batch in loader for sample in batch]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(consume, loaders)) == [list(range(200))] * 3


def test_one_loader_may_be_iterated_in_two_threads():
    loader = DataLoader(Rows(200), 4, num_workers=1)

    def consume(_):
        return [sample[0].item() for batch in loader for sample in batch]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(consume, range(2))) == [list(range(200))] * 2


def test_a_loader_closed_in_another_thread_wakes_the_one_that_waits(gate):
    loader = DataLoader(Waiting(gate), 1, num_workers=1)
    iterator = iter(loader)
    outcome = []

    def consume():
        try:
            outcome.append(next(iterator))
        except BaseException as error:
            outcome.append(type(error))

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    time.sleep(0.3)  # most likely it waits by then; if not, it finds the loader closed
    loader.close()
    thread.join(10)
    hung = thread.is_alive()
    gate.open()
    assert not hung
    assert outcome == [LoaderClosed]


class Waiting(Rows):
    """Its only sample waits at a gate."""

    def __init__(self, gate):
        super().__init__(1)
        self.gate = gate

    def __getitem__(self, index):
        self.gate.wait()
        return index


# -------------------------------------------------------------------------------------------- processes inside a worker


class LoaderInside(Dataset):
    """Each sample comes from a loader with a worker of its own."""

    def __init__(self, marks):
        self.marks = marks

    def __len__(self):
        return 4

    def __getitem__(self, index):
        inner = DataLoader(Rows(4), 2, num_workers=1, worker_init_fn=Signs(self.marks))
        return sum(int(batch.sum()) for batch in inner) + index


def test_a_dataset_in_a_worker_may_have_a_loader_with_workers(marks):
    """torch's workers are daemonic and may not have children."""
    assert [batch.tolist() for batch in DataLoader(LoaderInside(marks), 2, num_workers=2)] == [[30, 31], [32, 33]]
    assert_gone(marks.pids("started"), SOON_S)


class LoaderKept(LoaderInside):
    """Leaves its inner iterator running."""

    def __getitem__(self, index):
        inner = DataLoader(Sleepy(100_000, 0.001), 2, num_workers=1, worker_init_fn=Signs(self.marks))
        self.kept = iter(inner)
        return next(self.kept)[0, 0] + index


def test_workers_of_a_worker_end_with_it(marks):
    assert len(list(DataLoader(LoaderKept(marks), 1, num_workers=1))) == 4
    assert_gone(marks.pids("started"), SOON_S)


class Delegating(Dataset):
    """Each sample is made by a child process of its worker."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index % 2:
            return int(subprocess.run([sys.executable, "-Sc", f"print({index} ** 2)"], capture_output=True).stdout)
        queue = multiprocessing.SimpleQueue()
        child = multiprocessing.Process(target=queue.put, args=(index**2,))
        child.start()
        child.join()
        return queue.get()


def test_a_dataset_in_a_worker_may_start_processes():
    assert [batch.tolist() for batch in DataLoader(Delegating(), 2, num_workers=2)] == [[0, 1], [4, 9]]


def test_an_iterator_left_by_a_multiprocessing_child_ends_with_it(marks):
    child = multiprocessing.get_context("fork").Process(target=iterate_and_return, args=(marks,))
    child.start()
    child.join(20)
    try:
        assert child.exitcode == 0
        assert_gone(marks.pids("started"), SOON_S)
    finally:
        child.kill()
        child.join()
        child.close()


def iterate_and_return(marks):
    loader = DataLoader(Sleepy(100_000, 0.001), 4, num_workers=2, worker_init_fn=Signs(marks))
    globals()["_kept"] = iter(loader)
    next(globals()["_kept"])
    until(lambda: len(marks.pids("started")) == 2, "both workers to start")
