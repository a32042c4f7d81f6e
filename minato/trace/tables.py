"""Tables of a run: operations, waits and delays, batches out of order. Times in seconds unless said otherwise. Those of
workers and samples are in workers.py and samples.py.

Every table is a list of frozen rows, or one frozen record; `dataclasses.asdict` of rows is what `pandas.DataFrame`
takes. Thresholds are parameters, and nothing is dropped unless it is asked for.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .._instrument import Flag, Kind
from .batches import BatchLife
from .reading import ProcessTrace, RunTrace

Seconds = npt.NDArray[np.float64]
STEPS = (Kind.LOADER, Kind.OP, Kind.COLLATION)


@dataclass(frozen=True, slots=True)
class OpRow:
    """One operation: the loading of samples, a transform, the collation, or a user's `traced` span."""

    name: str
    kind: str
    """"loader", "op", "collation", or "traced": inside one of the others."""
    calls: int
    """How many were recorded."""
    mean_ms: float
    p90_ms: float
    under_10ms: float
    """Share of the calls that took less than 10 ms."""
    under_100us: float
    total_s: float
    """Seconds over all workers, of all samples: scaled up where only some samples were looked at."""
    cpu_s: float
    """CPU seconds, scaled likewise."""
    share: float
    """Of `total_s` over all rows; 0 for "traced" ones, which are counted in others."""


def op_rows(run: RunTrace) -> list[OpRow]:
    """One row per operation, the dearest first."""
    groups: dict[tuple[str, str], list[tuple[Seconds, Seconds, float]]] = {}
    for process in run.processes:
        weight = sampling_weight(process)
        steps = process.of(*STEPS)
        kinds = np.where(steps["flags"] & Flag.USER, 0, steps["kind"]).astype(np.int64)
        keys = (kinds << 16) | steps["name"]
        for key in np.unique(keys).tolist():
            kind, chosen = key >> 16, steps[keys == key]
            label = "traced" if kind == 0 else Kind(kind).name.lower()
            scale = weight if kind in (Kind.LOADER, Kind.OP) else 1.0
            spent, used = chosen["duration_ns"] * 1e-9, chosen["cpu_us"] * 1e-6
            groups.setdefault((process.names[key & 0xFFFF], label), []).append((spent, used, scale))
    rows = [_op_row(name, kind, parts) for (name, kind), parts in groups.items()]
    whole = sum(row.total_s for row in rows if row.kind != "traced") or 1.0
    made = [row if row.kind == "traced" else replace(row, share=row.total_s / whole) for row in rows]
    return sorted(made, key=lambda row: -row.total_s)


def _op_row(name: str, kind: str, parts: list[tuple[Seconds, Seconds, float]]) -> OpRow:
    spent = np.concatenate([part[0] for part in parts])
    return OpRow(
        name=name,
        kind=kind,
        calls=len(spent),
        mean_ms=float(spent.mean() * 1e3),
        p90_ms=float(np.percentile(spent, 90) * 1e3),
        under_10ms=_share(spent < 10e-3),
        under_100us=_share(spent < 100e-6),
        total_s=sum(float(part[0].sum()) * part[2] for part in parts),
        cpu_s=sum(float(part[1].sum()) * part[2] for part in parts),
        share=0.0,
    )


