"""Bounded histories: of what was, thinned out as it grows old; and of events, the newest, to be replayed."""

from __future__ import annotations

from typing import Generic, TypeVar

Moment = TypeVar("Moment")

MOST_KEPT = 240
FIRST_INTERVAL_S = 0.25


class ThinnedHistory(Generic[Moment]):
    """Moments of a whole life in bounded memory: when there are too many, every other one is dropped, and from then on
    they are kept half as often."""

    def __init__(self, most: int = MOST_KEPT, interval_s: float = FIRST_INTERVAL_S) -> None:
        self._most = most
        self._interval_s = interval_s
        self._kept: list[Moment] = []
        self._due_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another one."""
        return self._due_s is None or now_s >= self._due_s

    def add(self, now_s: float, moment: Moment) -> None:
        self._kept.append(moment)
        if len(self._kept) > self._most:
            del self._kept[1::2]
            self._interval_s *= 2
        self._due_s = now_s + self._interval_s

    @property
    def moments(self) -> tuple[Moment, ...]:
        """Oldest first."""
        return tuple(self._kept)
