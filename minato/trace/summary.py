"""All tables of a run and the verdict, and how they are written: text, CSV, JSON, rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .._instrument import Kind
from . import tables
from .batches import BatchLife, batches
from .facts import Facts, OpFact, WorkerFact
from .reading import RunTrace, read_run
from .samples import SlowSample, sample_times, slowest_samples
from .tables import CacheLooks, Delays, OpRow, OutOfOrder, Spread, Waits
from .verdict import CROWDED, Verdict, judge
from .workers import WorkerRow, worker_rows

MOST_KNOWN = 0.5  # share of the work that collating must have to be judged where nothing else is known


@dataclass(frozen=True)
class Summary:
    """What a trace tells."""

    run: RunTrace
    batches: Sequence[BatchLife]
    ops: Sequence[OpRow]
    batch_time: Spread
    """Seconds to preprocess a batch, from its first sample's start to its last row."""
    waits: Waits
    delays: Delays
    out_of_order: Sequence[OutOfOrder]
    pinned_while_waiting: int
    workers: Sequence[WorkerRow]
    slowest: Sequence[SlowSample]
    """Of the samples that were looked at, the slowest first."""
    verdict: Verdict
    step_s: float
    """Median seconds of the consumer between taking a batch and asking for the next."""
    events: int
    samples: int
    trace_bytes: int
    cache: CacheLooks
    samples_offloaded: int

    def to_dict(self) -> dict[str, Any]:
        """Everything but the batches, as plain values for JSON."""
        whole = {
            "path": str(self.run.path),
            "ranks": self.run.ranks,
            "wall_s": (self.run.end_ns - self.run.start_ns) * 1e-9,
            "events": self.events,
            "samples": self.samples,
            "trace_bytes": self.trace_bytes,
            "cache_hits": self.cache.hits,
            "cache_misses": self.cache.misses,
            "samples_offloaded": self.samples_offloaded,
            "step_s": self.step_s,
            "pinned_while_waiting": self.pinned_while_waiting,
            "unreadable": list(self.run.unreadable),
            "dropped_segments": sum(process.dropped_segments for process in self.run.processes),
        }
        for name in ("batch_time", "waits", "delays", "verdict"):
            whole[name] = asdict(getattr(self, name))
        for name in ("ops", "workers", "slowest", "out_of_order"):
            whole[name] = rows(getattr(self, name))
        whole["out_of_order_share"] = len(self.out_of_order) / len(self.batches) if self.batches else 0.0
        return whole


def rows(table: Sequence[Any]) -> list[dict[str, Any]]:
    """A table as dicts, as `pandas.DataFrame` takes them."""
    return [asdict(row) for row in table]


def summarize(
    run: RunTrace | str | Path,
    wait_thresholds_s: tuple[float, float] = (1e-3, 0.5),
    delay_thresholds_s: tuple[float, float] = (0.25, 0.5),
    remove_outliers: bool = False,
) -> Summary:
    """All tables of a run. `remove_outliers` leaves a short last batch out of `batch_time`."""
    run = run if isinstance(run, RunTrace) else read_run(run)
    lives = batches(run)
    steps = _steps(lives)
    step_s = float(np.median(steps)) if steps else 0.0
    ops, workers = tables.op_rows(run), worker_rows(run)
    preprocess = [life.preprocess_ns * 1e-9 for life in lives if life.preprocess_ns is not None]
    lain = tables.delays(lives, step_s, *delay_thresholds_s)
    facts = _facts(run, lives, steps, ops, workers, lain.spread.mean)
    return Summary(
        run=run,
        batches=lives,
        ops=ops,
        batch_time=tables.describe(preprocess, remove_outliers),
        waits=tables.waits(lives, *wait_thresholds_s),
        delays=lain,
        out_of_order=tables.out_of_order(lives),
        pinned_while_waiting=tables.pinned_while_waiting(lives),
        workers=workers,
        slowest=slowest_samples(run),
        verdict=judge(facts),
        step_s=step_s,
        events=sum(len(process.records) + len(process.notes) for process in run.processes),
        samples=sum(int(process.of(Kind.RUN)["count"].sum()) for process in run.processes),
        cache=tables.cache_looks(run),
        samples_offloaded=tables.offloaded(run),
        trace_bytes=sum(process.file_bytes for process in run.processes),
    )


def _steps(lives: Sequence[BatchLife]) -> list[float]:
    """Seconds from taking a batch to asking for the next of the same pool."""
    asked: dict[tuple[int, int], list[BatchLife]] = {}
    for life in lives:
        if life.wait_start_ns is not None and life.consumed_ns is not None:
            asked.setdefault((life.rank, life.pool), []).append(life)
    steps = []
    for group in asked.values():
        group.sort(key=lambda life: life.wait_start_ns or 0)
        for before, after in pairwise(group):
            steps.append(max(0, (after.wait_start_ns or 0) - (before.consumed_ns or 0)) * 1e-9)
    return steps


