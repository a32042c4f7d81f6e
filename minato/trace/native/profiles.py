"""Profiles of whole runs, per native function: what `perf record` wrote, or a CSV report of VTune or uProf.

Every numeric column is kept, as an exact fraction. Percentages are shares of a function's clockticks (VTune's are), so
they are multiplied by those: products can be added up, percentages cannot. Rates of other kinds (CPI, frequencies) can
neither be added nor split, and are left out and named in `Profile.left_out`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from .perf import find_perf, script
from .samples import UNKNOWN, Function, Sample, near_address

CLOCKS = ("cpu-clock", "task-clock")
"""Events of `perf` whose periods are nanoseconds."""
BASES = ("Clockticks", "CYCLES_NOT_IN_HALT", "CPU_CLK_UNHALTED", "CPU Time", "CPU_TIME")
"""Columns that percentages are shares of, the best first."""

_FUNCTION_COLUMN = re.compile(r"(source )?function( stack)?( / .*)?$|symbol$", re.IGNORECASE)
_FULL_NAME_COLUMN = re.compile(r"function \(full\)$", re.IGNORECASE)
_LIBRARY_COLUMN = re.compile(r"module( path)?$|binary$|shared object$", re.IGNORECASE)
_TEXT_COLUMN = re.compile(r"source file|source line|start address|process|thread|pid|tid", re.IGNORECASE)
_RATE_COLUMN = re.compile(r"\brate$|frequency$|^cpi$|^ipc$", re.IGNORECASE)
_NUMBER = re.compile(r"([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*(s|ms|us|%)?$")
_UNITS: Mapping[str | None, Fraction] = {
    None: Fraction(1),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "%": Fraction(1, 100),
}
_NO_NAME = re.compile(r"func@(0x[0-9a-f]+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One function and what was measured of it."""

    function: Function
    values: Mapping[str, Fraction]
    aliases: tuple[str, ...] = ()
    """Other forms of the function's name."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of a whole run, function by function."""

    metrics: tuple[str, ...]
    rows: tuple[ProfileRow, ...]
    percent_of: Mapping[str, str] = field(default_factory=dict)
    """Metrics that were percentages, and the metric they are shares of; their values here are products of the two."""
    left_out: tuple[str, ...] = ()
    """Columns that can be neither added nor split."""

    def total(self, metric: str) -> Fraction:
        """The sum of a metric over all functions."""
        return sum((row.values.get(metric, Fraction(0)) for row in self.rows), Fraction(0))


def read_profile(path: str | Path, perf: str | None = None) -> Profile:
    """Read a profile: a file of `perf record`, or a CSV report of VTune or uProf, told from what is in it."""
    path = Path(path)
    with path.open("rb") as file:
        is_perf = file.read(8) in (b"PERFILE2", b"2ELIFREP")
    if is_perf:
        return profile_of_samples(script(find_perf(perf), path))
    return profile_of_csv(path.read_text(encoding="utf-8-sig", errors="replace"), str(path))


def profile_of_samples(samples: Iterable[Sample]) -> Profile:
    """Add up samples: per event their number, and what they stand for (seconds for clocks, else events)."""
    sums: dict[Function, dict[str, Fraction]] = {}
    metrics: dict[str, None] = {}
    for sample in samples:
        event = sample.event.split(":")[0]
        amount = Fraction(sample.period, 10**9) if event in CLOCKS else Fraction(sample.period)
        values = sums.setdefault(sample.function, {})
        for metric, value in ((event, amount), (f"{event} samples", Fraction(1))):
            metrics[metric] = None
            values[metric] = values.get(metric, Fraction(0)) + value
    return Profile(tuple(metrics), tuple(ProfileRow(function, values) for function, values in sums.items()))


# ---- CSV -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which column of a table holds what."""

    names: tuple[str, ...]
    function: int
    library: int | None
    full_name: int | None

    @classmethod
    def of(cls, names: list[str]) -> _Columns | None:
        """None if this is not the head of a table of functions."""
        stripped = tuple(name.strip() for name in names)
        function = _find(_FUNCTION_COLUMN, stripped)
        if function is None or len(stripped) < 2:
            return None
        return cls(stripped, function, _find(_LIBRARY_COLUMN, stripped), _find(_FULL_NAME_COLUMN, stripped))

    def of_numbers(self) -> Iterator[int]:
        """Columns that may hold numbers."""
        for number, name in enumerate(self.names):
            special = number in (self.function, self.library, self.full_name)
            if name and not special and not _TEXT_COLUMN.search(name) and not _LIBRARY_COLUMN.match(name):
                yield number


