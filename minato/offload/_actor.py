"""What runs on other machines: an actor with the dataset. Knows nothing of Ray, so that it can be tested without."""

from __future__ import annotations

import os
import pickle
import random
import socket
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from .._errors import CapturedError
from .._fetchers.sequential import fetch_each, fetch_together
from .._plan import Collate
from .._workers.randomness import Randomness, Reseed
from .._workers.sync import apply_patch
from ._splitting import Half, transform
from ._wire import Greeting, Job, Parcel, versions, wrap

SAMPLES, RESULT, HALVES = "samples", "result", "halves"
Reply = tuple[str, float, Parcel]
"""What a parcel holds, the seconds it took to make, and the parcel."""


class FetchActor:
    """Makes samples and batches. One call at a time."""

    def __init__(self, blob: Any, number: int, num_workers: int, base_seed: int) -> None:
        """`blob`: the pickled program."""
        torch.set_num_threads(1)
        self._number = number
        self._num_workers = num_workers
        seed = base_seed + number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(base_seed, number))  # type: ignore[no-untyped-call]
        self._seed = seed
        self._where = f"on {socket.gethostname()} (pid {os.getpid()})"
        self._samples = Randomness()
        self._batches = Randomness()
        self.load(blob)

    def load(self, blob: Any) -> None:
        """Take a program in place of the one before."""
        self._program = program = pickle.loads(blob)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._number, num_workers=self._num_workers, seed=self._seed, dataset=program.dataset
        )
        if program.worker_init_fn is not None:
            program.worker_init_fn(self._number)

    def patch(self, patch: Any) -> None:
        """Attributes of the dataset have changed."""
        apply_patch(self._program.dataset, patch)

    def greet(self) -> Greeting:
        return Greeting(versions(), socket.gethostname(), len(os.sched_getaffinity(0)))

    def fetch(self, job: Job) -> Reply:
        """Read and transform samples; make a batch of them, if asked to and if none has failed."""
        began = time.perf_counter()
        samples = self._fetch(job)
        if job.collate is not None and not any(type(sample) is CapturedError for sample in samples):
            try:
                parcel = wrap(self._collate(job, samples))
            except Exception:
                pass  # the error is to be the local worker's: it gets the samples
            else:
                return RESULT, time.perf_counter() - began, parcel
        return SAMPLES, time.perf_counter() - began, self._wrapped(samples)

    def transform(self, halves: list[Half]) -> Reply:
        """Do the transforms of samples that were read elsewhere."""
        began = time.perf_counter()
        values = []
        for half in halves:
            try:
                values.append(transform(self._program.dataset, half))
            except Exception as error:
                values.append(self._capture(error, "transform"))
        return HALVES, time.perf_counter() - began, self._wrapped(values)

    def _fetch(self, job: Job) -> list[Any]:
        dataset = self._program.dataset

        def fetch(reseed: Reseed | None) -> list[Any]:
            if not job.together:
                return fetch_each(dataset, job.keys, reseed, self._capture)
            if reseed is not None:
                reseed(0)
            return fetch_together(dataset, job.keys, self._capture, job.mends)

        return self._samples.fetch(fetch, lambda number: job.seeds[number])

    def _collate(self, job: Job, samples: list[Any]) -> Any:
        function = self._program.collate_fn
        value = samples[0] if job.collate is Collate.NONE else samples
        if job.collate is Collate.ROWS:
            return function(value)

        def call(reseed: Reseed | None) -> list[Any]:
            if reseed is not None:
                reseed(0)
            return [function(value)]

        return self._batches.fetch(call, lambda _: job.collate_seed)[0]

    def _wrapped(self, samples: list[Any]) -> Parcel:
        """The samples; in place of those that cannot be pickled, the error."""
        try:
            return wrap(samples)
        except Exception:
            return wrap([self._sendable(sample) for sample in samples])

    def _sendable(self, sample: Any) -> Any:
        try:
            wrap(sample)
        except Exception as error:
            return CapturedError.capture(error, f"{self._where}, pickling a sample", self._number)
        return sample

    def _capture(self, error: Exception, key: object) -> CapturedError:
        return CapturedError.capture(error, f"{self._where}, fetching sample index {key!r}", self._number)
