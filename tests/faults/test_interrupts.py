"""Interrupts and collections of garbage at moments when something is half done."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest

from minato import DataLoader
from minato._engine.interrupts import Uninterrupted
from minato._queues.arena import Arena
from minato._queues.leases import Slots
from minato._scheduler.leisure import Leisure
from minato._workers.pool import WorkerPool
from minato.errors import LoaderClosed

from .data import Rows, Sleepy
from .tools import assert_gone, until

SOON_S = 10.0


def interrupted_once(monkeypatch, owner, name):
    """From now on the first call of a method is interrupted by Ctrl-C before it begins. Returns the calls."""
    original, calls = getattr(owner, name), []

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    monkeypatch.setattr(owner, name, interrupted)
    return calls


def test_ctrl_c_while_workers_are_ended_leaves_none_of_them(monkeypatch):
    loader = DataLoader(Sleepy(8, 60), 2, num_workers=2)
    iterator = iter(loader)
    pids = list(iterator.worker_pids.values())
    calls = interrupted_once(monkeypatch, WorkerPool, "_join_all")
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    assert len(calls) > 1
    assert_gone(pids, SOON_S)


def test_ctrl_c_at_the_end_of_an_epoch_leaves_no_worker_and_comes_through(monkeypatch):
    loader = DataLoader(Rows(8), 4, num_workers=2)
    iterator = iter(loader)
    held = [next(iterator), next(iterator)]
    pids = list(iterator.worker_pids.values())
    interrupted_once(monkeypatch, WorkerPool, "_join_all")
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert_gone(pids, SOON_S)
    assert len(list(loader)) == 2
    assert [batch[:, 0].tolist() for batch in held] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_workers_are_killed_if_another_signals_handler_raises_while_they_are_ended(monkeypatch):
    """Only Ctrl-C is held back."""

    def raise_timeout(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, raise_timeout)
    try:
        iterator = iter(DataLoader(Sleepy(8, 60), 2, num_workers=2))
        pids = list(iterator.worker_pids.values())
        original, calls = WorkerPool._join_all, []

        def interrupted(self, grace_s):
            calls.append(grace_s)
            if len(calls) == 1:
                signal.raise_signal(signal.SIGUSR1)
            original(self, grace_s)

        monkeypatch.setattr(WorkerPool, "_join_all", interrupted)
        with pytest.raises(TimeoutError):
            iterator.close()
        assert_gone(pids, SOON_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_while_workers_are_started_leaves_none_of_them(monkeypatch):
    started = []
    original = WorkerPool.start

    def start(self, *args):
        original(self, *args)
        started.extend(self.pids.values())
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(WorkerPool, "start", start)
    loader = DataLoader(Sleepy(8, 60), 2, num_workers=2)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    gc.collect()
    assert_gone(started, SOON_S)


def test_ctrl_c_while_a_thread_is_started_loses_no_batch(monkeypatch):
    """The thread that makes batches ready is started before a batch is taken."""
    monkeypatch.setattr(Leisure, "is_enough", property(lambda _: True))
    original, hits = threading.Thread.start, []

    def start(self):
        original(self)
        if self.name == "minato-beforehand" and not hits:
            hits.append(1)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start)
    with DataLoader(Rows(40), 4, num_workers=2) as loader:
        iterator = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert [value for batch in iterator for value in batch[:, 0].tolist()] == list(range(40))
    assert not [thread for thread in threading.enumerate() if thread.name == "minato-beforehand"]


def test_an_interrupt_that_comes_as_it_is_held_back_is_not_forgotten(monkeypatch):
    import _signal

    real = _signal.signal

    def at_once(number, handler):
        real(number, handler)
        if getattr(handler, "__name__", "") == "_note":
            _signal.raise_signal(number)

    monkeypatch.setattr("minato._engine.interrupts._signal.signal", at_once)
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        pass


def test_an_interrupt_is_not_lost_in_the_end_of_a_lease():
    """An exception in a callback written in Python is told on stderr, and forgotten."""
    slots = Slots(Arena.create(), 4)
    slot = slots.take()
    memory = slots.lend(slot, 4096)
    lease = slots._lent[slot]
    assert isinstance(lease, weakref.ref)
    assert not hasattr(lease.__callback__, "__code__")
    del memory
    assert slots.lent == 0
    slots._arena.close()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_an_iterator_that_is_collected_in_the_thread_that_starts_its_workers_ends(context, monkeypatch):
    collected, pids, original = threading.Event(), [], WorkerPool._start_one

    def start_one(self, worker):
        original(self, worker)
        pids.extend(self.pids.values())
        if worker == 0:
            abandoned.wait()
            gc.collect()
            collected.set()

    monkeypatch.setattr(WorkerPool, "_start_one", start_one)
    abandoned = threading.Event()
    loader = DataLoader(Rows(20), 4, num_workers=2, multiprocessing_context=context)
    gc.disable()
    try:
        iterator = iter(loader)
        iterator.myself = [iterator]
        del iterator
        abandoned.set()
        assert collected.wait(120)
    finally:
        gc.enable()
    assert_gone(pids, SOON_S)
    until(lambda: not [t for t in threading.enumerate() if t.name == "minato-start"], "the thread ends")


def test_an_iterator_that_is_collected_in_that_thread_after_the_last_start_ends_too(monkeypatch):
    """Nobody would do later what is put off then."""
    abandoned, collected, pids, original = threading.Event(), threading.Event(), [], WorkerPool._start_all

    def start_all(self, workers):
        original(self, workers)
        pids.extend(self.pids.values())
        del self
        abandoned.wait()
        gc.collect()
        collected.set()

    monkeypatch.setattr(WorkerPool, "_start_all", start_all)
    loader = DataLoader(Rows(20), 4, num_workers=2, multiprocessing_context="forkserver")
    gc.disable()
    try:
        iterator = iter(loader)
        iterator.myself = [iterator]
        del iterator
        abandoned.set()
        assert collected.wait(120)
    finally:
        gc.enable()
    assert_gone(pids, SOON_S)


def test_statistics_may_be_asked_while_the_collector_ends_the_engine(monkeypatch):
    """It may run inside of any call, in the same thread."""
    loader = DataLoader(Rows(20), 4, num_workers=2)
    iterator = iter(loader)
    iterator.myself = [iterator]
    next(iterator)
    original = WorkerPool.alive

    def alive(self):
        with self._lock:
            gc.collect()
            return original.fget(self)

    monkeypatch.setattr(WorkerPool, "alive", property(alive))
    gc.disable()
    try:
        del iterator
        assert loader.stats().batches_delivered == 1
    finally:
        gc.enable()
    assert loader.stats().workers == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_closed_while_another_thread_starts_its_workers_has_none(persistent, monkeypatch):
    started, closed, outcome = threading.Event(), threading.Event(), []
    original = DataLoader._start_workers

    def start_workers(self, *args):
        started.set()
        assert closed.wait(60)
        return original(self, *args)

    monkeypatch.setattr(DataLoader, "_start_workers", start_workers)
    loader = DataLoader(Rows(8), 4, num_workers=1, persistent_workers=persistent)

    def begin():
        try:
            outcome.append(list(loader))
        except LoaderClosed as error:
            outcome.append(str(error))

    thread = threading.Thread(target=begin)
    thread.start()
    assert started.wait(60)
    loader.close()
    closed.set()
    thread.join()
    assert outcome == ["this loader was closed while its workers were being started"]
    assert loader.stats().workers == 0
