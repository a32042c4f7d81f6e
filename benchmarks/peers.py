"""minato beside its peers: JPEG files decoded to 224×224 floats, the same files, workers and batch size for all.

    python benchmarks/peers.py                          # those that are installed, 3 rounds
    python benchmarks/peers.py --only torch minato SPDL # some; --list names them
    python benchmarks/peers.py --json out.json

Install what you want to see beside it, in an environment of its own:

    pip install -c constraints.txt '.[bench]' torchdata spdl grain webdataset litdata 'ray[data]' nvidia-dali-cuda120

Every contender runs in a fresh process, in each round; rounds go through all of them in turn, each from another one on.
A process warms up with one epoch, then `--epochs` are timed. A rate is over whole epochs, from asking for the first
batch to the end. First batch: of the first epoch, in the fresh process, imports and preparation aside. Every epoch is
checked: each image once. Peers that keep data in a form of their own get it made before the clock starts.

Exit status: 0, 1 if a contender failed, 2 if one lost or repeated a sample.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness
from benchmarks.peer_arms import CONTENDERS, PACKAGES, PREPARED, Job, indices_of, load_job, save_job

IMPORTED = {"spdl-core": "spdl.pipeline", "ray": "ray.data", "nvidia-dali-cuda120": "nvidia.dali"}
"""Modules of packages that have another name; ray.data needs more than ray."""
MOST_S = 180  # seconds of one contender's process


@dataclass(frozen=True)
class Seen:
    """What one process of a contender measured. Rates are samples per second, one for each epoch."""

    contender: str
    rates: list[float]
    first_batch_s: float
    cpu_s: float
    """CPU seconds of the process and its children over the timed epochs, per 1,000 samples."""
    complete: bool
    """Every epoch gave every sample once."""


def make_files(job: Job) -> None:
    """JPEG files of varying size, a few pictures under many names."""
    from minato.bench.realistic import make_jpeg

    (job.directory / "files").mkdir()
    pictures = [make_jpeg(seed) for seed in range(64)]
    for index in range(job.length):
        job.path(index).write_bytes(pictures[index % len(pictures)])


def measure(contender: str, job: Job, epochs: int) -> Seen:
    """In this process."""
    from minato.bench.memory import cpu_seconds

    make_epoch = CONTENDERS[contender](job)
    complete, rates, first_s, cpu = True, [], 0.0, 0.0
    for number in range(epochs + 1):  # the first warms up
        if number == 1:
            cpu = cpu_seconds()
        seen: Counter[int] = Counter()
        began = time.perf_counter()
        for batch in make_epoch():
            if number == 0 and not seen:
                first_s = time.perf_counter() - began
            seen.update(indices_of(batch))
        seconds = time.perf_counter() - began
        complete = complete and len(seen) == job.length and seen.total() == job.length
        if number:
            rates.append(job.length / seconds)
    spent = (cpu_seconds() - cpu) / (epochs * job.length) * 1e3
    return Seen(contender, rates, first_s, spent, complete)


def installed(contender: str) -> bool:
    package = PACKAGES.get(contender)
    if package is None:
        return True
    try:
        return find_spec(IMPORTED.get(package, package)) is not None
    except ModuleNotFoundError:
        return False


def run_fresh(contender: str, job_file: Path, epochs: int) -> Seen | str:
    """What a process of its own measured, or why there is nothing."""
    command = [sys.executable, __file__, "--child", contender, str(job_file), "--epochs", str(epochs)]
    out = job_file.with_name("out.json")
    out.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {MOST_S} s"
    if done.returncode or not out.exists():
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return lines[-1][:200]
    return Seen(**json.loads(out.read_text(encoding="utf-8")))


def child(contender: str, job_file: Path, epochs: int) -> None:
    """Measure and leave the result beside the job; contenders print what they like."""
    seen = measure(contender, load_job(job_file), epochs)
    job_file.with_name("out.json").write_text(json.dumps(asdict(seen)), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # some leave threads that would hold up the exit


def run_all(names: list[str], job: Job, rounds: int, epochs: int) -> dict[str, list[Seen | str]]:
    """Every contender once per round, in turn."""
    job_file = job.directory / "job.json"
    save_job(job, job_file)
    for name in names:
        if name in PREPARED:
            PREPARED[name](job)
    results: dict[str, list[Seen | str]] = {name: [] for name in names}
    for number in range(rounds):
        first = number * len(names) // rounds
        for name in names[first:] + names[:first]:
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            results[name].append(run_fresh(name, job_file, epochs))
    return results


def row(name: str, seen: list[Seen], torch_rate: float) -> str:
    """One line of the table."""
    rates = [rate for each in seen for rate in each.rates]
    middle = statistics.median(rates)
    first_ms = 1e3 * statistics.median(each.first_batch_s for each in seen)
    cpu = statistics.median(each.cpu_s for each in seen)
    once = "yes" if all(each.complete for each in seen) else "NO"
    spread = f"{min(rates):,.0f} .. {max(rates):,.0f}"
    return f"{name:22} {middle:9,.0f} {spread:>17} {middle / torch_rate:8.2f} {first_ms:10,.0f} {cpu:12.2f}  {once}"


def show(results: dict[str, list[Seen | str]], missing: list[str]) -> None:
    """The table, then those that failed or are not there."""
    good = {name: [each for each in seen if isinstance(each, Seen)] for name, seen in results.items()}
    baseline = [rate for each in good.get("torch", []) for rate in each.rates]
    torch_rate = statistics.median(baseline) if baseline else float("nan")
    print(f"{'':22} {'samples/s':>9} {'range':>17} {'x torch':>8} {'first ms':>10} {'CPU s/1000':>12}  each once")
    for name, seen in good.items():
        if seen:
            print(row(name, seen, torch_rate))
    for name, seen_or_not in results.items():
        for why in dict.fromkeys(each for each in seen_or_not if isinstance(each, str)):
            print(f"{name}: failed: {why}")
    if missing:
        print(f"not installed: {', '.join(missing)}")


def versions(names: list[str]) -> dict[str, str]:
    found = {}
    for package in sorted({PACKAGES[name] for name in names if name in PACKAGES}):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these contenders only (see --list)")
    parser.add_argument("--list", action="store_true", help="print the names of the contenders")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each contender (default 3)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs timed in each (default 2)")
    parser.add_argument("--samples", type=int, default=768, help="files (default 768)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every figure, machine and versions here")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "JOB"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the contenders; returns the exit status."""
    options = parse(argv)
    if options.child:
        child(options.child[0], Path(options.child[1]), options.epochs)
    if options.list:
        print("\n".join(f"{name:22} {'' if installed(name) else 'not installed'}" for name in CONTENDERS))
        return 0
    unknown = [name for name in options.only or () if name not in CONTENDERS]
    if unknown:
        print(f"no such contender: {', '.join(unknown)}; there are {', '.join(CONTENDERS)}", file=sys.stderr)
        return 64
    wanted = [name for name in CONTENDERS if not options.only or name in options.only]
    names = [name for name in wanted if installed(name)]
    machine: dict[str, Any] = {**harness.machine(), **versions(names)}
    print("  ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="minato-peers-") as directory:
        job = Job(Path(directory), options.samples, options.batch_size, options.workers)
        make_files(job)
        results = run_all(names, job, options.rounds, options.epochs)
    show(results, [name for name in wanted if name not in names])
    if options.json:
        raw = {
            name: [asdict(each) if isinstance(each, Seen) else each for each in seen] for name, seen in results.items()
        }
        setting = {"samples": options.samples, "batch_size": options.batch_size, "workers": options.workers}
        options.json.write_text(json.dumps({"machine": machine, **setting, "results": raw}, indent=1))
    flat = [each for seen in results.values() for each in seen]
    if any(isinstance(each, Seen) and not each.complete for each in flat):
        return 2
    return int(any(isinstance(each, str) for each in flat))


if __name__ == "__main__":
    sys.exit(main())
