"""Calls under way: whose work is at which actor, since when, and what becomes of it.

    lane takes tickets ─► actor's method is called ─► it answers: its samples are handed in
                            │
                            ├─ the actor or its node is gone, or the call fails ─► another actor, or the workers here
                            └─ it is late ─► the same, and the actor gets no more work until it answers

Whatever comes back of work that was given to others is dropped: a lane's tickets are in one hand at a time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._cluster import Actor, Cluster, is_actor_gone, is_store_full, now_s
from ._flow import Flow
from ._lanes import Desk, Lane
from ._purposes import Purpose
from ._wire import Assignment, Returned, Setup, Span, Spans

LATE_S = 3.0  # seconds after which others do the work of an actor that does not answer; more if calls take that long
_LATE_TIMES = 10  # times the usual duration of a call, that a late one takes at least
_GONE_TIMES = 20  # the same for one that is given up
MOST_FAILURES = 5  # calls in a row that fail before the cluster is given up
_TRIES = 2  # actors that a piece of work is given to, before it goes back to the workers here
_MOST_SPANS = 200  # in one message


@dataclass(slots=True, eq=False)
class Call:
    """A piece of work at an actor."""

    lane: Lane
    actor: Actor
    phase: int
    purpose: Purpose
    began: float
    payload: Any
    """What has to be kept here until the result comes."""
    sent: int
    """Bytes of samples that went along."""
    estimate: int
    """Bytes that are expected."""
    tries: int


class Caller:
    """The agent's calls."""

    def __init__(
        self,
        setup: Setup,
        cluster: Cluster,
        tell: Callable[[object], bool],
        complain: Callable[[str], None],
        sync: Callable[[], bool],
    ) -> None:
        """`tell` sends a message to the main process, if that listens; `complain` a word of trouble. `sync` sees to it
        that everybody has the newest attributes of the dataset; True: they were others until now. To be called once
        tickets are in hand: those of an epoch are posted after its changes."""
        self._setup = setup
        self._sync = sync
        self._cluster = cluster
        self._tell = tell
        self._complain = complain
        self.done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Written by Ray's threads when a call has ended."""
        self._ended: deque[tuple[Call, Any, BaseException | None]] = deque()
        self._calls: set[Call] = set()
        self._desk: Desk | None = None
        self._free: list[Lane] = []
        self._flow = Flow(setup.most_bytes, setup.bytes_per_s)
        self._failures = 0
        self._phase = 0
        self.counts = [0, 0, 0]
        """Calls, samples and bytes that came back in this phase."""
        self.total = 0
        """Samples that came back."""
        self._returned = 0
        """Tickets that were given back, and not yet told of."""
        self.idle_s = 0.0
        """Seconds of this phase, times the share of the actors, without work to be given to them."""
        self._idle_share = 0.0
        self._idle_since = 0.0
        self._spans: list[Span] = []
        self.broken = ""
        """Why nothing more is to be expected of this cluster."""

    # ---- engines ---------------------------------------------------------------------------------------------------

    def attach(self, desk: Desk) -> None:
        """Work for an engine."""
        self._desk = desk
        self._free = list(desk.lanes)
        self._flow.least = desk.attach.fetches

    def detach(self) -> None:
        """The engine's memory may not be used from here on; what is under way is left to itself."""
        for call in self._calls:
            self._flow.lost(call.estimate)
        self._calls.clear()
        self._free = []
        self._desk = None
        self._returned = 0

    def begin_phase(self, phase: int) -> None:
        """Count anew, if it is another phase."""
        if phase != self._phase:
            self._phase, self.counts, self.idle_s, self._idle_share = phase, [0, 0, 0], 0.0, 0.0
        self._failures = 0

    def wake(self) -> None:
        """Have the agent look. May be called by any thread."""
        os.eventfd_write(self.done, 1)

    @property
    def ready_in_s(self) -> float:
        """Seconds until bandwidth allows another call."""
        return self._flow.ready_in_s()

    def borrow(self) -> Lane | None:
        """A lane that has no work; whoever takes work with it gives that back."""
        return self._free[-1] if self._free else None

    # ---- from the board to the actors ------------------------------------------------------------------------------

    def dispatch(self, purpose: Purpose, task: Assignment) -> None:
        """Give work to actors while there is some, and they may have more."""
        desk, now = self._desk, now_s()
        assert desk is not None
        self.idle_s += self._idle_share * (now - self._idle_since)
        self._idle_share, self._idle_since = 0.0, now
        while self._free:
            actor = self._cluster.least_busy(purpose.name)
            if actor is None or not self._flow.may_send(len(self._calls), actor.number):
                return
            lane = self._free[-1]
            run = lane.board.pull_away(self._flow.chunk(actor.number), purpose.whole or desk.together, task.beyond)
            if run is None:
                self._idle_share = self._cluster.share_idle(purpose.name)
                return
            lane.run = run
            if self._sync():  # they have to show first that they have it
                self.give_back(lane)
                return
            self._free.pop()
            self._send(desk, purpose, lane, actor)

    def _send(self, desk: Desk, purpose: Purpose, lane: Lane, actor: Actor, tries: int = 1) -> None:
        assert lane.run is not None
        try:
            work = purpose.prepare(desk, lane, lane.run)
        except Exception as error:  # a bug, or a dataset that cannot be split after all: workers here know better
            self._complain(f"work could not be prepared: {error!r}")
            self.give_back(lane)
            return
        if work.method is None:  # nothing is left to be done elsewhere
            desk.hand_in(lane, work.payload)
            self._free.append(lane)
            return
        estimate = self._flow.send(len(lane.run.keys))
        call = Call(lane, actor, self._phase, purpose, now_s(), work.payload, work.nbytes, estimate, tries)
        self._calls.add(call)

        def done(reply: Any, error: BaseException | None) -> None:
            self._ended.append((call, reply, error))
            self.wake()

        try:
            self._cluster.call(actor, work.method, work.argument, done=done)
        except Exception as error:
            self._calls.discard(call)
            self._flow.lost(estimate)
            self._fail(error)
            if not self.broken:
                self.give_back(lane)

    # ---- and back --------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Hand in what has come back."""
        while self._ended:
            call, reply, error = self._ended.popleft()
            call.actor.outstanding -= 1
            call.actor.late_since = None
            if error is None:
                self._flow.answered(now_s() - call.began)
            elif is_actor_gone(error):
                self._cluster.drop(call.actor)
            if call not in self._calls:
                continue  # its work was given to others
            if error is None:
                self._calls.discard(call)
                self._take_in(call, reply)
            else:
                self._fail(error)
                self._retry(call)

    def _take_in(self, call: Call, reply: Any) -> None:
        desk, run = self._desk, call.lane.run
        assert desk is not None and run is not None
        _, seconds, parcel = reply
        samples = len(run.keys)
        nbytes = self._flow.arrived(call.actor.number, call.estimate, samples, parcel, seconds, call.sent)
        call.purpose.take_in(desk, call.lane, call.payload, reply)
        call.lane.board.note_time(samples, seconds)
        self._free.append(call.lane)
        self._failures = 0
        self.total += samples
        if call.phase == self._phase:
            for number, count in enumerate((1, samples, nbytes)):
                self.counts[number] += count
        if desk.attach.is_traced:
            began, actor, lane = int(call.began * 1e9), call.actor.number, call.lane.number - desk.attach.first_lane
            took, worked = int(now_s() * 1e9) - began, int(seconds * 1e9)
            self._spans.append(Span(began, took, worked, run.batch, samples, nbytes, actor, lane))

    def look_after(self, now: float) -> None:
        """Have others do what actors that are gone, or late, do not."""
        late_s, gone_s = self._late_s, self._gone_s
        for call in list(self._calls):
            if call.actor.gone:
                self._retry(call)
            elif now - call.began > late_s:
                if call.actor.late_since is None:
                    call.actor.late_since = call.began
                    if not self._cluster.count_fit(call.purpose.name):
                        self._complain(f"no actor has answered for {late_s:.1f} s")
                self._retry(call)
        for actor in [one for one in self._cluster.actors if one.late_since is not None]:
            assert actor.late_since is not None
            if now - actor.late_since > gone_s:
                self._complain(f"an actor gave no answer within {gone_s:.0f} s")
                self._cluster.drop(actor)

    @property
    def _late_s(self) -> float:
        return min(self._gone_s, max(LATE_S, _LATE_TIMES * self._flow.call_s))

    @property
    def _gone_s(self) -> float:
        return max(self._setup.call_timeout_s, _GONE_TIMES * self._flow.call_s)

    def _retry(self, call: Call) -> None:
        """Give the work to another actor, or back to the workers here."""
        self._calls.discard(call)
        self._flow.lost(call.estimate)
        actor = self._cluster.least_busy(call.purpose.name)
        if self._desk is not None and actor is not None and call.tries < _TRIES:
            self._send(self._desk, call.purpose, call.lane, actor, call.tries + 1)
        else:
            self.give_back(call.lane)

    def give_back(self, lane: Lane) -> None:
        """Leave a lane's tickets to the workers here."""
        assert self._desk is not None
        self._returned += self._desk.give_back(lane)
        if lane not in self._free:
            self._free.append(lane)
        self.tell_returned()

    def tell_returned(self) -> None:
        """Workers here may have to be woken. Said again later, if nobody listens now."""
        if self._returned and self._tell(Returned(self._returned)):
            self._returned = 0

    def _fail(self, error: BaseException) -> None:
        if is_store_full(error):
            self._flow.shrink()
        self._complain(f"a call failed: {type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}")
        self._failures += not is_actor_gone(error)
        if self._failures >= MOST_FAILURES:
            self.broken = f"{MOST_FAILURES} calls in a row failed, the last with {error!r}"

    def give_all_back(self) -> None:
        """Leave everything to the workers here."""
        for call in list(self._calls):
            self._calls.discard(call)
            self._flow.lost(call.estimate)
            self.give_back(call.lane)

    def tell_spans(self) -> None:
        """What came back since the last time."""
        while self._spans:
            part, self._spans = self._spans[:_MOST_SPANS], self._spans[_MOST_SPANS:]
            self._tell(Spans(tuple(part)))
