"""The next batch, made ready by a thread of its own while the consumer works with the last one.

    consumer      next()  │ step …………………………………… │ next() │ step ……………
                     │ arrived()                   ▲ take()
    this thread      └──► deliver, post the next ──┘

The thread does what `next()` does where nothing has to be waited for: it takes a batch that is ready, and posts others
in its place. It never waits for workers, starts none, and calls no sampler or function of the user's: what needs that
is left to `next()`. Objects of the user's that are in a batch are unpickled in it. It runs only while `Leisure` finds
that worth it, and holds the engine's lock while it does something.

One batch at a time: it is begun when the consumer has the one before, so whoever asks how far the consumer has come
finds at most one batch between the two.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .._scheduler.leisure import Leisure

Prepare = Callable[[], "Any | None"]


class EngineLock(Protocol):
    """As `threading.RLock` makes them."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...


_PATIENCE_S = 1.0  # for a thread to finish its batch before a fork
_clock = time.perf_counter


class Beforehand:
    """Of one engine."""

    def __init__(self, prepare: Prepare, lock: EngineLock) -> None:
        """`prepare` is called in the thread, under `lock`: the next batch, or the error in its place; None: there is
        none that could be made ready."""
        self._prepare = prepare
        self._lock = lock
        self._pid = os.getpid()
        self._leisure = Leisure()
        self._ready: deque[Any] = deque()
        self._wanted = threading.Lock()
        self._wanted.acquire()
        self._busy = threading.Lock()  # held by the thread while it does something, and over forks
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._finish: Callable[[], None] | None = None
        self._expected = False
        """Whether the thread was asked for a batch, and has not found that there is none."""
        self._asked_at = 0.0
        self._arrived_at = 0.0
        self._was_here = False

    def __len__(self) -> int:
        """Batches that are ready."""
        return len(self._ready)

    # ---- the consumer's side ----------------------------------------------------------------------------------------

    def asked(self) -> float | None:
        """The consumer asks for a batch. Returns the seconds since it got the last one of this epoch."""
        self._asked_at = now = _clock()
        self._was_here = False
        if self._thread is None and self._leisure.is_enough and not self._is_over:
            self._start()  # here, where no batch is on its way to the consumer that an interrupt could lose
        if not self._arrived_at:
            return None
        step_s = now - self._arrived_at
        self._leisure.stepped(step_s)
        return step_s

    def take(self) -> Any | None:
        """The batch that is ready, or the error in its place; None: there is none."""
        if not self._ready or os.getpid() != self._pid:
            return None
        expected, self._expected = self._expected, False
        if expected:
            self._leisure.was_in_time(True)
        return self._ready.popleft()

    def was_here(self) -> None:
        """A batch that was there to be delivered is delivered by the consumer."""
        self._was_here = True
        if self._expected:
            self._expected = False
            self._leisure.was_in_time(False)

    def arrived(self) -> None:
        """The consumer has got its batch: have the next one made ready, if there is time for it."""
        self._arrived_at = now = _clock()
        if self._was_here:
            self._leisure.handed_over(now - self._asked_at)
        if self._thread is not None and self._leisure.is_enough and not self._is_over:
            self._expected = True
            self._knock()

    def drop(self) -> None:
        """Nobody wants what is ready. To be called under the lock."""
        self._ready.clear()
        self._expected = False
        self._arrived_at = 0.0

    # ---- the thread's side ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        # Known before it is started: who is interrupted in between must not start another.
        self._thread = threading.Thread(target=self._run, name="minato-beforehand", daemon=True)
        _at_work.add(self)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads to give: `next()` does all itself, as before
            self._thread = None
            self._is_over = True
            _at_work.discard(self)

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._is_over:
                if self._finish is not None:
                    self._finish()
                return
            with self._busy:
                # Where the consumer is in the engine itself, it needs nobody.
                if self._lock.acquire(blocking=False):
                    try:
                        self._make_one()
                    finally:
                        self._lock.release()

    def _make_one(self) -> None:
        batch = None if self._ready or self._is_over else self._prepare()
        if batch is None:
            self._expected = False
        else:
            self._ready.append(batch)

    def _knock(self) -> None:
        try:
            self._wanted.release()
        except RuntimeError:  # it has not heard the last knock yet
            return

    # ---- the end ----------------------------------------------------------------------------------------------------

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is the thread itself: garbage that was collected there may end an iterator."""
        return threading.current_thread() is self._thread

    def end(self, finish: Callable[[], None]) -> bool:
        """No more batches. The caller may hold the lock: the thread never waits for it. False: the caller is the thread
        itself, which calls `finish` when it is done with what it is at."""
        here = not self.is_this_thread
        self._finish = None if here else finish
        self._is_over = True
        _at_work.discard(self)
        if self._thread is not None and os.getpid() == self._pid:
            self._knock()
            if here and self._thread.ident is not None:  # it was started
                self._thread.join()
        self._prepare = lambda: None  # the engine's: with a cycle, all its memory would wait for the collector
        return here

    # ---- forks ------------------------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Let the thread finish what it does, and begin nothing, until `go_on`. False: it did not finish in time."""
        return self._busy.acquire(timeout=_PATIENCE_S)

    def go_on(self) -> None:
        """After `pause`."""
        self._busy.release()


# A fork copies the memory as it is, locks that other threads hold included: no such thread is at anything then.
_at_work: weakref.WeakSet[Beforehand] = weakref.WeakSet()
_paused: dict[int, list[Beforehand]] = {}
"""By the thread that forks."""


def _before_fork() -> None:
    others = [beforehand for beforehand in list(_at_work) if not beforehand.is_this_thread]
    _paused[threading.get_ident()] = [beforehand for beforehand in others if beforehand.pause()]


def _after_fork() -> None:
    for beforehand in _paused.pop(threading.get_ident(), ()):
        beforehand.go_on()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
