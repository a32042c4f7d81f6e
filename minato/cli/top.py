"""`minato top`: a running loader in the terminal, from the trace that it writes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from ..trace.following import TraceSource


_EXAMPLES = """examples:
  minato top                      the one loader of this user that is being traced; Ctrl-C ends it
  minato top run1                 the loader that was made with trace="run1"
  minato top 4711 --once --json   process 4711, one look, for machines
"""


def register(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "top",
        help="watch a running loader that was made with trace=",
        description="Watch a running loader in the terminal, from the trace that it writes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", nargs="?", help="its trace directory, or process id; default: the one loader that is being traced"
    )
    parser.add_argument("--refresh", type=float, default=0.5, metavar="S", help="seconds between looks (default 0.5)")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument("--json", action="store_true", help="print JSON, a line per look")
    parser.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> int:
    from ..trace.reading import TraceError

    if not arguments.refresh >= 0.05:
        raise UserError(f"--refresh must be at least 0.05 seconds, got {arguments.refresh}")
    source = _source(arguments.target)
    try:
        source.snapshot()  # what is not there is told now
        if arguments.json:
            return _lines(source, arguments)
        return _screen(source, arguments)
    except TraceError as error:
        raise UserError(str(error)) from None


def _source(target: str | None) -> TraceSource:
    from ..trace.following import TraceSource, running

    if target is not None and not target.isdecimal():
        return TraceSource(Path(target))
    found = running()
    if target is not None:
        if int(target) not in found:
            raise UserError(f"process {target} is not writing a trace; make its loader with trace='DIRECTORY'")
        return TraceSource(found[int(target)], pid=int(target))
    if not found:
        raise UserError("no loader of yours is being traced; make it with trace='DIRECTORY', or give a directory")
    if len(found) > 1:
        listed = "; ".join(f"{pid} ({directory})" for pid, directory in sorted(found.items()))
        raise UserError(f"several loaders are being traced, give a process id: {listed}")
    ((pid, directory),) = found.items()
    return TraceSource(directory, pid=pid)


def _lines(source: TraceSource, arguments: argparse.Namespace) -> int:
    while True:
        sys.stdout.write(json.dumps(dataclasses.asdict(source.snapshot())) + "\n")
        sys.stdout.flush()
        if arguments.once:
            return 0
        time.sleep(arguments.refresh)


def _screen(source: TraceSource, arguments: argparse.Namespace) -> int:
    from ..trace.screen import Watch, draw, need_rich

    try:
        need_rich()
    except ImportError as error:
        raise UserError(str(error)) from None
    if arguments.once:
        from rich.console import Console

        Console().print(draw(source.snapshot()))
        return 0
    with Watch(source, arguments.refresh):
        while True:  # until Ctrl-C
            time.sleep(3600)
