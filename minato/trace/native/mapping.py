"""Which native functions a Python operation runs in: counts of samples, kept with the machine they were taken on."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ForeignMapping
from .isolate import Isolated
from .machine import Machine
from .samples import Function

FORMAT = 1
"""Version of the file."""


@dataclass(frozen=True, slots=True)
class OpCounts:
    """What was seen of one operation, run alone."""

    op: str
    runs: int
    calls: int
    """Calls in all runs together."""
    seconds: float
    """Duration of all runs together."""
    samples: Mapping[Function, int]
    """Samples that fell into each function."""
    seen_in: Mapping[Function, int]
    """Number of runs in which the function was seen."""

    @property
    def total(self) -> int:
        """All samples."""
        return sum(self.samples.values())

    def kept(self, min_runs: int, min_share: float) -> tuple[Function, ...]:
        """Functions seen in `min_runs` runs or more, or with a share of samples from `min_share` on; largest first."""
        total = self.total
        found = [
            function
            for function, count in self.samples.items()
            if self.seen_in[function] >= min_runs or count >= min_share * total
        ]
        return tuple(sorted(found, key=lambda function: (-self.samples[function], function)))


@dataclass(frozen=True, slots=True)
class NativeMapping:
    """Operations and the native functions they run in.

    All counts are kept; `min_runs` and `min_share` say from when on a function counts as one of an operation.
    """

    machine: Machine
    event: str
    frequency_hz: int
    ops: tuple[OpCounts, ...]
    min_runs: int = 2
    min_share: float = 0.1

    def counts(self, op: str) -> OpCounts:
        """What was seen of an operation; `KeyError` if it was not mapped."""
        for counts in self.ops:
            if counts.op == op:
                return counts
        raise KeyError(f"{op!r} is not in this mapping; it has {', '.join(repr(counts.op) for counts in self.ops)}")

    def functions(self, op: str) -> tuple[Function, ...]:
        """Functions of an operation, those with the most samples first."""
        return self.counts(op).kept(self.min_runs, self.min_share)

    def by_function(self) -> dict[Function, tuple[str, ...]]:
        """Operations of each function."""
        found: dict[Function, list[str]] = {}
        for counts in self.ops:
            for function in counts.kept(self.min_runs, self.min_share):
                found.setdefault(function, []).append(counts.op)
        return {function: tuple(ops) for function, ops in found.items()}

    def check_machine(self, foreign: str = "refuse") -> None:
        """Raise `ForeignMapping` unless this is the machine of the mapping; or warn, with `foreign="warn"`."""
        if foreign not in ("refuse", "warn"):
            raise ValueError(f'foreign must be "refuse" or "warn", got {foreign!r}')
        differences = self.machine.differences()
        if not differences:
            return
        text = (
            "this mapping was made elsewhere, and functions may differ here: "
            + "; ".join(differences)
            + ". Make it again on this machine with map_ops"
        )
        if foreign == "refuse":
            raise ForeignMapping(text + ', or accept it with foreign="warn"')
        warnings.warn(text, stacklevel=3)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. `op_to_func` and `common_funcs_to_op` are the layout of Lotus; the rest is what they come from."""
        shared = {function: ops for function, ops in self.by_function().items() if len(ops) > 1}
        return {
            "format": FORMAT,
            "machine": self.machine.as_dict(),
            "event": self.event,
            "frequency_hz": self.frequency_hz,
            "min_runs": self.min_runs,
            "min_share": self.min_share,
            "op_to_func": {counts.op: [f.key for f in self.functions(counts.op)] for counts in self.ops},
            "common_funcs_to_op": {function.key: list(ops) for function, ops in sorted(shared.items())},
            "ops": {counts.op: _counts_as_dict(counts) for counts in self.ops},
        }

    def save(self, path: str | Path) -> None:
        """Write the mapping as JSON."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, foreign: str = "refuse") -> NativeMapping:
        """Read a mapping; one of another machine is refused (`ForeignMapping`), or told with `foreign="warn"`."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"{path} is not a mapping of format {FORMAT}: found {found!r}; make it again with map_ops")
        mapping = cls(
            machine=Machine(**data["machine"]),
            event=data["event"],
            frequency_hz=data["frequency_hz"],
            ops=tuple(_counts_from_dict(op, part) for op, part in data["ops"].items()),
            min_runs=data["min_runs"],
            min_share=data["min_share"],
        )
        mapping.check_machine(foreign)
        return mapping

    def table(self, most: int = 8) -> str:
        """The functions of each operation as text: share of samples, runs it was seen in, function, library."""
        shared = {function for function, ops in self.by_function().items() if len(ops) > 1}
        lines: list[str] = []
        for counts in self.ops:
            per_call_ms = 1000 * counts.seconds / counts.calls
            lines.append(
                f"{counts.op}: {counts.calls} calls in {counts.runs} runs, {per_call_ms:.3g} ms each, "
                f"{counts.total} samples"
            )
            functions = self.functions(counts.op)
            for function in functions[:most]:
                share = counts.samples[function] / counts.total
                mark = "*" if function in shared else " "
                seen = f"{counts.seen_in[function]}/{counts.runs}"
                lines.append(f"  {share:6.1%} {seen:>7} {mark} {_short(function.name)}  [{function.library}]")
            if len(functions) > most:
                lines.append(f"  … and {len(functions) - most} more")
            if not functions:
                lines.append("  no samples: too short; give a larger input, or more calls (`calls=`)")
        if shared:
            lines.append("* in more than one operation")
        return "\n".join(lines)


def _short(name: str, width: int = 80) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def make_mapping(isolated: Isolated, event: str, frequency_hz: int, min_runs: int, min_share: float) -> NativeMapping:
    """Count samples per operation, function and run. Windows of the same name are one operation."""
    names = list(dict.fromkeys(window.op for window in isolated.windows))
    paths = {sample.path for samples in isolated.samples for sample in samples if sample.path.startswith("/")}
    ops = tuple(_count(name, isolated) for name in names)
    return NativeMapping(Machine.here(paths), event, frequency_hz, ops, min_runs, min_share)


def _count(name: str, isolated: Isolated) -> OpCounts:
    samples: Counter[Function] = Counter()
    seen_in: Counter[Function] = Counter()
    windows = [number for number, window in enumerate(isolated.windows) if window.op == name]
    for number in windows:
        run = Counter(sample.function for sample in isolated.samples[number])
        samples.update(run)
        seen_in.update(run.keys())
    of_op = [isolated.windows[number] for number in windows]
    seconds = sum(window.end_ns - window.begin_ns for window in of_op) / 1e9
    return OpCounts(name, len(of_op), sum(window.calls for window in of_op), seconds, samples, seen_in)


def _counts_as_dict(counts: OpCounts) -> dict[str, Any]:
    functions: Sequence[Function] = sorted(counts.samples, key=lambda f: (-counts.samples[f], f))
    return {
        "runs": counts.runs,
        "calls": counts.calls,
        "seconds": counts.seconds,
        "functions": {f.key: {"samples": counts.samples[f], "runs": counts.seen_in[f]} for f in functions},
    }


def _counts_from_dict(op: str, data: Mapping[str, Any]) -> OpCounts:
    functions = {Function.from_key(key): found for key, found in data["functions"].items()}
    return OpCounts(
        op,
        data["runs"],
        data["calls"],
        data["seconds"],
        {function: found["samples"] for function, found in functions.items()},
        {function: found["runs"] for function, found in functions.items()},
    )
