"""The verdict as a pure function of facts, and the tables that the facts come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._instrument import NONE, Flag, Kind
from minato.trace import read_run, tables, verdict
from minato.trace.facts import Facts, OpFact, WorkerFact
from minato.trace.samples import SampleTimes, sample_times
from minato.trace.summary import TABLES, rows, summarize, to_csv, to_text
from minato.trace.verdict import judge
from tests.support.traces import MS, SyntheticRun

CROP, FLIP = OpFact("Crop", False, 8.0, 7.9, 0.008), OpFact("Flip", False, 1.0, 1.0, 0.001)
LOADER = OpFact("Loader", True, 1.0, 0.9, 0.001)
WAITED_FOR, SLEPT = OpFact("Loader", True, 8.0, 0.1, 0.008), OpFact("Crop", False, 2.0, 0.1, 0.002)
QUICK = WorkerFact("worker 0", 500, 0.010, 0.009)
PAIR = (WorkerFact("worker 0", 500, 0.010), WorkerFact("worker 1", 500, 0.011))


def times(**changes: float) -> SampleTimes:
    usual = {"median": 0.01, "p99": 0.012, "slow_share": 0.0, "slow_work": 0.0, "slow_median": 0.0}
    given = {**usual, "slow_on_cpu": 0.99, "slow_loading": 0.0, **changes}
    return SampleTimes(**given, tail=given["p99"] / given["median"])


TAIL = times(p99=0.5, slow_share=0.02, slow_work=0.2, slow_median=0.5)
HEAVY = times(p99=0.5, slow_share=0.02, slow_work=0.5, slow_median=0.5)


def facts(**changes: object) -> Facts:
    usual = {
        "batches": 100,
        "waited_s": 4.0,
        "stepped_s": 1.0,
        "busy_share": 0.95,
        "work_s": 10.0,
        "work_cpu_s": 9.8,
        "samples": times(),
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
        # One that met slow samples is not slow with the others; threads of a worker wait for each other.
        ({"workers": (QUICK, WorkerFact("worker 2", 40, 0.05, 0.010))}, verdict.PREPROCESSING, "Crop"),
        ({"workers": (QUICK, WorkerFact("worker 2", 40, 0.05, 0.040))}, verdict.STRAGGLER, "worker 2"),
        ({"workers": (QUICK, WorkerFact("worker 2", 40, 0.017, 0.017))}, verdict.STRAGGLER, "worker 2"),
        (
            {"workers": (QUICK, WorkerFact("worker 2", 40, 0.017, 0.017)), "crowded_cpu": 0.5},
            verdict.PREPROCESSING,
            "Crop",
        ),
        # Others have its core now and then: that alone has to make it slower still.
        ({"workers": (QUICK, WorkerFact("worker 2", 40, 0.017, 0.017, 0.4))}, verdict.PREPROCESSING, "Crop"),
        ({"workers": (QUICK, WorkerFact("worker 2", 40, 0.017, 0.017, 0.05))}, verdict.STRAGGLER, "worker 2"),
        ({"workers": (QUICK, WorkerFact("worker 2", 40, 0.05, 0.05, 0.8))}, verdict.STRAGGLER, "worker 2"),
        # A worker is slow, and so are few samples: what takes more.
        (
            {"workers": (QUICK, WorkerFact("worker 2", 40, 0.02, 0.02)), "samples": HEAVY},
            verdict.STRAGGLER,
            "slow samples",
        ),
        (
            {"workers": (QUICK, WorkerFact("worker 2", 400, 0.02, 0.02)), "samples": HEAVY, "work_s": 7.0},
            verdict.STRAGGLER,
            "worker 2",
        ),
        ({"samples": TAIL, "busy_share": 0.3}, verdict.STRAGGLER, "slow samples"),
        ({"samples": replace(TAIL, slow_loading=0.9), "busy_share": 0.3}, verdict.STORAGE, "loading"),
        # They take less, one after the other, than a third of what was waited: something else holds batches up.
        ({"samples": replace(TAIL, slow_median=0.06), "busy_share": 0.3}, verdict.PREPROCESSING, "Crop"),
        ({"samples": TAIL}, verdict.PREPROCESSING, "Crop"),
        # Workers have no idle time, but few samples take much of it; also if they are fewer than a percent.
        ({"samples": HEAVY}, verdict.STRAGGLER, "slow samples"),
        ({"samples": replace(HEAVY, p99=0.012, tail=1.2, slow_share=0.005)}, verdict.STRAGGLER, "slow samples"),
        ({"samples": replace(HEAVY, slow_loading=0.9)}, verdict.STORAGE, "loading"),
        ({"samples": replace(HEAVY, slow_share=0.3)}, verdict.PREPROCESSING, "Crop"),
        (
            {"samples": replace(HEAVY, slow_loading=0.7), "starved": 0.5},
            verdict.STRAGGLER,
            "slow samples",
        ),  # for a core
        ({"samples": replace(HEAVY, slow_loading=0.9), "starved": 0.5}, verdict.STORAGE, "loading"),
        # Nobody saw their stages; but they wait, and for longer than others keep a sample from the CPU.
        ({"samples": replace(HEAVY, slow_loading=0.9, slow_on_cpu=0.1, stages_seen=False)}, verdict.STORAGE, "loading"),
        (
            {
                "samples": replace(TAIL, slow_loading=0.9, slow_on_cpu=0.1, slow_median=0.019, stages_seen=False),
                "busy_share": 0.3,
                "waited_s": 0.4,
            },
            verdict.STRAGGLER,
            "slow samples",
        ),
        # Threads that wait for each other: what a sample takes is its CPU time, and few may take most of that.
        ({"samples": HEAVY, "crowded_cpu": 0.9, "busy_share": 0.3}, verdict.STRAGGLER, "slow samples"),
        ({"samples": TAIL, "crowded_cpu": 0.9, "busy_share": 0.3}, verdict.PREPROCESSING, "Crop"),
        # The user's own span in which reads stall.
        (
            {"samples": replace(HEAVY, slow_loading=0.9, slow_part="Crop"), "inner": (CROP,)},
            verdict.STORAGE,
            "Crop",
        ),
        # Short ones that lost the CPU to others for a while are not slow by themselves.
        ({"samples": replace(HEAVY, slow_on_cpu=0.1, slow_median=0.004)}, verdict.PREPROCESSING, "Crop"),
        # The user's own spans, where nothing else tells what is inside.
        ({"ops": (), "inner": (CROP, FLIP)}, verdict.PREPROCESSING, "Crop"),
        ({"ops": (OpFact("Loader", True, 9.0, 8.9, 0.01),), "inner": (CROP,)}, verdict.PREPROCESSING, "Crop"),
        ({"ops": (OpFact("Loader", True, 9.0, 8.9, 0.01),), "inner": (FLIP,)}, verdict.PREPROCESSING, "Loader"),
        # No workers: the loop takes turns with the loader, and what takes more is the limit.
        ({"is_inline": True}, verdict.PREPROCESSING, "Crop"),
        ({"is_inline": True, "stepped_s": 9.0}, verdict.ACCELERATOR, "consumer"),
        # Threads of a process that computes wait for each other, not for data.
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008),), "crowded_cpu": 0.9}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008), FLIP), "crowded_cpu": 0.9}, verdict.PREPROCESSING, "Flip"),
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008),), "crowded_cpu": 0.6}, verdict.STORAGE, "loading"),
        # For data or for each other, if they compute about as much of the time as they wait: nobody can tell.
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008),), "crowded_cpu": 0.8}, verdict.UNKNOWN, ""),
        # The user's own span that waits is named.
        (
            {"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008),), "inner": (OpFact("read", False, 7.0, 0.1, 0.007),)},
            verdict.STORAGE,
            "read",
        ),
        ({"ops": (OpFact("Loader", True, 8.0, 0.4, 0.008), FLIP)}, verdict.STORAGE, "loading"),
        ({"ops": (OpFact("Loader", True, 8.0, 7.4, 0.008), FLIP)}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (), "work_cpu_s": 1.0}, verdict.STORAGE, "loading"),
        ({"ops": ()}, verdict.PREPROCESSING, ""),
        # The samples that were looked at do not wait, but others do; unless it was for a core.
        ({"work_cpu_s": 6.0, "starved": 0.02}, verdict.STORAGE, "loading"),
        ({"work_cpu_s": 6.0, "starved": 0.3}, verdict.PREPROCESSING, "Crop"),
        ({"work_cpu_s": 6.0, "starved": 0.02, "crowded_cpu": 0.7}, verdict.PREPROCESSING, "Crop"),  # or each other
        # A busy machine keeps everything from the CPU: that is not storage.
        (
            {"ops": (OpFact("Loader", True, 8.0, 3.0, 0.008), OpFact("Crop", False, 9.0, 3.5, 0.009))},
            verdict.PREPROCESSING,
            "Crop",
        ),
        # Also where nothing but loading is seen, and the system tells what was waited for a core.
        ({"ops": (replace(LOADER, total_s=8.0, cpu_s=2.8),), "starved": 0.6}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (replace(LOADER, total_s=8.0, cpu_s=0.4),), "starved": 0.6}, verdict.STORAGE, "loading"),
        ({"ops": (), "work_cpu_s": 3.5, "starved": 0.6}, verdict.PREPROCESSING, ""),
        # Unless it is known that nobody waited for a core: then what waits most is what bounds.
        ({"ops": (WAITED_FOR, SLEPT), "starved": 0.05}, verdict.STORAGE, "loading"),
        ({"ops": (WAITED_FOR, SLEPT), "starved": 0.9}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (WAITED_FOR, SLEPT), "starved": None}, verdict.PREPROCESSING, "Loader"),
        ({"ops": (WAITED_FOR, replace(SLEPT, total_s=12.0)), "starved": 0.05}, verdict.PREPROCESSING, "Crop"),
        ({"batches": 0}, verdict.UNKNOWN, ""),
    ],
)
def test_the_bound_is_named(changes: dict[str, object], bound: str, culprit: str) -> None:
    """With what to look at."""
    found = judge(facts(**changes))
    assert (found.bound, found.culprit) == (bound, culprit)
    assert found.text
    assert found.advice


def test_more_workers_are_not_advised_where_they_have_no_cores() -> None:
    """Eight of them on two cores want a core most of the time."""
    crowd = facts(work_cpu_s=2.5, starved=0.75)
    assert judge(crowd).advice.startswith("More workers would not help")
    assert "For a core it was 75%" in judge(crowd).text
    assert judge(replace(crowd, starved=0.02, work_cpu_s=9.8)).advice.startswith("Add workers")


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
    found = judge(Facts(batches, *n[:7], SampleTimes(*n[1:]), ops, ops[:1], workers))
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


@pytest.mark.parametrize(("collated_ms", "culprit"), [(1, ""), (8, "Collation")])
def test_a_collation_is_not_all_of_the_work_for_being_all_that_was_timed(
    tmp_path: Path, collated_ms: int, culprit: str
) -> None:
    """As with granularity "batch"; what it takes is a share of the whole work."""
    run = SyntheticRun(tmp_path)
    for batch in range(10):
        run.made(batch, 0, 10 * batch, 10, samples=4)
        run.op("Collation", 0, 10 * batch + 10 - collated_ms, collated_ms, batch=batch, kind=Kind.COLLATION)
        run.taken(batch, 10 * batch, 10)
    run.write()
    found = summarize(tmp_path).verdict
    assert (found.bound, found.culprit) == (verdict.PREPROCESSING, culprit)
    assert ("80% of the work" in found.text) == bool(culprit)


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


def test_samples_of_a_run_in_two_batches_are_counted_once(tmp_path: Path) -> None:
    """Three samples of 10 ms were made together; two went to one batch and one to the next."""
    run = SyntheticRun(tmp_path)
    run.made(0, 0, 0, 31, samples=2)
    run.made(1, 0, 20, 12, samples=1)
    run.made(1, 1, 0, 30, samples=3)  # another worker at the same time
    run.taken(0, 0, 31, samples=2)
    run.taken(1, 31, 1, samples=4)
    run.write()
    summary = summarize(tmp_path)
    assert [row.busy_s for row in summary.workers] == pytest.approx([0.032, 0.030])
    assert summary.workers[0].busy_share == pytest.approx(1.0)
    assert [life.busy_ns for life in summary.batches] == [20_000_000, 42_000_000]
    assert [life.done_ns - (life.start_ns or 0) for life in summary.batches if life.done_ns] == [31_000_000, 32_000_000]


def test_the_slowest_samples_are_listed_by_their_index(tmp_path: Path) -> None:
    """With where their time went; one that comes again in each epoch is listed once."""
    run = SyntheticRun(tmp_path)
    for batch in range(30):
        index, slow = batch % 10, batch % 10 == 7
        at = 100.0 * batch
        run.op("Loader", 0, at, 1, index, batch, Kind.LOADER)
        run.op("Decode", 0, at + 1, 60 + batch if slow else 1, index, batch)
        run.op("Sample", 0, at, 61 + batch if slow else 2, index, batch, Kind.SAMPLE)
        run.made(batch, 0, at, 62 + batch if slow else 3)
        run.taken(batch, at, 95)
    run.write()
    summary = summarize(tmp_path)
    first = summary.slowest[0]
    assert (first.index, first.ms, first.slowest_op, first.slowest_op_ms) == (7, 88.0, "Decode", 87.0)
    assert (first.seen, first.batch, first.worker) == (3, 27, 0)
    assert len(summary.slowest) == 10  # as many as there are
    assert [row.index for row in summary.slowest].count(7) == 1
    assert "index 7" in to_text(summary)
    assert f"{first.index},88.0" in to_csv(summary, "slowest")
    times = sample_times(summary.run)
    assert (times.median, times.slow_share) == pytest.approx((0.002, 0.1))
    assert times.slow_work == pytest.approx((68 + 78 + 88) / (68 + 78 + 88 + 27 * 2))
    assert times.slow_on_cpu == pytest.approx(1.0)


def test_threads_that_compute_are_told_by_the_time_they_are_at_work(tmp_path: Path) -> None:
    """Not by how long their worker took to start: they wait for each other, and not for data."""
    run = SyntheticRun(tmp_path)
    for batch in range(20):
        start = 1000 + 50 * batch
        for lane in (1, 2):  # each is on the CPU half of the time
            at_ns, cpu_ns = start * 1_000_000, 24_000_000
            run.worker(0).record(Kind.RUN, at_ns, 50_000_000, batch=batch, cpu_ns=cpu_ns, thread=lane)
        run.taken(batch, start - 50, 100)
    run.write()
    (row,) = summarize(tmp_path).workers
    assert (row.alive_s, row.at_work_s) == pytest.approx((2.0, 1.0))
    found = summarize(tmp_path).verdict
    assert found.bound == verdict.PREPROCESSING
    assert "kept 1.0 cores busy" in found.text


@pytest.mark.parametrize("looked_at", [True, False])
def test_slow_samples_wait_whether_their_stages_were_looked_at_or_not(tmp_path: Path, looked_at: bool) -> None:
    """Where none of them was, what is known of the runs that made them has to do."""
    run = SyntheticRun(tmp_path)
    for number in range(40):
        slow = number % 20 == 19
        run.made(number, 0, 100 * number, 80 if slow else 2, cpu_share=0.05 if slow else 1.0)
        if looked_at or number < 5:
            for kind in (Kind.LOADER, Kind.SAMPLE):
                run.op(kind.name, 0, 100 * number, 80 if slow else 2, number, number, kind, 0.05 if slow else 1.0)
    run.write()
    found = sample_times(read_run(tmp_path))
    assert found.stages_seen == looked_at
    assert (found.slow_share, found.slow_loading) == pytest.approx((0.05, 0.95))


@pytest.mark.parametrize("has_index", [True, False])
def test_what_slow_samples_are_slow_by_is_found(tmp_path: Path, has_index: bool) -> None:
    """By the index of a sample, or in a stream by its time; in loading by the user's own span."""
    run = SyntheticRun(tmp_path)
    for number in range(300):
        at, index, ms = number * 200, number if has_index else NONE, 100.0 if number % 50 == 7 else 1.0
        run.op("read", 0, at + 0.1, ms, index, 0)
        run.op("Loader", 0, at, ms + 0.2, index, 0, Kind.LOADER)
        run.op("Sample", 0, at, ms + 0.2, index, 0, Kind.SAMPLE)
        run.worker(0).record(Kind.OP, at * MS, int(ms * 0.9 * MS), name="inside", batch=0, index=index, flags=Flag.USER)
    run.made(0, 0, 0, 60_000, samples=300)
    run.write()
    found = sample_times(read_run(tmp_path))
    assert found.slow_share == pytest.approx(0.02)
    assert found.slow_part == "inside"


