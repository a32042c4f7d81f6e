"""Re-ordering does not change what a model learns, even where slowness and label go together."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from minato import DataLoader

SEEDS = range(5)
LENGTH, BATCH, EPOCHS = 640, 16, 5
SLOW_SHARE = 0.8
"""Of the samples with label 1; no other sample is slow."""


class Spirals(Dataset[tuple[Tensor, Tensor, bool]]):
    """Two noisy spiral arms, the labels; most samples of the second one are slow."""

    def __init__(self, length: int, seed: int, slow_s: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(length) % 2
        turn = torch.rand(length, generator=generator).sqrt() * 1.5 * math.pi
        angle = turn + math.pi * self.labels
        noise = 0.8 * torch.randn(length, 2, generator=generator)
        self.points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) + noise
        self.slow = (torch.rand(length, generator=generator) < SLOW_SHARE) & (self.labels == 1)
        self.slow_s = slow_s

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, bool]:
        slow = bool(self.slow[index])
        if slow:
            time.sleep(self.slow_s)
        return self.points[index], self.labels[index], slow


def accuracy_after(batches_of_epoch: Callable[[], Iterable[Any]], seed: int) -> float:
    """Train a small network for real."""
    torch.manual_seed(1000 + seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS)
    for _ in range(EPOCHS):
        for points, labels, _slow in batches_of_epoch():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
        schedule.step()
    test = Spirals(2000, seed=99)
    with torch.no_grad():
        return float((model(test.points).argmax(1) == test.labels).float().mean())


def slow_last(dataset: Spirals) -> Iterable[Any]:
    """What a loader that keeps slow samples until the end of the epoch would deliver."""
    order = sorted(torch.randperm(len(dataset)).tolist(), key=lambda index: bool(dataset.slow[index]))
    for first in range(0, len(order), BATCH):
        chosen = torch.tensor(order[first : first + BATCH])
        yield dataset.points[chosen], dataset.labels[chosen], dataset.slow[chosen]


@pytest.fixture
def one_thread() -> Iterable[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def batches_of_ours(loader: Any, slow_shares: list[Tensor]) -> Iterable[Any]:
    for batch in loader:
        slow_shares.append(batch[2].float().mean())
        yield batch


@functools.cache
def torchs() -> tuple[float, ...]:
    """Accuracies with torch's loader, for each seed."""

    def accuracy(seed: int) -> float:
        loader = TorchLoader(Spirals(LENGTH, seed), BATCH, shuffle=True)
        return accuracy_after(lambda: loader, seed)

    return tuple(accuracy(seed) for seed in SEEDS)


def differs(others: list[float]) -> bool:
    """Whether two means over five seeds differ by more than three standard errors, and more than two hundredths."""
    noise = 3 * math.sqrt((statistics.variance(torchs()) + statistics.variance(others)) / len(SEEDS))
    return abs(statistics.mean(others) - statistics.mean(torchs())) > max(0.02, noise)


def test_a_model_learns_as_much_from_re_ordered_batches_as_from_torchs(one_thread: None) -> None:
    ours = []
    for seed in SEEDS:
        dataset, shares = Spirals(LENGTH, seed, slow_s=0.001), list[Tensor]()
        options = {"in_order": False, "num_workers": 2, "persistent_workers": True, "slow_timeout": 0.0005}
        with DataLoader(dataset, BATCH, shuffle=True, **options) as loader:
            ours.append(accuracy_after(lambda: batches_of_ours(loader, shares), seed))  # noqa: B023
        assert float(torch.stack(shares).mean()) == pytest.approx(float(dataset.slow.float().mean()))
    assert statistics.mean(torchs()) > 0.9, "the task can be learned"
    assert not differs(ours)


def test_the_comparison_would_notice_slow_samples_kept_for_the_end(one_thread: None) -> None:
    """The criterion above can fail."""
    assert differs([accuracy_after(lambda: slow_last(Spirals(LENGTH, seed)), seed) for seed in SEEDS])  # noqa: B023
