"""A loader that is watched does what it would have done; of its samples only some are timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Sampler, Subset

import minato
from minato._instrument import TraceOptions
from minato._workers.stages import SampleRun, find_stages
from minato.diagnose.counting import Counters
from minato.diagnose.timing import SampleTimer, TimedSampleRun


class Numbers(Dataset[Any]):
    """Samples that say their index, and an attribute that may change."""

    def __init__(self, length: int = 48) -> None:
        self.length = length
        self.mark = 0.0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.tensor([float(index), self.mark])

    async def __getitem_async__(self, index: int) -> Any:
        await asyncio.sleep(0.002)
        return torch.tensor([float(index), self.mark])


FETCHERS: list[dict[str, Any]] = [
    {},
    {"fetcher": "threaded", "num_fetch_workers": 3},
    {"fetcher": "threaded", "num_fetch_workers": 3, "thread_copies": True},
    {"fetcher": "asyncio", "num_fetch_workers": 3},
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", FETCHERS, ids=["sequential", "threads", "copies", "asyncio"])
def test_watching_leaves_every_way_of_fetching_as_it_is(options: dict[str, Any], workers: int) -> None:
    loader = minato.DataLoader(Numbers(), batch_size=4, num_workers=workers, **options)
    with loader, minato.diagnose.watch(loader) as watched:
        seen = [index for batch in loader for index in batch[:, 0].tolist()]
    assert sorted(seen) == [float(index) for index in range(48)]
    (stage,) = watched.measurement().stages
    assert stage.name == "load"
    assert stage.wall_s / stage.completions >= 0.0019
    assert stage.cpu_s < stage.wall_s


@pytest.mark.parametrize("options", FETCHERS[:3], ids=["sequential", "threads", "copies"])
def test_changes_of_the_dataset_reach_workers_that_are_watched(options: dict[str, Any]) -> None:
    dataset = Numbers(16)
    loader = minato.DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True, **options)
    with loader, minato.diagnose.watch(loader):
        assert {mark for batch in loader for mark in batch[:, 1].tolist()} == {0.0}
        dataset.mark = 7.0
        assert {mark for batch in loader for mark in batch[:, 1].tolist()} == {7.0}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_is_watched(workers: int) -> None:
    loader = minato.DataLoader(Subset(Numbers(), range(8, 40)), batch_size=4, num_workers=workers)
    with loader, minato.diagnose.watch(loader) as watched:
        assert sorted(int(index) for batch in loader for index in batch[:, 0]) == list(range(8, 40))
    assert watched.measurement().stages[0].completions > 0


class Together(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(0.004)
        return [torch.tensor([float(index), 0.0]) for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_subset", [False, True])
def test_samples_that_are_fetched_together_take_their_share_each(workers: int, is_subset: bool) -> None:
    dataset: Any = Subset(Together(), range(48)) if is_subset else Together()
    loader = minato.DataLoader(dataset, batch_size=4, num_workers=workers)
    with loader, minato.diagnose.watch(loader) as watched:
        assert sorted(int(index) for batch in loader for index in batch[:, 0]) == list(range(48))
    (stage,) = watched.measurement().stages
    assert stage.name == "load"
    assert stage.completions % 4 == 0
    assert stage.wall_s / stage.completions >= 0.0009


class LateSampler(Sampler[int]):
    """Takes its time to begin."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(1.0)
        return iter(range(24))

    def __len__(self) -> int:
        return 24


def test_an_epoch_that_begins_late_is_not_blamed_on_the_loop() -> None:
    """The loop does nothing here; what it takes is counted from batch to batch."""
    loader = minato.DataLoader(Numbers(), batch_size=4, sampler=LateSampler(), num_workers=1)
    began = time.monotonic()
    with loader, minato.diagnose.watch(loader) as watched:
        for _ in loader:
            pass
    elapsed = time.monotonic() - began
    stats = loader.stats()
    assert stats.steps == 6  # the one that found the end among them
    measurement = watched.measurement()
    assert measurement.step_s == pytest.approx(stats.step_seconds / stats.steps)
    assert stats.step_seconds <= elapsed - 1.0  # the sampler's second is in none of the steps
    assert watched.diagnosis().bottleneck == "load"


def test_a_traced_loader_can_be_watched(tmp_path: Path) -> None:
    loader = minato.DataLoader(Numbers(), batch_size=4, num_workers=2, trace=TraceOptions(tmp_path, "op"))
    with loader, minato.diagnose.watch(loader) as watched:
        assert sorted(int(index) for batch in loader for index in batch[:, 0]) == list(range(48))
    assert watched.measurement().stages[0].completions > 0
    assert any(tmp_path.iterdir())


# ---- which samples, and how ------------------------------------------------------------------------------------------


def staged(length: int = 1000) -> minato.StagedDataset:
    return minato.StagedDataset(float, [abs, str], length)


def test_most_runs_are_fetched_from_the_dataset_itself() -> None:
    """Once it is known what timing a sample takes: here 50 µs, of samples of 1 ms."""
    counters, dataset = Counters(), staged()
    timer = SampleTimer(counters)
    timer.told(50_000_000, 1_000_000)  # the first one takes long, and says nothing
    for _ in range(8):
        timer.told(50_000, 1_000_000)
    views = [timer.choose(dataset, 10) for _ in range(10)]
    assert [view is dataset for view in views] == [*[True] * 4, False] * 2
    assert [views[4][index] for index in range(10)] == [str(float(index)) for index in range(10)]
    assert {name: total["completions"] for name, total in counters.totals().items()} == {"load": 1, "abs": 1, "str": 1}


def test_dear_samples_are_all_timed() -> None:
    dataset = staged()
    timer = SampleTimer(Counters())
    for _ in range(8):
        timer.told(100_000, 1_000_000_000)
    assert all(timer.choose(dataset, 1) is not dataset for _ in range(5))
    assert [timer.choose(dataset, 1, least=2) is dataset for _ in range(4)] == [True, False] * 2


def test_what_others_do_while_a_sample_is_put_aside_is_not_counted() -> None:
    counters = Counters()
    timer = SampleTimer(counters)
    began = time.perf_counter()
    run = TimedSampleRun(find_and_begin(staged(), 3), timer)
    assert not run.advance()
    time.sleep(0.3)
    while not run.advance():
        pass
    assert run.result == "3.0"
    elapsed = time.perf_counter() - began
    assert sum(total["wall_ns"] for total in counters.totals().values()) * 1e-9 <= elapsed - 0.3


def find_and_begin(dataset: Any, index: int) -> Any:
    """The steps of a sample."""
    steps: list[Any] = []

    def keep(given: Any) -> SampleRun:
        steps.append(given)
        return SampleRun(given)

    begin = find_stages(dataset, keep)
    assert begin is not None
    begin(index)
    return steps[0]


def test_a_sample_that_fails_is_not_counted() -> None:
    counters = Counters()
    timer = SampleTimer(counters)
    with pytest.raises(ZeroDivisionError):
        timer.sample(minato.StagedDataset(float, [lambda x: 1 / x], 3), 0)
    assert counters.totals() == {}
