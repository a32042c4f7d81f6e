"""One engine's remote side: times what the consumer gets, says what is set aside, and keeps the agent informed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil

from .._plan import Collate
from .._protocols import Orders, Seat
from ._agent_process import AgentProcess
from ._balancing import ShareCounter
from ._controlling import Controller
from ._phases import Stage, Wish
from ._wire import Assignment, Detach, Detached

if TYPE_CHECKING:
    from ._session import Session

DEPTH = 2  # calls under way for each actor
LOOK_EVERY_S = 0.05
IDLE_LOOK_S = 0.25  # the same while nobody is asked for anything
WAKE_EVERY_S = 1.0  # seconds between calls to workers here: word that something was given back may have been lost
CPU_EVERY_S = {Stage.MEASURING_LOCAL: 0.1, Stage.LOCAL: 0.5}  # seconds between looks at the workers' CPU time
DETACH_S = 2.0  # seconds for the agent to let go of an engine's memory


class Work:
    """Called by the consuming thread, between batches and while it waits for one."""

    def __init__(
        self, session: Session, seat: Seat, controller: Controller, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = session
        self._seat = seat
        self._controller = controller
        self._clock = clock
        self._counter = ShareCounter()
        self._agent: AgentProcess | None = None
        """That works for this engine."""
        self._is_refused = False
        self._task: Assignment | None = None
        self._kept = Orders()
        self._was_open = False
        self.wake = False
        self._wake_at = 0.0
        self.due = 0.0
        self._asked = self._returned = -1.0
        self._notes: list[tuple[float, int, float]] = []
        """Batches that were returned, and not yet told to the controller: when, samples, seconds waited."""
        self._told = -1.0
        """When the last one that it was told of was returned; negative: that was in another epoch."""
        self._cpu = _CpuMeter(seat.worker_pids)
        self._divides = seat.plan.collate is Collate.ROWS and not seat.plan.together
        self.pool = None if seat.plan.trace is None else seat.plan.trace.pool
        """Number of its batches' pool in a trace."""
        controller.epoch_began()

    # ---- the engine ------------------------------------------------------------------------------------------------

    def set_aside(self, tickets: int) -> int:
        wish = self._controller.wish
        if self._agent is None or wish.ratio == 0 or not self._controller.is_open:
            return 0
        whole = wish.placement == "batch" or not self._divides
        if (self._counter.ratio, self._counter.whole) != (wish.ratio, whole):
            self._counter.set(wish.ratio, whole)
        return self._counter.take(tickets)

    def asked(self) -> None:
        if self._asked > self._returned:  # the last time there was no batch: another epoch begins
            self._tell_returned()
            self._told = -1.0
            self._controller.epoch_began()
        self._asked = self._clock()

    def returned(self, samples: int, waited_s: float) -> None:
        """Only noted: this is in the way of each batch, and after a step nothing of it is in a cache."""
        self._returned = now = self._clock()
        self._notes.append((now, samples, waited_s))

    def _tell_returned(self) -> None:
        notes, self._notes = self._notes, []
        if not notes:
            return
        period_s = CPU_EVERY_S.get(self._controller.stage)
        cpu_s = 0.0 if period_s is None else self._cpu.since_last(notes[-1][0], period_s)
        for moment, samples, waited_s in notes:
            if self._told >= 0:
                self._controller.delivered(samples, moment - self._told - waited_s, waited_s, cpu_s)
                cpu_s = 0.0
            self._told = moment

    def look(self) -> Orders:
        now = self._clock()
        if now < self.due and not self.wake:
            return self._kept
        self._tell_returned()
        if self._agent is not None and now >= self._wake_at:
            self._wake_at, self.wake = now + WAKE_EVERY_S, True
        session, controller = self._session, self._controller
        session.tend(controller.wish, now)
        is_idle = controller.stage is Stage.LOCAL and not session.has_agent
        self.due = now + (IDLE_LOOK_S if is_idle else LOOK_EVERY_S)
        if self._agent is not session.agent:  # it has come, or gone
            self._agent = self._task = None
        if self._agent is None and session.agent is not None and controller.wish.launch and not self._is_refused:
            if session.send_seat(self._seat):
                self._agent = session.agent
            else:
                self._is_refused = True
                controller.give_up("the dataset cannot be sent")
        if self._agent is not None:
            self._assign(controller.wish)
            if session.is_silent(now):
                return self.recall("the agent has not been heard for too long")
        return self._orders()

    def _assign(self, wish: Wish) -> None:
        assert self._agent is not None
        task = Assignment(wish.phase, wish.placement, wish.actors, wish.beyond)
        if task != self._task and self._agent.send(task):
            self._task = task

    def _orders(self) -> Orders:
        wish, wake, self.wake = self._controller.wish, self.wake, False
        is_open = self._agent is not None and self._controller.is_open
        was_open, self._was_open = self._was_open, is_open
        orders = Orders(
            shared=wish.shared or not is_open,
            extra_batches=DEPTH * wish.actors if is_open else 0,
            holder=None if self._agent is None else self._agent.pidfd,
        )
        if orders != self._kept:
            self._kept = orders
        return replace(orders, wake=True) if wake or (was_open and not is_open) else self._kept

    def recall(self, why: str) -> Orders:
        self._session.lose(why, self._clock())
        self._agent = None
        return self._orders()

    def detach(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None and agent is self._session.agent:
            agent.send(Detach())
            if not agent.await_message(Detached, DETACH_S):
                self._session.lose("the agent did not let go of the loader's memory", self._clock())
        self._session.let_go(self)


class _CpuMeter:
    """CPU time of worker processes, looked at from time to time: that costs some 50 µs for each of them."""

    def __init__(self, pids: Callable[[], Any]) -> None:
        self._pids = pids
        self._seconds: dict[int, float] = {}
        self._last = 0.0

    def since_last(self, now: float, period_s: float) -> float:
        """Seconds used since the last look, or 0 if that was less than `period_s` ago."""
        if now - self._last < period_s:
            return 0.0
        self._last = now
        before, self._seconds = self._seconds, {}
        for pid in self._pids():
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._seconds[pid] = times.user + times.system
        used = sum(seconds - before.get(pid, seconds) for pid, seconds in self._seconds.items())
        return used