def test_slow_samples_are_counted_by_what_all_took_where_few_were_looked_at(tmp_path: Path) -> None:
    """Chance showed one of 400, but the time of all 4,000 says that it is one in a hundred."""
    run = SyntheticRun(tmp_path)
    for number in range(400):
        run.op("Sample", 0, number * 10, 101 if number == 7 else 1, number, 0, Kind.SAMPLE)
    for number in range(40):
        run.made(number, 0, number * 200, 200, samples=100)
    run.write()
    found = sample_times(read_run(tmp_path))
    assert found.slow_share == pytest.approx(0.01)
    assert found.slow_work == pytest.approx(101 / 200)


def test_samples_of_threads_that_compute_are_judged_by_their_cpu_time(tmp_path: Path) -> None:
    """One that waited long for the others is not slow; one that computed long is."""
    run = SyntheticRun(tmp_path)
    for number in range(300):
        long, on_cpu = number == 3 or number % 10 == 0, 0.02 if number % 10 == 0 else 1.0
        run.op("Sample", 0, number * 300, 200 if long else 4, number, 0, Kind.SAMPLE, on_cpu)
    run.made(0, 0, 0, 60_000, samples=300)
    run.write()
    by_time, by_cpu = sample_times(read_run(tmp_path)), sample_times(read_run(tmp_path), by_cpu=True)
    assert by_time.slow_share == pytest.approx(31 / 300)
    assert by_cpu.slow_share == pytest.approx(1 / 300)
    assert by_cpu.slow_work == pytest.approx(200 / (200 + 299 * 4))


