"""Operations to be looked at one by one, and how they are found on a dataset."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOADER = "Loader"
COLLATION = "Collation"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `prepare` makes what it needs, unseen by the profiler, and gives the call that is profiled."""

    name: str
    prepare: Callable[[], Callable[[], object]]


Ops = Mapping[str, Callable[[], object]] | Iterable[Op]
"""Operations by name, as calls without arguments; or as `Op`s where each call needs a fresh input."""


def as_ops(ops: Ops) -> tuple[Op, ...]:
    """Operations in one form; raises if there are none or one cannot be called."""
    if isinstance(ops, Mapping):
        for name, call in ops.items():
            if not callable(call):
                raise TypeError(f"each operation must be callable without arguments, got {call!r} for {name!r}")
        found = tuple(Op(name, functools.partial(_same, call)) for name, call in ops.items())
    else:
        found = tuple(ops)
        for op in found:
            if not isinstance(op, Op):
                raise TypeError(f"ops must be a mapping from names to callables, or Op objects; got {op!r} among them")
    if not found:
        raise ValueError("ops is empty: give at least one operation to map")
    return found


def _same(call: Callable[[], object]) -> Callable[[], object]:
    return call


def ops_of(
    dataset: Any, index: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None, batch_size: int = 32
) -> tuple[Op, ...]:
    """The operations a sample of a map-style dataset goes through: `Loader`, then each transform by name.

    The stages are those a loader finds; a dataset without any is one operation, `Loader`. With `collate_fn` there is
    also `Collation`, of `batch_size` copies of the sample.
    """
    from ..._workers.stages import find_stages

    begin = find_stages(dataset)
    if begin is None:
        ops = [Op(LOADER, functools.partial(_loading, dataset, index))]
    else:
        ops = [
            Op(name, functools.partial(_stage, begin, index, number))
            for number, name in enumerate(_names(begin, index))
        ]
    if collate_fn is not None:
        ops.append(Op(COLLATION, functools.partial(_collation, dataset, index, collate_fn, batch_size)))
    return tuple(ops)


def _loading(dataset: Any, index: int) -> Callable[[], object]:
    return functools.partial(dataset.__getitem__, index)


def _names(begin: Callable[[Any], Any], index: int) -> Sequence[str]:
    """Names of the stages of one sample, which is made for that."""
    run = begin(index)
    names: list[str] = []
    while not run.done:
        names.append(run.stage if names else LOADER)
        run.advance()
    return names


def _stage(begin: Callable[[Any], Any], index: int, number: int) -> Callable[[], object]:
    """A sample on its way, up to the stage that is to be looked at."""
    run = begin(index)
    for _ in range(number):
        run.advance()
    advance: Callable[[], object] = run.advance
    return advance


def _collation(
    dataset: Any, index: int, collate_fn: Callable[[list[Any]], Any], batch_size: int
) -> Callable[[], object]:
    return functools.partial(collate_fn, [dataset[index]] * batch_size)
