"""What bounds a pipeline, how fast it could be, and what to change. `minato.diagnose(loader)` says it in one line.

The module itself is callable. Where things are:

    probing.py      what the stages cost, run aside for the purpose
    storage.py      what the storage gives, by parallelism
    watching.py     the same while training, in the loader's own workers
    rates.py        how fast a loader is, by running one like it
    measuring.py    all of it for one loader: a `Measurement` (records.py)
    model.py        visit ratios, rates, busy shares; bound.py: the linear programme; predicting.py: other settings
    pricing.py      what a rate would cost
    advising.py     what to change; mistakes.py: the classic ones
    report.py       the verdict in words, table, JSON, graph, HTML; wording.py: numbers and limits in words
    rebuilding.py   the same loader with other arguments
    optimising.py   minato.optimize; decisions.py: what was decided before
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .advising import advise
from .measuring import measure
from .model import RATE, check_rank
from .pricing import Purchase as Purchase
from .records import Advice as Advice
from .records import Measurement as Measurement
from .records import StageMeasurement as StageMeasurement
from .report import Diagnosis as Diagnosis
from .report import conclude
from .watching import watch as watch

__all__ = ["Advice", "Diagnosis", "Measurement", "Purchase", "StageMeasurement", "run", "watch"]

MAX_SECONDS = 15.0


def run(
    loader: Any,
    *,
    max_seconds: float = MAX_SECONDS,
    step: Callable[[Any], Any] | None = None,
    storage_bytes_s: float | None = None,
    rank: str = RATE,
    tell: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Say what bounds a loader, and what to change. `minato.diagnose(loader)` is this function.

    Samples of its dataset are run aside, and a loader like it is run for a while; the loader itself, its sampler and
    its generator are left alone. Works for torch's loader as well.

    Args:
        loader: over a map-style dataset.
        max_seconds: how long to measure, all looks together; each ends sooner when it is steady. It is no deadline. On
            top come the starts of processes (up to four for looks aside, and the workers of up to three loaders), what
            is under way when a look's time is up (a sample, a batch), and the least times below which a look says
            nothing: 1 s for a cache, 0.2 s for each of up to 12 steps of the storage's curve, 0.3 s without workers.
            With fork, max_seconds=2 takes 2 to 4 s, more beside other programs, and the default 7 to 10 s; under spawn
            each start takes a second or two more.
        step: what your loop does with a batch, to see whether that is the bottleneck. It is called with batches.
        storage_bytes_s: what the storage gives at most, if that is known; it is not measured then.
        rank: which stage is named as the bottleneck. "rate": the one that allows the fewest batches per second, with as
            many at once as there are places for it. "busy": whose computing takes the largest share of the workers'
            time. "wait": which waits longest for something that is not the CPU. Where your own loop is what holds the
            rate, that is named in any case.
        tell: called with what is measured next, a few times: for a progress bar.
    """
    check_rank(rank)
    if not max_seconds > 0:
        raise ValueError(f"max_seconds must be positive, got {max_seconds}")
    if not hasattr(loader, "dataset") or not hasattr(loader, "num_workers"):
        raise TypeError(f"a DataLoader is needed, got {loader!r}")
    if storage_bytes_s is not None and not storage_bytes_s > 0:
        raise ValueError(f"storage_bytes_s must be positive, got {storage_bytes_s}")
    seen = measure(loader, max_seconds, step, tell, storage_bytes_s)
    return conclude(loader, seen, advise(loader, seen), rank)


class _CallableModule(ModuleType):
    """`minato.diagnose` is a package and a function."""

    __qualname__ = "diagnose"

    def __call__(self, loader: Any, **options: Any) -> Diagnosis:
        return run(loader, **options)


sys.modules[__name__].__class__ = _CallableModule
diagnose = sys.modules[__name__]
"""So that `minato.diagnose` finds the module under its name."""
