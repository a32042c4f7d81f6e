"""Ctrl-C between two steps, never in the middle of one.

A KeyboardInterrupt may come between any two instructions of the main thread. Someone who catches it and goes on (in a
notebook, say) must find the loader whole: so while batches are posted or delivered, the signal is noted, and handled
right after. Waiting for a batch is not covered and can be interrupted at any time.
"""

from __future__ import annotations

# What `signal` wraps: its enums would cost more than a small batch, and this runs once per batch.
import _signal  # type: ignore[import-not-found]
import threading
from types import FrameType
from typing import Any

_SIGINT: int = _signal.SIGINT


class Uninterrupted:
    """A context in which SIGINT is held back. Does nothing outside the main thread, which alone gets signals."""

    def __init__(self) -> None:
        self._previous: Any = None
        self._noted: FrameType | None = None
        self._depth = 0
        self._main = threading.main_thread().ident

    def __enter__(self) -> None:
        # An interrupt may come until the handler is in place: nothing may have been changed by then.
        if self._depth == 0 and threading.get_ident() == self._main:
            previous = _signal.getsignal(_SIGINT)
            if callable(previous):
                self._noted = None  # before the handler is in place: it may be called at once
                _signal.signal(_SIGINT, self._note)
                self._previous = previous
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._previous is not None:
            previous, self._previous = self._previous, None
            _signal.signal(_SIGINT, previous)
            noted, self._noted = self._noted, None
            if noted is not None:
                previous(_SIGINT, noted)

    def _note(self, _number: int, frame: FrameType | None) -> None:
        self._noted = frame
