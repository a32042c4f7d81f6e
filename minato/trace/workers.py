"""The table of workers: how busy each was, what its samples took, how it ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._instrument import Kind
from .batches import run_lengths
from .reading import ProcessTrace, Records, RunTrace
from .samples import ENOUGH_EACH


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One process that made samples."""

    rank: int
    pool: int
    worker: int
    """-1: the main process."""
    pid: int
    samples: int
    alive_s: float
    busy_s: float
    busy_share: float
    """Of the time it was alive; of all its lanes, if it fetches several samples at once."""
    cpu_s: float
    sample_median_ms: float
    ended: str
    """"stopped", "died", or "unknown": the trace does not say."""
    lanes: int = 1
    """Samples that it worked on at once: threads, or tasks of an event loop."""
    sample_p25_ms: float = 0.0
    """What three quarters of its samples took at least."""
    starved_s: float | None = None
    """That its threads wanted a core and had none; None: the trace does not say."""
    at_work_s: float = 0.0
    """From the beginning of its first sample to the end of its last: without its start, and without its end."""


def worker_rows(run: RunTrace) -> list[WorkerRow]:
    """One row per process that made samples."""
    ends = _ends(run)
    by_span = all(_are_enough_looked_at(process) for process in run.processes)
    rows = []
    for process in run.processes:
        runs = process.of(Kind.RUN)
        if process.header.role == "main" and not len(runs):
            continue
        records, header = process.records, process.header
        alive_ns = _length_ns(records)
        lanes = max(1, len(np.unique(runs["thread"])))
        lengths, counts = run_lengths(runs), runs["count"]
        busy_s = float(lengths.sum() * 1e-9)
        each = process.of(Kind.SAMPLE)["duration_ns"] if by_span else np.repeat(lengths / np.maximum(1, counts), counts)
        rows.append(
            WorkerRow(
                rank=header.rank,
                pool=header.pool,
                worker=header.worker,
                pid=header.pid,
                samples=int(counts.sum()),
                alive_s=alive_ns * 1e-9,
                busy_s=busy_s,
                busy_share=busy_s / (alive_ns * 1e-9 * lanes) if alive_ns else 0.0,
                cpu_s=float(runs["cpu_us"].sum() * 1e-6),
                sample_median_ms=float(np.median(each) * 1e-6) if len(each) else 0.0,
                ended=_how_ended(process, ends),
                lanes=lanes,
                sample_p25_ms=float(np.percentile(each, 25) * 1e-6) if len(each) else 0.0,
                starved_s=_starved_s(process),
                at_work_s=_length_ns(runs) * 1e-9,
            )
        )
    return rows


def _are_enough_looked_at(process: ProcessTrace) -> bool:
    """For samples to be told apart. Otherwise those that were made in one run count as its mean, and a few slow ones in
    every run make all of them slow."""
    made = int(process.of(Kind.RUN)["count"].sum())
    return len(process.of(Kind.SAMPLE)) >= min(ENOUGH_EACH, made)


def _length_ns(records: Records) -> int:
    """From the first start to the last end."""
    return int((records["start_ns"] + records["duration_ns"]).max() - records["start_ns"].min()) if len(records) else 0


def _starved_s(process: ProcessTrace) -> float | None:
    """From the first time it was told to the last, in each pool: the main process may have several."""
    told = process.of(Kind.STARVED)
    each = [told["nbytes"][told["pool"] == pool] for pool in np.unique(told["pool"])]
    spans = [float(values.max() - values.min()) * 1e-9 for values in each if len(values) > 1]
    return sum(spans) if spans else None


def _ends(run: RunTrace) -> set[tuple[int, int]]:
    """Rank and process id of workers that a main process saw end while it waited."""
    found = set()
    for process in run.mains:
        for event in process.events(Kind.WORKER):
            if event.name == "end":
                found.add((process.header.rank, event.nbytes))
    return found


def _how_ended(process: ProcessTrace, ends: set[tuple[int, int]]) -> str:
    if any(event.name == "stop" for event in process.events(Kind.WORKER)):
        return "stopped"
    return "died" if (process.header.rank, process.header.pid) in ends else "unknown"
