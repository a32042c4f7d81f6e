"""`minato trace map` and `minato trace attribute`: from operations to native functions and back."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .naming import made_by, named

if TYPE_CHECKING:
    from ..trace.native import OpTime


_MAP_EXAMPLES = """examples:
  minato trace map train:make_dataset --out mapping.json
  minato trace map train:make_loader --index 7 --most 3     its collate function too
"""
_ATTRIBUTE_EXAMPLES = """examples:
  perf record -e cpu-clock -F 999 -o perf.data python train.py
  minato trace attribute perf.data --mapping mapping.json
  minato trace attribute vtune.csv --mapping mapping.json --trace run1 --weights trace
"""


def register_native(actions: Any) -> None:
    """Add both actions to those of `minato trace`."""
    mapping = actions.add_parser(
        "map",
        help="which native functions each operation of a dataset runs in (needs perf)",
        description="Run each operation of a dataset alone under perf: which native functions does it run in?",
        epilog=_MAP_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    mapping.add_argument("factory", metavar="MODULE:NAME", help="a dataset or loader, or a function that makes one")
    mapping.add_argument("--out", type=Path, metavar="FILE", help="write the mapping as JSON")
    mapping.add_argument("--index", type=int, default=0, help="the sample to look at (default 0)")
    mapping.add_argument("--runs", type=int, help="collected runs per operation; default: what short functions need")
    mapping.add_argument("--calls", type=int, help="calls in one run; default: as many as fill 5 ms")
    mapping.add_argument("--warmup", type=int, default=4, help="calls before the first run (default 4)")
    mapping.add_argument("--gap", type=float, default=1.0, metavar="S", help="seconds of rest before it (default 1)")
    mapping.add_argument("--event", default="cpu-clock", help="what perf samples (default cpu-clock)")
    mapping.add_argument("--frequency", type=int, default=999, metavar="HZ", help="samples a second (default 999)")
    mapping.add_argument("--most", type=int, default=8, help="functions to show per operation (default 8)")
    _add_common(mapping)
    mapping.set_defaults(run=_map)
    splitting = actions.add_parser(
        "attribute",
        help="split a profile of a whole run over operations",
        description="Split what a profiler counted in native functions over the operations that ran in them.",
        epilog=_ATTRIBUTE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    splitting.add_argument("profile", type=Path, help="a file of perf record, or a CSV report of VTune or uProf")
    splitting.add_argument("--mapping", type=Path, required=True, metavar="FILE", help="what `minato trace map` wrote")
    splitting.add_argument("--trace", type=Path, metavar="DIR", help="the trace of the same run, for times and calls")
    splitting.add_argument(
        "--weights",
        choices=("samples", "trace"),
        default="samples",
        help="split shared functions by samples of operations run alone (default), or by their times in --trace",
    )
    splitting.add_argument("--foreign", action="store_true", help="accept a mapping of another machine")
    _add_common(splitting)
    splitting.set_defaults(run=_attribute)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--perf", metavar="PATH", help="the program perf; default: the one on the PATH")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _map(arguments: argparse.Namespace) -> int:
    from .._errors import MinatoError
    from ..trace.native import map_ops, ops_of

    made = _make(arguments.factory)
    dataset = getattr(made, "dataset", made)
    if not hasattr(dataset, "__getitem__"):
        raise UserError(f"{arguments.factory} gives a {type(dataset).__name__}; a map-style dataset was needed")
    try:
        mapping = map_ops(
            ops_of(
                dataset, arguments.index, getattr(made, "collate_fn", None), getattr(made, "batch_size", None) or 32
            ),
            runs=arguments.runs,
            calls=arguments.calls,
            warmup=arguments.warmup,
            gap_s=arguments.gap,
            event=arguments.event,
            frequency_hz=arguments.frequency,
            perf=arguments.perf,
            progress=_tell,
        )
    except (MinatoError, ValueError) as error:
        raise UserError(str(error)) from None
    if arguments.out is not None:
        try:
            mapping.save(arguments.out)
        except OSError as error:
            raise UserError(f"{arguments.out} cannot be written: {error.strerror}") from None
    sys.stdout.write(
        (json.dumps(mapping.as_dict(), indent=1) if arguments.json else mapping.table(arguments.most)) + "\n"
    )
    return 0


def _tell(name: str) -> None:
    sys.stderr.write(f"mapping {name} …\n")


def _attribute(arguments: argparse.Namespace) -> int:
    from .._errors import MinatoError
    from ..trace.native import ForeignMapping, NativeMapping, attribute
    from ..trace.reading import TraceError

    foreign = "warn" if arguments.foreign else "refuse"
    try:
        times = None if arguments.trace is None else times_of_trace(arguments.trace)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mapping = NativeMapping.load(arguments.mapping, foreign)
            found = attribute(
                arguments.profile, mapping, weights=arguments.weights, times=times, foreign=foreign, perf=arguments.perf
            )
    except ForeignMapping as error:
        raise UserError(str(error).replace('foreign="warn"', "--foreign")) from None
    except (MinatoError, TraceError, ValueError, OSError) as error:
        raise UserError(str(error)) from None
    for text in dict.fromkeys(
        str(warning.message) for warning in caught
    ):  # a foreign mapping: when read, and when used
        sys.stderr.write(f"minato: {text}\n")
    sys.stdout.write((found.to_json() if arguments.json else found.table()) + "\n")
    return 0


def times_of_trace(directory: Path) -> dict[str, OpTime]:
    """Seconds and calls of each operation of a traced run, over all workers."""
    from ..trace.native import OpTime
    from ..trace.reading import read_run
    from ..trace.tables import op_rows

    rows = [row for row in op_rows(read_run(directory)) if row.kind != "traced"]
    return {row.name: OpTime(row.total_s, max(1, round(row.total_s / max(1e-9, row.mean_ms * 1e-3)))) for row in rows}


def _make(name: str) -> Any:
    """What `module:name` names, called if it is a function."""
    found = named(name, "the dataset")
    is_maker = callable(found) and not hasattr(type(found), "__getitem__")
    return made_by(name, "the dataset") if is_maker else found