def _facts(
    run: RunTrace,
    lives: Sequence[BatchLife],
    steps: Sequence[float],
    ops: Sequence[OpRow],
    workers: Sequence[WorkerRow],
    mean_delay_s: float,
) -> Facts:
    first = _first_of_pools(lives)
    waited = [life.wait_ns * 1e-9 for life in lives if life.wait_ns is not None and life.id not in first]
    alive_s = sum(row.alive_s * row.lanes for row in workers)
    crowded = [row for row in workers if row.lanes > 1 and row.at_work_s > 0]
    cores = _cores_wanted(crowded)
    work_s = sum(row.busy_s for row in workers)
    return Facts(
        batches=sum(life.consumed_ns is not None for life in lives),
        waited_s=sum(waited),
        stepped_s=sum(steps),
        startup_s=sum((life.wait_ns or 0) * 1e-9 for life in lives if life.id in first),
        mean_delay_s=mean_delay_s,
        busy_share=sum(row.busy_s for row in workers) / alive_s if alive_s else 0.0,
        work_s=work_s,
        work_cpu_s=sum(row.cpu_s for row in workers),
        is_inline=bool(workers) and all(row.worker < 0 and row.lanes == 1 for row in workers),
        starved=_starved(workers),
        crowded_cpu=cores,
        samples=sample_times(run, by_cpu=cores >= CROWDED),
        ops=_op_facts(_judged(ops, work_s)),
        inner=_op_facts(row for row in ops if row.kind == "traced"),
        workers=_worker_facts(run, workers),
    )


def _cores_wanted(workers: Sequence[WorkerRow]) -> float:
    """By each of these workers, while it made samples: those it used, and those that it wanted and others had."""
    at_work_s = sum(row.at_work_s for row in workers)
    return sum(row.cpu_s + (row.starved_s or 0.0) for row in workers) / at_work_s if at_work_s else 0.0


def _starved(workers: Sequence[WorkerRow]) -> float | None:
    """Of the work of those who tell, the share for which they had no core."""
    told = [row for row in workers if row.starved_s is not None and row.busy_s > 0]
    worked_s = sum(row.busy_s for row in told)
    return min(1.0, sum(row.starved_s or 0.0 for row in told) / worked_s) if worked_s else None


def _judged(ops: Sequence[OpRow], work_s: float) -> list[OpRow]:
    """Operations to judge by. Where no sample was looked at, only the collation is known: it counts if most of the work
    is known with it."""
    steps = [row for row in ops if row.kind != "traced"]
    if all(row.kind == "collation" for row in steps) and sum(row.total_s for row in steps) < MOST_KNOWN * work_s:
        return []
    return steps


def _op_facts(ops: Iterable[OpRow]) -> list[OpFact]:
    return [OpFact(row.name, row.kind == "loader", row.total_s, row.cpu_s, row.mean_ms * 1e-3) for row in ops]


def _first_of_pools(lives: Sequence[BatchLife]) -> set[int]:
    """The batch that each pool's consumer asked for first."""
    first: dict[tuple[int, int], BatchLife] = {}
    for life in lives:
        if life.wait_start_ns is not None:
            known = first.get((life.rank, life.pool))
            if known is None or life.wait_start_ns < (known.wait_start_ns or 0):
                first[life.rank, life.pool] = life
    return {life.id for life in first.values() if life.wait_ns is not None} if len(lives) > len(first) else set()


def _worker_facts(run: RunTrace, workers: Sequence[WorkerRow]) -> list[WorkerFact]:
    ranks = len(run.ranks) > 1
    merged: dict[str, list[WorkerRow]] = {}
    for row in workers:  # pools of later epochs have the same numbers
        name = f"worker {row.worker}" if row.worker >= 0 else "the main process"
        merged.setdefault(f"rank {row.rank}, {name}" if ranks else name, []).append(row)
    return [
        WorkerFact(
            name,
            sum(row.samples for row in group),
            float(np.median([row.sample_median_ms for row in group if row.samples] or [0.0])) * 1e-3,
            float(np.median([row.sample_p25_ms for row in group if row.samples] or [0.0])) * 1e-3,
            _starved(group),
        )
        for name, group in merged.items()
    ]


# ---- writing -------------------------------------------------------------------------------------------------------


TABLES: Mapping[str, type[Any]] = {
    "ops": OpRow,
    "workers": WorkerRow,
    "slowest": SlowSample,
    "batches": BatchLife,
    "out_of_order": OutOfOrder,
}
"""Tables of a summary that have rows, and what their rows are."""

MOST_SLOW_LINES = 5
"""Slowest samples that the text lists; the other forms have more."""


