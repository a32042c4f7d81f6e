"""Finds the mapped function that a profiler's row means: profilers write names and libraries each in their own way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .profiles import ProfileRow
from .samples import NEAR, UNKNOWN, Function


@dataclass(slots=True)
class Matcher:
    """Looks up rows among mapped functions: by name and library, then without arguments, versions or library."""

    functions: Iterable[Function]
    _exact: set[Function] = field(default_factory=set)
    _by_name: dict[str, list[Function]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for function in self.functions:
            self._exact.add(function)
            if function.name != UNKNOWN:
                self._by_name.setdefault(bare(function.name), []).append(function)

    def find(self, row: ProfileRow) -> tuple[Function, ...]:
        """Mapped functions that the row may be; several only if the row does not say in which library it is."""
        library = row.function.library
        for name in (row.function.name, *row.aliases):
            if (function := Function(name, library)) in self._exact:
                return (function,)
        candidates = self._by_name.get(bare(row.function.name), [])
        if library == UNKNOWN:
            return tuple(candidates)
        same = [function for function in candidates if family(function.library) == family(library)]
        return tuple(same[:1])


def family(library: str) -> str:
    """A library's name without its version: `libjpeg.so.9.5.0` and `libjpeg.so.9` are one."""
    name, found, _ = library.partition(".so")
    return name + found


def bare(name: str) -> str:
    """A function's name without arguments and qualifiers of the call; templates and namespaces stay."""
    if name.startswith(NEAR):
        return name
    depth = 0
    for number, letter in enumerate(name):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth <= 0 and number:
            if name.startswith("(anonymous namespace)", number) or name.endswith("operator", 0, number):
                continue
            return name[:number].rstrip()
    return name
