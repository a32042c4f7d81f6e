"""What a loader's scheduler was told, and the same decisions again from it: without processes, clocks or data.

recording = Recording.from_json(text)
replay(recording).decisions             # what the policy that was used decided
replay(recording, PaperPolicy())        # what another would have decided, had it been told the same
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat

from .climbing import ClimbingPolicy
from .policy import Decision, Observation, Policy, WorkerLimits
from .profile import Profile
from .threshold import ThresholdRule

MOST_EVENTS = 4096  # of either kind, the newest
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CostEvent:
    """A worker has made some samples."""

    seconds: float
    """Each, on average."""
    samples: int = 1
    from_cache: bool = False


class Recorder:
    """Keeps what the scheduler of one loader is told."""

    def __init__(self, rule: ThresholdRule, most: int = MOST_EVENTS) -> None:
        self._rule = rule
        self._costs: deque[tuple[float, int, bool]] = deque(maxlen=most)  # a record for each would cost a microsecond
        self._observations: deque[Observation] = deque(maxlen=most)
        self._limits: WorkerLimits | None = None

    def cost(self, seconds: float, samples: int, from_cache: bool) -> None:
        """A `CostEvent`."""
        self._costs.append((seconds, samples, from_cache))

    def costs(self, seconds: Sequence[float], samples: Sequence[int], from_cache: bool) -> None:
        """One for each of several."""
        self._costs.extend(zip(seconds, samples, repeat(from_cache), strict=False))

    def observed(self, observation: Observation, limits: WorkerLimits) -> None:
        if limits != self._limits:  # another pool: what was seen before belongs to other limits
            self._observations.clear()
            self._limits = limits
        self._observations.append(observation)

    @property
    def recording(self) -> Recording:
        """As far as it goes back."""
        return Recording(
            self._rule, tuple(CostEvent(*one) for one in self._costs), tuple(self._observations), self._limits
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """Events in the order they came."""

    rule: ThresholdRule
    costs: tuple[CostEvent, ...]
    observations: tuple[Observation, ...]
    limits: WorkerLimits | None
    """None: the number of workers was fixed."""

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Recording:
        """ValueError if it is no recording."""
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r}, needed {_FORMAT}")
            return cls(
                ThresholdRule(**content["rule"]),
                tuple(CostEvent(**event) for event in content["costs"]),
                tuple(Observation(**one) for one in content["observations"]),
                None if content["limits"] is None else WorkerLimits(**content["limits"]),
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"this is not a recording: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the scheduler makes of a recording."""

    thresholds: tuple[float | None, ...]
    """Seconds from which on a sample counted as slow, after each cost event."""
    slow: int
    """Cost events that counted as slow."""
    decisions: tuple[Decision, ...]
    """One for each observation."""


def replay(recording: Recording, policy: Policy | None = None) -> Replayed:
    """Tell a new scheduler what was recorded. `policy`: None is the default one."""
    thresholds, slow = _replay_costs(recording.rule, recording.costs)
    decisions: tuple[Decision, ...] = ()
    if recording.limits is not None:
        controller = (ClimbingPolicy() if policy is None else policy).begin(recording.limits)
        decisions = tuple(controller.decide(observation) for observation in recording.observations)
    return Replayed(thresholds, slow, decisions)


def _replay_costs(rule: ThresholdRule, events: Iterable[CostEvent]) -> tuple[tuple[float | None, ...], int]:
    profile, slow = Profile(rule), 0
    thresholds: list[float | None] = []
    for event in events:
        kind = profile.of(event.from_cache)
        slow += kind.observe(event.seconds, samples=event.samples)
        thresholds.append(profile.made.threshold)
    return tuple(thresholds), slow
