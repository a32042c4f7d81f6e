"""Which runs of samples are looked at closely, where not all of them can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from minato._instrument import TraceSpec
from minato._recording import Recorder
from minato._workers.op_tracing import OP_BUDGET, SPAN_COST_S, OpWatch

MS = 1_000_000  # nanoseconds
SAMPLES, SPANS = 5, 4


def looks(path: Path, durations_ns: list[int], granularity: str = "auto") -> list[bool]:
    """Of runs that take so long, which are looked at."""
    watch = OpWatch(Recorder(TraceSpec(str(path), "s", 0, 0, granularity, 1 << 20, 1 << 30), "worker", 0), granularity)
    found = []
    for duration_ns in durations_ns:
        found.append(watch.wants(SAMPLES, SPANS))
        watch.worked(duration_ns)
    return found


@pytest.mark.parametrize("every", [3, 4, 7, 10])
def test_slow_runs_at_even_distances_are_seen_like_others(tmp_path: Path, every: int) -> None:
    """Neither missed nor preferred: totals are scaled up from what was seen. And the budget is kept."""
    durations = [60 * MS if number % every == every - 1 else 5 * MS for number in range(4000)]
    found = looks(tmp_path, durations)
    of_slow = sum(found[every - 1 :: every]) / len(found[every - 1 :: every])
    assert of_slow == pytest.approx(sum(found) / len(found), rel=0.2)
    spent_s = sum(found) * SAMPLES * SPANS * SPAN_COST_S
    assert 0.9 * OP_BUDGET < spent_s / (sum(durations) * 1e-9) <= 1.02 * OP_BUDGET


def test_samples_that_become_cheap_cost_no_more_than_may_be_spent_at_once(tmp_path: Path) -> None:
    """As when a cache is full."""
    found = looks(tmp_path, [100 * MS] * 1000 + [MS // 2] * 4000)
    spent_s = sum(found[1000:]) * SAMPLES * SPANS * SPAN_COST_S
    assert spent_s < OP_BUDGET * 4000 * 0.5e-3 + 0.2


def test_all_runs_of_dear_samples_are_looked_at(tmp_path: Path) -> None:
    """Half a percent of their time is more than enough."""
    assert all(looks(tmp_path, [100 * MS] * 50))
    assert all(looks(tmp_path, [MS] * 50, "op"))
    assert not any(looks(tmp_path, [100 * MS] * 50, "batch"))
