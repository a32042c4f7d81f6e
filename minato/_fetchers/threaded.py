"""Threads of this process that fetch: where there are no worker processes."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from .._errors import LoaderClosed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fetch has come to: a sample, or what it raised, which may be any BaseException."""

    sample: Any = None
    error: BaseException | None = None


Work = Callable[[Any], Any]
"""Given a dataset, makes a sample."""


class FetchThreads:
    """A number of threads and the work that waits for them. They end when this object is closed or garbage, each after
    the sample that it is at: a thread cannot be interrupted."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        """A thread for each of `datasets`, which may all be the same."""
        self._work: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = len(datasets)
        self.close = weakref.finalize(self, _dismiss, self._work, self._threads)
        self.close.atexit = False  # daemons: nobody waits for them
        for number, dataset in enumerate(datasets):
            name = f"minato-fetch-{number}"
            threading.Thread(target=_serve, args=(self._work, dataset), name=name, daemon=True).start()

    def submit(self, work: Work) -> Future[Outcome]:
        """Have work done by the next thread that is free."""
        job = _Job(work, Future())
        self._work.put(job)
        return job.outcome


@dataclass(frozen=True, slots=True)
class _Job:
    work: Work
    outcome: Future[Outcome]


def _serve(jobs: queue.SimpleQueue[_Job | None], dataset: Any) -> None:
    while (job := jobs.get()) is not None:
        try:
            outcome = Outcome(job.work(dataset))
        except BaseException as error:  # a thread that ended would be missed by nobody
            outcome = Outcome(error=error)
        job.outcome.set_result(outcome)
        del job, outcome  # while it waits, a thread keeps no sample alive


def _dismiss(jobs: queue.SimpleQueue[_Job | None], threads: int) -> None:
    """What nobody has begun is forgotten; every thread ends."""
    while not jobs.empty():
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            break
        if job is not None:
            job.outcome.set_result(Outcome(error=LoaderClosed("the loader was closed before this sample was fetched")))
    for _ in range(threads):
        jobs.put(None)
