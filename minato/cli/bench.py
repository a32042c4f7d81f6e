"""`minato bench`: minato's loader against torch's on this machine."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._errors import InternalError
from .errors import UserError

_EXAMPLES = """examples:
  minato bench                                   all built-in workloads, under two minutes
  minato bench --only cheap images --rounds 5    some of them, more carefully
  minato bench --mine train:make_dataset --batch-size 32 --workers 4
                                                 your own dataset: the figure that counts
  minato bench --json > bench.json               for machines

Each loader is made in the settings people use: torch's without workers, with workers, out of order, persistent;
minato's in the same ones, in order, and adaptive. A simulated accelerator takes the batches; "busy" is the share of the
time in which it worked. "of bound" is the share of what the workers or the accelerator can do at most.

exit status: 0; 1 where minato was slower than torch's loader in the same setting; 2 for a mistake in the call; 3 if a
sample was lost or came twice
"""


BUDGET_S = 100.0  # seconds: what is left of them after the first round goes to a second look at some
WORTH_TELLING = 0.02  # of the CPU time
_BATCH_SIZE = 32
_OF_MINE = ("batch_size", "workers", "collate", "step")


def register(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="measure minato against torch's loader on this machine",
        description="Measure minato's loader against torch's: same data, same workers, every sample checked.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these workloads only (see --list)")
    parser.add_argument("--list", action="store_true", help="print the names of the workloads and end")
    parser.add_argument("--mine", metavar="MODULE:FUNCTION", help="a function that makes your map-style dataset")
    parser.add_argument("--batch-size", type=int, help=f"with --mine (default {_BATCH_SIZE})")
    parser.add_argument("--workers", type=int, help="with --mine (default: the cores this process may use)")
    parser.add_argument("--collate", metavar="MODULE:FUNCTION", help="with --mine: your collate_fn")
    parser.add_argument("--step", type=float, metavar="SECONDS", help="with --mine: a training step (default none)")
    parser.add_argument("--details", action="store_true", help="print a table of all loaders for each workload too")
    parser.add_argument(
        "--rounds",
        type=int,
        help="visits to each loader (default: one, and more where it is not clear which is ahead, while there is time)",
    )
    parser.add_argument("--seconds", type=float, default=0.4, help="least seconds of a visit (default 0.4)")
    parser.add_argument("--html", type=Path, default=Path("bench.html"), help="the page (default bench.html)")
    parser.add_argument("--json", action="store_true", help="print plain data instead of tables")
    parser.set_defaults(run=run)
    from . import bench_storage

    bench_storage.register(parser.add_subparsers(title="other measurements", metavar="storage"))


def run(options: argparse.Namespace) -> int:
    """Run the workloads asked for; 1 if minato was slower anywhere."""
    rounds, budget_s = (1, BUDGET_S) if options.rounds is None else (options.rounds, None)
    if rounds < 1 or options.seconds <= 0:
        raise UserError("--rounds must be at least 1 and --seconds above 0")
    _check_together(options)
    _need_extra()
    from ..bench import running, showing, verdict
    from ..bench.datasets import WrongBatchError
    from ..bench.own import failure
    from ..bench.workloads import WORKLOADS

    if options.list:
        if options.json:
            sys.stdout.write(json.dumps({each.name: each.title for each in WORKLOADS}, indent=1) + "\n")
        else:
            sys.stdout.writelines(f"{each.name:10} {each.title}\n" for each in WORKLOADS)
        return 0
    workloads = _chosen(options, WORKLOADS)
    titles = {workload.name: workload.title for workload in workloads}
    machine = running.this_machine()
    began, stolen = time.monotonic(), running.StolenTime()
    try:
        results = _run_with_progress(workloads, rounds, options.seconds, machine.cores, budget_s)
    except WrongBatchError as error:
        sys.stderr.write(f"minato: not every sample came exactly once: {error}\n")
        return 3
    except InternalError:
        raise
    except Exception as error:
        if options.mine is None:
            raise
        raise UserError(f"--mine: {failure(error)}") from error
    comparisons = verdict.compare(results)
    stolen_share = stolen.share()
    if options.json:
        plain = {**showing.as_plain(machine, results, comparisons), "stolen_share": stolen_share}
        json.dump(plain, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        console = _console()
        tables = showing.tables(results, comparisons, titles) if options.details else []
        words = [verdict.in_words(comparisons), *verdict.faster_otherwise(results), verdict.checked_in_words(results)]
        tables.append(showing.summary(results, comparisons, titles, console.width))
        _print(console, tables, words, showing.legend(titles))
    try:
        options.html.write_text(showing.page(machine, results, comparisons, titles), encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page could not be written to {options.html}: {error.strerror}; change --html") from None
    if stolen_share >= WORTH_TELLING:
        sys.stderr.write(
            f"meanwhile others on this machine's host took {stolen_share:.0%} of its CPU time, now more, now less: "
            "differences of as much mean nothing\n"
        )
    sys.stderr.write(f"plots and all figures: {options.html} ({time.monotonic() - began:.0f} s)\n")
    return int(any(comparison.word == "slower" for comparison in comparisons))


def _check_together(options: argparse.Namespace) -> None:
    """Before anything is measured: options that do not go together, a page that could not be written."""
    if options.mine is None:
        given = [f"--{name.replace('_', '-')}" for name in _OF_MINE if getattr(options, name) is not None]
        if given:
            raise UserError(f"{given[0]} goes with --mine: the built-in workloads have their own")
    elif options.only:
        raise UserError("--only names built-in workloads, --mine measures your own: give one of them")
    if not options.html.absolute().parent.is_dir():
        raise UserError(f"{options.html.parent} is not a directory to write {options.html.name} to; change --html")


def _need_extra() -> None:
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise UserError(f"`minato bench` needs {error.name}: pip install 'minato[bench]'") from None


def _chosen(options: argparse.Namespace, known: Any) -> list[Any]:
    """The workloads to run: the user's own, or those named, or all."""
    if options.mine is not None:
        from ..bench.own import own_workload

        batch_size = _BATCH_SIZE if options.batch_size is None else options.batch_size
        return [own_workload(options.mine, batch_size, options.workers, options.collate, options.step or 0.0)]
    by_name = {workload.name: workload for workload in known}
    unknown = [name for name in options.only or () if name not in by_name]
    if unknown:
        raise UserError(f"no workload is called {unknown[0]!r}; there are: {', '.join(by_name)}")
    return [by_name[name] for name in options.only] if options.only else list(known)


