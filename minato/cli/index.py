"""`minato index`: list a bucket once, so that datasets need not."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from .errors import UserError

_SILENT_S = 2.0  # seconds before progress is shown
_EVERY_S = 0.5


_EXAMPLES = """examples:
  minato index s3://bucket/train/ train.json
  minato index s3://bucket/train/ train.json --suffix .jpg --suffix .png --classes
  minato index s3://bucket/ out.json --endpoint http://127.0.0.1:9000 --region us-east-1

then: minato.S3Dataset("train.json")
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the subcommand."""
    parser = subparsers.add_parser(
        "index",
        help="list an S3 prefix into a file for minato.S3Dataset",
        description="List all objects under an S3 address into a JSON file, to be given to minato.S3Dataset.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="s3://bucket/prefix")
    parser.add_argument("output", type=Path, help="file to write, e.g. out.json")
    parser.add_argument("--suffix", action="append", default=[], help="only keys that end so; may be given repeatedly")
    parser.add_argument(
        "--classes", action="store_true", help="also write the folders right below the prefix, as classes"
    )
    parser.add_argument("--parallel", type=int, default=16, metavar="N", help="folders listed at once (default: 16)")
    parser.add_argument("--endpoint", help="URL of a server that is not Amazon's")
    parser.add_argument("--region")
    parser.add_argument("--profile", help="of ~/.aws/config")
    parser.add_argument("--anonymous", action="store_true", help="send no credentials")
    parser.add_argument("--backend", choices=("obstore", "boto3", "aioboto3", "direct"))
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List, write, and say what was written."""
    from ..storage import StorageError, list_objects, save_index
    from ..storage.index import class_names
    from ..storage.location import make_location, split_url

    if arguments.parallel < 1:
        raise UserError(f"--parallel must be 1 or more, found {arguments.parallel}")
    if not arguments.output.absolute().parent.is_dir():
        raise UserError(f"{arguments.output.absolute().parent} is not a directory to write {arguments.output.name} to")
    progress = Progress()
    began = time.monotonic()
    try:
        bucket, prefix = split_url(arguments.url)
        location = make_location(
            bucket, arguments.backend, arguments.endpoint, arguments.region, arguments.profile, arguments.anonymous
        )
        index = list_objects(location, prefix, tuple(arguments.suffix), arguments.parallel, progress=progress)
    except (StorageError, ValueError) as error:
        progress.clear()
        raise UserError(str(error)) from None
    progress.clear()
    if not len(index):
        raise UserError(f"{arguments.url} has no objects" + (" with that suffix" if arguments.suffix else ""))
    classes = class_names(index) if arguments.classes else None
    try:
        save_index(index, arguments.output, classes)
    except OSError as error:
        raise UserError(f"{arguments.output} cannot be written: {error.strerror}") from None
    _tell(
        {
            "output": str(arguments.output),
            "objects": len(index),
            "bytes": int(index.sizes.sum()),
            "classes": None if classes is None else len(classes),
            "seconds": round(time.monotonic() - began, 3),
        },
        arguments.json,
    )
    return 0


def _tell(summary: dict[str, str | int | float | None], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    classes = "" if summary["classes"] is None else f" in {summary['classes']} classes"
    size_mb = int(summary["bytes"] or 0) / 1e6
    sys.stdout.write(f"{summary['objects']} objects{classes}, {size_mb:.1f} MB: {summary['output']}\n")


class Progress:
    """One line on a terminal, once listing has taken long enough to wonder."""

    def __init__(self) -> None:
        self._shown = False
        self._next = time.monotonic() + _SILENT_S

    def __call__(self, count: int) -> None:
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._shown, self._next = True, now + _EVERY_S
        sys.stderr.write(f"\r{count} objects so far")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            sys.stderr.write("\r\033[K")
