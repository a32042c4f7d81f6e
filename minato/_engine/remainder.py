"""What is left of an epoch that was interrupted: pure arithmetic on positions.

An epoch's order is a row of units: samples with torch's own batching, whole batches otherwise. Delivery runs along that
row with a few units left behind, so what was delivered is all of it up to a frontier, but for those few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .._queues.keys import Indices, Keys, Placed

Positions = npt.NDArray[np.int64]


def _none() -> Positions:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Delivered:
    """All units below `frontier`, but for the `missing` ones."""

    frontier: int = 0
    missing: Positions = field(default_factory=_none)
    """Ascending, all below the frontier."""

    @property
    def count(self) -> int:
        return self.frontier - len(self.missing)

    def after(self, issued: int, waiting: Positions) -> Delivered:
        """What is delivered in all by a run that began here: of what was left it gave out the first `issued` units, and
        the `waiting` ones of these (counted from where the run began) were not delivered."""
        behind = len(self.missing)
        origins = np.where(waiting < behind, 0, self.frontier - behind + waiting)
        origins[waiting < behind] = self.missing[waiting[waiting < behind]]
        missing = np.sort(np.concatenate([origins, self.missing[issued:]]))
        return Delivered(self.frontier + max(0, issued - behind), missing)._lowered()

    def after_all_but(self, given: int, waiting: Sequence[int]) -> Delivered:
        """What is delivered in all by a run that began here, was given the first `given` units of what was left, and
        has not delivered the `waiting` ones, counted from the epoch's beginning."""
        behind = len(self.missing)
        missing = np.sort(np.concatenate([np.array(waiting, np.int64), self.missing[given:]]))
        return Delivered(self.frontier + max(0, given - behind), missing)._lowered()

    def _lowered(self) -> Delivered:
        """With the frontier at the last unit that was delivered."""
        runs = self.runs()
        if not runs or sum(runs[-1]) != self.frontier:
            return self
        first, count = runs[-1]
        return Delivered(first, self.missing[: len(self.missing) - count])

    def runs(self) -> list[list[int]]:
        """The missing units as [first, count] of each stretch."""
        if not len(self.missing):
            return []
        breaks = np.flatnonzero(np.diff(self.missing) != 1) + 1
        firsts = self.missing[np.concatenate([[0], breaks])]
        counts = np.diff(np.concatenate([[0], breaks, [len(self.missing)]]))
        return [[int(first), int(count)] for first, count in zip(firsts, counts, strict=True)]

    @classmethod
    def from_runs(cls, frontier: int, runs: Sequence[Sequence[int]]) -> Delivered:
        """Raises ValueError if the runs are not ascending stretches below the frontier."""
        end = -1
        for first, count in runs:
            if first <= end or count < 1:
                raise ValueError(f"not an ascending row of stretches: {runs}")
            end = first + count
        if end > frontier or frontier < 0:
            raise ValueError(f"a stretch ends at {end}, beyond the frontier {frontier}")
        missing = [np.arange(first, first + count) for first, count in runs]
        return cls(frontier, np.concatenate(missing) if missing else _none())

    def left_in(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """For each of `count` units from `first` on, whether it is still to be delivered."""
        units = np.arange(first, first + count)
        begin, end = self.missing.searchsorted([first, first + count])
        left: npt.NDArray[np.bool_] = units >= self.frontier
        left[self.missing[begin:end] - first] = True
        return left


@dataclass(frozen=True, slots=True)
class Portion:
    """A batch of what is left: keys, and the positions they had in the epoch, from which their seeds are derived."""

    keys: Keys
    origins: Sequence[int]

    @property
    def is_contiguous(self) -> bool:
        return isinstance(self.origins, range)


class Reserve:
    """Keys that were taken from the sampler to replace others, in order, each with its position in the epoch."""

    def __init__(self, before: Delivered) -> None:
        self._before = before
        self._given = 0
        self.keys: list[Placed] = []

    def __len__(self) -> int:
        return len(self.keys)

    def origins(self, keys: Keys | Portion) -> Sequence[int]:
        """The positions of the sampler's next batch."""
        count = len(keys.keys if isinstance(keys, Portion) else keys)
        first, self._given = self._given, self._given + count
        return keys.origins if isinstance(keys, Portion) else range(first, first + count)

    def add(self, keys: Keys | Portion) -> None:
        """The sampler's next batch is kept back."""
        origins = self.origins(keys)
        plain = keys.keys if isinstance(keys, Portion) else keys
        plain = plain.tolist() if isinstance(plain, Indices) else plain
        self.keys += [Placed(key, origin) for key, origin in zip(plain, origins, strict=True)]

    def take(self, most: int) -> list[Placed]:
        """The first keys, at most `most`."""
        taken, self.keys = self.keys[:most], self.keys[most:]
        return taken

    def delivered(self, waiting: Sequence[int]) -> Delivered:
        """What is delivered in all, if the units at `waiting`, and those in reserve, are not."""
        return self._before.after_all_but(self._given, [*waiting, *(key.origin for key in self.keys)])


class Rest:
    """Cuts what is left out of the sampler's batches: give it each of them in turn, then say that there are no more."""

    def __init__(self, before: Delivered, batch_size: int | None, drop_last: bool = False) -> None:
        """`batch_size`: samples are the units, and are put together to batches of that size; None: batches are.
        `drop_last`: a last batch that is not full is left out."""
        self._before = before
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._seen = 0  # batches
        self._position = 0  # samples
        self._keys: list[object] = []
        self._origins: list[int] = []

    @property
    def units_seen(self) -> int:
        return self._seen if self._batch_size is None else self._position

    def add(self, keys: Keys) -> list[Portion]:
        """The next of the sampler's batches; returns those that are complete now."""
        first, self._position = self._position, self._position + len(keys)
        number, self._seen = self._seen, self._seen + 1
        if self._batch_size is None:
            return [Portion(keys, range(first, self._position))] if self._before.left_in(number, 1)[0] else []
        left = self._before.left_in(first, len(keys))
        if left.all() and len(keys) == self._batch_size and not self._keys:
            return [Portion(keys, range(first, self._position))]
        if left.any():
            plain = keys.tolist() if isinstance(keys, Indices) else keys
            chosen = np.flatnonzero(left).tolist()
            self._keys += [plain[n] for n in chosen]
            self._origins += [first + n for n in chosen]
        return self._cut(self._batch_size)

    def end(self) -> list[Portion]:
        """The sampler has no more: what is left is the last batch."""
        return self._cut(1) if self._keys and not self._drop_last else []

    def _cut(self, least: int) -> list[Portion]:
        portions = []
        while len(self._keys) >= least:
            size = self._batch_size or least
            keys, self._keys = self._keys[:size], self._keys[size:]
            origins, self._origins = self._origins[:size], self._origins[size:]
            contiguous = origins[-1] - origins[0] == len(origins) - 1
            portions.append(Portion(keys, range(origins[0], origins[-1] + 1) if contiguous else origins))
        return portions


def single(key: Any) -> Keys:
    """The key of a sample that is delivered by itself, as a batch of one."""
    return [key]
