"""Calls that fail, hang or come too late: each ticket is in one hand at a time, and nobody waits for ever."""

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from minato.offload._wire import Assignment, Returned, Setup, Spans

pytest.importorskip("ray")

from minato.offload import _calling
from minato.offload._calling import LATE_S, MOST_FAILURES, Caller
from minato.offload._cluster import Actor
from minato.offload._purposes import Prepared

Done = Callable[[Any, BaseException | None], None]
TASK = Assignment(1, "sample", 2, beyond=False)


class FakeBoard:
    """Work in runs of two tickets."""

    def __init__(self, work: list[int]) -> None:
        self.work = work

    def pull_away(self, _want: int, _whole: bool, _beyond: bool) -> Any:
        return SimpleNamespace(keys=[self.work.pop(0), self.work.pop(0)], batch=0) if self.work else None

    def note_time(self, *_: Any) -> None:
        pass


class FakeDesk:
    """Keeps what is handed in, and what is given back."""

    def __init__(self, work: list[int], lanes: int = 4) -> None:
        self.attach = SimpleNamespace(fetches=1, is_traced=False, first_lane=0)
        self.together = False
        self.lanes = [SimpleNamespace(number=number, board=FakeBoard(work), run=None) for number in range(lanes)]
        self.handed_in: list[int] = []
        self.returned: list[int] = []

    def give_back(self, lane: Any) -> int:
        keys, lane.run = lane.run.keys, None
        self.returned += keys
        return len(keys)


class FakePurpose:
    name, whole = "read", False

    def prepare(self, _desk: Any, _lane: Any, run: Any) -> Any:
        return Prepared("fetch", run.keys)

    def take_in(self, desk: Any, lane: Any, _payload: Any, _reply: Any) -> None:
        desk.handed_in += lane.run.keys
        lane.run = None


class FakeCluster:
    """Two actors; the test answers their calls."""

    def __init__(self) -> None:
        self.actors = [Actor(number, "node", None, fit={"read": True}) for number in range(2)]
        self.calls: list[tuple[Actor, list[int], Done]] = []

    def least_busy(self, purpose: str) -> Actor | None:
        able = [one for one in self.actors if one.outstanding < 2 and one.fit.get(purpose) and one.late_since is None]
        return min(able, key=lambda one: one.outstanding, default=None)

    def count_fit(self, _purpose: str) -> int:
        return sum(one.late_since is None for one in self.actors)

    def share_idle(self, _purpose: str) -> float:
        return sum(not one.outstanding for one in self.actors) / len(self.actors)

    def call(self, actor: Actor, _method: str, keys: list[int], done: Done) -> None:
        actor.outstanding += 1
        self.calls.append((actor, keys, done))

    def drop(self, actor: Actor) -> None:
        actor.gone = True
        self.actors = [one for one in self.actors if one is not actor]


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, tickets: int = 8) -> None:
        self.now = 100.0
        monkeypatch.setattr(_calling, "now_s", lambda: self.now)
        self.told: list[Any] = []
        self.listens = True
        self.changed = False
        self.complaints: list[str] = []
        self.cluster, self.desk = FakeCluster(), FakeDesk(list(range(tickets)))
        setup = Setup("auto", False, 2, 1 << 30, None, 60.0, 1, None, None, "", None, None)
        self.caller = Caller(setup, self.cluster, self.tell, self.complaints.append, self.sync)  # type: ignore[arg-type]
        self.caller.attach(self.desk)  # type: ignore[arg-type]
        self.caller.begin_phase(1)

    def sync(self) -> bool:
        changed, self.changed = self.changed, False
        return changed

    def tell(self, message: object) -> bool:
        if self.listens:
            self.told.append(message)
        return self.listens

    def dispatch(self) -> None:
        self.caller.dispatch(FakePurpose(), TASK)

    def answer(self, number: int, error: BaseException | None = None) -> None:
        _, _, done = self.cluster.calls[number]
        done(None if error else ("samples", 0.01, [b"x" * 100]), error)
        self.caller.collect()

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.caller.look_after(self.now)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(monkeypatch)
    yield made
    os.close(made.caller.done)


