"""What `iter(loader)` returns."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from torch.autograd import profiler

from .._device.pinning import Pinner, make_pinner
from .._device.prefetch import DevicePrefetcher
from .engine import Engine
from .interrupts import Uninterrupted
from .onto_device import make_prefetcher
from .progress import Handover, Track

__all__ = ["DevicePrefetcher", "LengthWatch", "LoaderIterator", "WorkerIterator", "make_pinner", "make_prefetcher"]


class LengthWatch:
    """Warns, as torch does, when an iterable dataset yields more than its `len` promised."""

    def __init__(self, dataset: object, promised: int | None, workers: int, yielded: int = 0) -> None:
        self._dataset = dataset
        self._promised = promised
        self._workers = workers
        self._yielded = yielded

    def count(self) -> None:
        """One more batch was delivered."""
        self._yielded += 1
        if self._promised is None or self._yielded <= self._promised:
            return
        message = (
            f"Length of IterableDataset {self._dataset} was reported to be {self._promised}"
            f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. "
        )
        if self._workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker: see torch.utils.data.get_worker_info()."
            )
        warnings.warn(message, stacklevel=4)


class Batches(Protocol):
    """Where an iterator's batches come from."""

    def next_batch(self) -> Any: ...


class LoaderIterator(Iterator[Any]):
    """Iterates one epoch; with persistent workers, one epoch after the other. As garbage, it closes its workers."""

    def __init__(
        self,
        batches: Batches,
        length: Callable[[], int],
        watch: LengthWatch,
        pinner: Pinner,
        track: Track,
        prefetcher: DevicePrefetcher | None = None,
    ) -> None:
        """`prefetcher`: takes the batches, pins them, and gives them out on a device."""
        self._batches = batches if prefetcher is None else prefetcher
        self.track = track
        """The epoch, for whoever wants to know how far it has come."""
        self._length = length
        self._watch = watch
        self._pinner = pinner if prefetcher is None else Pinner(None)
        self._prefetcher = prefetcher
        self._arrived = Handover.arrived if prefetcher is None else Handover.arrived_in_turn
        self._exhausted = False
        self._span = f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        if profiler._is_profiler_enabled:  # a span costs as much as a cheap sample: only when somebody looks
            with profiler.record_function(self._span):
                return self._next()
        return self._next()

    def _next(self) -> Any:
        if self._exhausted:
            raise StopIteration
        handover = self.track.source.handover
        try:
            data = self._pinner.pin(self._batches.next_batch())
        except StopIteration:
            self._exhausted = self.track.finished = True
            self._finished()
            raise
        except Exception:
            self._arrived(handover)  # the error is what this batch has come to
            raise
        except BaseException:
            if self._prefetcher is None:  # which keeps what it has, and hands it out when it is asked again
                self._interrupted(handover)
            raise
        self._watch.count()
        self._arrived(handover)
        self._went()
        return data

    def _went(self) -> None:
        """A batch goes to the user now."""

    def _interrupted(self, handover: Handover) -> None:
        """The user does not wait any more."""
        handover.interrupted()

    def _finished(self) -> None:
        """The epoch is over."""

    def __len__(self) -> int:
        return self._length()

    def __getstate__(self) -> object:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")

    def close(self) -> None:
        """End the iterator. Idempotent."""
        self._exhausted = True
        if self._prefetcher is not None:
            self._prefetcher.release()


class WorkerIterator(LoaderIterator):
    """With worker processes."""

    def __init__(
        self,
        engine: Engine,
        length: Callable[[], int],
        watch: LengthWatch,
        pinner: Pinner,
        track: Track,
        persistent: bool,
        prefetcher: DevicePrefetcher | None = None,
    ) -> None:
        super().__init__(engine, length, watch, pinner, track, prefetcher)
        self._engine = engine
        self._persistent = persistent
        self._finalizer = weakref.finalize(self, _end, engine, prefetcher)
        self._finalizer.atexit = False  # engines close themselves at exit, ahead of multiprocessing

    def restart(self, sampler: Any, watch: LengthWatch, seed: int | None) -> None:
        """Begin the next epoch with the same workers."""
        self._watch = watch
        self._exhausted = False
        if self._prefetcher is not None:
            self._prefetcher.restart()
        self._engine.start_epoch(sampler, seed)
        self.track = replace(self._engine.track(), pipe_seed=seed)

    @property
    def closed(self) -> bool:
        """Whether the workers are gone, or of no use any more."""
        return not self._finalizer.alive or self._engine.broken or self._engine.is_foreign

    def _went(self) -> None:
        if self._prefetcher is None:  # which takes batches ahead itself
            self._engine.batch_arrived()

    def _interrupted(self, handover: Handover) -> None:
        self._engine.was_interrupted(handover)

    def _finished(self) -> None:
        if not self._persistent:
            self.close()

    def close(self) -> None:
        super().close()
        with Uninterrupted():  # it is called once, and nobody would close the engine if it were left half-way
            self._finalizer()

    def supersede(self) -> None:
        """Another iterator takes its place. Whoever goes on with this one in the middle of its epoch gets an error."""
        was_exhausted = self._exhausted
        self.close()
        self._exhausted = was_exhausted

    @property
    def following(self) -> int:
        """Number of the next epoch, if it is not the one that is under way ahead."""
        return self._engine.track().following

    @property
    def worker_pids(self) -> dict[int, int]:
        """Process ids of running workers, by worker number."""
        return self._engine.worker_pids

    # torch's private names, which some trainers use to end workers early

    @property
    def _workers(self) -> list[BaseProcess]:
        return self._engine.worker_processes

    def _shutdown_workers(self) -> None:
        self.close()


def _end(engine: Engine, prefetcher: DevicePrefetcher | None) -> None:
    if prefetcher is not None:
        prefetcher.release()  # first: copies read the engine's memory
    engine.close()
