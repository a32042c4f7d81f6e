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
ENOUGH_EACH = 16  # samples of a process, from which on they are compared among themselves
MANY_TIMES = 5.0  # times the median, from which on a sample is slow
MOST_LISTED = 10
_CANDIDATES = 400  # slowest spans that are looked through for the list: an index may come again in every epoch


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """What samples took, in seconds."""

    median: float = 0.0
    p99: float = 0.0
    tail: float = 0.0
    """P99 in medians. What a sample takes is compared with others of its process here, and below: that a worker is slow
    does not make its samples exceptions."""
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
    slow_part: str = ""
    """What takes more of their time than all the rest: an operation, or in loading the user's own span; empty if there
    is no such."""


def sample_times(run: RunTrace, by_cpu: bool = False) -> SampleTimes:
    """Over all processes. With `by_cpu` it is CPU time that counts: the rest is waiting for other samples."""
    looked_at = sum(len(process.of(Kind.SAMPLE)) for process in run.processes)
    by_span = looked_at >= min(ENOUGH, max(1, _made(run)))
    parts = [_spans(process) if by_span else _means(process) for process in run.processes]
    spent = np.concatenate([part[by_cpu] for part in parts]) if parts else np.empty(0)
    used = np.concatenate([part[1] for part in parts]) if parts else np.empty(0)
    if not len(spent):
        return SampleTimes()
    median, p99 = (float(value) for value in np.percentile(spent, [50, 99]))
    own = [float(np.median(part[by_cpu])) if len(part[0]) >= ENOUGH_EACH else median for part in parts]
    medians = np.repeat(own, [len(part[0]) for part in parts])
    slow = spent >= MANY_TIMES * medians
    slow_s = float(spent[slow].sum())
    on_cpu = min(1.0, float(used[slow].sum()) / slow_s) if slow_s else 0.0
    share, work = float(slow.mean()), slow_s / float(spent.sum() or 1.0)
    if by_span and looked_at < (made := _made(run)):
        share, work = _of_all(spent, slow, made, sum(float(_means(process)[by_cpu].sum()) for process in run.processes))
    seen = _SlowParts(by_cpu)
    for process, usual in zip(run.processes, own, strict=True):
        seen.add(process, MANY_TIMES * usual)
    stages_seen = seen.spent_s >= ENOUGH_OF_SLOW * slow_s > 0
    return SampleTimes(
        median=median,
        p99=p99,
        tail=float(np.percentile(spent[medians > 0] / medians[medians > 0], 99)) if (medians > 0).any() else 0.0,
        slow_share=share,
        slow_work=work,
        slow_median=float(np.median(spent[slow])) if slow.any() else 0.0,
        slow_on_cpu=on_cpu,
        slow_loading=min(1.0, seen.stalled_s / seen.spent_s) if stages_seen else 1 - on_cpu if slow_s else 0.0,
        stages_seen=stages_seen,
        slow_part=seen.most() if stages_seen else "",
    )


def _of_all(spent: Seconds, slow: npt.NDArray[np.bool_], made: int, work_s: float) -> tuple[float, float]:
    """How many of `made` samples are slow, and what share of the work they take, where only some were looked at.

    Of slow samples few were seen, and chance says how few; what all samples took together is known exactly. So as many
    are slow as that takes, the others being as quick as those that were seen; but no more and no fewer than chance
    allows for."""
    count = int(slow.sum())
    if not count or count == len(spent):
        return float(slow.mean()), float(count > 0)
    usual_s, slow_s = float(spent[~slow].mean()), float(spent[slow].mean())
    share = (work_s / made - usual_s) / (slow_s - usual_s)
    least, most = max(0.0, count - 2 * count**0.5), count + 1 + 2 * count**0.5
    share = min(max(share, least / len(spent)), most / len(spent), 1.0)
    return share, share * slow_s / (share * slow_s + (1 - share) * usual_s)


def _made(run: RunTrace) -> int:
    return sum(int(process.of(Kind.RUN)["count"].sum()) for process in run.processes)


