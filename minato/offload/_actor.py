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
from .._plan import Collate
from .._sample_random import SampleSource, announce
from .._workers.randomness import Randomness, Reseed
from .._workers.sync import apply_patch
from ._making import Cargo, Maker, make_maker
from ._splitting import Half, transform
from ._wire import Greeting, Job, Parcel, unwrap, versions, wrap

SAMPLES, RESULT, HALVES = "samples", "result", "halves"
Reply = tuple[str, float, Parcel]
"""What a parcel holds, the seconds it took to make, and the parcel."""


class FetchActor:
    """Makes samples and batches. One call at a time."""

    def __init__(self, blob: Any, number: int, num_workers: int, base_seed: int) -> None:
        """`blob`: the pickled cargo."""
        torch.set_num_threads(1)
        self._number = number
        self._num_workers = num_workers
        seed = base_seed + number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(base_seed, number))  # type: ignore[no-untyped-call]
        self._seed = seed
        self._where = f"on {socket.gethostname()} (pid {os.getpid()})"
        self._batches = Randomness()
        self._maker: Maker | None = None
        self.load(blob)

    def load(self, blob: Any) -> None:
        """Take a cargo in place of the one before."""
        self._cargo: Cargo = pickle.loads(blob)
        self._program = program = self._cargo.program
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._number, num_workers=self._num_workers, seed=self._seed, dataset=program.dataset
        )
        if program.worker_init_fn is not None:
            program.worker_init_fn(self._number)
        self._begin()

    def _begin(self) -> None:
        """Make samples of the dataset as it is now: threads may have copies of it."""
        if self._maker is not None:
            self._maker.close()
        self._maker = make_maker(self._cargo, self._capture)

    def patch(self, patch: Any) -> None:
        """Attributes of the dataset have changed."""
        apply_patch(self._program.dataset, patch)
        self._begin()

    def greet(self) -> Greeting:
        return Greeting(versions(), socket.gethostname(), len(os.sched_getaffinity(0)))

    def fetch(self, job: Job) -> Reply:
        """Read and transform samples; make a batch of them, if asked to and if none has failed."""
        began = time.perf_counter()
        assert self._maker is not None
        samples = self._maker.make(job)
        if job.collate is not None and not any(type(sample) is CapturedError for sample in samples):
            try:
                parcel = wrap(self._collate(job, samples))
            except Exception:
                pass  # the error is to be the local worker's: it gets the samples
            else:
                return RESULT, time.perf_counter() - began, parcel
        return SAMPLES, time.perf_counter() - began, self._wrapped(samples)

    def transform(self, parcel: Parcel) -> Reply:
        """Do the transforms of samples that were read elsewhere."""
        began = time.perf_counter()
        values = []
        halves: list[Half] = unwrap(parcel, writable=True)  # a transform may work in place
        for half in halves:
            try:
                values.append(transform(self._program.dataset, half))
            except Exception as error:
                values.append(self._capture(error, "transform"))
        return HALVES, time.perf_counter() - began, self._wrapped(values)

    def _collate(self, job: Job, samples: list[Any]) -> Any:
        function = self._program.collate_fn
        value = samples[0] if job.collate is Collate.NONE else samples
        if job.collate is Collate.ROWS:
            return function(value)

        source = SampleSource(lambda _: job.collate_seed, lambda: 0)

        def call(reseed: Reseed | None) -> list[Any]:
            announce(source)
            if reseed is not None:
                reseed(0)
            return [function(value)]

        try:
            return self._batches.fetch(call, source.seed_of)[0]
        finally:
            announce(None)

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

    def _capture(self, error: BaseException, key: object) -> CapturedError:
        return CapturedError.capture(error, f"{self._where}, fetching sample index {key!r}", self._number)
