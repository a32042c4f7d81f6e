"""Native mapping without `perf`: how many runs, which function, whose share."""

import json
import platform
import re
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato.trace.native import (
    ForeignMapping,
    Function,
    NativeMapping,
    OpCounts,
    OpTime,
    PerfMissing,
    Profile,
    ProfileRow,
    attribute,
    capture_probability,
    map_ops,
    ops_of,
    runs_needed,
)
from minato.trace.native.attribution import OTHER, exact_shares
from minato.trace.native.elf import Library, Segment, read_library
from minato.trace.native.isolate import Window, _by_window
from minato.trace.native.machine import Machine
from minato.trace.native.matching import bare
from minato.trace.native.profiles import profile_of_csv, profile_of_samples
from minato.trace.native.samples import Sample, read_samples

MEMMOVE = Function("__memmove_avx_unaligned_erms", "libc.so.6")
IDCT = Function("jpeg_idct_islow", "libjpeg.so.9.5.0")
RESAMPLE = Function("ImagingResampleHorizontal_8bpc", "_imaging.so")


def counts(op: str, samples: dict[Function, int], runs: int = 10, calls: int = 10) -> OpCounts:
    return OpCounts(op, runs, calls, 0.1 * calls, samples, dict.fromkeys(samples, runs))


def mapping(*ops: OpCounts) -> NativeMapping:
    return NativeMapping(Machine.here(), "cpu-clock", 999, ops)


LOADING_AND_CROPPING = mapping(
    counts("Loader", {IDCT: 60, MEMMOVE: 30}), counts("RandomResizedCrop", {RESAMPLE: 50, MEMMOVE: 10})
)


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_the_papers_example_needs_21_runs() -> None:
    assert runs_needed(660e-6, 10e-3, 0.75) == 21
    assert capture_probability(660e-6, 10e-3, 20) == pytest.approx(0.745, abs=0.001)


@given(st.floats(1e-7, 1.0), st.floats(1e-6, 0.1), st.floats(0.0, 0.9999))
def test_needed_runs_are_enough_and_one_less_is_not(span: float, interval: float, confidence: float) -> None:
    runs = runs_needed(max(span, interval * 1e-4), interval, confidence)
    span = max(span, interval * 1e-4)
    assert capture_probability(span, interval, runs) >= confidence
    assert runs == 1 or capture_probability(span, interval, runs - 1) < confidence


# ---- samples ---------------------------------------------------------------------------------------------------------

SCRIPT = """\
    0     0.000000000: PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x1206448) @ 0xffffffff81000000]: x [kernel]
   70     1.000000001: PERF_RECORD_MMAP2 70/70: [0x7f0000001000(0x2000) @ 0x1000 fe:00 340072 0]: r-xp {library}
   70     1.500000000: PERF_RECORD_FORK(71:71):(70:70)
   70     2.000000005:    1001001 cpu-clock:      7f0000001010 [unknown] ({library})
   71     2.000000006:    1001001 cpu-clock:u:      7f0000001010 [unknown] ({library})
   70     2.000000007:    1001001 cpu-clock:  ffffffff816dcb92 __d_lookup_rcu ([kernel.kallsyms])
   70     2.000000008:        300 cache-misses:      5581 at::cat (x)(int) const (/opt/a b/libtorch (x).so (deleted))
   70     2.000000009:    1001001 cpu-clock:      7fff00000000 [unknown] ([unknown])
"""