def test_late_work_goes_to_others_and_what_comes_of_it_later_is_dropped(scene: Scene) -> None:
    scene.dispatch()
    assert len(scene.cluster.calls) == 4, "two for each actor"
    for number in (1, 2, 3):
        scene.answer(number)
    scene.later(LATE_S + 1)
    slow, other = scene.cluster.calls[0][0], scene.cluster.calls[4][0]
    assert other is not slow, "another actor has it now"
    assert scene.cluster.least_busy("read") is other, "the late one gets no more"
    scene.answer(4)
    scene.answer(0)
    assert sorted(scene.desk.handed_in) == list(range(8))
    assert slow.late_since is None, "it has answered after all"
    assert not scene.complaints


def test_with_no_actor_that_answers_everything_is_given_back_with_one_complaint(scene: Scene) -> None:
    scene.dispatch()
    scene.later(LATE_S + 1)
    assert sorted(scene.desk.returned) == list(range(8))
    assert len(scene.complaints) == 1
    assert sum(one.samples for one in scene.told if isinstance(one, Returned)) == 8
    scene.later(60)
    assert scene.cluster.actors == [], "given up"
    assert scene.desk.handed_in == []


def test_word_of_what_is_given_back_is_not_lost_while_nobody_listens(scene: Scene) -> None:
    scene.dispatch()
    scene.listens = False
    scene.later(LATE_S + 1)
    scene.listens = True
    scene.caller.tell_returned()
    scene.caller.tell_returned()
    assert [one.samples for one in scene.told] == [8], "once, for all of it"


def test_time_without_work_is_told_from_time_at_work(scene: Scene) -> None:
    """Two actors, of which one has nothing to do for a second, then both."""
    scene.desk.lanes[0].board.work[:] = [0, 1]
    scene.dispatch()
    scene.now += 1
    scene.answer(0)
    scene.dispatch()
    assert scene.caller.idle_s == pytest.approx(0.5)
    scene.now += 1
    scene.dispatch()
    assert scene.caller.idle_s == pytest.approx(1.5)


def test_tickets_of_an_epoch_with_changed_attributes_wait_until_actors_have_them(scene: Scene) -> None:
    scene.changed = True
    scene.dispatch()
    assert scene.cluster.calls == []
    assert scene.desk.returned == [0, 1], "workers here have the changes"
    scene.dispatch()
    assert sorted(key for _, keys, _ in scene.cluster.calls for key in keys) == list(range(2, 8))


def test_a_call_that_takes_long_by_nature_is_not_late_for_ever(scene: Scene) -> None:
    """What comes late teaches how long calls take."""
    scene.dispatch()
    scene.later(LATE_S + 1)
    scene.answer(0)
    scene.desk.lanes[0].board.work += [8, 9]
    scene.dispatch()
    scene.later(LATE_S + 1)
    scene.answer(4)
    assert scene.desk.handed_in == [8, 9]


def test_calls_that_keep_failing_break_it_off_and_every_ticket_is_given_back(scene: Scene) -> None:
    scene.dispatch()
    for number in range(MOST_FAILURES):
        scene.answer(number, OSError("no"))
        scene.dispatch()
    assert "calls in a row failed" in scene.caller.broken
    scene.caller.give_all_back()
    assert sorted(scene.desk.returned) == list(range(8))


def test_an_answer_after_the_engine_is_gone_is_dropped(scene: Scene) -> None:
    scene.dispatch()
    scene.caller.detach()
    scene.answer(0)
    assert scene.desk.handed_in == []
    assert scene.cluster.actors[0].outstanding == 1


def test_calls_of_a_traced_loader_leave_spans(scene: Scene) -> None:
    scene.desk.attach.is_traced = True
    scene.desk.lanes[0].board.work[:] = [0, 1]
    scene.dispatch()
    scene.now += 0.5
    scene.answer(0)
    scene.caller.tell_spans()
    (spans,) = [one for one in scene.told if isinstance(one, Spans)]
    (span,) = spans.spans
    assert (span.samples, span.nbytes, span.duration_ns) == (2, 100, pytest.approx(5e8, rel=1e-6))
