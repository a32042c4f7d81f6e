"""Measuring while training: stages by the loader's own workers, on the samples they make anyway.

    with minato.diagnose.watch(loader) as watch:
        for batch in loader:
            train(batch)
    print(watch.diagnosis())

Every sample is made once, by the code that would have made it, and goes into its batch. Of cheap samples only one in
some is timed (timing.py), so that timing takes no more than about 1 % of the time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import TracebackType
from typing import Any

from torch.utils.data import default_collate, default_convert

from .._engine.cores import allowed_cores
from .._engine.start import start_method
from .._pipeline.aside import run_aside
from .._pipeline.looking import choose_indices, look
from .._pipeline.room import available_bytes
from .advising import advise
from .counting import Counters
from .measuring import Seen, concurrency_of, judged
from .model import RATE, check_rank
from .rebuilding import typical_batch
from .records import COLLATE, LOAD, TRANSFORM, Measurement, StageMeasurement
from .report import Diagnosis, conclude
from .timing import SampleTimer, TimedCollate, TimedDataset, TimedTogether


class _Layer:
    """Travels to a worker: what stands before its dataset, if anything does, and what times some of its samples."""

    def __init__(self, counters: Counters, below: Any) -> None:
        self._counters = counters
        self._below = below

    @property
    def watch(self) -> SampleTimer:
        """For one worker process."""
        return SampleTimer(self._counters)

    def wrap(self, dataset: Any) -> Any:
        """What a worker fetches from."""
        return dataset if self._below is None else self._below.wrap(dataset)

    def wrap_here(self, dataset: Any) -> Any:
        """What a loader without workers fetches from."""
        source = self.wrap(dataset)
        kind = TimedTogether if getattr(source, "__getitems__", None) else TimedDataset
        return kind(source, self.watch)


class Watch:
    """What `watch` gives."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._counters = Counters()
        self._collate: Any = None
        self._before: Any = None
        self._after: Any = None
        self._began = self._ended = 0.0

    def __enter__(self) -> Watch:
        if self._loader._watcher is not None:
            raise RuntimeError("this loader is being watched already")
        self._loader._watcher = lambda below: _Layer(self._counters, below)
        self._collate = self._loader.collate_fn
        if self._collate not in (default_collate, default_convert):  # in place of these, rows are written
            self._loader.collate_fn = TimedCollate(self._collate, self._counters)
        self._before, self._began = self._loader.stats(), time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended, self._after = time.monotonic(), self._loader.stats()
        self._loader._watcher = None
        self._loader.collate_fn = self._collate

    def measurement(self) -> Measurement:
        """What was measured until now, or until the end of the `with` block."""
        after = self._after or self._loader.stats()
        elapsed = (self._ended or time.monotonic()) - self._began
        batches = after.batches_delivered - self._before.batches_delivered
        waited = after.wait_seconds - self._before.wait_seconds
        if batches == 0:
            raise RuntimeError("no batch was delivered while the loader was watched")
        stages = self._stages()
        made_s = sum(stage.wall_s for stage in stages)
        busy = made_s / stages[0].completions * typical_batch(self._loader)
        steps = after.steps - self._before.steps
        if self._loader.num_workers:
            between = after.step_seconds - self._before.step_seconds
            step = between / steps if steps else (elapsed - waited) / batches  # with device=, steps are not seen
        else:
            step = max(0.0, elapsed / batches - busy)
        return Measurement(
            stages=tuple(stages),
            samples=stages[0].completions,
            batch_size=typical_batch(self._loader),
            dataset_samples=len(self._loader.dataset),
            workers=self._loader.num_workers,
            concurrency=concurrency_of(self._loader),
            prefetch=self._loader.prefetch_factor or 1,
            cores=allowed_cores().cores,
            rate=batches / elapsed,
            rate_change=1 / max(1, batches) ** 0.5,
            step_s=step,
            wait_share=waited / elapsed,
            memory_bytes=available_bytes(),
            is_live=True,
        )

    def _stages(self) -> list[StageMeasurement]:
        totals = self._counters.totals()
        collated = totals.pop(COLLATE, None)
        stages: list[StageMeasurement] = []
        for number, (name, total) in enumerate(totals.items()):
            count = max(1, total["completions"])
            mean_us = total["wall_ns"] / count / 1e3
            stages.append(
                StageMeasurement(
                    name=name,
                    kind=TRANSFORM if number else LOAD,
                    completions=count,
                    cpu_s=total["cpu_ns"] * 1e-9,
                    wall_s=total["wall_ns"] * 1e-9,
                    bytes_out=total["bytes_out"],
                    bytes_read=total["bytes_read"],
                    wall_std_s=max(0.0, total["square_us"] / count - mean_us**2) ** 0.5 * 1e-6,
                )
            )
        if not stages:
            raise RuntimeError(
                "no sample was timed: the loader's workers were started before it was watched (persistent_workers), or "
                "made too few samples"
            )
        if collated is not None and collated["completions"]:
            stages.append(self._collation(collated, stages[0].completions))
        return stages

    def _collation(self, total: dict[str, int], samples: int) -> StageMeasurement:
        """As many collations as the samples that were timed make: of samples only some are."""
        batches = max(1, round(samples / typical_batch(self._loader)))
        scale = batches / total["completions"]
        return StageMeasurement(
            name=COLLATE,
            kind=COLLATE,
            completions=batches,
            cpu_s=total["cpu_ns"] * 1e-9 * scale,
            wall_s=total["wall_ns"] * 1e-9 * scale,
            bytes_out=int(total["bytes_out"] * scale),
            bytes_read=int(total["bytes_read"] * scale),
        )

    def diagnosis(self, rank: str = RATE) -> Diagnosis:
        """What bounds the loader as it was used. Looks at some samples aside, for their randomness and sizes. `rank`:
        as in `minato.diagnose`."""
        check_rank(rank)
        measurement = self.measurement()
        indices = choose_indices(self._loader.dataset, 32)
        context_ = start_method(self._loader.multiprocessing_context)
        found = run_aside(context_, 2.0, look, self._loader.dataset, indices, 2.0)
        measurement = replace(measurement, stages=tuple(judged(measurement.stages, found)))
        seen = Seen(measurement, found, None, 0.0)
        return conclude(self._loader, seen, advise(self._loader, seen), rank)


def watch(loader: Any) -> Watch:
    """Measure a loader while it is used: iterators begun inside `with minato.diagnose.watch(loader) as watch:`
    count."""
    if not hasattr(loader, "_watcher"):
        raise TypeError(f"a minato.DataLoader is needed, got {loader!r}")
    return Watch(loader)
