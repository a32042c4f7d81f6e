"""Random numbers that belong to a sample, whichever thread or task makes it.

The global generators of `random`, `numpy.random` and `torch` belong to the whole process. A worker that fetches one
sample at a time seeds them for every sample; one that fetches many at once in threads cannot. So a dataset may ask for
generators of its own, or do its drawing in a block that has the global ones to itself:

    rng = minato.get_sample_rng()
    angle = rng.python.uniform(-10, 10)

    with minato.seeded_sample():
        image = self.transform(image)     # draws from the global generators

Both give the same numbers with every fetcher and any number of workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any


class SampleRng:
    """Generators of one sample, made when they are asked for."""

    __slots__ = ("_numpy", "_python", "_torch", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        """63 bits: a function of the loader's base seed, the epoch, and the sample's position and index."""
        self._python: random.Random | None = None
        self._numpy: Any = None
        self._torch: Any = None

    @property
    def python(self) -> random.Random:
        """As the functions of `random`."""
        if self._python is None:
            self._python = random.Random(self.seed)
        return self._python

    @property
    def numpy(self) -> Any:
        """A `numpy.random.Generator`."""
        if self._numpy is None:
            import numpy as np

            self._numpy = np.random.default_rng(self.seed)
        return self._numpy

    @property
    def torch(self) -> Any:
        """A `torch.Generator` on the CPU, for the `generator` argument of torch's functions."""
        if self._torch is None:
            import torch

            self._torch = torch.Generator().manual_seed(self.seed)
        return self._torch


class SampleSource:
    """The samples that a thread or task is making: what their seeds are, and which of them it is at."""

    __slots__ = ("_at", "_rng", "guard", "number", "seed_of", "states")

    def __init__(
        self,
        seed_of: Callable[[int], int],
        number: Callable[[], int],
        guard: Callable[[SampleSource], AbstractContextManager[None]] | None = None,
    ) -> None:
        """`seed_of`: the seed of a sample, by its number among these. `number`: of the one that is being made; below 0:
        all together. `guard`: what `seeded_sample` does; None: the global generators are the sample's own already."""
        self.seed_of = seed_of
        self.number = number
        self.guard = guard
        self.states: Any = None
        """Of the global generators at the end of the sample's last block under the guard."""
        self._at = -1
        self._rng: SampleRng | None = None

    def begin(self) -> None:
        """The samples are made from the start."""
        self._rng = self.states = None

    def rng(self) -> SampleRng:
        """Of the sample that is being made."""
        number = max(0, self.number())
        if self._rng is None or number != self._at:
            self._at, self._rng = number, SampleRng(self.seed_of(number))
            self.states = None
        return self._rng


_source: ContextVar[SampleSource | None] = ContextVar("minato_sample", default=None)


def announce(source: SampleSource | None, anew: bool = True) -> None:
    """Say what this thread or task is about to make, or (not `anew`) to go on with."""
    if source is not None and anew:
        source.begin()
    _source.set(source)


def get_sample_rng() -> SampleRng:
    """The generators of the sample that is being fetched: the same object each time it is asked for in one sample, with
    the same numbers whichever worker, thread or task makes the sample. To be called in the thread or task that minato
    called `__getitem__` (`__getitem_async__`, `__getitems__`, a transform) in. Outside of a loader of minato's, new
    generators seeded from torch's global one."""
    source = _source.get()
    if source is not None:
        return source.rng()
    import torch

    return SampleRng(int(torch.empty((), dtype=torch.int64).random_().item()))


@contextmanager
def seeded_sample() -> Iterator[None]:
    """A block in which the global generators of `random`, `numpy.random` and `torch` are the sample's own.

    Where one sample is fetched at a time, and with `fetcher="asyncio"` in workers, they always are, and the block
    changes nothing. With `fetcher="threaded"` one thread of a process is in such a block at a time, so it should hold
    the transforms and not the reading. With `num_workers=0` and a concurrent fetcher it is entered only while the
    consumer waits for a batch: its own random numbers are not touched. No `await` inside.
    """
    source = _source.get()
    with nullcontext() if source is None or source.guard is None else source.guard(source):
        yield
