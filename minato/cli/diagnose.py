"""`minato diagnose module:factory`: what bounds a loader, from the command line."""

from __future__ import annotations

import argparse
import html
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from ..diagnose import Diagnosis


def register(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "diagnose",
        help="say what bounds a loader, and what to change",
        description="Say what bounds a loader, how fast it could be, and what to change. Its first line is a verdict.",
    )
    parser.add_argument("factory", help="module:function that returns a DataLoader when called without arguments")
    parser.add_argument("--max-seconds", type=float, default=15.0, help="about how long to measure (default 15)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--dot", metavar="FILE", help="write the pipeline as a graph for Graphviz")
    parser.add_argument("--html", metavar="FILE", help="write the diagnosis as a page of HTML")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from ..diagnose import run as diagnose

    loader = load_factory(arguments.factory)()
    try:
        with _progress(arguments.max_seconds) as tell:
            diagnosis = diagnose(loader, max_seconds=arguments.max_seconds, tell=tell)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error
    sys.stdout.write((diagnosis.json() if arguments.json else str(diagnosis)) + "\n")
    for path, text in ((arguments.dot, diagnosis.dot), (arguments.html, lambda: _page(diagnosis, arguments.factory))):
        if path:
            try:
                Path(path).write_text(text() + "\n", encoding="utf-8")
            except OSError as error:
                raise UserError(f"{path} cannot be written: {error}") from None
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


def load_factory(text: str) -> Any:
    """The function that `module:function` names; modules of the current directory are found."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise UserError(f"a factory is needed as module:function, got {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{module_name!r} cannot be imported: {error}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UserError(f"{module_name!r} has no function {name!r}")
    return factory
