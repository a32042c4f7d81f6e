"""How many workers there should be: the policies' common records, and the policy of the MinatoLoader paper.

A policy is a frozen set of constants, as the user gives it. `begin` makes a controller, which has the memory: one for
each running loader. A controller is told every `period_s` seconds what was measured and answers with a decision; it has
no clock of its own, so recorded observations can be replayed through it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Observation:
    """What was measured since the observation before."""

    time: float
    """Seconds, of any clock that only goes forward."""
    workers: int
    """Worker processes running."""
    queue_occupancy: float
    """Complete batches that wait, as a share of those that there may be: 0 is empty, 1 is full."""
    cpu_share: float
    """CPU time used, as a share of the allowed cores' time."""
    wait_share: float
    """Share of the time that the consumer spent waiting for batches."""
    throughput: float
    """Samples that workers finished, per second."""
    slow_workers: int = 0
    """Workers that are at a sample past the threshold."""

    def __str__(self) -> str:
        return (
            f"the consumer waits {self.wait_share:.0%}, CPU {self.cpu_share:.0%}, queue {self.queue_occupancy:.0%}, "
            f"{self.throughput:.4g} samples/s, {self.slow_workers} of {self.workers} workers slow"
        )


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Between which numbers the worker count may move."""

    least: int
    most: int
    cores: float
    """Cores' worth of CPU time that the workers may use; a quota may be a fraction."""

    def clamp(self, workers: int) -> int:
        return min(self.most, max(self.least, workers))


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers there should be, and why."""

    target: int
    reason: str
    observation: Observation


class Controller(Protocol):
    """A policy at work."""

    def decide(self, observation: Observation) -> Decision: ...


class Policy(Protocol):
    """Constants, and how to begin with them."""

    @property
    def period_s(self) -> float:
        """Seconds between observations."""
        ...

    def begin(self, limits: WorkerLimits) -> Controller: ...


@dataclass(frozen=True, slots=True)
class PaperPolicy:
    """The policy of the MinatoLoader paper:

        workers = min(most, max(least, workers + delta)),  delta = alpha (1 - Q / Qmax) + beta (C - cpu_threshold)

    with delta clipped to `max_step` either way, Q the moving average of the queue's length and C the CPU share. The
    paper leaves some things open; here: alpha 2, beta 1, one decision per `period_s`, Q averaged over `average_over`
    observations, and a delta that is no whole number is rounded away from zero, so that a full queue with CPU to spare
    takes a worker away and a queue that is not full adds one.
    """

    alpha: float = 2.0
    beta: float = 1.0
    cpu_threshold: float = 0.7
    max_step: int = 2
    period_s: float = 1.0
    average_over: int = 5

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "cpu_threshold"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number from 0 on, got {value!r}")
        for name in ("max_step", "average_over"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if not 0 < self.period_s < math.inf:
            raise ValueError(f"period_s must be a positive number of seconds, got {self.period_s!r}")

    def delta(self, occupancy: float, cpu_share: float) -> float:
        """The published formula, clipped."""
        change = self.alpha * (1 - occupancy) + self.beta * (cpu_share - self.cpu_threshold)
        return min(float(self.max_step), max(-float(self.max_step), change))

    def begin(self, limits: WorkerLimits) -> Controller:
        """A controller for one loader."""
        return _PaperController(self, limits)


_NOTHING = 1e-9  # a delta below is none: 0.7 and 1 - 0.3 differ by that much


class _PaperController:
    def __init__(self, policy: PaperPolicy, limits: WorkerLimits) -> None:
        self._policy = policy
        self._limits = limits
        self._occupancy: deque[float] = deque(maxlen=policy.average_over)
        self._decided: float | None = None

    def decide(self, observation: Observation) -> Decision:
        self._occupancy.append(observation.queue_occupancy)
        early = self._decided is not None and observation.time - self._decided < self._policy.period_s * (1 - _NOTHING)
        if early:
            return Decision(self._limits.clamp(observation.workers), "period not over", observation)
        self._decided = observation.time
        occupancy = sum(self._occupancy) / len(self._occupancy)
        delta = self._policy.delta(occupancy, observation.cpu_share)
        target = self._limits.clamp(observation.workers + _away_from_zero(delta))
        return Decision(target, f"delta {delta:+.3f} at mean occupancy {occupancy:.3f}", observation)


def _away_from_zero(delta: float) -> int:
    if abs(delta) < _NOTHING:
        return 0
    return math.ceil(delta - _NOTHING) if delta > 0 else math.floor(delta + _NOTHING)
