"""A simulated loader: workers that sleep and compute, a bounded queue, a consumer. Seconds are those of the simulation.

Each sample waits `sleep_s` and computes `cpu_s`, times a random factor. Computing workers share the cores; workers
beyond the cores cost a little by getting in each other's way; a bandwidth may bound the samples per second, and workers
beyond the point where it is reached cost too. New workers take a while to start; workers that have to go finish first.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from minato._scheduler.policy import Controller, Decision, Observation


@dataclass(frozen=True)
class Work:
    """What there is to do. Times in seconds per sample."""

    sleep_s: float = 0.0
    cpu_s: float = 0.0
    step_s: float = 0.0
    """The consumer's time per sample; 0: it takes whatever is there."""
    cores: float = 2.0
    bandwidth: float = float("inf")
    """Most samples per second."""
    crowding: float = 0.01
    """Time lost per worker beyond cores or bandwidth, as a share."""
    spread: float = 0.1
    """Of the costs, as a share."""
    heavy_share: float = 0.0
    heavy_factor: float = 1.0

    def sample_s(self, workers: int) -> float:
        """Mean time of one sample when so many workers are at it."""
        mean = 1 + self.heavy_share * (self.heavy_factor - 1)
        sleep_s, cpu_s = self.sleep_s * mean, self.cpu_s * mean
        alone = sleep_s + cpu_s
        most = min(self.bandwidth, self.cores / cpu_s if cpu_s else float("inf"))
        if workers / alone <= most:
            return alone / mean
        return workers / most * (1 + self.crowding * (workers - most * alone)) / mean

    def cpu_share(self, workers: int, samples_per_s: float) -> float:
        mean = 1 + self.heavy_share * (self.heavy_factor - 1)
        useful = samples_per_s * self.cpu_s * mean / self.cores
        crowded = workers * self.cpu_s > self.cores * (self.sleep_s + self.cpu_s)
        return 1.0 if crowded and useful > 0.5 else min(1.0, useful)  # getting in each other's way takes CPU too


@dataclass
class Simulation:
    """One loader over time."""

    work: Work
    workers: int
    seed: int = 0
    queue_size: int = 64
    start_s: float = 0.2
    now: float = 0.0
    queue: int = 0
    decisions: list[Decision] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.wanted = self.workers
        self.events: list[tuple[float, int, str]] = []
        self.number = 0
        self.blocked = 0
        """Workers with a finished sample and no room for it."""
        self.made = self.taken = 0
        self.waited_s = 0.0
        self.waiting_since: float | None = 0.0
        for _ in range(self.workers):
            self._begin_sample()

    # ---- events -----------------------------------------------------------------------------------------------

    def _later(self, seconds: float, what: str) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + seconds, self.number, what))

    def _begin_sample(self) -> None:
        work = self.work
        factor = self.random.uniform(1 - work.spread, 1 + work.spread)
        if self.random.random() < work.heavy_share:
            factor *= work.heavy_factor
        self._later(work.sample_s(self.workers) * factor, "done")

    def _next_sample(self) -> None:
        """A worker is free: it goes on, unless it is one too many."""
        if self.workers > self.wanted:
            self.workers -= 1
        else:
            self._begin_sample()

    def _hand_in(self) -> None:
        if self.queue >= self.queue_size:
            self.blocked += 1
            return
        self.queue += 1
        self.made += 1
        if self.waiting_since is not None:
            self.waited_s += self.now - self.waiting_since
            self.waiting_since = None
            self._consume()
        self._next_sample()

    def _consume(self) -> None:
        if self.queue == 0:
            self.waiting_since = self.now
            return
        self.queue -= 1
        self.taken += 1
        if self.blocked:
            self.blocked -= 1
            self._hand_in()
        self._later(self.work.step_s, "consumed")

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.events and self.events[0][0] <= until:
            self.now, _, what = heapq.heappop(self.events)
            if what == "done":
                self._hand_in()
            elif what == "consumed":
                self._consume()
            elif self.workers < self.wanted:  # a worker is up
                self.workers += 1
                self._begin_sample()
        self.now = until

    # ---- the controller's view ----------------------------------------------------------------------------------

    def observe(self, seconds: float) -> Observation:
        """Let time pass, and say what was measured."""
        if self.waiting_since is not None:  # what was waited until now belongs to the period before
            self.waiting_since = self.now
        made, self.waited_s = self.made, 0.0
        lengths = []
        for _ in range(5):
            self.run(seconds / 5)
            lengths.append(self.queue / self.queue_size)
        waited = self.waited_s + (0 if self.waiting_since is None else self.now - self.waiting_since)
        observation = Observation(
            time=self.now,
            workers=self.workers,
            queue_occupancy=sum(lengths) / len(lengths),
            cpu_share=self.work.cpu_share(self.workers, (self.made - made) / seconds),
            wait_share=min(1.0, waited / seconds),
            throughput=(self.made - made) / seconds,
        )
        self.observations.append(observation)
        return observation

    def steer(self, controller: Controller, period_s: float, seconds: float) -> None:
        """Let the controller decide every period."""
        for _ in range(round(seconds / period_s)):
            decision = controller.decide(self.observe(period_s))
            self.decisions.append(decision)
            for _ in range(decision.target - self.wanted):
                self._later(self.start_s, "up")
            self.wanted = decision.target

    def change(self, change: Callable[[Work], Work]) -> None:
        """From now on there is other work."""
        self.work = change(self.work)

    def throughput(self, last_s: float) -> float:
        """Mean of the last observations, so many seconds of them."""
        late = [one.throughput for one in self.observations if one.time > self.now - last_s]
        return sum(late) / len(late)


def best_fixed(work: Work, counts: list[int], seconds: float = 15.0) -> tuple[int, float]:
    """The count with the highest throughput, and that throughput; the smallest of those that are nearly as good."""
    found = {}
    for count in counts:
        simulation = Simulation(replace(work), count, seed=99)
        simulation.observe(2.0)
        simulation.observe(seconds)
        found[count] = simulation.observations[-1].throughput
    best = max(found.values())
    return min(count for count, rate in found.items() if rate > 0.99 * best), best
