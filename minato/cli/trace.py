"""`minato trace`: what a loader recorded with `trace=`, as tables, files for other tools, or a report."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .trace_native import register_native

if TYPE_CHECKING:
    from ..trace.reading import RunTrace
    from ..trace.summary import Summary


_EXAMPLES = """examples:
  minato trace report run1                      of a loader made with trace="run1"
  minato trace export run1 --chrome run1.json   open it at ui.perfetto.dev
  minato trace map train:make_dataset           needs perf
"""
_REPORT_EXAMPLES = """examples:
  minato trace report run1
  minato trace report run1 --html run1.html     the same with pictures, in one file
  minato trace report run1 --png run1.png       waits, delays, operations; needs matplotlib
  minato trace report run1 --json               for machines
"""
_EXPORT_EXAMPLES = """examples:
  minato trace export run1 --chrome run1.json
  minato trace export run1 --chrome all.json.gz --merge prof.json   into a trace of torch.profiler
  minato trace export run1 --csv lotus          a directory of files
"""


def register(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "trace",
        help="read what a loader recorded with trace=",
        description="Read what a loader recorded with trace=, or find the native functions behind its operations.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    report = actions.add_parser(
        "report",
        help="tables and a verdict",
        description="Tables of operations, waits, delays and workers, and what bounds the loader.",
        epilog=_REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run(report)
    report.add_argument("--html", type=Path, metavar="FILE", help="write a report with pictures, in one file")
    report.add_argument(
        "--diagnosis", type=Path, metavar="FILE", help="with --html: put what `minato diagnose --html FILE` wrote in it"
    )
    report.add_argument("--png", type=Path, metavar="FILE", help="draw waits, delays and operations; also .pdf, .svg")
    report.add_argument(
        "--beside", type=Path, nargs="+", metavar="DIR", help="with --png: other runs whose batch times are drawn too"
    )
    report.add_argument("--csv", type=Path, metavar="DIR", help="write each table as a CSV file")
    report.add_argument("--remove-outliers", action="store_true", help="leave short last batches out of batch times")
    report.set_defaults(run=_report)
    export = actions.add_parser(
        "export",
        help="files for other tools",
        description="Write a trace for other tools: Chrome and Perfetto, torch.profiler, the scripts of Lotus.",
        epilog=_EXPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run(export)
    export.add_argument("--csv", type=Path, metavar="DIR", help="Lotus-compatible files, one per process")
    export.add_argument("--chrome", type=Path, metavar="FILE", help="for chrome://tracing and Perfetto; .gz packs it")
    export.add_argument(
        "--merge", type=Path, metavar="PROFILE", help="put the events into this trace of torch.profiler"
    )
    export.add_argument("--coarse", action="store_true", help="batches only, without samples and operations")
    export.set_defaults(run=_export)
    register_native(actions)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="the directory that trace= named")
    parser.add_argument("--session", help="which run in the directory; default: the newest of each rank")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _read(arguments: argparse.Namespace) -> RunTrace:
    from ..trace.reading import TraceError, read_run, sessions

    try:
        run = read_run(arguments.directory, arguments.session)
        others = sum(len(names) - 1 for names in sessions(arguments.directory).values())
    except TraceError as error:
        raise UserError(str(error)) from None
    if others and arguments.session is None:
        sys.stderr.write(f"{others} older runs are in this directory too; --session chooses one\n")
    return run


def _report(arguments: argparse.Namespace) -> int:
    from ..trace.summary import TABLES, summarize, to_csv, to_text

    sections = [] if arguments.diagnosis is None else [_diagnosis(arguments.diagnosis, arguments.html)]
    with _working(f"reading {arguments.directory}"):
        summary = summarize(_read(arguments), remove_outliers=arguments.remove_outliers)
    if arguments.csv is not None:
        try:
            arguments.csv.mkdir(parents=True, exist_ok=True)
            for name in TABLES:
                (arguments.csv / f"{name}.csv").write_text(to_csv(summary, name), encoding="utf-8")
        except OSError as error:
            raise UserError(f"tables cannot be written to {arguments.csv}: {error.strerror}") from None
    if arguments.html is not None:
        with _working(f"writing {arguments.html}"):
            _write_html(summary, arguments.html, sections)
    if arguments.png is not None:
        with _working(f"drawing {arguments.png}"):
            _write_png(summary, arguments)
    elif arguments.beside is not None:
        raise UserError("--beside goes into the picture of --png FILE, which is missing")
    text = json.dumps(summary.to_dict(), indent=1) + "\n" if arguments.json else to_text(summary)
    sys.stdout.write(text)
    return 0


def _diagnosis(path: Path, html: Path | None) -> str:
    """The section that `minato diagnose --html` wrote into a page."""
    if html is None:
        raise UserError("--diagnosis goes into the page of --html FILE, which is missing")
    try:
        found = re.search(r'<section class="minato-diagnosis">.*?</section>', path.read_text(encoding="utf-8"), re.S)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if found is None:
        raise UserError(f"{path} holds no diagnosis: give what `minato diagnose module:factory --html FILE` wrote")
    return found[0]


def _write_html(summary: Summary, out: Path, sections: list[str]) -> None:
    from ..trace.report import write_html

    try:
        write_html(summary, out, sections)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None


def _write_png(summary: Summary, arguments: argparse.Namespace) -> None:
    from ..trace.plots import write_png
    from ..trace.reading import TraceError
    from ..trace.summary import summarize

    try:
        write_png(summary, arguments.png, [summarize(path) for path in arguments.beside or ()])
    except (TraceError, ImportError) as error:
        raise UserError(str(error)) from None
    except (OSError, ValueError) as error:  # ValueError: an ending that no kind of picture has
        raise UserError(f"{arguments.png} cannot be written: {error}") from None


def _export(arguments: argparse.Namespace) -> int:
    from ..trace.reading import TraceError

    if arguments.csv is None and arguments.chrome is None:
        raise UserError("nothing to export: give --csv DIR or --chrome FILE, and --merge PROFILE with the latter")
    done: dict[str, Any] = {}
    try:
        with _working(f"exporting {arguments.directory}"):
            _export_to(_read(arguments), arguments, done)
    except (TraceError, OSError) as error:
        raise UserError(str(error)) from None
    if arguments.json:
        sys.stdout.write(json.dumps(done) + "\n")
    else:
        for path in done.get("csv", ()):
            sys.stdout.write(f"{path}\n")
        if "chrome" in done:
            sys.stdout.write(f"{done['chrome']}: {done['events']} events\n")
    return 0


def _export_to(run: RunTrace, arguments: argparse.Namespace, done: dict[str, Any]) -> None:
    """Write the files that are asked for; `done` is told which."""
    from ..trace import chrome, lotus

    if arguments.csv is not None:
        done["csv"] = [str(path) for path in lotus.export(run, arguments.csv)]
    if arguments.chrome is not None:
        granularity = "batch" if arguments.coarse else "op"
        if arguments.merge is not None:
            done["events"] = chrome.merge(run, arguments.merge, arguments.chrome, granularity)
        else:
            done["events"] = chrome.export(run, arguments.chrome, granularity)
        done["chrome"] = str(arguments.chrome)


def _working(what: str) -> AbstractContextManager[object]:
    """A sign of life on stderr, where that is a terminal: long runs take some seconds."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"{what} ...")