def test_samples_of_a_stripped_library_get_the_nearest_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a forked process, whose maps are its parent's."""
    library = Library("ab", (0x11000, 0x12000), ("deflate", "inflate"), (Segment(0x1000, 0x11000, 0x2000),))
    monkeypatch.setattr("minato.trace.native.samples.read_library", lambda path: library)
    found = list(read_samples(SCRIPT.format(library="/lib/libz.so.1").splitlines(keepends=True)))
    assert [(sample.pid, sample.function.key) for sample in found] == [
        (70, "~deflate|libz.so.1"),
        (71, "~deflate|libz.so.1"),
        (70, "__d_lookup_rcu|[kernel.kallsyms]"),
        (70, "at::cat (x)(int) const|libtorch (x).so (deleted)"),
        (70, "[unknown]|[unknown]"),
    ]
    assert found[0].time_ns == 2_000_000_005
    profile = profile_of_samples(found)
    assert profile.total("cpu-clock samples") == 4
    assert profile.total("cpu-clock") == Fraction(4 * 1001001, 10**9)
    assert profile.total("cache-misses") == 300


def test_a_real_library_tells_build_id_and_exports() -> None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split()[-1] for line in maps if re.search(r"/libc[.-]", line))
    library = read_library(path)
    assert len(library.build_id) >= 16
    start = library.addresses[library.names.index("malloc")]
    assert library.nearest(start) == "malloc"
    assert library.nearest(start + 1) == "malloc"
    assert library.nearest(0) is None


def test_what_is_no_library_has_no_symbols(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"\x7fELF\x02\x01")
    (tmp_path / "text").write_text("no")
    for name in ("short", "text", "missing"):
        assert read_library(str(tmp_path / name)) == Library()


def test_samples_belong_to_runs_by_their_time() -> None:
    windows = [Window("a", 10, 20, 1), Window("b", 30, 40, 1), Window("a", 50, 60, 1)]
    times = [60, 9, 10, 20, 25, 30, 41, 55]
    samples = iter([Sample(1, time, "cpu-clock", 1, MEMMOVE, "/lib/c") for time in times])
    assert [[s.time_ns for s in part] for part in _by_window(windows, samples)] == [[10, 20], [30], [55, 60]]


# ---- mapping ---------------------------------------------------------------------------------------------------------


def test_a_function_counts_by_runs_or_by_share() -> None:
    often, much, stray = (Function(name, "lib") for name in ("often", "much", "stray"))
    one = OpCounts("op", 10, 10, 1.0, {often: 3, much: 20, stray: 1}, {often: 3, much: 1, stray: 1})
    assert mapping(one).functions("op") == (much, often)
    assert replace(mapping(one), min_runs=1).functions("op") == (much, often, stray)


def test_a_mapping_survives_its_file(tmp_path: Path) -> None:
    LOADING_AND_CROPPING.save(tmp_path / "map.json")
    assert NativeMapping.load(tmp_path / "map.json") == LOADING_AND_CROPPING
    data = json.loads((tmp_path / "map.json").read_text())
    assert data["op_to_func"]["Loader"] == [IDCT.key, MEMMOVE.key]
    assert data["common_funcs_to_op"] == {MEMMOVE.key: ["Loader", "RandomResizedCrop"]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"processor": "Zilog Z80"}, "processor was Zilog Z80"),
        ({"kernel": "0.99"}, f"kernel was 0.99, here it is {platform.release()}"),
        ({"libraries": {"/nowhere/libz.so": "ab"}}, "/nowhere/libz.so is not here"),
        ({"libraries": {sys.executable: "ab"}}, "had build id ab|is not here"),
    ],
)
def test_a_foreign_mapping_is_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    foreign = replace(LOADING_AND_CROPPING, machine=replace(Machine.here(), **change))
    foreign.save(tmp_path / "map.json")
    with pytest.raises(ForeignMapping, match=told):
        NativeMapping.load(tmp_path / "map.json")
    with pytest.raises(ForeignMapping, match=told):
        attribute(Profile(("t",), ()), foreign)
    with pytest.warns(UserWarning, match=told):
        NativeMapping.load(tmp_path / "map.json", foreign="warn")


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="not a mapping of format 1: found 99"):
        NativeMapping.load(tmp_path / "map.json")


# ---- profiles --------------------------------------------------------------------------------------------------------

