"""The verdict as a pure function of facts, and the tables that the facts come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._instrument import Kind
from minato.trace import tables, verdict
from minato.trace.summary import TABLES, rows, summarize, to_csv, to_text
from minato.trace.verdict import Facts, OpFact, WorkerFact, judge
from tests.support.traces import SyntheticRun

CROP, FLIP = OpFact("Crop", False, 8.0, 7.9, 0.008), OpFact("Flip", False, 1.0, 1.0, 0.001)
LOADER = OpFact("Loader", True, 1.0, 0.9, 0.001)
PAIR = (WorkerFact("worker 0", 500, 0.010), WorkerFact("worker 1", 500, 0.011))


def facts(**changes: object) -> Facts:
    usual = {
        "batches": 100,
        "waited_s": 4.0,
        "stepped_s": 1.0,
        "busy_share": 0.95,
        "work_s": 10.0,
        "work_cpu_s": 9.8,
        "sample_median_s": 0.01,
        "sample_p99_s": 0.012,
        "ops": (LOADER, CROP, FLIP),
        "workers": PAIR,
    }
    return Facts(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "bound", "culprit"),
    [
        ({}, verdict.PREPROCESSING, "Crop"),
        ({"waited_s": 0.01, "mean_delay_s": 0.3}, verdict.ACCELERATOR, "consumer"),
        ({"workers": (*PAIR, WorkerFact("worker 2", 40, 0.05))}, verdict.STRAGGLER, "worker 2"),
        ({"workers": (*PAIR, WorkerFact("worker 2", 3, 0.05))}, verdict.PREPROCESSING, "Crop"),
        ({"sample_p99_s": 0.5, "busy_share": 0.3}, verdict.STRAGGLER, "slow samples"),
        ({"sample_p99_s": 0.5, "busy_share": 0.3, "tail_stalls": 0.9}, verdict.STORAGE, "loading"),
        ({"sample_p99_s": 0.5, "busy_share": 0.99}, verdict.PREPROCESSING, "Crop"),
        # No workers: the loop takes turns with the loader, and what takes more is the limit.
        ({"is_inline": True}, verdict.PREPROCESSING, "Crop"),
        ({"is_inline": True, "stepped_s": 9.0}, verdict.ACCELERATOR, "consumer"),
        # Threads of a process that computes wait for each other, not for data.
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008),), "crowded_cpu": 0.9}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008),), "crowded_cpu": 0.3}, verdict.STORAGE, "loading"),
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008), FLIP)}, verdict.STORAGE, "loading"),
        ({"ops": (OpFact("Loader", True, 8.0, 7.4, 0.008), FLIP)}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (), "work_cpu_s": 1.0}, verdict.STORAGE, "loading"),
        ({"ops": ()}, verdict.PREPROCESSING, ""),
        # A busy machine keeps everything from the CPU: that is not storage.
        (
            {"ops": (OpFact("Loader", True, 8.0, 3.0, 0.008), OpFact("Crop", False, 9.0, 3.5, 0.009))},
            verdict.PREPROCESSING,
            "Crop",
        ),
        ({"batches": 0}, verdict.UNKNOWN, ""),
    ],
)
def test_the_bound_is_named(changes: dict[str, object], bound: str, culprit: str) -> None:
    """With what to look at."""
    found = judge(facts(**changes))
    assert (found.bound, found.culprit) == (bound, culprit)
    assert found.text
    assert found.advice


amounts = st.floats(min_value=0, max_value=1e6, allow_nan=False)
ops = st.builds(OpFact, st.text(max_size=5), st.booleans(), amounts, amounts, amounts)


@given(
    st.integers(0, 10),
    st.lists(amounts, min_size=8, max_size=8),
    st.lists(ops, max_size=4),
    st.lists(st.builds(WorkerFact, st.text(max_size=5), st.integers(0, 99), amounts), max_size=4),
)
def test_any_facts_give_a_verdict(batches: int, n: list[float], ops: list[OpFact], workers: list[WorkerFact]) -> None:
    """Zeros, no operations, no workers: a verdict in words, always."""
    found = judge(Facts(batches, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[2], ops, workers))
    assert found.bound in (
        verdict.PREPROCESSING,
        verdict.ACCELERATOR,
        verdict.STORAGE,
        verdict.STRAGGLER,
        verdict.UNKNOWN,
    )
    assert found.text


def test_operations_are_summed_and_scaled(tmp_path: Path) -> None:
    """Two of ten samples were looked at: totals are five times what was recorded, means are not."""
    run = SyntheticRun(tmp_path)
    run.made(0, 0, 0, 100, samples=10)
    for at in (0, 10):
        run.op("Sample", 0, at, 9, kind=Kind.SAMPLE)
        run.op("Loader", 0, at, 1, kind=Kind.LOADER, cpu_share=0.5)
        run.op("Crop", 0, at + 1, 0.05 if at else 8)
    run.taken(0, 0, 100, samples=10)
    run.write()
    crop, loader = summarize(tmp_path).ops
    assert (crop.name, crop.kind, crop.calls, crop.under_100us, crop.under_10ms) == ("Crop", "op", 2, 0.5, 1.0)
    assert crop.total_s == pytest.approx(5 * 8.05e-3)
    assert crop.mean_ms == pytest.approx(8.05 / 2)
    assert loader.total_s == pytest.approx(5 * 2e-3)
    assert loader.cpu_s == pytest.approx(5 * 1e-3)
    assert crop.share + loader.share == pytest.approx(1)


def test_waits_delays_and_order(tmp_path: Path) -> None:
    """Thresholds are counted as asked, and batches that overtook are listed."""
    run = SyntheticRun(tmp_path)
    for batch, (start, took) in enumerate([(0, 700), (0, 10), (20, 10), (700, 20)]):
        run.made(batch, batch % 2, start, took)
    run.taken(0, 0, 700.1)
    run.taken(1, 701, 0.001, ready=True)
    run.taken(2, 702, 0.001, ready=True)
    run.taken(3, 703, 17.5)
    run.write()
    summary = summarize(tmp_path, wait_thresholds_s=(0.018, 0.5))
    waits, delays = summary.waits, summary.delays
    assert (waits.ready, waits.up_to_short, waits.over_short, waits.over_long) == (0.5, 0.25, 0.25, 0.25)
    assert (delays.under_short, delays.over_long) == (0.5, 0.5)
    assert [(row.id, row.done_as, row.overtook) for row in summary.out_of_order] == [(1, 0, 1), (2, 1, 1)]
    assert summary.pinned_while_waiting == 2
    assert summary.step_s == pytest.approx(1e-3, rel=0.02)


def test_statistics_are_those_known() -> None:
    """Of 1 to 100, and with a short last batch left out."""
    spread = tables.describe([float(n) for n in range(1, 101)])
    assert (spread.total, spread.mean, spread.median, spread.min, spread.max) == (5050, 50.5, 50.5, 1, 100)
    assert (spread.p25, spread.p75, spread.iqr) == (25.75, 75.25, 49.5)
    data = [10.0] * 20 + [11.0] * 20 + [1.0]
    assert tables.describe(data).min == 1
    assert tables.describe(data, remove_outliers=True).min == 10
    assert tables.describe(data, remove_outliers=True).outliers_removed == 1
    assert tables.describe([]).count == 0


def test_tables_are_written_in_every_form(tmp_path: Path) -> None:
    """Text, CSV with columns even where there are no rows, plain values for JSON and data frames."""
    import json

    run = SyntheticRun(tmp_path)
    run.made(0, 0, 0, 10)
    run.op("Crop", 0, 0, 10)
    run.taken(0, 0, 10)
    run.write()
    summary = summarize(tmp_path)
    assert "Crop" in to_text(summary)
    assert json.loads(json.dumps(summary.to_dict()))["ops"][0]["name"] == "Crop"
    assert rows(summary.workers)[0]["samples"] == 1
    for name in TABLES:
        assert to_csv(summary, name).count(",") >= 3
