"""All benchmarks, one after the other, each in a process of its own; raw results are kept.

    python benchmarks/run.py                              # every table; more than two hours on two cores
    python benchmarks/run.py --only transport peers       # some; --list names them and says what they show
    python benchmarks/run.py --out results --plots        # where results go; plots from them at the end

For each table NAME: results/NAME.txt is what it printed, results/NAME.json its raw figures (where it writes any), and
results/summary.json has exit codes and seconds. Plots are made from the JSON files alone (`plot.py`), so they can be
made again without measuring. Run it on a machine that does nothing else.

Exit status: 0 every table ended with 0, else 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Table:
    """One benchmark script and what it shows; `paper`: the published tables whose shape it has."""

    name: str
    shows: str
    paper: str = ""
    arguments: tuple[str, ...] = ()
    writes_json: bool = True

    @property
    def script(self) -> Path:
        return HERE / f"{self.name.replace('-', '_')}.py"

    def command(self, out: Path) -> list[str]:
        told = ("--json", str(out / f"{self.name}.json")) if self.writes_json else ()
        return [sys.executable, "-m", f"benchmarks.{self.script.stem}", *self.arguments, *told]


TABLES = (
    Table("transport", "samples per second, first batch, memory, idle CPU against torch's loader"),
    Table("pipelines", "MONAI, albumentations, scipy and tokenizers, trained on the CPU"),
    Table("peers", "torchdata, SPDL, Grain, WebDataset, LitData, Ray Data, DALI, those that are installed"),
    Table("scheduling", "how busy an accelerator is kept by uneven samples", "MinatoLoader fig. 7 to 9"),
    Table("storage", "reading from S3: fetchers, caches, hedging, grid", "ConcurrentDataLoader table 3, fig. 5 to 14"),
    Table("latency-files", "files that take long to open", "ConcurrentDataLoader fig. 5", writes_json=False),
    Table("tuning", "bottlenecks named, bounds, sizes, caches", "Plumber fig. 6 to 10, sec. 5.3", writes_json=False),
    Table("tracing", "operations, waits, delays, the cost of looking", "Lotus tables II and III, fig. 2 to 6"),
    Table("planted", "faults planted in pipelines, and what the verdicts of their traces say"),
    Table("offload", "when, which and how much goes to other machines", "FastFlow fig. 6 to 10, table 4"),
    Table("papers", "published tables that no other script has", "Lotus table II, fig. 2 to 6; MinatoLoader fig. 8"),
    Table("chaos", "workers killed all the time, nothing lost"),
)


@dataclass(frozen=True)
class Outcome:
    """How one table ended."""

    name: str
    status: int
    seconds: float


def run(table: Table, out: Path) -> Outcome:
    """Run one table; what it prints is shown and kept."""
    began = time.monotonic()
    with (
        (out / f"{table.name}.txt").open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            table.command(out), cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            kept.write(line)
    return Outcome(table.name, process.returncode, round(time.monotonic() - began, 1))


def main(argv: list[str] | None = None) -> int:
    """Run the tables asked for; returns the exit status."""
    names = [table.name for table in TABLES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results"), help="directory for results (default results)")
    parser.add_argument("--plots", action="store_true", help="draw what plot.py can draw, into the same directory")
    options = parser.parse_args(argv)
    if options.list:
        for table in TABLES:
            print(f"{table.name:14} {table.shows}" + (f"  [{table.paper}]" if table.paper else ""))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for table in TABLES:
        if not options.only or table.name in options.only:
            print(f"\n==== {table.name}: {table.shows}\n", flush=True)
            outcomes.append(run(table, options.out.resolve()))
            summary = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
            (options.out / "summary.json").write_text(summary, encoding="utf-8")
    if options.plots:
        subprocess.run([sys.executable, "-m", "benchmarks.plot", str(options.out)], cwd=HERE.parent, check=True)
    print()
    for outcome in outcomes:
        print(f"{outcome.name:14} exit status {outcome.status}, {outcome.seconds:.0f} s")
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
