"""Before an actor is given work, it has to show that it makes the samples this machine makes.

Versions of Python, torch, numpy and minato are compared; then a sample that is wanted anyway is made here and there,
under the same seed. A missing file, other data or another transform show up here and not in the training.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from .._errors import CapturedError
from .._records import Run
from ._cluster import Actor, Cluster, is_actor_gone, is_start_failed
from ._lanes import Desk
from ._purposes import Purpose, Transforming
from ._splitting import read, transform
from ._wire import Job, unwrap, versions, wrap

_RELATIVE, _ABSOLUTE = 1e-3, 1e-4  # tolerance for floats: other processors round otherwise
_MOST_ODD = 8  # samples that cannot be divided, or made, before that is taken for a rule


class _Probe:
    """A sample as it is here, and what an actor is asked in order to make it."""

    def __init__(self, method: str, argument: Any, expected: Any, is_steady: bool) -> None:
        self.method = method
        self.argument = argument
        self.expected = expected
        self.is_steady = is_steady
        """Whether this machine makes the same sample twice."""


class Greeter:
    """Greets the actors of a cluster."""

    def __init__(self, cluster: Cluster, woken: Callable[[], None]) -> None:
        self._cluster = cluster
        self._woken = woken
        self._probes: dict[str, _Probe] = {}
        self._asked: set[tuple[int, str]] = set()
        self._answers: deque[tuple[Actor, str, _Probe | None, Any, BaseException | None]] = deque()
        self._refusals: dict[str, str] = {}
        self._odd = 0
        """Samples that could not be taken for a probe."""

    def forget(self) -> None:
        """Samples are others from now on."""
        self._probes.clear()
        self._asked.clear()
        self._refusals.clear()
        self._odd = 0
        for actor in self._cluster.actors:
            actor.fit.clear()

    def needs_probe(self, purpose: Purpose) -> bool:
        return purpose.name not in self._probes and bool(self._cluster.actors)

    def take_probe(self, purpose: Purpose, desk: Desk, run: Run) -> None:
        """Make the run's first sample here, twice."""
        key, seed, dataset = run.keys[0], desk.seeds(run)[0], desk.program.dataset
        argument: Any
        if isinstance(purpose, Transforming):
            reading = read(dataset, key, seed)
            if reading is None:
                self.no_probe(purpose, "samples cannot be read here and transformed elsewhere")
                return
            if reading.rest is not None:
                reading.rest.close()
            method, argument = "transform", wrap([reading.half])
            halves = [unwrap(argument, writable=True)[0] for _ in range(2)]
            made = [transform(dataset, half) for half in halves]
        else:
            method, argument = "fetch", Job([key], [seed], desk.mends, desk.together, None, 0)
            try:
                made = [desk.make(key, seed) for _ in range(2)]
            except TypeError as error:
                self._refusals[purpose.name] = str(error)
                return
            if type(made[0]) is CapturedError and self._odd < _MOST_ODD:
                self._odd += 1  # says nothing of the data: the next one may
                return
        self._probes[purpose.name] = _Probe(method, argument, made[0], _same(*made))

    def no_probe(self, purpose: Purpose, why: str) -> None:
        """A sample cannot be asked for in two places; if that is the rule, this kind of work is refused."""
        self._odd += 1
        if self._odd >= _MOST_ODD:
            self._refusals[purpose.name] = why

    def greet(self, purpose: Purpose) -> None:
        """Ask those that were not asked yet."""
        probe = self._probes.get(purpose.name)
        if probe is None:
            return
        for actor in self._cluster.actors:
            if (actor.number, purpose.name) not in self._asked:
                self._asked.add((actor.number, purpose.name))
                self._ask(actor, purpose.name, None, "greet")
                self._ask(actor, purpose.name, probe, probe.method, probe.argument)

    def _ask(self, actor: Actor, name: str, probe: _Probe | None, method: str, *args: Any) -> None:
        def done(reply: Any, error: BaseException | None) -> None:
            self._answers.append((actor, name, probe, reply, error))
            self._woken()

        self._cluster.call(actor, method, *args, done=done)

    def collect(self, complain: Callable[[str], None]) -> None:
        """Judge the answers that have come."""
        while self._answers:
            actor, name, probe, reply, error = self._answers.popleft()
            actor.outstanding -= 1
            if error is not None:
                self._cluster.drop(actor)
                fault = f"could not be started: {type(error).__name__}: {error}"
                if is_actor_gone(error) and not is_start_failed(error):
                    complain(fault)  # another takes its place
                    continue
                self._cluster.blame(actor)
            elif probe is None:
                fault = _fault_of_versions(reply.versions)
            else:
                fault = _fault_of_sample(probe, reply)
            if fault and actor.fit.get(name) is not False:
                actor.fit[name] = False
                self._refusals[name] = f"an actor on node {actor.node[:8]} {fault}"
                complain(self._refusals[name])
            elif probe is not None and actor.fit.get(name) is not False:
                actor.fit[name] = True

    def refusal(self, purpose: Purpose) -> str:
        """Why no actor can be given this kind of work, if all that were asked refused."""
        judged = [actor.fit.get(purpose.name) for actor in self._cluster.actors]
        if purpose.name in self._probes and judged and any(fit is not False for fit in judged):
            return ""
        return self._refusals.get(purpose.name, "")


def _fault_of_versions(theirs: tuple[str, ...]) -> str:
    other = [f"{there} (here {here})" for here, there in zip(versions(), theirs, strict=True) if here != there]
    return f"has {', '.join(other)}" if other else ""


def _fault_of_sample(probe: _Probe, reply: Any) -> str:
    (sample,) = unwrap(reply[2], writable=True)
    if type(sample) is CapturedError and type(probe.expected) is not CapturedError:
        return f"cannot make a sample: {sample.rebuild()!r}"
    if probe.is_steady and not _same(probe.expected, sample):
        return "makes other samples than this machine: other data, or another version of the code"
    return ""


def _same(one: Any, other: Any) -> bool:
    """Whether two samples are the same, but for rounding."""
    if type(one) is CapturedError or type(other) is CapturedError:
        return type(one) is type(other)
    try:
        if _digest(one) == _digest(other):
            return True
        torch.testing.assert_close(other, one, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    except Exception:
        return False
    return True


def _digest(sample: Any) -> bytes:
    digest = hashlib.blake2b()
    for part in wrap(sample):
        digest.update(part)
    return digest.digest()
