"""A loader's side of offloading, with agents that only say what they are told to."""

from collections import deque
from typing import Any

import pytest

pytest.importorskip("ray")

from minato.offload import Ray, _session
from minato.offload._phases import Wish
from minato.offload._session import JOIN_S, RETRY_S, Session
from minato.offload._wire import Ready, Trouble


class FakeAgent:
    """A process that is started, and ended."""

    def __init__(self, _setup: Any) -> None:
        self.says: deque[Any] = deque()
        self.is_ready = self.has_ended = self.was_killed = self.was_closed = False

    def receive(self) -> Any:
        return self.says.popleft() if self.says else None

    def kill(self) -> None:
        self.was_killed = True

    def close(self) -> None:
        self.was_closed = True


class Listening:
    """A controller that only listens."""

    stage = None

    def __init__(self) -> None:
        self.losses: list[str] = []

    def lost(self, why: str) -> None:
        self.losses.append(why)

    def resized(self, _actors: int) -> None: ...


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeAgent]:
    """The agents, as they are started."""
    agents: list[FakeAgent] = []

    def start(setup: Any) -> FakeAgent:
        agents.append(FakeAgent(setup))
        return agents[-1]

    monkeypatch.setattr(_session, "AgentProcess", start)
    return agents


def session() -> Session:
    made = Session(Ray(address="127.0.0.1:1", store=False))
    made.controller = Listening()  # type: ignore[assignment]
    return made


def test_an_agent_that_joins_no_cluster_is_ended_and_another_tries_later(started: list[FakeAgent]) -> None:
    """Ray may try to reach a cluster for ever, and say nothing meanwhile."""
    made, wish, now = session(), Wish(launch=True), 100.0
    made.tend(wish, now)
    made.tend(wish, now + JOIN_S)
    assert len(started) == 1 and not started[0].was_killed
    with pytest.warns(RuntimeWarning, match="none was joined within"):
        made.tend(wish, now + JOIN_S + 1)
    assert started[0].was_killed and started[0].was_closed
    made.tend(wish, now + JOIN_S + 2)
    assert len(started) == 1, "not at once"
    made.tend(wish, now + JOIN_S + 2 + RETRY_S)
    assert len(started) == 2
    made.close()


def test_an_agent_that_has_joined_may_have_nothing_to_say_for_long(started: list[FakeAgent]) -> None:
    made, wish = session(), Wish(launch=True)
    made.tend(wish, 100.0)
    started[0].says.append(Ready(("node:1",), 1))
    made.tend(wish, 101.0)
    made.tend(wish, 101.0 + 2 * JOIN_S)
    assert not started[0].was_killed
    made.close()


def test_trouble_is_warned_of_once_however_often_agents_fail(started: list[FakeAgent]) -> None:
    made, wish, now = session(), Wish(launch=True), 100.0
    with pytest.warns(RuntimeWarning, match="nobody listens") as caught:
        for number in range(3):
            made.tend(wish, now)
            started[number].says.append(Trouble("no Ray cluster: nobody listens at 127.0.0.1:1", fatal=True))
            made.tend(wish, now + 1)
            now += 10 * RETRY_S
    assert len(caught) == 1
    assert len(made.controller.losses) == 3  # type: ignore[union-attr]
    made.close()


def test_an_iterator_that_is_held_keeps_the_cluster_and_that_is_told() -> None:
    made, held, new = session(), object(), object()
    made._work = held  # type: ignore[assignment]
    with pytest.warns(RuntimeWarning, match="still held"):
        assert made.attach(new) is None  # type: ignore[arg-type]
    made.close()
