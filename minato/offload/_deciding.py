"""When to offload, which stages, how much, to how many: pure functions of what was measured (FastFlow's policy).

Rates are in batches per second, costs in seconds of local CPU time per batch. Two formulas differ from the paper's:

- What offloading costs the local workers. The paper takes `Lthp * (1 - Ocycle / Pcycle)` for the local rate that is
  left, which holds when local CPUs are saturated and the remote rate equals the local one. Here CPU time is accounted
  for: local work and offloading together cannot use more cores than there are. Workers that wait (for a disk, a
  network) leave cores idle, and offloading is free as long as it stays within those.
- The ratio. `Upper / Gthp` sends away as much as the remote side can take; by default `Lower / Gthp` is used, the least
  that ends the stall. Both are clipped to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOCAL = "local"
PLACEMENTS = ("transform", "sample", "batch")
"""What may be done elsewhere: transforms only; reading and transforms, sample by sample; whole batches."""
MARGIN = 1.05  # times the least remote rate that ends the stall: less, and noise makes the consumer wait
_TIE = 0.02  # of the rate; estimates that close are equal, and the one that costs this machine less is taken


@dataclass(frozen=True, slots=True)
class LocalMetrics:
    """Measured without offloading."""

    gthp: float
    """What the consumer could take, in batches per second."""
    lthp: float
    """What it got."""
    pcycle_s: float
    """CPU seconds of the loader's own processes per batch."""
    cores: float
    """Cores that the loader's processes may use."""


@dataclass(frozen=True, slots=True)
class RemoteMetrics:
    """Measured with the remote side kept busy in one placement."""

    placement: str
    rthp: float
    """Batches per second that came back from all actors."""
    actors: int
    ocycle_s: float
    """CPU seconds that offloading cost on this machine, per batch."""
    alone: float
    """Batches per second that they would give if there always were work for them, whatever the consumer takes."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a placement would give."""

    placement: str
    rate: float
    """Batches per second from both sides, before the consumer's limit."""
    local_rate: float
    """The local share of it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why."""

    placement: str
    ratio: float
    """Share of the samples that goes to the remote side."""
    actors: int
    reason: str
    estimates: tuple[Estimate, ...] = ()


def is_stalled(gthp: float, lthp: float, min_speedup: float) -> bool:
    """Whether the consumer waits enough for offloading to be worth it."""
    return lthp > 0 and gthp / lthp >= min_speedup


def local_rate(local: LocalMetrics, remote_rate: float, ocycle_s: float) -> float:
    """Batches per second that local workers still make beside a remote rate, whose handling takes CPU time here."""
    if local.pcycle_s <= 0:
        return local.lthp
    left = max(0.0, local.cores - remote_rate * ocycle_s)
    return min(local.lthp, left / local.pcycle_s)


def estimate(local: LocalMetrics, remote: RemoteMetrics) -> Estimate:
    """Both sides at full speed."""
    beside = local_rate(local, remote.rthp, remote.ocycle_s)
    return Estimate(remote.placement, beside + remote.rthp, beside)


def least_remote_rate(local: LocalMetrics, ocycle_s: float) -> float:
    """`Lower`: the least remote rate with which both sides together feed the consumer; infinite if none does."""
    missing = max(0.0, local.gthp - local.lthp)
    if local_rate(local, missing, ocycle_s) >= local.lthp:
        return missing
    # Local CPUs are saturated: each remote batch costs ocycle/pcycle of a local one.
    gain = 1 - ocycle_s / local.pcycle_s
    return (local.gthp - local.cores / local.pcycle_s) / gain if gain > 0 else math.inf


def choose_ratio(local: LocalMetrics, remote: RemoteMetrics, prefer_local: bool = True) -> float:
    """The share that goes to the remote side."""
    lower, upper = least_remote_rate(local, remote.ocycle_s), remote.rthp
    if lower <= upper:
        target = min(upper, lower * MARGIN) if prefer_local else upper
        return _clipped(target / local.gthp)
    return _clipped(upper / max(upper + local_rate(local, upper, remote.ocycle_s), 1e-12))


def choose_actors(local: LocalMetrics, remote: RemoteMetrics, most: int) -> int:
    """Actors needed for the least remote rate, by what one of them was measured to give."""
    each = max(remote.rthp, remote.alone) / max(1, remote.actors)
    lower = least_remote_rate(local, remote.ocycle_s) * MARGIN
    if each <= 0 or lower >= each * most:
        return most
    return max(1, min(most, math.ceil(lower / each)))


def decide(
    local: LocalMetrics,
    remotes: Sequence[RemoteMetrics],
    *,
    min_speedup: float,
    prefer_local: bool,
    most_actors: int,
) -> Decision:
    """The placement with the highest rate the consumer can use, and how much of the work goes there."""
    if not is_stalled(local.gthp, local.lthp, min_speedup):
        return Decision(LOCAL, 0.0, 0, f"no stall: consumer {local.gthp:.3g}/s, local {local.lthp:.3g}/s")
    estimates = tuple(estimate(local, remote) for remote in remotes)
    if not remotes:
        return Decision(LOCAL, 0.0, 0, "no placement could be measured")
    best = max(min(one.rate, local.gthp) for one in estimates)
    near = [
        (remote.ocycle_s, remote, one)
        for remote, one in zip(remotes, estimates, strict=True)
        if min(one.rate, local.gthp) >= best * (1 - _TIE)
    ]
    _, remote, chosen = min(near, key=lambda item: item[0])
    if best < min_speedup * local.lthp:
        reason = f"no gain: {chosen.placement} would give {best:.3g}/s, local alone {local.lthp:.3g}/s"
        return Decision(LOCAL, 0.0, 0, reason, estimates)
    ratio = choose_ratio(local, remote, prefer_local)
    actors = choose_actors(local, remote, most_actors)
    reason = (
        f"stall: consumer {local.gthp:.3g}/s, local {local.lthp:.3g}/s; {chosen.placement} gives {chosen.rate:.3g}/s "
        f"with {remote.rthp:.3g}/s remote"
    )
    return Decision(chosen.placement, ratio, actors, reason, estimates)


def _clipped(ratio: float) -> float:
    return min(1.0, max(0.0, ratio))
