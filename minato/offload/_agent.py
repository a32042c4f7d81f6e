"""The agent: a process beside the workers that has their part of the work done by actors of a Ray cluster.

    main process ── Line ── agent ── Ray ── actors on other machines
                             │ takes what is set aside, hands in what comes back: one lane for each call under way
                             ▼
                       control block and arena of the engine, as for any worker

It has one thread of its own; Ray's threads only note which calls have ended. Whatever goes wrong with the cluster, the
tickets in hand go back to the board (`Desk.give_back`), or are found there after the agent's death.
"""

from __future__ import annotations

import os
import pickle
import select
import time

import numpy as np

from .._queues.mapping import map_file
from .._workers.sync import apply_patch
from ._calling import Caller
from ._cluster import Cluster, Node, now_s
from ._greeting import Greeter
from ._lanes import Desk
from ._making import Cargo
from ._purposes import Purpose, purpose_of
from ._wire import Assignment, Attach, Detach, Detached, Line, Ready, Report, Setup, Stop, Trouble

REPORT_EVERY_S = 0.1
SCALE_EVERY_S = 0.5
IDLE_S = 10.0  # seconds without a task, after which actors give their CPUs back to the cluster: a loader for validation
# may want them
PAUSED_S = 60.0  # the same where there is a task, and nothing is posted: the consumer is at something else


