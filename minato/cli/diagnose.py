"""`minato diagnose module:factory`: what bounds a loader, from the command line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from .errors import UserError


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
    parser.add_argument("--html", metavar="FILE", help="write the diagnosis as a section of HTML")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    from ..diagnose import run as diagnose

    loader = load_factory(arguments.factory)()
    try:
        if not arguments.json:
            sys.stderr.write(f"measuring for up to {arguments.max_seconds:.0f} s ...\n")
        diagnosis = diagnose(loader, max_seconds=arguments.max_seconds)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error
    sys.stdout.write((diagnosis.json() if arguments.json else str(diagnosis)) + "\n")
    for path, text in ((arguments.dot, diagnosis.dot), (arguments.html, diagnosis.html)):
        if path:
            Path(path).write_text(text() + "\n", encoding="utf-8")
    return 0


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