def _spans(process: ProcessTrace) -> tuple[Seconds, Seconds]:
    return spent_used(process.of(Kind.SAMPLE))


def _means(process: ProcessTrace) -> tuple[Seconds, Seconds]:
    runs = process.of(Kind.RUN)
    counts = np.maximum(1, runs["count"])
    spent, used = run_lengths(runs) / counts * 1e-9, runs["cpu_us"] / counts * 1e-6
    return np.repeat(spent, runs["count"]), np.repeat(used, runs["count"])


def spent_used(records: Records) -> tuple[Seconds, Seconds]:
    """Seconds of each span, and seconds of CPU time."""
    return records["duration_ns"] * 1e-9, records["cpu_us"] * 1e-6


class _SlowParts:
    """Where the time of slow samples goes, of those that were looked at."""

    def __init__(self, by_cpu: bool) -> None:
        self._by_cpu = by_cpu
        self._stages: dict[str, float] = {}
        self._spans: dict[str, float] = {}
        """The user's own, inside stages."""
        self._loading: set[str] = set()
        self.spent_s = 0.0
        self.stalled_s = 0.0
        """That their loading was off the CPU."""

    def add(self, process: ProcessTrace, limit_s: float) -> None:
        """Those of one process that took `limit_s` or more."""
        samples, steps = process.of(Kind.SAMPLE), process.of(Kind.LOADER, Kind.OP)
        slow = samples[spent_used(samples)[self._by_cpu] >= limit_s]
        self.spent_s += float(spent_used(slow)[self._by_cpu].sum())
        theirs = steps[_belong(steps, slow)]
        for number in np.unique(theirs["name"]).tolist():
            named = theirs[theirs["name"] == number]
            users = (named["flags"] & Flag.USER) != 0
            for into, chosen in ((self._spans, named[users]), (self._stages, named[~users])):
                if len(chosen):
                    name = process.names[number]
                    into[name] = into.get(name, 0.0) + float(spent_used(chosen)[self._by_cpu].sum())
        loading = theirs[theirs["kind"] == Kind.LOADER]
        self._loading |= {process.names[number] for number in np.unique(loading["name"]).tolist()}
        if not self._by_cpu:
            spent, used = spent_used(loading)
            self.stalled_s += float(np.maximum(0.0, spent - used).sum())

    def most(self) -> str:
        """The part that takes more than all others."""
        stage = max(self._stages, key=lambda name: self._stages[name], default="")
        if not stage or self._stages[stage] < 0.5 * self.spent_s:
            return ""
        inside = max(self._spans, key=lambda name: self._spans[name], default="")
        is_inside = stage in self._loading and inside and self._spans[inside] >= 0.5 * self._stages[stage]
        return inside if is_inside else stage


def _belong(steps: Records, samples: Records) -> npt.NDArray[np.bool_]:
    """Which of `steps` are of one of `samples`: by its index, or where samples have none, by lying inside it."""
    theirs: npt.NDArray[np.bool_] = np.isin(_sample_key(steps), _sample_key(samples)) & (steps["index"] != NONE)
    unnamed = samples[samples["index"] == NONE]
    for thread in np.unique(unnamed["thread"]).tolist():
        inside = np.sort(unnamed[unnamed["thread"] == thread], order="start_ns")
        places = np.flatnonzero(steps["thread"] == thread)
        starts = steps["start_ns"][places]
        at = np.searchsorted(inside["start_ns"], starts, side="right") - 1
        ends = inside["start_ns"][at] + inside["duration_ns"][at]
        theirs[places[(at >= 0) & (starts < ends)]] = True
    return theirs


def _sample_key(records: Records) -> npt.NDArray[np.int64]:
    """A number for each record's pool, batch and index: equal for no two samples of a run, but by rarest chance."""
    batches = records["pool"].astype(np.int64) * 1_000_003 + records["batch"]
    keys: npt.NDArray[np.int64] = batches * 998_244_353 + records["index"]
    return keys


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
