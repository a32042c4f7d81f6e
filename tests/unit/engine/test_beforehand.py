"""The thread that makes the next batch ready."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from minato._engine.beforehand import Beforehand
from minato._scheduler.leisure import Leisure

PATIENCE_S = 90.0


class Source:
    """Batches 0, 1, 2, … as an engine would give them."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.threads: set[int] = set()
        self.done = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.empty = False

    def prepare(self) -> Any | None:
        self.threads.add(threading.get_ident())
        try:
            assert self.gate.wait(PATIENCE_S)
            if self.empty:
                return None
            self.made.append(len(self.made))
            return ("batch", self.made[-1])
        finally:
            self.done.release()

    def wait(self) -> None:
        assert self.done.acquire(timeout=PATIENCE_S)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def lock() -> Any:
    return threading.RLock()


@pytest.fixture
def beforehand(source: Source, lock: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beforehand]:
    monkeypatch.setattr(Leisure, "is_enough", property(lambda _: True))
    made = Beforehand(source.prepare, lock)
    made.asked()
    yield made
    source.gate.set()
    made.end(lambda: None)


def settled(beforehand: Beforehand) -> None:
    """Wait until the thread has put down what it was at."""
    assert beforehand.pause()
    beforehand.go_on()


def test_no_thread_is_started_without_leisure(source: Source, lock: Any) -> None:
    before = threading.active_count()
    idle = Beforehand(source.prepare, lock)
    idle.asked()
    idle.arrived()
    assert threading.active_count() == before
    assert idle.take() is None


def test_the_next_batch_is_made_in_another_thread_once_the_last_has_arrived(
    beforehand: Beforehand, source: Source
) -> None:
    assert beforehand.take() is None
    beforehand.arrived()
    source.wait()
    settled(beforehand)
    assert beforehand.take() == ("batch", 0)
    assert beforehand.take() is None
    assert threading.get_ident() not in source.threads


def test_one_batch_is_made_for_each_that_arrived(beforehand: Beforehand, source: Source) -> None:
    for number in range(5):
        beforehand.arrived()
        source.wait()
        settled(beforehand)
        assert len(beforehand) == 1
        assert beforehand.take() == ("batch", number)


def test_while_the_consumer_is_in_the_engine_nothing_is_made(beforehand: Beforehand, source: Source, lock: Any) -> None:
    with lock:
        beforehand.arrived()
        settled(beforehand)
        assert source.made == []


def test_where_there_is_no_batch_the_consumer_finds_none(beforehand: Beforehand, source: Source) -> None:
    source.empty = True
    beforehand.arrived()
    source.wait()
    settled(beforehand)
    assert beforehand.take() is None


def test_what_nobody_wants_any_more_is_dropped(beforehand: Beforehand, source: Source, lock: Any) -> None:
    beforehand.arrived()
    source.wait()
    settled(beforehand)
    with lock:
        beforehand.drop()
    assert beforehand.take() is None


def test_the_end_waits_for_the_thread(beforehand: Beforehand, source: Source) -> None:
    beforehand.arrived()
    source.wait()
    assert beforehand.end(lambda: None)
    assert not any(thread.name == "minato-beforehand" for thread in threading.enumerate())


def test_an_end_from_within_the_thread_is_finished_by_it(source: Source, lock: Any, beforehand: Beforehand) -> None:
    finished = threading.Event()
    answers: list[bool] = []

    def prepare() -> Any:
        answers.append(beforehand.end(finished.set))
        assert not finished.is_set()  # it is in the middle of something
        return ("batch", 0)

    beforehand._prepare = prepare
    beforehand.arrived()
    assert finished.wait(PATIENCE_S)
    assert answers == [False]


def test_a_system_without_threads_to_give_is_got_along_with(
    beforehand: Beforehand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    beforehand.arrived()
    beforehand.arrived()
    assert beforehand.take() is None


def test_a_fork_waits_until_the_thread_is_done(beforehand: Beforehand, source: Source, lock: Any) -> None:
    """The child could never take a lock that the thread held."""
    source.gate.clear()
    beforehand.arrived()
    threading.Timer(0.05, source.gate.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(blocking=False) and beforehand.take() is None else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    source.wait()
    settled(beforehand)
    assert beforehand.take() == ("batch", 0)