VTUNE = (
    "Source Function / Function / Call Stack\tCPU Time\tClockticks\tCPI Rate\tFront-End Bound\tModule\tFunction (Full)"
    "\tSource File\tStart Address\n"
    "jpeg_idct_islow\t2.0s\t4,000,000\t0.354\t2.5%\tlibjpeg.so.9\tjpeg_idct_islow\t[Unknown]\t0\n"
    "__memmove_avx_unaligned_erms\t1.0s\t1,000,000\t3.8\t40.0%\t[Unknown]\t__memmove_avx_unaligned_erms\tx.S\t0\n"
    "at::cat\t500ms\t700,000\t1.0\t10.0%\tlibtorch.so\tat::cat(int, long)\t[Unknown]\t0\n"
)
UPROF = """
"AMD uProf (Version:4.0.341.0)"
PERFORMANCE ANALYSIS REPORT

EXECUTION
Target Path:,"/usr/bin/python, really"

"100 HOTTEST FUNCTIONS (Sort Event - CPU_TIME)"
FUNCTION,"CPU_TIME",Module
"jpeg_idct_islow",467.0000,"/opt/lib/libjpeg.so.9.5.0"
"__memmove_avx_unaligned_erms",169.5000,"/usr/lib/libc.so.6"

"100 HOTTEST PROCESSES (Sort Event - CPU_TIME)"
PROCESS,"CPU_TIME"
"python (PID:3152930)",636.5000
"""


def test_a_report_of_vtune_is_read_and_split() -> None:
    """Percentages become shares of clockticks, are split, and are percentages again; rates are left out."""
    profile = profile_of_csv(VTUNE)
    assert profile.metrics == ("CPU Time", "Clockticks", "Front-End Bound")
    assert profile.left_out == ("CPI Rate",)
    assert profile.total("CPU Time") == Fraction("3.5")
    found = attribute(profile, LOADING_AND_CROPPING)
    assert found.value("Loader", "CPU Time") == pytest.approx(2 + 0.75)
    assert found.value("RandomResizedCrop", "CPU Time") == pytest.approx(0.25)
    assert found.value(OTHER, "CPU Time") == Fraction(1, 2)
    assert found.shown("RandomResizedCrop", "Front-End Bound") == pytest.approx(40.0)
    assert found.shown("Loader", "Front-End Bound") == pytest.approx(100 * (0.1 + 0.3) / 4.75)
    assert found.total("Front-End Bound") == profile.total("Front-End Bound")


def test_a_report_of_uprof_is_read() -> None:
    profile = profile_of_csv(UPROF)
    assert [row.function for row in profile.rows] == [IDCT, MEMMOVE]
    assert profile.total("CPU_TIME") == Fraction("636.5")


def test_a_csv_without_functions_says_what_was_needed() -> None:
    with pytest.raises(ValueError, match="no table of functions"):
        profile_of_csv("a,b\n1,2\n")
    with pytest.raises(ValueError, match="expected 3 columns"):
        profile_of_csv("Function,CPU Time,Module\nf,1\n")


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("at::cat(int, long) const", "at::cat"),
        ("at::(anonymous namespace)::f(int)", "at::(anonymous namespace)::f"),
        ("void f<g(int)>(long)", "void f<g(int)>"),
        ("A::operator()(int) const", "A::operator()"),
        ("memcpy", "memcpy"),
    ],
)
def test_names_without_arguments(full: str, short: str) -> None:
    assert bare(full) == short


# ---- attribution -----------------------------------------------------------------------------------------------------


def test_weights_by_trace_are_the_papers() -> None:
    """A shared function goes to operations in proportion to their times; what none has stays apart."""
    row = ProfileRow(MEMMOVE, {"t": Fraction(12)})
    stray = ProfileRow(Function("main", "python"), {"t": Fraction(5)})
    times = {"Loader": 3.0, "RandomResizedCrop": OpTime(1.0, 7)}
    found = attribute(Profile(("t",), (row, stray)), LOADING_AND_CROPPING, weights="trace", times=times)
    assert [found.value(op, "t") for op in found.ops] == [9, 3, 5]
    assert "(not attributed)" in found.table()
    assert json.loads(found.to_json())["totals"] == {"t": 17.0}


