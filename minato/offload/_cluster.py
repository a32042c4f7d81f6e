"""The Ray cluster, as the agent sees it: joined or started, its nodes, and actors on them. Alone in importing Ray.

No call waits for the cluster, but for `join` and `leave`: what may take long (a look at the nodes, ending an actor) is
done by a thread.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ._actor import FetchActor
from ._finding import LOCAL
from ._wire import Setup

LOOK_EVERY_S = 1.0  # seconds between looks at the nodes
DEPTH = 2  # calls at an actor: one in work, one waiting, so that it is never idle for the length of a message
_MOST_FAILURES = 3  # actors that cannot be made on a node, before no more are tried there
_log = logging.getLogger("minato.offload")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that may be used."""

    id: str
    name: str
    cpus: int


@dataclass(eq=False, slots=True)
class Actor:
    """One actor and what is known of it."""

    number: int
    node: str
    handle: Any
    outstanding: int = 0
    fit: dict[str, bool] = field(default_factory=dict)
    """Whether it gave the expected samples, by what was asked of it; absent: not asked yet."""
    gone: bool = False
    late_since: float | None = None
    """Since when it has not answered, if that is long: it gets no more work until it does."""


class Cluster:
    """Joined by the constructor. Methods are called by the agent's only thread."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.started_here = _join(setup)
        is_client = setup.address.startswith("ray://")
        self._here = "" if is_client else ray.get_runtime_context().get_node_id()
        self._class: Any = ray.remote(FetchActor)
        """One for all actors: each that is made anew goes to the head first, and is waited for if that is gone."""
        self.actors: list[Actor] = []
        self._blob: Any = None
        self._patch: Any = None
        """Attributes of the dataset that are not what they are in the cargo any more."""
        self._started = 0
        self._failures: Counter[str] = Counter()
        """Actors that could not be made, by node."""
        self._nodes = self._look()
        self._to_end: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Handles of actors to be ended; None: that was the last."""
        self._thread = threading.Thread(target=self._keep_looking, name="minato-nodes", daemon=True)
        self._thread.start()

    # ---- nodes ----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Node]:
        """Alive, with CPUs that may be used."""
        return self._nodes

    @property
    def room(self) -> int:
        """Actors there is room for: one for each CPU, those of other ranks included."""
        cpus = sum(node.cpus for node in self._nodes)
        return min(self._setup.most_actors, max(min(1, cpus), cpus // self._setup.ranks))

    def _look(self) -> list[Node]:
        look: Callable[[], list[dict[str, Any]]] = ray.nodes
        alive = [node for node in look() if node["Alive"]]
        usable = [
            Node(node["NodeID"], node["NodeManagerHostname"], int(node["Resources"].get("CPU", 0))) for node in alive
        ]
        others = [node for node in usable if node.id != self._here and node.cpus]
        # This machine's CPUs are busy with its own workers: no use, unless somebody just wants to try.
        use_here = self._setup.use_this_node if self._setup.use_this_node is not None else not others
        return [*others, *(node for node in usable if use_here and node.id == self._here and node.cpus)]

    def _keep_looking(self) -> None:
        """The thread: ends actors, and looks at the nodes in between."""
        look_at = time.monotonic() + LOOK_EVERY_S
        while True:
            try:
                handle = self._to_end.get(timeout=max(0.0, look_at - time.monotonic()))
                if handle is None:
                    return
                ray.kill(handle)
            except queue.Empty:
                look_at = time.monotonic() + LOOK_EVERY_S
                self._look_again()
            except Exception as error:
                _log.info("cannot end an actor: %s", error)

    def _look_again(self) -> None:
        try:
            self._nodes = self._look()
        except Exception as error:  # the cluster is gone, or busy: calls will tell
            _log.info("cannot see the nodes: %s", error)

    # ---- actors ---------------------------------------------------------------------------------------------------

    def put(self, blob: Any) -> None:
        """The cargo, once for all actors. Those that exist take it in place of the one before."""
        self._blob, self._patch = ray.put(blob), None
        self._failures.clear()
        for actor in self.actors:
            actor.fit.clear()
            actor.handle.load.remote(self._blob)

    def patch(self, patch: Any) -> None:
        """Attributes of the dataset have changed: all that have since the cargo was made."""
        self._patch = ray.put(patch)
        for actor in self.actors:
            actor.handle.patch.remote(self._patch)

    def scale(self, actors: int, num_workers: int, base_seed: int, purpose: str = "") -> list[Actor]:
        """Start actors until there are so many for a kind of work, where CPUs are free; end those that are too many and
        idle. Returns the new ones."""
        alive = {node.id for node in self._nodes}
        for actor in [one for one in self.actors if one.node not in alive]:
            self.drop(actor)
        wanted = min(actors, self.room)
        usable = [one for one in self.actors if one.fit.get(purpose) is not False]
        for actor in [one for one in reversed(usable) if not one.outstanding][: max(0, len(usable) - wanted)]:
            self.drop(actor)
        started: list[Actor] = []
        while len(usable) + len(started) < wanted:
            node = self._emptiest(purpose)
            if node is None:
                break
            started.append(self._start(node, num_workers, base_seed))
        return started

    def _emptiest(self, purpose: str) -> Node | None:
        """The node with the most free CPUs, but none that has shown that it cannot do this work: data may be missing
        there."""
        used = Counter(actor.node for actor in self.actors)
        unfit = {actor.node for actor in self.actors if actor.fit.get(purpose) is False}
        usable = [node for node in self._nodes if self._failures[node.id] < _MOST_FAILURES and node.id not in unfit]
        free = [node for node in usable if used[node.id] < node.cpus]
        return max(free, key=lambda node: node.cpus - used[node.id], default=None)

    def _start(self, node: Node, num_workers: int, base_seed: int) -> Actor:
        options: dict[str, Any] = {
            "num_cpus": 1,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
            "resources": self._setup.resources or {},
        }
        if self._setup.runtime_env is not None:
            options["runtime_env"] = self._setup.runtime_env
        number = num_workers + self._started
        self._started += 1
        handle: Any = self._class.options(**options).remote(self._blob, number, number + 1, base_seed)
        if self._patch is not None:
            handle.patch.remote(self._patch)
        actor = Actor(number, node.id, handle)
        self.actors.append(actor)
        return actor

    def blame(self, actor: Actor) -> None:
        """An actor could not be made. A node where that happens again and again gets no more, until there is another
        cargo."""
        self._failures[actor.node] += 1

    def least_busy(self, purpose: str) -> Actor | None:
        """The fit actor with the least to do, if it may have more."""
        free = [one for one in self.actors if one.outstanding < DEPTH and _can_work(one, purpose)]
        return min(free, key=lambda one: one.outstanding, default=None)

    def count_fit(self, purpose: str) -> int:
        """Actors that can be given work."""
        return sum(_can_work(actor, purpose) for actor in self.actors)

    def share_idle(self, purpose: str) -> float:
        """Share of them that has nothing to do."""
        able = [actor for actor in self.actors if _can_work(actor, purpose)]
        return sum(not actor.outstanding for actor in able) / max(1, len(able))

    def call(self, actor: Actor, method: str, *args: Any, done: Callable[[Any, BaseException | None], None]) -> Any:
        """Call a method of an actor; `done` is called by one of Ray's threads. Returns what `cancel` takes."""
        reference = getattr(actor.handle, method).remote(*args)
        actor.outstanding += 1

        def finished(future: Any) -> None:
            error = future.exception()
            done(None if error is not None else future.result(), error)

        reference.future().add_done_callback(finished)
        return reference

    def drop(self, actor: Actor) -> None:
        """End an actor, whatever it is doing."""
        actor.gone = True
        if actor in self.actors:
            self.actors.remove(actor)
        self._to_end.put(actor.handle)

    def leave(self) -> None:
        """End the actors; and the cluster, if it was started here."""
        for actor in list(self.actors):
            self.drop(actor)
        self._to_end.put(None)
        self._thread.join(LOOK_EVERY_S)  # those that are left end with the job
        ray.shutdown()


def _can_work(actor: Actor, purpose: str) -> bool:
    return bool(actor.fit.get(purpose)) and actor.late_since is None


def _join(setup: Setup) -> bool:
    """Connect to a cluster; True if it was started for that."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": setup.namespace}
    # Nor are raylets' last words for the user, a hundred lines for each that is killed: he gets one warning of ours.
    # There is no public switch; a Ray without this one goes on printing.
    ray._private.worker._worker_logs_enabled = False
    if setup.address == LOCAL:
        ray.init(address=LOCAL, num_cpus=setup.local_cpus, include_dashboard=False, **quiet)
        return True
    ray.init(address=setup.address, **quiet)
    return False


def is_actor_gone(error: BaseException) -> bool:
    """Whether a call failed because its actor, or the actor's node, is no more."""
    gone = (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError, ray.exceptions.ActorUnschedulableError)
    return isinstance(error, gone)


def is_start_failed(error: BaseException) -> bool:
    """Whether an actor is gone because it could not even be made: a module is missing on its node, say."""
    return "creation task" in str(error)


def is_store_full(error: BaseException) -> bool:
    """Whether a call failed because there was no room for what it gave."""
    full = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError, ray.exceptions.OutOfMemoryError)
    return isinstance(error, full) or isinstance(getattr(error, "cause", None), full)


def now_s() -> float:
    """The clock that the main process and the agent share."""
    return time.monotonic()