def sampling_weight(process: ProcessTrace) -> float:
    """How many samples each recorded one stands for."""
    looked_at = len(process.of(Kind.SAMPLE))
    made = int(process.of(Kind.RUN)["count"].sum())
    return max(1.0, made / looked_at) if looked_at else 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of one quantity."""

    count: int
    total: float
    mean: float
    std: float
    std_percent: float
    """Of the mean."""
    min: float
    max: float
    median: float
    p25: float
    p75: float
    p90: float
    iqr: float
    outliers_removed: int = 0


def describe(values: Sequence[float], remove_outliers: bool = False) -> Spread:
    """Statistics of `values`. With `remove_outliers`, values below P25 - 2 IQR go first: the short last batch."""
    data = np.asarray(values, dtype=np.float64)
    removed = 0
    if remove_outliers and len(data):
        low, high = np.percentile(data, [25, 75])
        kept = data[data >= low - 2 * (high - low)]
        removed, data = len(data) - len(kept), kept
    if not len(data):
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p25, median, p75, p90 = (float(value) for value in np.percentile(data, [25, 50, 75, 90]))
    mean, std = float(data.mean()), float(data.std())
    return Spread(
        count=len(data),
        total=float(data.sum()),
        mean=mean,
        std=std,
        std_percent=100 * std / mean if mean else 0.0,
        min=float(data.min()),
        max=float(data.max()),
        median=median,
        p25=p25,
        p75=p75,
        p90=p90,
        iqr=p75 - p25,
        outliers_removed=removed,
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """What the consumer waited for batches."""

    spread: Spread
    ready: float
    """Share of batches that were there when they were asked for (1 µs in Lotus's files)."""
    up_to_short: float
    """Share that had to be waited for, up to `short_s`."""
    over_short: float
    over_long: float
    short_s: float
    long_s: float


def waits(lives: Sequence[BatchLife], short_s: float = 1e-3, long_s: float = 0.5) -> Waits:
    """How long the consumer waited."""
    waited = np.array([life.wait_ns * 1e-9 for life in lives if life.wait_ns is not None])
    ready = np.array([life.was_ready for life in lives if life.wait_ns is not None], dtype=bool)
    return Waits(
        spread=describe(waited.tolist()),
        ready=_share(ready),
        up_to_short=_share(~ready & (waited <= short_s)),
        over_short=_share(~ready & (waited > short_s)),
        over_long=_share(~ready & (waited > long_s)),
        short_s=short_s,
        long_s=long_s,
    )


@dataclass(frozen=True, slots=True)
class Delays:
    """How long batches that were done waited for the consumer."""

    spread: Spread
    under_short: float
    over_long: float
    over_step: float
    """Share that waited longer than the consumer takes for a batch."""
    short_s: float
    long_s: float
    step_s: float


def delays(lives: Sequence[BatchLife], step_s: float, short_s: float = 0.25, long_s: float = 0.5) -> Delays:
    """How long batches lay ready; `step_s` is what the consumer takes for one."""
    lain = np.array([delay * 1e-9 for life in lives if (delay := life.delay_ns) is not None])
    return Delays(
        spread=describe(lain.tolist()),
        under_short=_share(lain < short_s),
        over_long=_share(lain > long_s),
        over_step=_share(lain > step_s),
        short_s=short_s,
        long_s=long_s,
        step_s=step_s,
    )


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A batch that was done before one with a lower number."""

    id: int
    rank: int
    done_as: int
    """Its place in the order of being done, within its rank."""
    consumed_as: int | None
    """Its place in the order of being consumed."""
    overtook: int
    """Batches with lower numbers that were done later."""


def out_of_order(lives: Sequence[BatchLife]) -> list[OutOfOrder]:
    """Batches that overtook others, in order of their numbers."""
    found = []
    for rank in sorted({life.rank for life in lives}):
        done = [life for life in lives if life.rank == rank and life.done_ns is not None]
        done_as = _places([life.done_ns or 0 for life in done])
        taken = [life for life in done if life.consumed_ns is not None]
        consumed_as = dict(
            zip([life.id for life in taken], _places([life.consumed_ns or 0 for life in taken]), strict=True)
        )
        for life, place, overtook in zip(done, done_as, _overtaken(done_as), strict=True):
            if overtook:
                found.append(OutOfOrder(life.id, rank, place, consumed_as.get(life.id), overtook))
    return found


def pinned_while_waiting(lives: Sequence[BatchLife]) -> int:
    """Batches that lay ready while the consumer waited for another: what order costs."""
    by_rank: dict[int, list[BatchLife]] = {}
    for life in lives:
        by_rank.setdefault(life.rank, []).append(life)
    held: set[int] = set()
    for group in by_rank.values():
        whole = sorted(
            (life for life in group if life.done_ns and life.consumed_ns), key=lambda life: life.done_ns or 0
        )
        done = np.array([life.done_ns for life in whole])
        for life in group:
            if life.wait_start_ns is None or life.wait_ns is None or life.was_ready:
                continue
            until = int(np.searchsorted(done, life.wait_start_ns + life.wait_ns))
            first = max(0, until - 256)  # more are never in flight
            end_ns = life.wait_start_ns + life.wait_ns
            held |= {o.id for o in whole[first:until] if o is not life and (o.consumed_ns or 0) > end_ns}
    return len(held)


def _places(times: Sequence[int]) -> list[int]:
    """The place of each in the order of time."""
    order = np.argsort(np.asarray(times), kind="stable")
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return [int(place) for place in places]


def _overtaken(places: Sequence[int]) -> list[int]:
    """For each, how many before it in the list have a later place."""
    seen: list[int] = []
    counts = []
    for place in places:
        at = bisect.bisect_left(seen, place)
        counts.append(len(seen) - at)
        seen.insert(at, place)
    return counts


@dataclass(frozen=True, slots=True)
class CacheLooks:
    """Samples that were looked for in the loader's cache."""

    hits: int
    misses: int

    @property
    def hit_share(self) -> float:
        return self.hits / whole if (whole := self.hits + self.misses) else 0.0


def cache_looks(run: RunTrace) -> CacheLooks:
    """Over all processes."""
    found = {"hit": 0, "miss": 0}
    for process in run.processes:
        looks = process.of(Kind.CACHE)
        for number, count in zip(looks["name"].tolist(), looks["count"].tolist(), strict=True):
            found[process.names[number]] = found.get(process.names[number], 0) + count
    return CacheLooks(found["hit"], found["miss"])


def offloaded(run: RunTrace) -> int:
    """Samples that other machines made."""
    return sum(int(process.of(Kind.OFFLOADED)["count"].sum()) for process in run.mains)


def _share(chosen: npt.NDArray[np.bool_]) -> float:
    return float(np.mean(chosen)) if len(chosen) else 0.0
