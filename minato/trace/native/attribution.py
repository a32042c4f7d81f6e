"""`attribute`: splits what was measured per native function over the Python operations that run in it.

A function of one operation is that operation's. A function of several is split by weights: by how long the operations
took in the run (`weights="trace"`), or by how many samples the function had when each was run alone
(`weights="samples"`), times the calls of the operation in the run where they are known. A function of none stays in the
row of what could not be attributed. So the sum over all rows is the sum over all functions, exactly: shares are whole
numbers of `PARTS`, and values are fractions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from .mapping import NativeMapping
from .matching import Matcher
from .profiles import Profile, read_profile
from .samples import Function

PARTS = 10**9
"""Finest share; whole numbers of it add up exactly."""
OTHER = "(not attributed)"
WEIGHTS = ("samples", "trace")


@dataclass(frozen=True, slots=True)
class OpTime:
    """How much of an operation there was in the run."""

    seconds: float
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """One function's part in one operation."""

    op: str
    function: Function
    share: Fraction
    """Of the function's whole."""
    values: Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Metrics per operation. The last operation is `OTHER`, what belongs to none."""

    metrics: tuple[str, ...]
    ops: tuple[str, ...]
    shares: tuple[Share, ...]
    percent_of: Mapping[str, str]
    left_out: tuple[str, ...]
    weights: str

    def value(self, op: str, metric: str) -> Fraction:
        """A metric of an operation; for a former percentage the product with what it is a share of."""
        return sum((part.values.get(metric, Fraction(0)) for part in self.shares if part.op == op), Fraction(0))

    def total(self, metric: str) -> Fraction:
        """A metric over all operations: what the profile had."""
        return sum((part.values.get(metric, Fraction(0)) for part in self.shares), Fraction(0))

    def shown(self, op: str, metric: str) -> float:
        """A metric of an operation in the profile's own unit: percentages are percentages again."""
        value, base = self.value(op, metric), self.percent_of.get(metric)
        if base is None:
            return float(value)
        whole = self.value(op, base)
        return float(100 * value / whole) if whole else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: per operation its metrics, and the functions they come from."""
        return {
            "weights": self.weights,
            "percent_of": dict(self.percent_of),
            "left_out": list(self.left_out),
            "totals": {m: float(self.total(m)) for m in self.metrics if m not in self.percent_of},
            "ops": {op: self._op_as_dict(op) for op in self.ops},
        }

    def _op_as_dict(self, op: str) -> dict[str, Any]:
        functions = {
            part.function.key: {
                "share": float(part.share),
                **{m: float(part.values[m]) for m in self.metrics if m in part.values},
            }
            for part in self.shares
            if part.op == op
        }
        return {"metrics": {m: self.shown(op, m) for m in self.metrics}, "functions": functions}

    def to_json(self) -> str:
        """`as_dict` as text."""
        return json.dumps(self.as_dict(), indent=1)

    def table(self) -> str:
        """Operations and metrics as text; of the first metric also the share."""
        first = self.metrics[0]
        whole = self.total(first)
        head = ["operation", f"share of {first}", *(m + (" %" if m in self.percent_of else "") for m in self.metrics)]
        lines = [head]
        for op in self.ops:
            share = f"{float(self.value(op, first) / whole):.1%}" if whole else "–"
            lines.append([op, share, *(f"{self.shown(op, m):,.4g}" for m in self.metrics)])
        total = [f"{float(self.total(m)):,.4g}" if m not in self.percent_of else "" for m in self.metrics]
        lines.append(["sum", "", *total])
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = []
        for op, *numbers in lines:
            cells = [op.ljust(widths[0])]
            cells += [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
            text.append("  ".join(cells))
        if self.left_out:
            text.append(f"left out, as they can be neither added nor split: {', '.join(self.left_out)}")
        return "\n".join(text)


def attribute(
    profile: Profile | str | Path,
    mapping: NativeMapping,
    *,
    weights: str = "samples",
    times: Mapping[str, OpTime | float] | None = None,
    foreign: str = "refuse",
    perf: str | None = None,
) -> Attribution:
    """Split a profile of a whole run over the operations of a mapping.

    Args:
        profile: a file of `perf record` (any event), a CSV report of VTune or uProf, or a `Profile`.
        mapping: of the same machine.
        weights: "trace" splits a shared function by the operations' times in the run; "samples" by the samples the
            function had in each operation alone, per call, times the calls in the run if `times` has them.
        times: seconds, or seconds and calls (`OpTime`), of each operation in the run. Needed for "trace".
        foreign: what to do with a mapping of another machine: "refuse" or "warn".
        perf: path of the program that reads its own files; None: the one on the PATH.
    """
    if weights not in WEIGHTS:
        raise ValueError(f'weights must be "samples" or "trace", got {weights!r}')
    if weights == "trace" and not times:
        raise ValueError('weights="trace" needs times: seconds of each operation in the run, as a trace has them')
    known = {op: time if isinstance(time, OpTime) else OpTime(float(time)) for op, time in (times or {}).items()}
    names = [counts.op for counts in mapping.ops]
    if known and not set(known) & set(names):
        raise ValueError(f"times has none of the mapped operations: it has {sorted(known)}, the mapping {names}")
    mapping.check_machine(foreign)
    if not isinstance(profile, Profile):
        profile = read_profile(profile, perf)
    shares = _split(profile, mapping, weights, known)
    return Attribution(profile.metrics, (*names, OTHER), shares, profile.percent_of, profile.left_out, weights)


def _split(profile: Profile, mapping: NativeMapping, weights: str, times: Mapping[str, OpTime]) -> tuple[Share, ...]:
    by_function = mapping.by_function()
    matcher = Matcher(by_function)
    shares: list[Share] = []
    for row in profile.rows:
        weighed: dict[str, float] = {}
        for function in matcher.find(row):
            for op in by_function[function]:
                weighed[op] = weighed.get(op, 0.0) + _weight(mapping, op, function, weights, times)
        for op, share in (exact_shares(weighed) or {OTHER: Fraction(1)}).items():
            values = {metric: value * share for metric, value in row.values.items()}
            shares.append(Share(op, row.function, share, values))
    return tuple(shares)


def _weight(mapping: NativeMapping, op: str, function: Function, weights: str, times: Mapping[str, OpTime]) -> float:
    if weights == "trace":
        return times[op].seconds if op in times else 0.0
    counts = mapping.counts(op)
    calls = 1 if not times else times[op].calls if op in times else 0
    return counts.samples[function] / counts.calls * calls


def exact_shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Shares in proportion to weights that add up to exactly 1; empty if no weight is positive."""
    positive = {op: Fraction(weight) for op, weight in weights.items() if weight > 0}
    whole = sum(positive.values(), Fraction(0))
    if not whole:
        return {}
    parts = {op: int(weight * PARTS / whole) for op, weight in positive.items()}
    largest = max(positive, key=lambda op: positive[op])
    parts[largest] += PARTS - sum(parts.values())
    return {op: Fraction(part, PARTS) for op, part in parts.items() if part}
