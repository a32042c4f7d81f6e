"""`minato diagnose module:factory`: what bounds a loader, from the command line."""

from __future__ import annotations

import argparse
import html
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .naming import made_by, told

_EXAMPLES = """examples:
  minato diagnose train:make_loader                  the verdict, a table of stages, what to change
  minato diagnose train:make_loader --max-seconds 5  sooner, less exact
  minato diagnose train:make_loader --json           for machines

train.py is looked for in the current directory; make_loader takes no arguments and returns a DataLoader, torch's or
minato's.
"""

if TYPE_CHECKING:
    from ..diagnose import Diagnosis


def register(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "diagnose",
        help="say what bounds a loader, and what to change",
        description="Say what bounds a loader, how fast it could be, and what to change. Its first line is a verdict.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("factory", help="module:function that returns a DataLoader when called without arguments")
    parser.add_argument(
        "--max-seconds", type=float, default=15.0, help="how long to measure; starts come on top (default 15)"
    )
    parser.add_argument(
        "--rank",
        choices=("rate", "busy", "wait"),
        default="rate",
        help="name as bottleneck the stage that allows the lowest rate (default), computes most, or waits most",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--dot", metavar="FILE", help="write the pipeline as a graph for Graphviz")
    parser.add_argument("--html", metavar="FILE", help="write the diagnosis as a page of HTML")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from ..diagnose import run as diagnose

    if importlib.util.find_spec("scipy") is None:  # told before anything is measured, which takes seconds
        raise UserError("`minato diagnose` needs scipy: pip install 'minato[diagnose]'")
    if not arguments.max_seconds > 0:
        raise UserError(f"--max-seconds must be above 0, got {arguments.max_seconds}")
    loader = made_by(arguments.factory, "the factory")
    if not hasattr(loader, "dataset") or not hasattr(loader, "num_workers"):
        raise UserError(f"{arguments.factory} returned a {type(loader).__name__}; a DataLoader was needed")
    try:
        with _progress(arguments.max_seconds) as tell:
            diagnosis = diagnose(loader, max_seconds=arguments.max_seconds, rank=arguments.rank, tell=tell)
    except Exception as error:  # of the dataset, the collate function, or of arguments that do not fit
        raise UserError(f"{arguments.factory} could not be measured: {told(error)}") from error
    sys.stdout.write((diagnosis.json() if arguments.json else str(diagnosis)) + "\n")
    for path, text in ((arguments.dot, diagnosis.dot), (arguments.html, lambda: _page(diagnosis, arguments.factory))):
        if path:
            _write(path, text() + "\n")
    return 0


@contextmanager
def _progress(max_seconds: float) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, where that is a terminal; otherwise a line for each step. Drawn when told: a thread that draws
    would take time from what is measured."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ModuleNotFoundError:
        yield lambda what: _say(f"{what} ...")
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: _say(f"{what} ...")
        return
    from ..diagnose.measuring import PHASES

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(f"up to {max_seconds:.0f} s", total=PHASES)

        def tell(what: str) -> None:
            progress.update(task, description=what, refresh=True)
            progress.advance(task)

        yield tell


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _page(diagnosis: Diagnosis, factory: str) -> str:
    from ..trace.report import page

    return page(f"minato · {factory}", f"<header><h1>{html.escape(factory)}</h1></header>\n{diagnosis.html()}")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