def test_a_worker_that_met_a_stall_in_every_batch_is_not_slow(tmp_path: Path) -> None:
    """Its samples are told apart where they were looked at; a batch of a stream is one run."""
    run = SyntheticRun(tmp_path)
    for worker in (0, 1):
        for batch in range(20):
            stall = 40 if worker == 1 else 0
            for sample in range(8):
                run.op("Sample", worker, batch * 100 + sample, 1 + stall * (sample == 7), kind=Kind.SAMPLE, batch=batch)
            run.made(2 * batch + worker, worker, batch * 100, 8 + stall, samples=8)
    run.write()
    first, second = summarize(tmp_path).workers
    assert first.sample_median_ms == second.sample_median_ms == pytest.approx(1.0)


def test_waiting_for_a_core_is_a_share_of_the_work_of_those_who_tell(tmp_path: Path) -> None:
    """A worker that was killed told its beginning only."""
    run = SyntheticRun(tmp_path)
    for number, told in enumerate([(5, 25), (7,)]):
        run.made(0, number, 0, 40)
        for at_ms in told:
            run.worker(number).record(Kind.STARVED, 0, nbytes=at_ms * 1_000_000)
    run.taken(0, 0, 40)
    run.write()
    summary = summarize(tmp_path)
    assert [row.starved_s for row in summary.workers] == [pytest.approx(0.020), None]
    assert summary.verdict.numbers["starved"] == pytest.approx(0.5)
