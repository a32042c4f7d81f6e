"""Whether a stage is random: a look at its code, and what it does when it is run.

Deterministic is only what passes everything: its code could be followed and does nothing suspicious; when run again on
the same input, under another seed, it gives the same bytes; no generator was used, no captured container changed, and
no native function of an unknown library was called. What is random by any sign is random; the rest is unknown, and
counts as random. The user's mark decides before all of this.
"""

from __future__ import annotations

import copy
import enum
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._workers.generators import all_generators, mix
from . import known
from .bytecode import Reading
from .marks import mark_of
from .reading import read

RUNS = 3  # of each sample; the first under the seed of the second
SMALL_BYTES = 64 << 10  # pickled, of captured containers that are compared


class Randomness(enum.Enum):
    """What a stage is."""

    DETERMINISTIC = "deterministic"
    RANDOM = "random"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one stage, with its reason."""

    randomness: Randomness
    reason: str

    @property
    def may_be_cached(self) -> bool:
        return self.randomness is Randomness.DETERMINISTIC


def judge_code(stage: Any, skip: frozenset[str] = frozenset()) -> tuple[Verdict, Reading]:
    """The judgement from code alone."""
    mark = mark_of(stage)
    if mark is not None:
        word = Randomness.RANDOM if mark else Randomness.DETERMINISTIC
        name = "stochastic" if mark else "deterministic"
        return Verdict(word, f"marked with minato.{name}"), Reading()
    reading = read(stage, skip)
    if reading.random is not None:
        return Verdict(Randomness.RANDOM, reading.random), reading
    if reading.unknown is not None:
        return Verdict(Randomness.UNKNOWN, reading.unknown), reading
    return Verdict(Randomness.DETERMINISTIC, "nothing random in its code, nor when it was run again"), reading


Step = Callable[[Any], Any]
"""What a stage does to one input, given to it as a private copy."""


def judge_runs(step: Step, inputs: Sequence[Any], captured: Sequence[Any] = ()) -> Verdict | None:
    """Run a stage again and again; None: nothing speaks against it. The process's random streams are left as they
    were."""
    with streams_kept():
        for value in inputs:
            verdict = _judge_input(step, value, captured)
            if verdict is not None:
                return verdict
    return None


def judge(stage: Any, step: Step, inputs: Sequence[Any], skip: frozenset[str] = frozenset()) -> tuple[Verdict, Reading]:
    """The whole judgement."""
    verdict, reading = judge_code(stage, skip)
    if mark_of(stage) is not None or verdict.randomness is Randomness.RANDOM:
        return verdict, reading
    seen = judge_runs(step, inputs, reading.captured)
    if seen is None or (seen.randomness is Randomness.UNKNOWN and verdict.randomness is Randomness.UNKNOWN):
        return verdict, reading
    return seen, reading


def _judge_input(step: Step, value: Any, captured: Sequence[Any]) -> Verdict | None:
    results = []
    before = _contents(captured)
    for run in range(RUNS):
        try:
            private = copy.deepcopy(value)
        except Exception as error:
            return Verdict(Randomness.UNKNOWN, f"its input cannot be copied to run it again: {error!r:.200}")
        for salt, generator in enumerate(all_generators()):
            generator.seed(mix(salt, max(1, run)))
        glances = [generator.glance() for generator in all_generators()]
        calls = _NativeCalls()
        try:
            with calls.watching():
                results.append(step(private))
        except Exception as error:
            return Verdict(Randomness.UNKNOWN, f"it failed when it was run again: {error!r:.200}")
        if [generator.glance() for generator in all_generators()] != glances:
            return Verdict(Randomness.RANDOM, "it drew from a global random generator when it was run")
        if calls.random is not None:
            return Verdict(Randomness.RANDOM, f"it called {calls.random} when it was run")
        if calls.foreign is not None:
            return Verdict(Randomness.UNKNOWN, f"it called {calls.foreign}, whose code cannot be seen")
    if _contents(captured) != before:
        return Verdict(Randomness.UNKNOWN, "it changed a container that it keeps: it may keep state")
    same = [is_same(results[0], other) for other in results[1:]]
    if None in same:
        return Verdict(Randomness.UNKNOWN, f"its results ({type(results[0]).__name__}) cannot be compared")
    if not all(same):
        return Verdict(Randomness.RANDOM, "run again on the same input, it gave another result")
    return None


@contextmanager
def streams_kept() -> Iterator[None]:
    """Puts the global random generators back."""
    saved = [(generator, generator.save()) for generator in all_generators()]
    try:
        yield
    finally:
        for generator, state in saved:
            generator.restore(state)


def _contents(captured: Sequence[Any]) -> list[bytes | None]:
    return [_content(value) for value in captured]


def _content(value: Any) -> bytes | None:
    if len(value) > 1000:
        return len(value).to_bytes(8, "little")
    try:
        data = pickle.dumps(value)
    except Exception:  # cannot be looked at this way: its length has to do
        return len(value).to_bytes(8, "little")
    return data if len(data) <= SMALL_BYTES else len(value).to_bytes(8, "little")


class _NativeCalls:
    """Watches which native functions a thread calls."""

    def __init__(self) -> None:
        self.random: str | None = None
        self.foreign: str | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _event(self, frame: Any, event: str, function: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(function, "__self__", None)
        kind = type(owner)
        module = getattr(function, "__module__", None) or getattr(owner, "__name__", "") or kind.__module__
        if owner is not None and not isinstance(owner, type(sys)):
            module = owner.__module__ if isinstance(owner, type) else kind.__module__
        package = str(module).partition(".")[0].lstrip("_")
        name = f"{module}.{getattr(function, '__name__', function)}"
        if package in ("random", "secrets") or name in ("posix.urandom", "posix.getrandom", "os.urandom"):
            self.random = self.random or name
        elif not _is_usual(package) and not _is_usual(str(frame.f_globals.get("__name__")).partition(".")[0]):
            self.foreign = self.foreign or name


_QUIET = frozenset({"", "minato", "monai", "torchvision", "albumentations", "albucore", "thread", "pybind11_builtins"})


def _is_usual(package: str) -> bool:
    """Native code of Python itself and of known libraries; what of it is random shows in the code or the generators."""
    return known.is_trusted(package) or known.is_shady(package) or package in _QUIET


def is_same(one: Any, other: Any) -> bool | None:
    """Whether two samples are the same, bit by bit; None: they cannot be compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, np.ndarray):
        if one.dtype.hasobject:
            return is_same(one.tolist(), other.tolist())
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        if list(one) != list(other):
            return False
        return _all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and _all(is_same(mine, theirs) for mine, theirs in zip(one, other, strict=True))
    if callable(getattr(one, "tobytes", None)):  # a PIL image
        return bool(getattr(one, "size", None) == getattr(other, "size", None) and one.tobytes() == other.tobytes())
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:
        return None


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool | None:
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        return None
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def _all(answers: Iterator[bool | None]) -> bool | None:
    found = list(answers)
    return False if False in found else None if None in found else True