class Agent:
    """Made once the cluster is joined."""

    def __init__(self, line: Line, lifeline: int, setup: Setup, cluster: Cluster) -> None:
        self._line = line
        self._cluster = cluster
        self._calls = Caller(setup, cluster, line.send, self._complain, self._sync_dataset)
        self._greeter = Greeter(cluster, self._calls.wake)
        self._poll = select.poll()
        for fd in (line.fileno(), self._calls.done):
            self._poll.register(fd, select.POLLIN)
        self._poll.register(lifeline, 0)
        self._desk: Desk | None = None
        self._cargo: Cargo | None = None
        self._digest = ""
        self._task = Assignment(0, "local", 0, False)
        self._purpose: Purpose | None = None
        self._next_report = self._next_scale = 0.0
        self._active = now_s()
        """When there was something to do, or to be expected."""
        self._told: tuple[str, ...] | None = None
        """Nodes that the main process knows of."""
        self._seen: list[Node] | None = None
        self._stopped = False

    def run(self) -> None:
        """Work until the main process says stop, or is gone."""
        while not self._stopped:
            self._tell_nodes()
            self._poll.poll(self._pause_s() * 1000)
            self._drain()
            self._listen()
            self._greeter.collect(self._complain)
            self._calls.collect()
            self._release_idle()
            if self._desk is not None:
                self._keep_up(self._desk)
                if self._purpose is not None:
                    self._calls.dispatch(self._purpose, self._task)
                self._report()
            if self._calls.broken:
                self._give_up(self._calls.broken)

    def _tell_nodes(self) -> None:
        if self._cluster.nodes is self._seen:
            return
        self._seen = self._cluster.nodes
        nodes = tuple(sorted(f"{node.name}:{node.cpus}" for node in self._seen))
        if nodes != self._told and self._line.send(Ready(nodes, self._cluster.room)):
            self._told = nodes

    def _pause_s(self) -> float:
        if self._desk is None:
            return 1.0
        wait = self._calls.ready_in_s
        return min(REPORT_EVERY_S, wait) if wait > 0 else REPORT_EVERY_S

    def _drain(self) -> None:
        was_called = _was_written(self._calls.done)
        was_posted = self._desk is not None and _was_written(self._desk.wake)
        if (was_called or was_posted) and self._purpose is not None:
            now = now_s()
            if self._is_idle(now):
                self._next_scale = 0.0
            self._active = now

    def _give_up(self, why: str) -> None:
        """Nothing more is to be expected of this cluster; another agent will be started after a while."""
        self._purpose = None
        self._calls.give_all_back()
        self._line.send(Trouble(why[:1000], fatal=True))
        self._stopped = True

    # ---- the main process -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                received = self._line.receive()
            except EOFError:
                self._stopped = True
                return
            if received is None:
                return
            match received:
                case Attach() as attach, fds:
                    self._attach(attach, fds)
                case Assignment() as task, _:
                    self._assign(task)
                case Detach(), _:
                    self._detach()
                case Stop(), _:
                    self._stopped = True

    def _attach(self, attach: Attach, fds: list[int]) -> None:
        control, arena, wake, ready, *rest = fds
        if attach.has_cargo:
            blob = map_file(rest[0], os.fstat(rest[0]).st_size, 0, private=True)
            os.close(rest[0])
            self._cargo = pickle.loads(blob.data)
            self._cluster.put(np.array(blob))
            self._digest = attach.cargo
            self._greeter.forget()
        assert self._cargo is not None and attach.cargo == self._digest
        self._desk = Desk(attach, control, arena, wake, ready, self._cargo)
        self._calls.attach(self._desk)
        self._poll.register(self._desk.wake, select.POLLIN)
        self._purpose = None
        self._task = Assignment(0, "local", 0, False)

    def _assign(self, task: Assignment) -> None:
        if self._desk is None:
            return
        self._task = task
        self._purpose = None if task.placement == "local" else purpose_of(task.placement)
        self._calls.begin_phase(task.phase)
        self._active = now_s()
        self._next_scale = self._next_report = 0.0

    def _detach(self) -> None:
        """The engine's memory may not be used from here on."""
        if self._desk is not None:
            self._poll.unregister(self._desk.wake)
            self._calls.tell_spans()
            self._calls.detach()
            self._desk.close()
            self._desk = None
            self._active = now_s()
        self._line.send(Detached(), within_s=1.0)

    # ---- keeping up ------------------------------------------------------------------------------------------------

    def _sync_dataset(self) -> bool:
        """Apply attribute changes here and on the actors, who have to show anew that they make the same samples."""
        changes = None if self._desk is None else self._desk.changes()
        if changes is None or self._desk is None:
            return False
        apply_patch(self._desk.program.dataset, changes)
        self._cluster.patch(changes)
        self._greeter.forget()
        return True

    def _keep_up(self, desk: Desk) -> None:
        now = now_s()
        if self._sync_dataset():
            self._next_scale = 0.0
        if now >= self._next_scale and self._purpose is not None and not self._is_idle(now):
            self._next_scale = now + SCALE_EVERY_S
            name = self._purpose.name
            self._cluster.scale(self._task.actors, desk.attach.num_workers, desk.attach.base_seed, name)
            self._greet(desk, self._purpose)
        self._calls.look_after(now)

    def _is_idle(self, now: float) -> bool:
        """Whether there has been nothing to do for long."""
        has_task = self._desk is not None and self._purpose is not None
        return now - self._active > (PAUSED_S if has_task else IDLE_S)

    def _release_idle(self) -> None:
        if self._cluster.actors and self._is_idle(now_s()):
            self._cluster.scale(0, 0, 0)

    def _greet(self, desk: Desk, purpose: Purpose) -> None:
        """Have actors show that they make the same samples, by one that is asked of this machine too."""
        lane = self._calls.borrow()
        if self._greeter.needs_probe(purpose) and lane is not None:
            run = lane.board.pull_away(1, desk.together, beyond=True)
            if run is None:
                self._next_scale = 0.0  # nothing is posted yet: try again as soon as something may be
                return
            lane.run = run
            self._sync_dataset()
            try:
                self._greeter.take_probe(purpose, desk, run)
            except Exception as error:  # of this sample: the next one may do
                self._greeter.no_probe(purpose, f"no sample can be read here and sent: {error!r}")
            self._calls.give_back(lane)
        self._greeter.greet(purpose)

    def _complain(self, text: str) -> None:
        self._line.send(Trouble(text[:1000], fatal=False))

    def _report(self) -> None:
        now = now_s()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_EVERY_S
        self._calls.tell_spans()
        self._calls.tell_returned()
        self._line.send(self._account(now))

    def _account(self, now: float) -> Report:
        purpose = self._purpose
        calls, samples, nbytes = self._calls.counts
        return Report(
            time_s=now,
            phase=self._task.phase,
            actors=0 if purpose is None else self._cluster.count_fit(purpose.name),
            calls=calls,
            samples=samples,
            nbytes=nbytes,
            cpu_s=time.process_time(),
            total_samples=self._calls.total,
            idle_s=self._calls.idle_s,
            refused="" if purpose is None or self._is_idle(now) else self._greeter.refusal(purpose)[:1000],
        )


def _was_written(fd: int) -> bool:
    """Whether an eventfd was, since the last look."""
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        return False
    return True