def profile_of_csv(text: str, source: str = "the CSV") -> Profile:
    """Read a report of VTune (`-format csv`, any delimiter) or uProf (`report -f csv`)."""
    delimiter = _delimiter(text)
    lines = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    for number, line in enumerate(lines):
        columns = _Columns.of(line)
        if columns is not None:
            return _read_table(columns, lines[number + 1 :], source)
    raise ValueError(
        f"{source} has no table of functions: needed a line of column names with Function and a metric, as in the CSV "
        "reports of VTune (`vtune -report hotspots -format csv`) and uProf (`AMDuProfCLI report -f csv`)"
    )


def _delimiter(text: str) -> str:
    """The one that the head of the table has most of; uProf has lines of other kinds before it."""
    for line in text.splitlines():
        for delimiter in "\t;,":
            cells = next(csv.reader([line], delimiter=delimiter), [])
            if _Columns.of(cells) is not None:
                return delimiter
    return ","


def _read_table(columns: _Columns, lines: list[list[str]], source: str) -> Profile:
    rows: list[list[str]] = []
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            break  # uProf has further tables after an empty line
        if len(cells) != len(columns.names):
            raise ValueError(f"{source}: expected {len(columns.names)} columns as in the head, found {cells!r}")
        rows.append(cells)
    numeric, percents, left_out = _kinds(columns, rows)
    base = next((name for wanted in BASES for name in numeric if name.casefold() == wanted.casefold()), None)
    if base is None:
        left_out, percents = (*left_out, *percents), {}
    made = tuple(_row(columns, cells, numeric, percents, base) for cells in rows)
    metrics = tuple(name for name in columns.names if name in numeric or name in percents)
    return Profile(metrics, made, dict.fromkeys(percents, base or ""), tuple(left_out))


def _kinds(columns: _Columns, rows: list[list[str]]) -> tuple[dict[str, int], dict[str, int], tuple[str, ...]]:
    """Columns that can be added, those that are percentages, and names of those that are neither."""
    numeric: dict[str, int] = {}
    percents: dict[str, int] = {}
    left_out: list[str] = []
    for number in columns.of_numbers():
        name, cells = columns.names[number], [row[number].strip() for row in rows if row[number].strip()]
        if _RATE_COLUMN.search(name) or not all(_NUMBER.match(cell) for cell in cells):
            left_out.append(name)
        elif cells and all(cell.endswith("%") for cell in cells):
            percents[name] = number
        else:
            numeric[name] = number
    return numeric, percents, tuple(left_out)


def _row(
    columns: _Columns, cells: list[str], numeric: dict[str, int], percents: dict[str, int], base: str | None
) -> ProfileRow:
    values = {name: _number(cells[number]) for name, number in numeric.items()}
    for name, number in percents.items():
        assert base is not None
        values[name] = _number(cells[number]) * values[base]
    name = cells[columns.function].strip()
    path = cells[columns.library].strip() if columns.library is not None else ""
    library = path.rpartition("/")[2] or UNKNOWN
    if (unnamed := _NO_NAME.match(name)) is not None:
        name = near_address(path, int(unnamed[1], 16)) if path.startswith("/") else name
    full = cells[columns.full_name].strip() if columns.full_name is not None else ""
    return ProfileRow(Function(name, _known(library)), values, (full,) if full and full != name else ())


def _known(library: str) -> str:
    return UNKNOWN if library.casefold() == UNKNOWN else library


def _number(cell: str) -> Fraction:
    cell = cell.strip()
    if not cell:
        return Fraction(0)
    match = _NUMBER.match(cell)
    assert match is not None
    return Fraction(match[1].replace(",", "")) * _UNITS[match[2]]


def _find(pattern: re.Pattern[str], names: tuple[str, ...]) -> int | None:
    return next((number for number, name in enumerate(names) if pattern.match(name)), None)