def to_csv(summary: Summary, table: str) -> str:
    """One of `TABLES` as CSV, with a line of column names."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(TABLES[table])], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(getattr(summary, table)))
    return out.getvalue()


def to_text(summary: Summary) -> str:
    """All tables for a terminal."""
    wall_s = (summary.run.end_ns - summary.run.start_ns) * 1e-9
    verdict, waited, lain, spread = summary.verdict, summary.waits, summary.delays, summary.batch_time
    per_sample = summary.trace_bytes / summary.samples if summary.samples else 0.0
    share = len(summary.out_of_order) / len(summary.batches) if summary.batches else 0.0
    lines = [
        f"{summary.run.path}: {wall_s:.2f} s, {len(summary.batches)} batches, {summary.samples} samples, "
        f"{summary.events} events, {per_sample:.0f} bytes per sample",
        "",
        f"Verdict: {verdict.bound}" + (f" ({verdict.culprit})" if verdict.culprit else ""),
        f"  {verdict.text}",
        f"  {verdict.advice}",
        "",
        *_ops_text(summary.ops),
        "",
        f"Batches: preprocessed in {_ms(spread.median)} ms (median), P90 {_ms(spread.p90)}, max {_ms(spread.max)}, "
        f"standard deviation {spread.std_percent:.0f} % of the mean",
        f"Waits: {waited.spread.total:.2f} s in all; batch ready {waited.ready:.0%}, "
        f"up to {_ms(waited.short_s)} ms {waited.up_to_short:.0%}, over {waited.over_short:.0%}, "
        f"over {_ms(waited.long_s)} ms {waited.over_long:.0%}",
        f"Delays: median {_ms(lain.spread.median)} ms; under {_ms(lain.short_s)} ms {lain.under_short:.0%}, "
        f"over {_ms(lain.long_s)} ms {lain.over_long:.0%}, over a step ({_ms(lain.step_s)} ms) {lain.over_step:.0%}",
        f"Out of order: {len(summary.out_of_order)} batches ({share:.0%}); "
        f"{summary.pinned_while_waiting} lay ready while another was waited for",
        *_elsewhere_text(summary),
        "",
        *_workers_text(summary.workers),
        *_slowest_text(summary.slowest[:MOST_SLOW_LINES]),
    ]
    missing = what_is_missing(summary.run)
    return "\n".join([*lines, *([""] if missing else []), *missing]) + "\n"


def what_is_missing(run: RunTrace) -> list[str]:
    """What a reader has to know of a trace that is not all there."""
    told = []
    dropped = sum(process.dropped_segments for process in run.processes)
    if dropped:
        told.append(f"{dropped} oldest files were deleted to keep the size bound: the beginning is missing")
    torn = sum(process.torn for process in run.processes)
    if torn:
        told.append(f"{torn} files end in the middle of a record: their processes were killed, or the disk was full")
    return told + [f"unreadable: {what}" for what in run.unreadable]


def _ops_text(ops: Sequence[OpRow]) -> list[str]:
    if not ops:
        return ["No operations were recorded (granularity 'batch', or no sample was looked at)."]
    width = max(9, *(len(row.name) for row in ops)) + 2
    head = f"{'operation':<{width}}{'calls':>8}{'mean ms':>10}{'P90 ms':>10}{'<10 ms':>8}{'<100 µs':>9}"
    lines = [f"{head}{'CPU s':>9}{'total s':>9}{'share':>7}"]
    for row in ops:
        share = "" if row.kind == "traced" else f"{row.share:.0%}"
        lines.append(
            f"{row.name:<{width}}{row.calls:>8}{row.mean_ms:>10.3f}{row.p90_ms:>10.3f}{row.under_10ms:>8.0%}"
            f"{row.under_100us:>9.0%}{row.cpu_s:>9.2f}{row.total_s:>9.2f}{share:>7}"
        )
    return lines


def _elsewhere_text(summary: Summary) -> list[str]:
    """What did not come from workers' own work, if anything did not."""
    lines, cache = [], summary.cache
    if cache.hits or cache.misses:
        lines.append(f"Cache: {cache.hits} samples found there ({cache.hit_share:.0%}), {cache.misses} made")
    if summary.samples_offloaded:
        lines.append(f"Offloaded: {summary.samples_offloaded} samples were made by other machines")
    return lines


def _workers_text(workers: Sequence[WorkerRow]) -> list[str]:
    lines = [f"{'process':<22}{'pid':>8}{'samples':>9}{'busy':>7}{'busy s':>9}{'CPU s':>9}{'ms/sample':>11}  ended"]
    for row in workers:
        name = "main" if row.worker < 0 else f"rank {row.rank} pool {row.pool} worker {row.worker}"
        lines.append(
            f"{name:<22}{row.pid:>8}{row.samples:>9}{row.busy_share:>7.0%}{row.busy_s:>9.2f}{row.cpu_s:>9.2f}"
            f"{row.sample_median_ms:>11.3f}  {row.ended}"
        )
    return lines


def _slowest_text(slowest: Sequence[SlowSample]) -> list[str]:
    if not slowest:
        return []
    lines = ["", f"{'slowest samples':<22}{'ms':>10}{'CPU ms':>10}{'bytes':>12}  most of it in"]
    for row in slowest:
        often = f", {row.seen} times among the slowest" if row.seen > 1 else ""
        op = f"{row.slowest_op} {row.slowest_op_ms:.1f} ms" if row.slowest_op else ""
        lines.append(f"index {row.index:<16}{row.ms:>10.1f}{row.cpu_ms:>10.1f}{row.nbytes:>12}  {op}{often}")
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"
