"""What the report's pictures show, as plain lists for JSON: lanes of the timeline, curves, boxes, waits.

Times are microseconds from the first event of the run, as integers. Everything is thinned here (thinning.py), so that
the report of any run is a file of a megabyte or so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._instrument import Flag, Kind
from .batches import BatchLife, run_lengths
from .reading import ProcessTrace, Records, RunTrace
from .tables import STEPS
from .thinning import Floats, Times, coverage, edges, extremes, levels, longest, merged, quantiles

LANE_SPANS = 24_000
"""Spans in all lanes together: what a browser draws without a pause."""
FEWEST_PER_LANE = 300
STRIP_PIECES = 12_000
"""Pieces of the strips of operations under workers' lanes, in all lanes together."""
MOST_LANES = 40
"""Of threads and tasks of workers; if there are more, those of a worker are drawn as one."""
MOST_PIECES, FEWEST_PIECES = 900, 100
"""Of one strip; the most is about what a screen can show."""
CURVE_PARTS = 240
POINTS = 1600
MAIN_KINDS = (Kind.WAIT, Kind.MARK, Kind.TRANSFER)
US = 1000  # nanoseconds


def pictures(run: RunTrace, lives: Sequence[BatchLife]) -> dict[str, Any]:
    """All pictures of a run."""
    clock = _Clock(run)
    names = _op_names(run)
    return {
        "wall_us": clock.end_ns // US,
        "ops": names,
        "lanes": _lanes(run, clock, names),
        "curves": _curves(run, clock),
        "activity": _activity(run, clock, names),
        "throughput": _throughput(run, clock),
        "epochs": _epochs(run, clock),
        "waits": _waits(lives),
        "quantiles": _quantiles(lives),
        "boxes": _boxes(run, names),
    }


class _Clock:
    """Times of all processes on one clock that starts with the run, in nanoseconds."""

    def __init__(self, run: RunTrace) -> None:
        self._start_ns = run.start_ns
        self.end_ns = max(1, run.end_ns - run.start_ns)

    def starts(self, process: ProcessTrace, records: Records) -> Times:
        shift = process.header.wall_offset_ns - self._start_ns
        times: Times = records["start_ns"].astype(np.int64) + shift
        return times

    def spans(self, process: ProcessTrace, records: Records) -> tuple[Times, Times]:
        starts = self.starts(process, records)
        return starts, starts + records["duration_ns"]


def _op_names(run: RunTrace) -> list[str]:
    """Operations, those that took the longest first; users' `traced` spans lie inside others and are left out."""
    spent: dict[str, int] = {}
    for process in run.processes:
        steps = _steps(process)
        for number in np.unique(steps["name"]).tolist():
            name = process.names[number]
            spent[name] = spent.get(name, 0) + int(steps["duration_ns"][steps["name"] == number].sum())
    return sorted(spent, key=lambda name: -spent[name])


def _steps(process: ProcessTrace) -> Records:
    steps = process.of(*STEPS)
    chosen: Records = steps[(steps["flags"] & Flag.USER) == 0]
    return chosen


# ---- timeline ------------------------------------------------------------------------------------------------------


