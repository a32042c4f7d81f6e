"""How fast samples travel: minato's loader against torch's, workload by workload, with the targets beside the figures.

    python benchmarks/transport.py                 # everything, 5 repeats
    python benchmarks/transport.py --quick         # smaller epochs, 3 repeats, rougher
    python benchmarks/transport.py --only big tokens --json out.json

Exit status: 0 all targets met, 1 a target missed, 2 a sample lost, repeated or mixed up.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.utils.data import DataLoader

from benchmarks import harness, process_tree, workloads
from benchmarks.ceiling import NoLoader
from benchmarks.harness import Arm, Case, Measure, Results, Target, Verdict
from benchmarks.workloads import Workload
from minato.bench.running import StolenTime

OUR_CLASS = "minato:DataLoader"
LoaderClass = Callable[..., Any]

CHEAP = Workload(workloads.CheapImages, 100_000, 40_000)
CHEAP_UNBATCHED = Workload(workloads.CheapImages, 4_000, 1_500, reader="read_sample")
CHEAP_SINGLE = Workload(workloads.CheapImages, 20_000, 8_000)
CHEAP_SMALL = Workload(partial(workloads.CheapImages, stored=5_000), 60_000, 30_000)
STREAM = Workload(workloads.CheapStream, 100_000, 40_000)
BIG = Workload(workloads.BigImages, 3_072, 1_280)
NESTED = Workload(workloads.NestedRecords, 25_000, 10_000)
TOKENS = Workload(workloads.Tokens, 50_000, 20_000)
IDLE = Workload(workloads.CheapImages, 20_000, 20_000)
SLOW = Workload(workloads.SlowSamples, 256, 256)


def arm(name: str, cls: LoaderClass, epochs: int = 1, **arguments: Any) -> Arm:
    """An arm that gives `arguments` to a loader class; two epochs mean persistent workers."""
    if epochs > 1:
        arguments["persistent_workers"] = True
    return Arm(name, partial(cls, **arguments), epochs)


def main_case(
    name: str,
    title: str,
    workload: Workload,
    ours: LoaderClass,
    at_least: float,
    over_none: float = 0.0,
    persistent: bool = False,
    ceiling: bool = False,
    **common: Any,
) -> Case:
    """A workload of the issue's table: 0 and 2 workers, orders, with `persistent` the rate of a second epoch, with
    `ceiling` what two processes reach that only make the samples."""
    arguments = {"shuffle": True, **common}
    two = {**arguments, "num_workers": 2}
    targets = [Target("minato 2 workers", "torch 2 workers", at_least)]
    if over_none:
        targets.append(Target("minato 2 workers", "torch 0 workers", over_none))
    arms = [
        arm("torch 0 workers", DataLoader, **arguments),
        arm("torch 2 workers", DataLoader, **two),
        arm("torch 2 workers in_order=False", DataLoader, **two, in_order=False),
        arm("minato 2 workers", ours, **two),
        arm("minato 2 workers in_order=True", ours, **two, in_order=True),
    ]
    if ceiling:
        arms.append(arm("no loader, 2 processes", NoLoader, **two))
    if persistent:
        arms += [arm("torch 2 persistent", DataLoader, 2, **two), arm("minato 2 persistent", ours, 2, **two)]
        last = "2 persistent, epoch 2"
        targets.append(Target(f"minato {last}", f"torch {last}", 1.0, tie_allowed=True))
    return Case(name, title, workload, tuple(arms), tuple(targets), baseline="torch 2 workers")


def same_case(name: str, title: str, workload: Workload, ours: LoaderClass, epochs: int = 1, **arguments: Any) -> Case:
    """Both loaders in the same setting; ours must never be slower."""
    arms = (arm("torch", DataLoader, epochs, **arguments), arm("minato", ours, epochs, **arguments))
    pairs = zip(arms[1].rows(), arms[0].rows(), strict=True)
    targets = tuple(Target(row, against, 1.0, tie_allowed=True) for row, against in pairs)
    return Case(name, title, workload, arms, targets, baseline=arms[0].rows()[0])


def fresh_case(
    name: str, title: str, measure: Measure, workload: Workload, ours: LoaderClass, bound: float, **arguments: Any
) -> Case:
    """Both loaders, each run in an interpreter of its own; the figure must stay at or under the bound."""
    against = None if measure == "idle" else "torch"
    arms = (arm("torch", DataLoader, **arguments), arm("minato", ours, **arguments))
    target = Target("minato", against, bound, at_most=True, tie_allowed=measure == "memory")
    return Case(name, title, workload, arms, (target,), measure, against)


def all_cases(ours: LoaderClass) -> list[Case]:
    """Everything the benchmark knows, in the order of the issue's table."""
    cheap: dict[str, Any] = {"batch_size": 256, "shuffle": True}
    big: dict[str, Any] = {"batch_size": 64, "shuffle": True}
    two: dict[str, Any] = {"num_workers": 2}
    spawn: dict[str, Any] = {**cheap, **two, "multiprocessing_context": "spawn"}
    return [
        main_case("cheap", "3x32x32 uint8 to float, batch 256", CHEAP, ours, 2.5, 1.4, True, True, batch_size=256),
        main_case("big", "3x224x224 float32, batch 64", BIG, ours, 4.0, persistent=True, batch_size=64),
        main_case("nested", "dict of 6 tensors, 2 ints, 1 string, batch 128", NESTED, ours, 1.5, batch_size=128),
        main_case(
            "tokens",
            "16..512 tokens, padding collate_fn, batch 64",
            TOKENS,
            ours,
            1.3,
            batch_size=64,
            collate_fn=workloads.pad_tokens,
        ),
        same_case("one-cheap", "cheap, one worker", CHEAP, ours, **cheap, num_workers=1),
        same_case("one-big", "big, one worker", BIG, ours, **big, num_workers=1),
        same_case("spawn", "cheap, spawn, 2 persistent workers", CHEAP_SMALL, ours, 2, **spawn),
        same_case("unbatched", "cheap, batch_size=None", CHEAP_UNBATCHED, ours, batch_size=None, shuffle=True, **two),
        same_case("iterable", "cheap as IterableDataset, batch 256", STREAM, ours, batch_size=256, **two),
        same_case("none-cheap", "cheap, no worker", CHEAP, ours, **cheap, num_workers=0),
        same_case("none-single", "cheap, no worker, batch 1", CHEAP_SINGLE, ours, batch_size=1, shuffle=True),
        fresh_case(
            "first-batch",
            "20 ms samples, batch 32, 8 workers: iter() to first batch",
            "first batch",
            SLOW,
            ours,
            0.25,
            batch_size=32,
            shuffle=True,
            num_workers=8,
        ),
        fresh_case("memory-big", "big: peak memory of the tree", "memory", BIG, ours, 1.0, **big, **two),
        fresh_case("memory-cheap", "cheap: peak memory of the tree", "memory", CHEAP, ours, 1.0, **cheap, **two),
        fresh_case("idle", "cheap, one batch read, then 3 s of nothing", "idle", IDLE, ours, 1.0, **cheap, **two),
    ]


