"""Trials of the default policy: what a move is for, what was measured before it, and what it has gained."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from .policy import Observation


class Aim(enum.Enum):
    """What a trial is for."""

    GROW = "more workers"
    FEWER = "fewer workers, since more do not help"
    TO_CORES = "no more workers than cores, since the CPU is used up"
    SPARE = "fewer workers, since the queue stays full"


@dataclass(frozen=True, slots=True)
class Measured:
    """The mean of some observations at one worker count."""

    workers: int
    throughput: float
    wait_share: float
    cpu_share: float
    occupancy: float
    error: float
    """Standard error of the throughput."""

    @classmethod
    def of(cls, observations: list[Observation]) -> Measured:
        count = len(observations)
        throughput = sum(one.throughput for one in observations) / count
        return cls(
            observations[-1].workers,
            throughput,
            sum(one.wait_share for one in observations) / count,
            sum(one.cpu_share for one in observations) / count,
            sum(one.queue_occupancy for one in observations) / count,
            _error_of_mean([one.throughput for one in observations]),
        )


def _error_of_mean(values: list[float]) -> float:
    """The standard error, from the means of neighbours: workers that finish together are counted in one observation or
    in the next, which says nothing about the rate."""
    pairs = [(one + other) / 2 for one, other in zip(values[::2], values[1::2], strict=False)]
    means = pairs if len(pairs) > 1 else values
    mean = sum(means) / len(means)
    squares = sum((one - mean) ** 2 for one in means)
    return math.sqrt(squares / max(1, len(means) - 1) / len(means))


@dataclass(frozen=True, slots=True)
class Trial:
    """A move, and what was measured before it."""

    aim: Aim
    baseline: Measured
    target: int

    @property
    def possible_gain(self) -> float:
        """What so many more workers can add to the throughput, as a share of it."""
        return self.target / self.baseline.workers - 1

    def gain(self, measured: Measured) -> float:
        """What the move has added to the throughput, as a share of it."""
        before = self.baseline.throughput
        return measured.throughput / before - 1 if before > 0 else math.inf