def _lanes(run: RunTrace, clock: _Clock, names: list[str]) -> list[dict[str, Any]]:
    """A lane per worker number (workers of later epochs take up the same lane), and one per main process."""
    groups: dict[tuple[int, int, int], list[ProcessTrace]] = {}
    threads = _threads(run)
    for process in run.processes:
        for thread in threads.get(_who(process), [0]):
            part = _only(process, thread) if _who(process) in threads else process
            groups.setdefault((process.header.rank, process.header.worker, thread), []).append(part)
    most = max(FEWEST_PER_LANE, LANE_SPANS // max(1, len(groups)))
    pieces = min(MOST_PIECES, max(FEWEST_PIECES, STRIP_PIECES // max(1, len(groups))))
    several = len(run.ranks) > 1
    lanes = []
    for (rank, worker, thread), processes in sorted(groups.items()):
        name = ("main" if worker < 0 else f"worker {worker}") + (f" · {thread}" if thread else "")
        is_main = worker < 0 and thread == 0
        lane: dict[str, Any] = {"name": f"rank {rank} {name}" if several else name, "main": is_main}
        kinds = (*MAIN_KINDS, Kind.RUN) if is_main else (Kind.RUN, Kind.COLLATION)
        lane["spans"] = _lane_spans(processes, clock, kinds, most)
        lane["strip"] = _strip(processes, clock, names, pieces)
        lane["moments"] = _moments(processes, clock)
        lanes.append(lane)
    return lanes


def _who(process: ProcessTrace) -> tuple[int, int]:
    """Rank and process id: ranks may be on several machines."""
    return process.header.rank, process.header.pid


def _threads(run: RunTrace) -> dict[tuple[int, int], list[int]]:
    """Lanes of the processes that have several; none, if those would be too many to look at."""
    found: dict[tuple[int, int], list[int]] = {}
    for process in run.processes:
        lanes = np.unique(process.of(Kind.RUN)["thread"]).tolist()
        if len(lanes) > 1:
            found[_who(process)] = sorted({0, *lanes}) if process.header.role == "main" else lanes
    return found if sum(map(len, found.values())) <= MOST_LANES else {}


def _only(process: ProcessTrace, thread: int) -> ProcessTrace:
    """What one lane of a worker recorded."""
    return replace(process, records=process.records[process.records["thread"] == thread])


def _lane_spans(
    processes: Sequence[ProcessTrace], clock: _Clock, kinds: tuple[Kind, ...], most: int
) -> list[list[Any]]:
    """Lists of start, duration, kind, spans it stands for, batch (-1: several), label; the joined ones first, with the
    share of their time that the spans take, in thousandths."""
    found: list[list[Any]] = []
    for kind in kinds:
        parts = [(process, process.of(kind)) for process in processes]
        if kind is Kind.WAIT:  # one for a batch that was ready has no length
            parts = [(process, records[(records["flags"] & Flag.READY) == 0]) for process, records in parts]
        parts = [(process, records) for process, records in parts if len(records)]
        if not parts:
            continue
        starts, ends = (np.concatenate(both) for both in zip(*(clock.spans(*part) for part in parts), strict=True))
        batches = np.concatenate([records["batch"] for _, records in parts])
        labels = [process.names[number] for process, records in parts for number in records["name"].tolist()]
        if len(starts) > most:
            joined = merged(starts, ends, most // 2)
            covered = np.concatenate([[0], np.cumsum((ends - starts)[np.argsort(starts, kind="stable")])])
            lasts = np.cumsum(joined.counts)
            taken = covered[lasts] - covered[lasts - joined.counts]
            for start, end, count, busy in zip(joined.starts, joined.ends, joined.counts, taken, strict=True):
                share = min(1000, int(1000 * busy / max(1, end - start)))
                found.append([int(start) // US, int(end - start) // US, int(kind), int(count), -1, "", share])
        for place in longest(starts, ends, most if len(starts) <= most else most // 2).tolist():
            duration = int(ends[place] - starts[place]) // US
            found.append([int(starts[place]) // US, duration, int(kind), 1, int(batches[place]), labels[place]])
    return found


def _strip(processes: Sequence[ProcessTrace], clock: _Clock, names: list[str], pieces: int) -> list[list[int]]:
    """What a worker was at, piece by piece: start, end, then each operation with its share, in thousandths."""
    if not names:
        return []
    bounds = edges(0, clock.end_ns, pieces)
    spent = np.zeros((len(names), pieces))
    for process in processes:
        steps = _steps(process)
        starts, ends = clock.spans(process, steps)
        for number in np.unique(steps["name"]).tolist():
            chosen = steps["name"] == number
            spent[names.index(process.names[number])] += coverage(starts[chosen], ends[chosen], bounds)
    # Where only some samples were looked at, or several threads are at work, the whole is what was seen.
    whole = spent.sum(axis=0)
    shares = np.rint(1000 * spent / np.maximum(whole, 1)).astype(int)
    found: list[list[int]] = []
    for place in np.flatnonzero(whole > 0.02 * np.diff(bounds)).tolist():
        start, end = int(bounds[place]) // US, int(bounds[place + 1]) // US
        ops = [number for op in np.flatnonzero(shares[:, place]).tolist() for number in (op, int(shares[op, place]))]
        if found and found[-1][1] == start and found[-1][2:] == ops:
            found[-1][1] = end
        else:
            found.append([start, end, *ops])
    return found


def _moments(processes: Sequence[ProcessTrace], clock: _Clock) -> list[list[Any]]:
    """Starts, stops and deaths of workers, samples parked: time and what."""
    found: list[list[Any]] = []
    for process in processes:
        for kind in (Kind.WORKER, Kind.PARKED):
            records = process.of(kind)[:POINTS]
            for time, number in zip(clock.starts(process, records).tolist(), records["name"].tolist(), strict=True):
                found.append([time // US, process.names[number] or kind.name.lower()])
    return sorted(found)


# ---- curves --------------------------------------------------------------------------------------------------------


def _curves(run: RunTrace, clock: _Clock) -> dict[str, dict[str, list[float]]]:
    """Lengths of queues and number of workers over time: mean, lowest and highest of each stretch."""
    bounds = edges(0, clock.end_ns, CURVE_PARTS)
    found: dict[str, dict[str, list[float]]] = {}
    sums: dict[str, list[Floats]] = {}
    for process in run.mains:
        records = process.of(Kind.QUEUE)
        times = clock.starts(process, records)
        for pool in np.unique(records["pool"]).tolist():
            of_pool = records["pool"] == pool
            until = int(times[of_pool].max())
            for number in np.unique(records["name"][of_pool]).tolist():
                chosen = of_pool & (records["name"] == number)
                level = levels(times[chosen], records["count"][chosen].astype(np.float64), bounds, until)
                known = sums.setdefault(process.names[number], [np.zeros(CURVE_PARTS) for _ in range(3)])
                for total, part in zip(known, (level.mean, level.low, level.high), strict=True):
                    total += part
    for name, parts in sums.items():
        found[name] = {key: _rounded(part, 2) for key, part in zip(("mean", "low", "high"), parts, strict=True)}
    return found


def _activity(run: RunTrace, clock: _Clock, names: list[str]) -> dict[str, list[float]]:
    """How many workers were at each operation over time; "other" is work outside of operations."""
    bounds = edges(0, clock.end_ns, CURVE_PARTS)
    widths = np.diff(bounds)
    spent, collating = ({name: np.zeros(CURVE_PARTS) for name in names} for _ in range(2))
    busy = np.zeros(CURVE_PARTS)
    for process in run.processes:
        runs = process.of(Kind.RUN)
        begun = clock.starts(process, runs)
        busy += coverage(begun, begun + run_lengths(runs), bounds)
        steps = _steps(process)
        starts, ends = clock.spans(process, steps)
        # Where only some samples were looked at, they stand for all.
        seen, made = len(process.of(Kind.SAMPLE)), int(runs["count"].sum())
        weight = max(1.0, made / seen) if seen else 1.0
        for number in np.unique(steps["name"]).tolist():
            chosen = steps["name"] == number
            is_collation = steps["kind"][chosen][0] == Kind.COLLATION  # of every batch, and beside its samples
            of = collating if is_collation else spent
            scale = 1.0 if is_collation else weight
            of[process.names[number]] += scale * coverage(starts[chosen], ends[chosen], bounds)
    inside = sum(spent.values(), np.zeros(CURVE_PARTS))
    # For a moment more samples may have been looked at than on average; no more were at work than were.
    most = np.minimum(1.0, np.divide(busy, inside, out=np.ones(CURVE_PARTS), where=inside > 0))
    spent = {name: part * most + collating[name] for name, part in spent.items()}
    inside = sum(spent.values(), np.zeros(CURVE_PARTS))
    other = np.maximum(0.0, busy - inside)
    if inside.sum() and other.sum() < 0.01 * busy.sum():
        other[:] = 0
    found = {name: _rounded(part / widths, 3) for name, part in spent.items()}
    return {**found, "other": _rounded(other / widths, 3)} if other.any() else found


def _throughput(run: RunTrace, clock: _Clock) -> list[float]:
    """Samples a second that the consumer got."""
    batches = sum(len(process.of(Kind.CONSUMED)) for process in run.mains)
    parts = min(CURVE_PARTS, max(10, batches // 5))  # fewer would show single batches as peaks
    bounds = edges(0, clock.end_ns, parts)
    got = np.zeros(parts)
    for process in run.mains:
        taken = process.of(Kind.CONSUMED)
        got += np.histogram(clock.starts(process, taken), bounds, weights=taken["count"])[0]
    return _rounded(got / (np.diff(bounds) * 1e-9), 1)


def _epochs(run: RunTrace, clock: _Clock) -> list[int]:
    found = [clock.starts(process, process.of(Kind.EPOCH)) // US for process in run.mains]
    return sorted(np.unique(np.concatenate(found)).tolist())[:200] if found else []


# ---- distributions -------------------------------------------------------------------------------------------------


def _waits(lives: Sequence[BatchLife]) -> list[list[float]]:
    """Per batch: id, what it was waited for and how long it lay ready, in milliseconds (-1: unknown), ready or not."""
    known = [life for life in lives if life.wait_ns is not None]
    waited = np.array([life.wait_ns or 0 for life in known]) * 1e-6
    lain = np.array([-1.0 if (delay := life.delay_ns) is None else delay * 1e-6 for life in known])
    places = np.union1d(extremes(waited, POINTS // 2), extremes(lain, POINTS // 2)).astype(int).tolist()
    return [
        [known[n].id, round(float(waited[n]), 4), round(float(lain[n]), 4), int(known[n].was_ready)] for n in places
    ]


def _quantiles(lives: Sequence[BatchLife]) -> dict[str, list[float]]:
    """Milliseconds by percentile: to preprocess a batch, waited for it, and its delay."""
    parts = {
        "preprocessing": [life.preprocess_ns for life in lives if life.preprocess_ns is not None],
        "wait": [life.wait_ns for life in lives if life.wait_ns is not None],
        "delay": [delay for life in lives if (delay := life.delay_ns) is not None],
    }
    return {name: [round(v, 4) for v in quantiles(np.array(part) * 1e-6)] for name, part in parts.items()}


def _boxes(run: RunTrace, names: list[str]) -> list[list[float]]:
    """Per operation in milliseconds: P1, P25, median, P75, P99, the longest; and how many calls."""
    found = []
    for name in names:
        parts = []
        for process in run.processes:
            if name in process.names:
                steps = _steps(process)
                parts.append(steps["duration_ns"][steps["name"] == list(process.names).index(name)])
        each = np.concatenate(parts) * 1e-6
        at = np.percentile(each, [1, 25, 50, 75, 99, 100])
        found.append([*(round(float(value), 5) for value in at), len(each)])
    return found


def _rounded(values: Floats, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
