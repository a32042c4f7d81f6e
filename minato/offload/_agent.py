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
import socket
import sys
import time
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._queues.mapping import map_file
from .._workers.guard import die_with_parent, reset_signals
from .._workers.program import Program
from .._workers.sync import apply_patch
from ._cluster import Actor, Cluster, Node, is_actor_gone, is_store_full, now_s
from ._flow import Flow
from ._greeting import Greeter
from ._lanes import Desk, Lane
from ._purposes import Purpose, purpose_of
from ._wire import (
    Assignment,
    Attach,
    Detach,
    Detached,
    Line,
    Ready,
    Report,
    Returned,
    Setup,
    Stop,
    Trouble,
)

REPORT_EVERY_S = 0.1
SCALE_EVERY_S = 0.5
IDLE_S = 10.0  # seconds without work, after which actors give their CPUs back to the cluster
MOST_FAILURES = 5  # calls in a row that fail before the cluster is given up
_TRIES = 2  # actors that a piece of work is given to, before it goes back to the workers here


@dataclass(slots=True)
class Call:
    """A piece of work at an actor."""

    lane: Lane
    actor: Actor
    phase: int
    purpose: Purpose
    began: float
    payload: Any
    """What has to be kept here until the result comes."""
    estimate: int
    """Bytes that are expected."""
    tries: int


