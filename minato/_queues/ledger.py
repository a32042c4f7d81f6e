"""The ledger of an epoch: for each position of the sampler, whether it was given out and whether it was delivered.

It is what makes delivery exactly-once. In the main process only; pure bookkeeping.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .._errors import InternalError

_GROWTH = 4096  # positions
_FEW = 64  # positions: up to so many are told apart faster one by one than by numpy
_DONE = 1


class Ledger:
    """Positions of one epoch. Positions are given out in order, a batch at a time, and delivered in any order."""

    def __init__(self) -> None:
        self._delivered = bytearray(_GROWTH)  # not an array: a slice of bytes is looked through in a tenth of the time
        self._issued = 0
        self._count = 0
        self._open: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Batch number: its first position, and how many of its positions are not delivered yet."""

    @property
    def issued(self) -> int:
        """Positions given out."""
        return self._issued

    @property
    def delivered(self) -> int:
        """Positions delivered."""
        return self._count

    @property
    def open_batches(self) -> Sequence[int]:
        """Batches with positions not delivered yet, oldest first."""
        return list(self._open)

    @property
    def oldest(self) -> int | None:
        """The oldest batch with positions not delivered yet."""
        return next(iter(self._open), None)

    def issue(self, batch: int, count: int) -> int:
        """Give out the next `count` positions as tickets of `batch`; returns the first of them."""
        first = self._issued
        self._issued += count
        self._open[batch] = (first, count)
        while self._issued > len(self._delivered):
            self._delivered = self._delivered + bytes(len(self._delivered))  # a new one: arrays may be over this one
        return first

    def home_of(self, position: int) -> tuple[int, int]:
        """The batch a position that is not delivered was given out with, and its place there."""
        batch, first = next((b, first) for b, (first, _) in reversed(self._open.items()) if first <= position)
        return batch, position - first

    def is_delivered(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """For each of `count` positions from `first` on, whether it was delivered."""
        return np.frombuffer(self._delivered, np.bool_, count, first)

    def undelivered(self) -> npt.NDArray[np.int64]:
        """Positions given out and not delivered, ascending. Looks only at those since the oldest of them."""
        first = next((first for first, _ in self._open.values()), self._issued)
        return np.flatnonzero(~self.is_delivered(first, self._issued - first)) + first

    def tickets_of(self, batch: int) -> range:
        """The positions of a batch that keeps its members and is not delivered."""
        first, count = self._open[batch]
        return range(first, first + count)

    def deliver(self, positions: Sequence[int]) -> None:
        """Record positions as delivered; a range has no gaps. Raises InternalError, and records nothing, if one was
        never given out or is delivered twice."""
        if not positions:
            return
        if isinstance(positions, range):
            self._deliver_range(positions.start, positions.stop)
        elif len(positions) <= _FEW:
            self._deliver_few(sorted(positions))
        else:
            self._deliver_many(np.sort(np.array(positions, np.int64)))

    def _deliver_many(self, ordered: npt.NDArray[np.int64]) -> None:
        if ordered[0] < 0 or ordered[-1] >= self._issued:
            raise InternalError(f"positions {ordered[0]} to {ordered[-1]} were delivered, of {self._issued} given out")
        delivered = np.frombuffer(self._delivered, np.bool_)
        if delivered[ordered].any() or (ordered[1:] == ordered[:-1]).any():
            raise InternalError(f"a position was delivered twice, among {ordered.tolist()}")
        delivered[ordered] = True
        self._count += len(ordered)
        self._settle(ordered)

    def _deliver_range(self, first: int, end: int) -> None:
        if first < 0 or end > self._issued:
            raise InternalError(f"positions {first} to {end - 1} were delivered, of {self._issued} given out")
        if self._delivered.find(_DONE, first, end) >= 0:
            raise InternalError(f"a position was delivered twice, among {list(range(first, end))}")
        self._delivered[first:end] = bytes((_DONE,)) * (end - first)
        self._count += end - first
        counted = []
        for batch, (own_first, left) in self._open.items():
            if own_first >= end:
                break
            counted.append((batch, own_first, left))
        ends = [*(own_first for _, own_first, _ in counted[1:]), end]
        for (batch, own_first, left), own_end in zip(counted, ends, strict=True):
            count = min(end, own_end) - max(first, own_first)
            if count > 0:
                self._count_down(batch, own_first, left - count)

    def _deliver_few(self, ordered: list[int]) -> None:
        delivered, last = self._delivered, -1
        for position in ordered:
            if not 0 <= position < self._issued:
                raise InternalError(f"position {position} was delivered, of {self._issued} given out")
            if delivered[position] or position == last:
                raise InternalError(f"position {position} was delivered twice")
            last = position
        for position in ordered:
            delivered[position] = _DONE
        self._count += len(ordered)
        done, home, counted = 0, (-1, 0, 0), []
        for batch, (first, left) in self._open.items():
            before = done
            while done < len(ordered) and ordered[done] < first:
                done += 1
            if done > before:
                counted.append((home, done - before))
            if done == len(ordered):
                break
            home = (batch, first, left)
        else:
            counted.append((home, len(ordered) - done))
        for (batch, first, left), count in counted:
            self._count_down(batch, first, left - count)

    def _count_down(self, batch: int, first: int, left: int) -> None:
        """So many of a batch's positions are not delivered yet."""
        if left:
            self._open[batch] = (first, left)
        else:
            del self._open[batch]

    def deliver_batch(self, batch: int) -> None:
        """Record all positions of a batch as delivered: the batch kept its members."""
        if batch not in self._open:
            raise InternalError(f"batch {batch} was delivered twice")
        first, count = self._open.pop(batch)
        self._delivered[first : first + count] = bytes((_DONE,)) * count
        self._count += count

    def _settle(self, ordered: npt.NDArray[np.int64]) -> None:
        """Count down the batches the positions were tickets of, and close those with none left."""
        entries = list(self._open.items())
        firsts = [first for _, (first, _) in entries]
        bounds = [*ordered.searchsorted(firsts).tolist(), len(ordered)]
        for (batch, (first, left)), begin, end in zip(entries, bounds, bounds[1:], strict=False):
            if end > begin:
                self._count_down(batch, first, left - (end - begin))
