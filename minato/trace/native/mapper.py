"""`map_ops`: from Python operations to the native functions they run in."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

from .isolate import Schedule, run_isolated
from .mapping import NativeMapping, make_mapping
from .ops import Ops, as_ops
from .perf import find_perf


def map_ops(
    ops: Ops,
    *,
    runs: int | None = None,
    calls: int | None = None,
    shortest_s: float = 20e-6,
    confidence: float = 0.95,
    warmup: int = 4,
    gap_s: float = 1.0,
    event: str = "cpu-clock",
    frequency_hz: int = 999,
    min_runs: int = 2,
    min_share: float = 0.1,
    start_method: str = "fork",
    perf: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> NativeMapping:
    """Run each operation alone under `perf` and count which native functions its samples fall into.

    Args:
        ops: callables without arguments by name, or `Op`s; `ops_of(dataset)` gives those of a dataset.
        runs: times each operation is run and collected; None: as many as a function of `shortest_s` seconds needs to
            be seen with probability `confidence` (`runs_needed`), and at least ten.
        calls: calls in one run; None: as many as fill 5 ms, so that short operations are seen too.
        warmup: calls before the first run, which are not collected.
        gap_s: seconds of rest before the first run, so that nothing of the operation before is counted.
        event, frequency_hz: what `perf` samples, and how often a second.
        min_runs, min_share: a function counts as one of an operation if it was seen in so many runs, or has such a
            share of its samples. All counts are kept, see `NativeMapping.counts`.
        start_method: how the process is started that operations run in; others than "fork" need operations that can be
            pickled.
        perf: path of the program; None: the one on the PATH. `PerfMissing` if there is none.
        progress: called with the name of each operation as its turn comes.
    """
    found = as_ops(ops)
    limits = (("runs", runs, 1), ("calls", calls, 1), ("warmup", warmup, 0), ("min_runs", min_runs, 1))
    for name, value, least in limits:
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if gap_s < 0:
        raise ValueError(f"gap_s must not be negative, got {gap_s}")
    if frequency_hz < 1:
        raise ValueError(f"frequency_hz must be at least 1, got {frequency_hz}")
    if start_method not in multiprocessing.get_all_start_methods():
        possible = ", ".join(multiprocessing.get_all_start_methods())
        raise ValueError(f"start_method must be one of {possible}, got {start_method!r}")
    schedule = Schedule(warmup, gap_s, runs, calls, shortest_s, confidence, 1.0 / frequency_hz)
    schedule.runs_for(1)  # shortest_s and confidence are checked before anything is started
    tell = progress or (lambda _: None)
    isolated = run_isolated(found, schedule, find_perf(perf), event, frequency_hz, start_method, tell)
    return make_mapping(isolated, event, frequency_hz, min_runs, min_share)