def load_class(spec: str) -> LoaderClass:
    """The class named `module:name`."""
    module, _, name = spec.partition(":")
    found: LoaderClass = getattr(importlib.import_module(module), name)
    return found


def run(case: Case, options: argparse.Namespace) -> Results:
    """Measure one case."""
    if case.measure == "rate":
        return harness.run_rates(case, options.repeats, options.quick)
    passed_on = ("--class", options.cls, *(("--quick",) if options.quick else ()))
    # Peaks and idle shares vary less than rates, and each run of them costs an interpreter start and a whole epoch.
    repeats = options.repeats if case.measure == "first batch" else min(options.repeats, 2 if options.quick else 3)
    return process_tree.run_fresh(case, repeats, process_tree.ChildCommand(__file__, passed_on))


def raw(case: Case, results: Results, verdicts: list[Verdict]) -> dict[str, Any]:
    """One case as plain data for --json."""
    return {
        "case": case.name,
        "title": case.title,
        "unit": harness.UNITS[case.measure],
        "runs": results,
        "targets": [{**asdict(verdict), "target": str(verdict.target)} for verdict in verdicts],
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these cases only (see --list)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--repeats", type=int, help="runs of each arm (default 5, with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="smaller epochs, 3 repeats")
    parser.add_argument("--strict", action="store_true", help="count a tie as a miss")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write raw results, machine and versions here")
    parser.add_argument(
        "--class",
        dest="cls",
        default=OUR_CLASS,
        metavar="MODULE:NAME",
        help="class in the minato arms; torch.utils.data:DataLoader tests the benchmark itself (ratios near 1)",
    )
    parser.add_argument("--child", nargs=2, metavar=("CASE", "ARM"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.repeats = options.repeats or (3 if options.quick else 5)
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    options = parse(argv)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    cases = {case.name: case for case in all_cases(load_class(options.cls))}
    if options.list:
        print("\n".join(f"{case.name:14} {case.title}" for case in cases.values()))
        return 0
    if options.child:
        process_tree.child_main(cases[options.child[0]], options.child[1], options.quick)
        return 0
    unknown = set(options.only or ()) - set(cases)
    if unknown:
        print(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(cases)}", file=sys.stderr)
        return 64

    began, machine, stolen = time.monotonic(), harness.machine(), StolenTime()
    print("  ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    print(f"medians of {options.repeats} (min .. max); class in the minato arms: {options.cls}\n", flush=True)
    judged, records = [], []
    for case in cases.values():
        if options.only and case.name not in options.only:
            continue
        results = run(case, options)
        verdicts = harness.judge_all(case, results)
        judged.append((case, verdicts))
        records.append(raw(case, results, verdicts))
        print(harness.format_case(case, results, verdicts), end="\n\n", flush=True)

    seconds = time.monotonic() - began
    print(harness.format_summary(judged))
    share = stolen.share()
    print(f"\nexactly once in every epoch measured; {seconds:.0f} s; {share:.0%} of the CPU time went to other guests")
    if options.json:
        document = {
            "machine": machine,
            "class": options.cls,
            "quick": options.quick,
            "seconds": seconds,
            "stolen": share,
        }
        options.json.write_text(json.dumps({**document, "repeats": options.repeats, "cases": records}, indent=1))
    bad = {"MISSED", "tie"} if options.strict else {"MISSED"}
    return int(any(verdict.outcome in bad for _, verdicts in judged for verdict in verdicts))


if __name__ == "__main__":
    try:
        status = main()
    except workloads.WrongBatchError as error:
        print(f"exactly-once violated: {error}", file=sys.stderr)
        status = process_tree.WRONG_BATCH_STATUS
    sys.exit(status)
