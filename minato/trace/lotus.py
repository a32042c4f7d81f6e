"""Lotus-compatible files: one per process, a line `name,start_ns,duration_ns` per event, on the wall clock.

Names are Lotus's: SBatchPreprocessed_<b>, SBatchWait_<b>, SBatchConsumed_<b>, SLoader, SCollation, S<operation>. A
batch that was there when it was asked for has a wait of 1000 ns. A batch that several workers made stands in the file
of the one that wrote its last row.
"""

from __future__ import annotations

import re
from pathlib import Path

from .._instrument import Kind
from .batches import BatchLife, batches
from .reading import ProcessTrace, RunTrace

READY_NS = 1000  # Lotus's marker for "no wait"
_STEPS = {Kind.LOADER: "SLoader", Kind.COLLATION: "SCollation"}
Line = tuple[int, str, int]
"""Start, name, duration."""


def export(run: RunTrace, directory: Path) -> list[Path]:
    """Write a run into `directory`, a file per process; several ranks get a directory each. Returns the files."""
    by_maker: dict[tuple[int, int | None], list[BatchLife]] = {}
    by_rank: dict[int, list[BatchLife]] = {}
    for life in batches(run):
        by_rank.setdefault(life.rank, []).append(life)
        by_maker.setdefault((life.rank, life.finisher), []).append(life)
    written = []
    for process in run.processes:
        rank, pid = process.header.rank, process.header.pid
        lines = _preprocessed(by_maker.get((rank, pid), [])) + _steps(process)
        if process.header.role == "main":
            lines += _consumed(by_rank.get(rank, []))
        into = directory / f"rank{rank}" if len(run.ranks) > 1 else directory
        into.mkdir(parents=True, exist_ok=True)
        path = into / f"custom_log_{process.header.role}_pid_{pid}"
        text = "".join(f"{name},{start},{duration}\n" for start, name, duration in sorted(lines))
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _preprocessed(lives: list[BatchLife]) -> list[Line]:
    return [
        (life.start_ns, f"SBatchPreprocessed_{life.id}", life.done_ns - life.start_ns)
        for life in lives
        if life.start_ns is not None and life.done_ns is not None
    ]


def _consumed(lives: list[BatchLife]) -> list[Line]:
    lines = []
    for life in lives:
        if life.wait_start_ns is not None and life.wait_ns is not None:
            wait_ns = READY_NS if life.was_ready else life.wait_ns
            lines.append((life.wait_start_ns, f"SBatchWait_{life.id}", wait_ns))
        if life.consumed_ns is not None:
            lines.append((life.consumed_ns, f"SBatchConsumed_{life.id}", 0))
    return lines


def _steps(process: ProcessTrace) -> list[Line]:
    steps = process.of(Kind.LOADER, Kind.COLLATION, Kind.OP)
    names = ["S" + re.sub(r"[,\s]", "_", name) for name in process.names]
    offset_ns = process.header.wall_offset_ns
    starts = (steps["start_ns"] + offset_ns).tolist()
    columns = zip(starts, steps["kind"].tolist(), steps["name"].tolist(), steps["duration_ns"].tolist(), strict=True)
    return [(start, _STEPS.get(kind) or names[name], duration) for start, kind, name, duration in columns]