class Agent:
    """Made once the cluster is joined."""

    def __init__(self, line: Line, lifeline: int, setup: Setup, cluster: Cluster) -> None:
        self._line = line
        self._setup = setup
        self._cluster = cluster
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended: deque[tuple[Call, Any, BaseException | None]] = deque()
        self._poll = select.poll()
        for fd in (line.fileno(), self._done):
            self._poll.register(fd, select.POLLIN)
        self._poll.register(lifeline, 0)
        self._desk: Desk | None = None
        self._program: Program | None = None
        self._digest = ""
        self._task = Assignment(0, "local", 0, False)
        self._purpose: Purpose | None = None
        self._calls: list[Call] = []
        self._free: list[Lane] = []
        self._flow = Flow(setup.most_bytes, setup.bytes_per_s)
        self._greeter = Greeter(cluster, self._greeted)
        self._failures = 0
        self._counts = [0, 0, 0]
        """Calls, samples and bytes that came back in the phase `_counted`."""
        self._counted = 0
        self._total = 0
        self._next_report = self._next_scale = 0.0
        self._assigned = now_s()
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
            self._collect()
            if self._desk is not None:
                self._keep_up()
                self._dispatch(self._desk)
                self._report()

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
        wait = self._flow.ready_in_s()
        return min(REPORT_EVERY_S, wait) if wait > 0 else REPORT_EVERY_S

    def _drain(self) -> None:
        for fd in (self._done, -1 if self._desk is None else self._desk.wake):
            if fd >= 0:
                try:
                    os.eventfd_read(fd)
                except BlockingIOError:
                    pass

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
        if attach.has_program:
            blob = map_file(rest[0], os.fstat(rest[0]).st_size, 0, private=True)
            os.close(rest[0])
            self._program = pickle.loads(blob.data)
            self._cluster.put(np.array(blob))
            self._digest = attach.program
            self._greeter.forget()
        assert self._program is not None and attach.program == self._digest
        self._desk = Desk(attach, control, arena, wake, ready, self._program)
        self._attach_record = attach
        self._free = list(self._desk.lanes)
        self._poll.register(self._desk.wake, select.POLLIN)
        self._purpose = None
        self._task = Assignment(0, "local", 0, False)

    def _assign(self, task: Assignment) -> None:
        if self._desk is None:
            return
        self._task = task
        self._purpose = None if task.placement == "local" else purpose_of(task.placement)
        if task.phase != self._counted:
            self._counted, self._counts = task.phase, [0, 0, 0]
        self._failures = 0
        self._assigned = now_s()
        self._next_scale = self._next_report = 0.0

    def _detach(self) -> None:
        """The engine's memory may not be used from here on; what is under way is left to itself."""
        if self._desk is not None:
            self._poll.unregister(self._desk.wake)
            for call in self._calls:
                self._flow.lost(call.estimate)
            self._calls.clear()
            self._free = []
            self._desk.close()
            self._desk = None
        self._line.send(Detached())

    # ---- keeping up ------------------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        desk, now = self._desk, now_s()
        assert desk is not None and self._program is not None
        changes = desk.changes()
        if changes is not None:
            apply_patch(self._program.dataset, changes)
            self._cluster.patch(changes)
            self._greeter.forget()
        if self._purpose is None and now - self._assigned > IDLE_S:
            self._cluster.scale(0, 0, 0)
        if now >= self._next_scale and self._purpose is not None:
            self._next_scale = now + SCALE_EVERY_S
            attach = self._attach_record
            self._cluster.scale(self._task.actors, attach.num_workers, attach.base_seed)
            self._greet(desk, self._purpose)
            for call in [one for one in self._calls if one.actor.gone]:
                self._retry(call)
        late = [one for one in self._calls if now - one.began > self._patience_s()]
        for call in late:
            self._complain(f"an actor gave no answer within {self._patience_s():.0f} s")
            self._cluster.drop(call.actor)
            self._retry(call)

    def _patience_s(self) -> float:
        return max(self._setup.call_timeout_s, 20 * self._flow.call_s)

    def _greet(self, desk: Desk, purpose: Purpose) -> None:
        """Have actors show that they make the same samples, by one that is asked of this machine too."""
        if self._greeter.needs_probe(purpose) and self._free:
            lane = self._free[0]
            run = lane.board.pull_away(1, desk.together, beyond=True)
            if run is None:
                self._next_scale = 0.0  # nothing is posted yet: try again as soon as something may be
                return
            lane.run = run
            try:
                self._greeter.take_probe(purpose, desk, run)
            except Exception as error:  # this sample fails here too: the next one will do
                self._complain(f"a sample cannot be made here: {error!r}")
            self._return(lane)
        self._greeter.greet(purpose)

    def _greeted(self) -> None:
        """Called by one of Ray's threads."""
        os.eventfd_write(self._done, 1)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _dispatch(self, desk: Desk) -> None:
        purpose = self._purpose
        while purpose is not None and self._free and self._flow.may_send(len(self._calls)):
            actor = self._cluster.least_busy(purpose.name)
            if actor is None:
                return
            lane = self._free[-1]
            run = lane.board.pull_away(self._flow.chunk(), purpose.whole or desk.together, self._task.beyond)
            if run is None:
                return
            self._free.pop()
            lane.run = run
            self._send(desk, purpose, lane, actor)

    def _send(self, desk: Desk, purpose: Purpose, lane: Lane, actor: Actor, tries: int = 1) -> None:
        assert lane.run is not None
        try:
            method, argument, payload = purpose.prepare(desk, lane, lane.run)
        except Exception as error:  # a bug, or a dataset that cannot be split after all: workers here know better
            self._complain(f"work could not be prepared: {error!r}")
            self._return(lane)
            return
        if method is None:  # nothing is left to be done elsewhere
            desk.hand_in(lane, payload)
            self._free.append(lane)
            return
        estimate = self._flow.send(len(lane.run.keys))
        call = Call(lane, actor, self._task.phase, purpose, now_s(), payload, estimate, tries)
        self._calls.append(call)

        def done(reply: Any, error: BaseException | None) -> None:
            self._ended.append((call, reply, error))
            os.eventfd_write(self._done, 1)

        try:
            self._cluster.call(actor, method, argument, done=done)
        except Exception as error:
            self._calls.remove(call)
            self._flow.lost(estimate)
            self._fail(error)
            self._return(lane)

    def _collect(self) -> None:
        self._greeter.collect(self._complain)
        while self._ended:
            call, reply, error = self._ended.popleft()
            call.actor.outstanding -= 1
            if call not in self._calls:
                continue  # its work was given to others
            if error is not None:
                self._fail(error)
                if is_actor_gone(error):
                    self._cluster.drop(call.actor)
                if call in self._calls:
                    self._retry(call)
            else:
                self._calls.remove(call)
                self._take_in(call, reply)

    def _take_in(self, call: Call, reply: Any) -> None:
        desk, run = self._desk, call.lane.run
        assert desk is not None and run is not None
        _, seconds, parcel = reply
        nbytes = self._flow.arrived(call.estimate, len(run.keys), parcel, seconds, now_s() - call.began)
        call.purpose.take_in(desk, call.lane, call.payload, reply)
        call.lane.board.note_time(len(run.keys), seconds)
        self._free.append(call.lane)
        self._failures = 0
        self._total += len(run.keys)
        if call.phase == self._task.phase:
            for number, count in enumerate((1, len(run.keys), nbytes)):
                self._counts[number] += count

    def _retry(self, call: Call) -> None:
        """Give the work to another actor, or back to the workers here."""
        self._calls.remove(call)
        self._flow.lost(call.estimate)
        actor = self._cluster.least_busy(call.purpose.name)
        if self._desk is not None and actor is not None and call.tries < _TRIES:
            self._send(self._desk, call.purpose, call.lane, actor, call.tries + 1)
        else:
            self._return(call.lane)

    def _return(self, lane: Lane) -> None:
        assert self._desk is not None
        count = self._desk.give_back(lane)
        if lane not in self._free:
            self._free.append(lane)
        self._line.send(Returned(count))

    def _fail(self, error: BaseException) -> None:
        if is_store_full(error):
            self._flow.shrink()
        self._complain(f"a call failed: {type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}")
        self._failures += not is_actor_gone(error)
        if self._failures >= MOST_FAILURES:
            self._purpose = None
            for call in list(self._calls):
                self._calls.remove(call)
                self._flow.lost(call.estimate)
                self._return(call.lane)
            self._line.send(
                Trouble(f"{MOST_FAILURES} calls in a row failed, the last with {error!r}"[:1000], fatal=True)
            )
            self._stopped = True  # another agent will be started after a while

    def _complain(self, text: str) -> None:
        self._line.send(Trouble(text[:1000], fatal=False))

    def _report(self) -> None:
        now = now_s()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_EVERY_S
        self._line.send(self._account())

    def _account(self) -> Report:
        purpose = self._purpose
        calls, samples, nbytes = self._counts
        return Report(
            time_s=now_s(),
            phase=self._task.phase,
            actors=0 if purpose is None else self._cluster.count_fit(purpose.name),
            calls=calls,
            samples=samples,
            nbytes=nbytes,
            cpu_s=time.process_time(),
            total_samples=self._total,
            refused="" if purpose is None else self._greeter.refusal(purpose)[:1000],
        )


def main() -> None:
    """Entry point: descriptors of the line to the main process and of the pipe that breaks with it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    lifeline = die_with_parent(int(sys.argv[2]))
    reset_signals()
    warnings.filterwarnings("ignore", message="The given (buffer|NumPy array) is not writable")
    line = Line(connection)
    select.select([line], [], [])
    received = line.receive()
    if received is None or not isinstance(received[0], Setup):
        return
    setup = received[0]
    try:
        cluster = Cluster(setup)
    except Exception as error:
        line.send(Trouble(f"no Ray cluster: {type(error).__name__}: {error}"[:1000], fatal=True))
        return
    try:
        Agent(line, lifeline, setup, cluster).run()
    except Exception as error:
        line.send(Trouble(f"{type(error).__name__}: {error}"[:1000], fatal=True))
        raise
    finally:
        cluster.leave()


if __name__ == "__main__":
    main()
