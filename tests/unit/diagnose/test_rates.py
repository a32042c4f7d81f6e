"""Rates of loaders: what counts, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from minato.diagnose.rates import _fill

BATCH, WINDOW = 4, 3


@dataclass(frozen=True)
class Stats:
    cached_samples: int
    batches_in_flight: int


class Filling:
    """A loader whose cache has the samples of the batches that were taken, and of `early` besides."""

    batch_size = BATCH
    batch_sampler = None

    def __init__(self, early: int = 0, most: int = 1 << 30) -> None:
        self.taken = 0
        self._early = early
        self._most = most

    def stats(self) -> Stats:
        return Stats(min(self._most, BATCH * self.taken + self._early), WINDOW)

    def __iter__(self) -> Iterator[int]:
        while True:
            self.taken += 1
            yield self.taken


@pytest.mark.parametrize(("samples", "early", "taken"), [(16, 0, 4), (15, 0, 4), (16, 8, 2), (16, 16, 0)])
def test_batches_count_from_when_the_cache_has_all_samples_and_those_under_way_are_through(
    samples: int, early: int, taken: int
) -> None:
    loader = Filling(early)
    _fill(loader, iter(loader), samples)
    assert loader.taken == taken + WINDOW


def test_a_cache_that_never_has_all_samples_is_not_waited_for() -> None:
    loader = Filling(most=6)
    _fill(loader, iter(loader), 40)
    assert loader.taken == 10 + WINDOW
