"""Actors that have nothing to do give their CPUs back: another loader, or another job, may want them."""

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from minato.offload import _agent
from minato.offload._agent import IDLE_S, PAUSED_S, Agent
from minato.offload._purposes import Fetching
from minato.offload._wire import Line, Setup


class FakeCluster:
    """Two actors, until it is told otherwise."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.actors: list[Any] = [object(), object()]

    def scale(self, actors: int, _num_workers: int, _base_seed: int) -> None:
        assert actors == 0
        self.actors.clear()


class Bench:
    """An agent, its cluster and its clock."""

    def __init__(self, agent: Agent, cluster: FakeCluster, wake: int) -> None:
        self.agent, self.cluster, self.wake, self.now = agent, cluster, wake, 1000.0

    def work(self) -> None:
        self.agent._desk = SimpleNamespace(wake=self.wake)  # type: ignore[assignment]
        self.agent._purpose = Fetching(whole=False)
        self.agent._active = self.now

    def after(self, seconds: float, posted: bool = False) -> int:
        """Actors that are left, so long after what was before."""
        self.now += seconds
        if posted:
            os.eventfd_write(self.wake, 1)
        self.agent._drain()
        self.agent._release_idle()
        return len(self.cluster.actors)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wake = os.eventfd(0, os.EFD_NONBLOCK)
    cluster: Any = FakeCluster()
    setup = Setup("auto", False, 2, 1, None, 1.0, 1, None, None, "", None, None)
    agent = Agent(Line(ours), theirs.fileno(), setup, cluster)
    made = Bench(agent, cluster, wake)
    monkeypatch.setattr(_agent, "now_s", lambda: made.now)
    made.work()
    yield made
    os.close(agent._calls.done)
    os.close(wake)
    ours.close()
    theirs.close()


def test_actors_are_kept_while_batches_are_posted_however_slowly(bench: Bench) -> None:
    for _ in range(5):
        assert bench.after(PAUSED_S - 1, posted=True) == 2


def test_actors_are_given_back_if_the_consumer_is_away_for_long(bench: Bench) -> None:
    assert bench.after(PAUSED_S - 1) == 2
    assert bench.after(2) == 0


def test_actors_are_given_back_sooner_if_there_is_no_engine_or_no_task(bench: Bench) -> None:
    bench.agent._purpose = None
    assert bench.after(IDLE_S - 1, posted=True) == 2
    assert bench.after(2, posted=True) == 0, "what is posted is not for them"
    bench.cluster.actors.append(object())
    bench.work()
    bench.agent._desk = None
    assert bench.after(IDLE_S + 1) == 0
