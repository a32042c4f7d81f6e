"""What single samples took: all of them as numbers, and the slowest by name.

Where every sample was looked at, or enough of them, numbers are those of SAMPLE spans. Otherwise samples that were made
in one run count as its mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._instrument import NONE, Flag, Kind
from .batches import run_lengths
from .reading import ProcessTrace, Records, RunTrace

Seconds = npt.NDArray[np.float64]
ENOUGH = 200  # samples that were looked at, from which on they stand for all
ENOUGH_OF_SLOW = 0.1  # share of the time of slow samples, from which on those that were looked at stand for all
MANY_TIMES = 5.0  # times the median, from which on a sample is slow
MOST_LISTED = 10
_CANDIDATES = 400  # slowest spans that are looked through for the list: an index may come again in every epoch


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """What samples took, in seconds."""

    median: float = 0.0
    p99: float = 0.0
    slow_share: float = 0.0
    """Of the samples, those that took `MANY_TIMES` the median or more."""
    slow_work: float = 0.0
    """Of the time of all samples, what those took."""
    slow_median: float = 0.0
    """What one of those took."""
    slow_on_cpu: float = 0.0
    """Of their time, the share on the CPU."""
    slow_loading: float = 0.0
    """Of their time, the share that their loading was off the CPU; if no stages of such samples were seen, that they
    were."""
    stages_seen: bool = True
    """Whether the stages of enough of those were looked at."""


def sample_times(run: RunTrace) -> SampleTimes:
    """Over all processes."""
    looked_at = sum(len(process.of(Kind.SAMPLE)) for process in run.processes)
    by_span = looked_at >= min(ENOUGH, max(1, _made(run)))
    parts = [_spans(process) if by_span else _means(process) for process in run.processes]
    spent = np.concatenate([part[0] for part in parts]) if parts else np.empty(0)
    used = np.concatenate([part[1] for part in parts]) if parts else np.empty(0)
    if not len(spent):
        return SampleTimes()
    median, p99 = (float(value) for value in np.percentile(spent, [50, 99]))
    slow = spent >= MANY_TIMES * median
    slow_s = float(spent[slow].sum())
    on_cpu = min(1.0, float(used[slow].sum()) / slow_s) if slow_s else 0.0
    seen = [_stalled(process, MANY_TIMES * median) for process in run.processes]
    seen_s, stalled_s = (sum(part) for part in zip(*seen, strict=True))
    stages_seen = seen_s >= ENOUGH_OF_SLOW * slow_s > 0
    return SampleTimes(
        median=median,
        p99=p99,
        slow_share=float(slow.mean()),
        slow_work=slow_s / float(spent.sum() or 1.0),
        slow_median=float(np.median(spent[slow])) if slow.any() else 0.0,
        slow_on_cpu=on_cpu,
        slow_loading=min(1.0, stalled_s / seen_s) if stages_seen else 1 - on_cpu if slow_s else 0.0,
        stages_seen=stages_seen,
    )


def _made(run: RunTrace) -> int:
    return sum(int(process.of(Kind.RUN)["count"].sum()) for process in run.processes)


def _spans(process: ProcessTrace) -> tuple[Seconds, Seconds]:
    samples = process.of(Kind.SAMPLE)
    return samples["duration_ns"] * 1e-9, samples["cpu_us"] * 1e-6


def _means(process: ProcessTrace) -> tuple[Seconds, Seconds]:
    runs = process.of(Kind.RUN)
    counts = np.maximum(1, runs["count"])
    spent, used = run_lengths(runs) / counts * 1e-9, runs["cpu_us"] / counts * 1e-6
    return np.repeat(spent, runs["count"]), np.repeat(used, runs["count"])


def _stalled(process: ProcessTrace, limit_s: float) -> tuple[float, float]:
    """Seconds of a process's slow samples that were looked at, and those that their loading was off the CPU."""
    samples, loading = process.of(Kind.SAMPLE), process.of(Kind.LOADER)
    slow = samples[samples["duration_ns"] >= limit_s * 1e9]
    theirs = loading[np.isin(loading["index"], slow["index"]) & (loading["duration_ns"] >= limit_s * 0.5e9)]
    stalled_s = float(theirs["duration_ns"].sum() * 1e-9 - theirs["cpu_us"].sum() * 1e-6)
    return float(slow["duration_ns"].sum() * 1e-9), stalled_s


@dataclass(frozen=True, slots=True)
class SlowSample:
    """One of the slowest samples that were looked at; at its slowest, if it was made several times."""

    index: int
    ms: float
    cpu_ms: float
    slowest_op: str
    """Where most of its time went."""
    slowest_op_ms: float
    seen: int
    """How often it is among the slowest: once per epoch, if it is always slow."""
    rank: int
    worker: int
    pid: int
    batch: int
    """Number in its pool."""
    nbytes: int


def slowest_samples(run: RunTrace, most: int = MOST_LISTED) -> list[SlowSample]:
    """The slowest samples by their index, the slowest first."""
    found: list[tuple[int, ProcessTrace, Records]] = []
    for process in run.processes:
        samples = process.of(Kind.SAMPLE)
        samples = samples[samples["index"] != NONE]
        last = max(0, len(samples) - _CANDIDATES)
        order = np.argpartition(samples["duration_ns"], last)[last:] if len(samples) else ()
        found += [(int(samples["duration_ns"][place]), process, samples[place]) for place in order]
    found.sort(key=lambda entry: -entry[0])
    seen: dict[tuple[int, int], list[tuple[int, ProcessTrace, Records]]] = {}
    for entry in found[:_CANDIDATES]:
        seen.setdefault((entry[1].header.rank, int(entry[2]["index"])), []).append(entry)
    slowest = sorted(seen.values(), key=lambda group: -group[0][0])[:most]
    return [_slow_sample(group[0][1], group[0][2], len(group)) for group in slowest]


def _slow_sample(process: ProcessTrace, sample: Records, seen: int) -> SlowSample:
    stages = process.of(Kind.LOADER, Kind.OP)
    same = np.ones(len(stages), dtype=bool)
    for name in ("index", "batch", "pool"):
        same &= stages[name] == sample[name]
    theirs = stages[same & ((stages["flags"] & Flag.USER) == 0)]
    longest = theirs[np.argmax(theirs["duration_ns"])] if len(theirs) else None
    header = process.header
    return SlowSample(
        index=int(sample["index"]),
        ms=float(sample["duration_ns"]) * 1e-6,
        cpu_ms=float(sample["cpu_us"]) * 1e-3,
        slowest_op="" if longest is None else process.names[int(longest["name"])],
        slowest_op_ms=0.0 if longest is None else float(longest["duration_ns"]) * 1e-6,
        seen=seen,
        rank=header.rank,
        worker=header.worker,
        pid=header.pid,
        batch=int(sample["batch"]),
        nbytes=int(sample["nbytes"]),
    )
