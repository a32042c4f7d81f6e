"""Where actors are started, and which are ended. Ray is a fake: nodes that are told, actors that do nothing."""

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from minato.offload import _cluster
from minato.offload._cluster import Cluster
from minato.offload._wire import Setup

A, B = "a" * 56, "b" * 56  # as Ray names nodes


class FakeRay:
    """As much of Ray as a cluster is looked at with."""

    def __init__(self, cpus: dict[str, int]) -> None:
        self.cpus = cpus
        self._private = SimpleNamespace(worker=SimpleNamespace())
        self.killed: list[Any] = []
        self.classes = 0

    def init(self, **_: Any) -> None: ...

    def shutdown(self) -> None: ...

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "here")

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerHostname": name, "Alive": True, "Resources": {"CPU": float(cpus)}}
            for name, cpus in self.cpus.items()
        ]

    def remote(self, _kind: type) -> Any:
        self.classes += 1
        made = SimpleNamespace(remote=lambda *_: SimpleNamespace())
        return SimpleNamespace(options=lambda **_: made)

    def kill(self, handle: Any) -> None:
        self.killed.append(handle)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(_cluster, "ray", FakeRay({A: 2, B: 2}))
    made = Cluster(Setup("host:1", False, 4, 1, None, 1.0, 1, None, None, "", None, None))
    yield made
    made.leave()


def nodes_of(cluster: Cluster) -> Counter[str]:
    return Counter(actor.node for actor in cluster.actors)


def test_actors_are_spread_over_nodes_and_never_more_than_cpus(cluster: Cluster) -> None:
    cluster.scale(2, 1, 0, "read")
    assert nodes_of(cluster) == {A: 1, B: 1}
    cluster.scale(9, 1, 0, "read")
    assert nodes_of(cluster) == {A: 2, B: 2}


def test_an_actor_can_be_asked_for_while_the_head_is_gone(cluster: Cluster) -> None:
    """Ray waits for the head whenever a class is new to it; the agent, with work in its hands, must not."""
    made: Any = _cluster.ray
    cluster.scale(2, 1, 0, "read")
    cluster.scale(4, 1, 0, "read")
    assert made.classes == 1


def test_a_node_that_cannot_do_the_work_is_made_up_for_by_one_that_can(cluster: Cluster) -> None:
    """An actor that has no data there goes on existing: it may be of use for transforms."""
    cluster.scale(2, 1, 0, "read")
    (bad,) = [actor for actor in cluster.actors if actor.node == A]
    bad.fit["read"] = False
    cluster.scale(2, 1, 0, "read")
    assert nodes_of(cluster) == {A: 1, B: 2}
    cluster.scale(4, 1, 0, "read")
    assert nodes_of(cluster) == {A: 1, B: 2}
    cluster.scale(4, 1, 0, "transform")
    assert nodes_of(cluster) == {A: 2, B: 2}


def test_all_actors_are_ended_when_none_is_wanted_but_those_at_work(cluster: Cluster) -> None:
    cluster.scale(3, 1, 0, "read")
    busy, unfit, _ = cluster.actors
    busy.outstanding = 1
    unfit.fit["read"] = False
    cluster.scale(0, 0, 0)
    assert cluster.actors == [busy]
