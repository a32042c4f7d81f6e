"""`minato diagnose module:factory`: what bounds a loader, from the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .errors import UserError
from .naming import made_by, told

_EXAMPLES = """examples:
  minato diagnose train:make_loader                  the verdict, a table of stages, what to change
  minato diagnose train:make_loader --max-seconds 5  sooner, less exact
  minato diagnose train:make_loader --json           for machines

train.py is looked for in the current directory; make_loader takes no arguments and returns a DataLoader, torch's or
minato's.
"""


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
    parser.add_argument("--max-seconds", type=float, default=15.0, help="about how long to measure (default 15)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--dot", metavar="FILE", help="write the pipeline as a graph for Graphviz")
    parser.add_argument("--html", metavar="FILE", help="write the diagnosis as a section of HTML")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from ..diagnose import run as diagnose

    if not arguments.max_seconds > 0:
        raise UserError(f"--max-seconds must be above 0, got {arguments.max_seconds}")
    loader = made_by(arguments.factory, "the factory")
    if not hasattr(loader, "dataset") or not hasattr(loader, "num_workers"):
        raise UserError(f"{arguments.factory} returned a {type(loader).__name__}; a DataLoader was needed")
    if not arguments.json:
        sys.stderr.write(f"measuring for up to {arguments.max_seconds:.0f} s ...\n")
    try:
        diagnosis = diagnose(loader, max_seconds=arguments.max_seconds)
    except Exception as error:  # of the dataset, the collate function, or of arguments that do not fit
        raise UserError(f"{arguments.factory} could not be measured: {told(error)}") from error
    sys.stdout.write((diagnosis.json() if arguments.json else str(diagnosis)) + "\n")
    for path, text in ((arguments.dot, diagnosis.dot), (arguments.html, diagnosis.html)):
        if path:
            _write(path, text() + "\n")
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
