"""The number of workers, changed while they run.

A policy (`_scheduler`) decides; here it is told what was measured, and its decisions are carried out: workers are
started, or dismissed once they have nothing in hand, and the window of batches in flight follows their number. It all
happens in the consuming thread, between batches or while it waits for one: a fork from another thread could copy a lock
that the consumer's thread holds. A fork takes some milliseconds, so workers are started one at a time, with a look for
batches in between: nobody waits for more than one of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psutil

from .._plan import LoaderPlan
from .._queues.posting import PostingBoard
from .._scheduler.climbing import ClimbingPolicy
from .._scheduler.policy import Decision, Observation, Policy, WorkerLimits
from .._scheduler.replay import Recorder
from .._scheduler.window import Window
from .._workers.pool import WorkerPool
from .cores import allowed_cores
from .totals import Totals

MOST_KEPT = 100  # decisions
PAUSE_S = 30.0  # seconds before another try, after the system refused to start a worker
_log = logging.getLogger("minato.scaling")


class Scaler:
    """Adapts one engine's pool."""

    def __init__(
        self,
        policy: Policy,
        limits: WorkerLimits,
        pool: WorkerPool,
        board: PostingBoard,
        window: Window,
        per_worker: int,
        totals: Totals,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`per_worker`: batches in flight for each worker."""
        self._controller = policy.begin(limits)
        self._period = policy.period_s
        self._limits = limits
        self._recorder = recorder
        self._pool = pool
        self._board = board
        self._window = window
        self._per_worker = per_worker
        self._totals = totals
        self._clock = clock
        self._cpu = _CpuTimes()
        self._last = clock()
        self._due = self._last + self._period
        self._in_force: Decision | None = None
        """The last one that changed the number of workers; None: none has, or the system refused."""
        self.on_decision: Callable[[Decision, int, str], None] | None = None
        """Told of each change: the decision, the number of workers before, and what came of it."""
        self._waited = totals.wait_seconds
        self._finished = totals.samples_finished

    @property
    def due(self) -> float:
        """When to look next, on the monotonic clock."""
        return self._clock() if self._lacking else self._due

    def look(self, ready: int, waiting_s: float) -> None:
        """Decide anew if it is time. `ready`: complete batches; `waiting_s`: seconds of a wait that is not over."""
        now = self._clock()
        if self._pool.is_starting:
            self._due = now + self._period
            return
        if self._lacking:
            self._hire()
        if now < self._due:
            return
        observation = self._observe(now, ready, waiting_s)
        self._last, self._due = now, now + self._period
        self._recorder.observed(observation, self._limits)
        decision = self._controller.decide(observation)
        before = self._pool.active if self._in_force is None else self._in_force.target
        if decision.target != before:
            self._carry_out(decision, before)

    @property
    def _lacking(self) -> bool:
        """Whether there are fewer workers than decided on, and place for another: who is leaving still has one."""
        wanted = 0 if self._in_force is None else self._in_force.target
        return self._pool.active < wanted and self._pool.has_place

    def _carry_out(self, decision: Decision, before: int) -> None:
        """`before`: workers decided on until now, who may not all be there yet, or still be there."""
        self._in_force = decision
        self._tell(decision, before, f"{before} to {decision.target} workers: {decision.reason}")
        if self._lacking:
            self._hire()
        elif decision.target < self._pool.active:
            self._pool.resize(decision.target)
            self._window.resize(self._per_worker * self._pool.active)

    def _hire(self) -> None:
        """Start one of the workers that are lacking."""
        decision = self._in_force
        assert decision is not None
        try:
            self._pool.resize(self._pool.active + 1)
        except OSError as error:  # no more processes or descriptors to be had: those that run go on
            self._in_force = None
            self._due += PAUSE_S
            here = self._pool.active
            wanted = f"wanted: {decision.target} workers"
            self._tell(decision, here, f"{here} stays, for want of resources ({error}); {wanted}")
        self._window.resize(self._per_worker * self._pool.active)

    def _tell(self, decision: Decision, before: int, text: str) -> None:
        _log.info("%s; measured: %s", text, decision.observation)
        if self.on_decision is not None:
            self.on_decision(decision, before, text)
        self._totals.decisions = (*self._totals.decisions, f"{text} ({decision.observation})")[-MOST_KEPT:]

    def _observe(self, now: float, ready: int, waiting_s: float) -> Observation:
        elapsed = now - self._last
        waited, finished = self._totals.wait_seconds + waiting_s, self._totals.samples_finished
        observation = Observation(
            time=now,
            workers=self._pool.active,
            queue_occupancy=min(1.0, ready / max(1, self._window.size)),
            cpu_share=self._cpu.since_last(self._pool.pids) / elapsed / self._limits.cores,
            wait_share=min(1.0, max(0.0, waited - self._waited) / elapsed),
            throughput=(finished - self._finished) / elapsed,
            slow_workers=self._board.count_slow_workers(),
        )
        self._waited, self._finished = waited, finished
        return observation


def make_scaler(
    plan: LoaderPlan, pool: WorkerPool, board: PostingBoard, window: Window, totals: Totals, recorder: Recorder
) -> Scaler | None:
    """What adapts a pool as planned; None: the number of workers stays."""
    if plan.adaptive is None:
        return None
    policy: Policy = ClimbingPolicy() if plan.adaptive is True else plan.adaptive
    limits = WorkerLimits(plan.least_workers, plan.most_workers, allowed_cores().cores)
    return Scaler(policy, limits, pool, board, window, plan.per_worker, totals, recorder)


class _CpuTimes:
    """CPU time of worker processes."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def since_last(self, pids: dict[int, int]) -> float:
        """Seconds used since the last call, by workers that run now."""
        now: dict[int, float] = {}
        for pid in pids.values():
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            now[pid] = times.user + times.system
        used = sum(seconds - self._seconds.get(pid, 0.0) for pid, seconds in now.items())
        self._seconds = now
        return used
