"""Rates of loaders: what counts, and what does not."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset

import minato
from minato._workers.generators import all_generators
from minato.diagnose.measuring import is_cheap
from minato.diagnose.probing import Probe
from minato.diagnose.rates import _drain, _fill, measure_inline, measure_rate
from minato.diagnose.records import COLLATE, LOAD, StageMeasurement

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


def test_what_a_step_takes_is_in_the_rate_and_not_the_loaders() -> None:
    """A loop on the CPU is not taken for slow handing over, and goes no faster than its step."""

    def step(_: object) -> None:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass

    rate = _drain(itertools.count(), 0.05, step, 0)
    assert rate.step_s is not None
    assert rate.step_s >= 0.002
    assert rate.main_cpu_s < 0.001
    assert rate.batches_s * rate.step_s <= 1
    assert rate.wait_share is not None
    assert 0 <= rate.wait_share < 1
    assert _drain(itertools.count(), 0.01, None, 0).wait_share is None


class Noise(Dataset[Any]):
    """Draws from the global generators, and notes on itself that it was used."""

    used = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.used = True
        return torch.rand(2) + random.random() + np.random.rand()


@pytest.mark.parametrize("kind", [minato.DataLoader, torch.utils.data.DataLoader])
def test_global_generators_are_left_as_they_were(kind: Any) -> None:
    before = [generator.glance() for generator in all_generators()]
    assert measure_rate(kind(Noise(), batch_size=4), range(64), 0.05).batches_s > 0
    assert [generator.glance() for generator in all_generators()] == before


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", [minato.DataLoader, torch.utils.data.DataLoader])
def test_a_dataset_of_workers_is_not_used_here_to_see_how_fast_it_is_without(kind: Any, method: str) -> None:
    """It may open files, which workers that are forked later would share."""
    dataset = Noise()
    loader = kind(
        dataset, batch_size=4, num_workers=1, multiprocessing_context=method, persistent_workers=True, timeout=30
    )
    assert measure_inline(loader, range(64), 0.05) > 0
    assert not dataset.used


@pytest.mark.parametrize(
    ("seconds", "nbytes", "is_tried"),
    [(100e-6, 100, True), (1e-3, 100, False), (1e-3, 3_000_000, True), (10e-3, 3_000_000, False)],
    ids=["cheap", "dear", "large and cheap for that", "large and dear"],
)
def test_no_workers_are_tried_where_handing_over_may_take_longer(seconds: float, nbytes: int, is_tried: bool) -> None:
    """Which depends on how much there is to hand over."""
    made = StageMeasurement("load", LOAD, 10, cpu_s=10 * seconds, wall_s=10 * seconds, bytes_out=10 * nbytes)
    collated = StageMeasurement("collate", COLLATE, 1, cpu_s=0.0, wall_s=0.0, bytes_out=10 * 10**9)
    assert is_cheap(Probe((made, collated), samples=10, change=0.0, files=())) is is_tried
