"""The seams between layers: what one side promises and the other relies on."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Mutex(Protocol):
    """Mutual exclusion for the control block, over all processes of a pool.

    Released by the operating system when its holder dies. Not re-entrant. Held for microseconds: never while the
    user's code runs, never across a wait.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class SlotMemory(Protocol):
    """Memory of a batch, writable by every process of a pool; grows on demand."""

    def slot(self, number: int, nbytes: int) -> memoryview:
        """At least the first `nbytes` bytes of a slot."""
        ...


class SeededScope(Protocol):
    """Gives what runs inside it random numbers that depend on the sample alone."""

    def __call__(self, seed: int) -> AbstractContextManager[None]: ...
