"""`@minato.deterministic` and `@minato.stochastic`: the user's word on whether a transform is random."""

from __future__ import annotations

from typing import Any, TypeVar

_T = TypeVar("_T")
_MARK = "__minato_random__"


def deterministic(transform: _T) -> _T:
    """Say that a transform, a load function or a dataset gives the same result for the same input, always.

    A decorator for functions and classes, and a function for objects: `transform = minato.deterministic(Resize(256))`.
    What it gives may be cached. minato does not look further.
    """
    return _mark(transform, False)


def stochastic(transform: _T) -> _T:
    """Say that a transform, a load function or a dataset is random, or depends on more than its input. It and all that
    comes after it is never cached."""
    return _mark(transform, True)


def mark_of(transform: Any) -> bool | None:
    """Whether it was said to be random; None: nothing was said."""
    value = getattr(transform, _MARK, None)
    return value if isinstance(value, bool) else None


def _mark(transform: _T, is_random: bool) -> _T:
    try:
        setattr(transform, _MARK, is_random)
    except (AttributeError, TypeError):
        name = "stochastic" if is_random else "deterministic"
        raise TypeError(
            f"{transform!r} takes no attributes and cannot be marked; wrap it in a function: "
            f"@minato.{name} above `def transform(x): return ...`"
        ) from None
    return transform


for _public in (deterministic, stochastic):
    _public.__module__ = "minato"
del _public