def _run_with_progress(
    workloads: list[Any], rounds: int, seconds: float, cores: int, budget_s: float | None
) -> list[Any]:
    """Measure, with a progress bar on stderr; a line for each workload where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..bench import running

    console = Console(stderr=True)
    if not console.is_terminal:
        return running.run(workloads, rounds, seconds, cores, _line_by_line(), budget_s)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Redrawn only when told: a thread that draws would take time from the loaders that are measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        visits = running.count_visits(workloads, rounds, cores)
        task = progress.add_task("", total=visits)
        done = itertools.count()

        def tell(what: str) -> None:
            completed = next(done)
            progress.update(task, completed=completed, total=max(visits, completed + 1), description=what, refresh=True)

        return running.run(workloads, rounds, seconds, cores, tell, budget_s)


def _line_by_line() -> Callable[[str], None]:
    """Tells which workload is being measured, once each; what comes after the last is a second look at some."""
    told: list[str] = []

    def tell(what: str) -> None:
        name = what.partition(":")[0]
        if told and name != told[-1] and name in told:
            name = "again where it is not clear which loader is ahead"
        if name not in told[-1:] and not (told and told[-1].startswith("again")):
            told.append(name)
            sys.stderr.write(f"measuring {name} ...\n")
            sys.stderr.flush()

    return tell


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


def _print(console: Any, tables: list[Any], words: list[str], legend: str) -> None:
    for table in tables:
        console.print(table)
    console.print(legend, highlight=False, style="dim")
    console.print("\n" + "\n".join(words), highlight=False, style="bold")
