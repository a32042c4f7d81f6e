"""What the controller is about, what the user wants, what is to be done now, and the windows in which it measures."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ._deciding import LOCAL
from ._wire import Report

LEAST_S = 0.3  # seconds that a measurement lasts at least
MOST_S = 10.0  # seconds after which a placement is judged by what has come
PATIENCE_S = 60.0  # seconds for the first actor to show that it can be used
STRAGGLERS_S = 10.0  # seconds after the first actor for the others to come up
_WARM_CALLS = 2  # for each actor, before a placement is measured
_CALLS = 4  # for each actor, while it is measured


class Stage(enum.Enum):
    """What the controller is about."""

    MEASURING_LOCAL = "measuring local"
    LOCAL = "local"
    STARTING = "starting"
    MEASURING_REMOTE = "measuring remote"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user wants."""

    placements: tuple[str, ...]
    """To choose from; empty: never anything remote."""
    ratio: float | None
    """None: to be decided."""
    greedy: bool
    """Whether both sides take what they can, undecided."""
    prefer_local: bool
    min_speedup: float
    most_actors: int
    profile_steps: int
    recheck_steps: int

    @property
    def is_fixed(self) -> bool:
        """Whether nothing is left to be measured."""
        return len(self.placements) == 1 and (self.ratio is not None or self.greedy)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done now."""

    phase: int = 0
    launch: bool = False
    """Whether the cluster is wanted."""
    placement: str = LOCAL
    ratio: float = 0.0
    actors: int = 0
    shared: bool = True
    beyond: bool = False


@dataclass(slots=True)
class RemoteWindow:
    """What came back while a placement is measured, from report to report."""

    calls: int = 0
    samples: int = 0
    nbytes: int = 0
    cpu_s: float = 0.0
    seconds: float = 0.0
    idle_s: float = 0.0
    """Of these, times the share of the actors that had no work to do."""

    @property
    def busy_s(self) -> float:
        return max(self.seconds - self.idle_s, 1e-9)

    def add(self, before: Report, now: Report) -> None:
        self.calls += now.calls - before.calls
        self.samples += now.samples - before.samples
        self.nbytes += now.nbytes - before.nbytes
        self.cpu_s += now.cpu_s - before.cpu_s
        self.seconds += now.time_s - before.time_s
        self.idle_s += now.idle_s - before.idle_s


class Trial:
    """A placement on trial: is there anybody who can make samples there, and how many in which time."""

    def __init__(self) -> None:
        self.window = RemoteWindow()
        self._began: float | None = None
        self._first_fit: float | None = None
        """When there was somebody to measure."""

    def is_over(self, before: Report | None, now: Report, wanted: int) -> bool:
        """Whether enough was seen, or will never be. `before`: the last report, if none was lost in between. `wanted`:
        actors that are to come up."""
        self._began = now.time_s if self._began is None else self._began
        is_late = now.time_s - self._began > PATIENCE_S
        if now.actors == 0:
            return bool(now.refused) or is_late
        self._first_fit = now.time_s if self._first_fit is None else self._first_fit
        if now.actors < wanted and now.time_s - self._first_fit < STRAGGLERS_S:
            return False
        if before is not None and before.actors == now.actors and before.calls >= _WARM_CALLS * now.actors:
            self.window.add(before, now)
        enough = self.window.calls >= _CALLS * now.actors and self.window.seconds >= LEAST_S
        return enough or self.window.seconds >= MOST_S or is_late


@dataclass(slots=True)
class Window:
    """Batches since some moment."""

    batches: int = 0
    busy_s: float = 0.0
    wait_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.busy_s + self.wait_s

    @property
    def gthp(self) -> float:
        return self.batches / max(self.busy_s, 1e-6)

    @property
    def rate(self) -> float:
        return self.batches / max(self.elapsed_s, 1e-6)


FALLEN = 0.7  # of the usual rate; above it, a change is the ratio's business


@dataclass(slots=True)
class Drift:
    """Whether what was measured does not hold any more: the rate has fallen, and stays low."""

    usual: float = 0.0
    """The highest rate since the last decision."""
    low: int = 0
    """Windows in a row that were far below it."""
    patience: int = 2
    """So many are enough; doubles each time, since what is measured again and again is not measured well."""

    def has_come(self, rate: float) -> bool:
        """After a window in which the consumer waited."""
        self.usual = max(self.usual, rate)
        self.low = self.low + 1 if rate < FALLEN * self.usual else 0
        if self.low < self.patience:
            return False
        self.patience *= 2
        self.forget()
        return True

    def forget(self) -> None:
        """Another rate is to be expected."""
        self.usual, self.low = 0.0, 0
