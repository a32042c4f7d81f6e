"""How somebody looks at some of the samples that a worker makes (`minato.diagnose.watch` does), beside a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .splitting import Steps
from .stages import SampleRun

if TYPE_CHECKING:
    from .._fetchers.asynchronous import AsyncGetter
    from .tracing import LineTrace

_TRACED = 2  # samples from one that is looked at to the next, at least, where the others are traced


class SampleWatch(Protocol):
    """Looks at some of the samples that a worker makes."""

    def choose(self, dataset: Any, samples: int, least: int = 1) -> Any:
        """What to fetch a run of samples from: the dataset, or a view of it that looks at one of them. `least`: samples
        from one that is looked at to the next."""

    def sample_run(self, untimed: Callable[[Steps], SampleRun], least: int, steps: Steps) -> SampleRun:
        """What sees a sample through its stages; `untimed`: what does so if this one is not looked at."""

    def getter(self, getter: AsyncGetter, samples: int) -> AsyncGetter:
        """What to await a run of samples from."""


def choose_dataset(dataset: Any, samples: int, trace: LineTrace | None, watch: SampleWatch | None) -> Any:
    """What to fetch a run of samples from: the dataset, or a view of it that is watched or traced."""
    if watch is not None:
        view = watch.choose(dataset, samples, 1 if trace is None else _TRACED)
        if view is not dataset:
            return view
    return dataset if trace is None else trace.dataset(dataset, samples)


def choose_run(trace: LineTrace | None, watch: SampleWatch | None) -> Callable[[Steps], SampleRun]:
    """What sees samples through their stages."""
    plain = SampleRun if trace is None else trace.sample_run
    return plain if watch is None else partial(watch.sample_run, plain, 1 if trace is None else _TRACED)