def test_weights_by_samples_count_the_calls_of_the_run() -> None:
    row = ProfileRow(MEMMOVE, {"t": Fraction(8)})
    times = {"Loader": OpTime(1.0, calls=1), "RandomResizedCrop": OpTime(1.0, calls=3)}
    found = attribute(Profile(("t",), (row,)), LOADING_AND_CROPPING, times=times)
    assert [found.value(op, "t") for op in found.ops] == [4, 4, 0]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.fractions(0, 10**12)), max_size=30),
    st.lists(st.lists(st.integers(0, 1000), min_size=6, max_size=6), min_size=1, max_size=4),
    st.sampled_from(["samples", "trace"]),
    st.data(),
)
def test_sums_are_preserved_exactly(
    rows: list[tuple[int, Fraction]], seen: list[list[int]], weights: str, data: st.DataObject
) -> None:
    functions = [Function(f"f{number}", "lib") for number in range(6)]
    ops = [
        counts(f"op{number}", {f: n for f, n in zip(functions, part, strict=True) if n})
        for number, part in enumerate(seen)
    ]
    times = {op.op: data.draw(st.floats(0, 1e6)) for op in ops}
    profile = Profile(("m",), tuple(ProfileRow(functions[number], {"m": value}) for number, value in rows))
    found = attribute(profile, mapping(*ops), weights=weights, times=times)
    assert sum(found.value(op, "m") for op in found.ops) == profile.total("m") == found.total("m")


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e9), max_size=6))
def test_shares_add_up_to_one(weights: dict[str, float]) -> None:
    shares = exact_shares(weights)
    assert not shares or sum(shares.values()) == 1
    assert bool(shares) == any(weight > 0 for weight in weights.values())


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_without_perf_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PerfMissing, match=r"apt install linux-perf.*dnf install perf"):
        map_ops({"op": int})


def test_arguments_are_checked_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="ops is empty"):
        map_ops({})
    with pytest.raises(TypeError, match="callable without arguments, got 3 for 'op'"):
        map_ops({"op": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="runs must be at least 1, got 0"):
        map_ops({"op": int}, runs=0)
    with pytest.raises(ValueError, match="confidence must be a probability"):
        map_ops({"op": int}, confidence=1.0)
    with pytest.raises(ValueError, match="start_method must be one of"):
        map_ops({"op": int}, start_method="thread")
    with pytest.raises(ValueError, match='weights="trace" needs times'):
        attribute(Profile(("t",), ()), LOADING_AND_CROPPING, weights="trace")
    with pytest.raises(ValueError, match="none of the mapped operations"):
        attribute(Profile(("t",), ()), LOADING_AND_CROPPING, times={"Resize": 1.0})


def test_operations_of_a_dataset_are_its_stages() -> None:
    """Each is prepared up to its own stage and does that stage alone; a sample is made anew for each call."""
    from minato import StagedDataset

    done: list[str] = []

    def load(index: int) -> list[str]:
        done.append("load")
        return []

    def crop(sample: list[str]) -> list[str]:
        done.append("crop")
        return [*sample, "crop"]

    def flip(sample: list[str]) -> list[str]:
        done.append("flip")
        return [*sample, "flip"]

    ops = ops_of(StagedDataset(load, [crop, flip], 3), collate_fn=len, batch_size=5)
    assert [op.name for op in ops] == ["Loader", "crop", "flip", "Collation"]
    call = ops[2].prepare()
    done.clear()
    call()
    assert done == ["flip"]
    assert ops[3].prepare()() == 5
    assert [op.name for op in ops_of([1, 2, 3])] == ["Loader"]
