"""Echoed batches: each comes so many times, whatever the loop does to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import minato

LENGTH = 21


class Numbered(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "image": torch.full((1024,), float(index)), "name": f"sample {index}"}


@pytest.fixture(params=[TorchLoader, minato.DataLoader], ids=["torch", "minato"])
def make_loader(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        return request.param(Numbered(), batch_size=4, shuffle=True, **options)

    return make


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("times", [1, 3])
def test_each_sample_comes_so_many_times(make_loader: Callable[..., Any], times: int, workers: int) -> None:
    echoed = minato.echo(make_loader(num_workers=workers), times)
    batches = list(echoed)
    assert len(batches) == len(echoed) == times * 6
    counts = Counter(index for batch in batches for index in batch["index"].tolist())
    assert counts == dict.fromkeys(range(LENGTH), times)


def test_a_batch_comes_again_as_it_was_though_the_loop_has_changed_it() -> None:
    loader = minato.DataLoader(Numbered(), batch_size=4, num_workers=2)
    for number, batch in enumerate(minato.echo(loader, 2)):
        first = 4 * (number // 2)
        assert batch["index"].tolist() == list(range(first, min(first + 4, LENGTH)))
        assert batch["image"][:, 0].tolist() == batch["index"].tolist()
        assert batch["name"] == [f"sample {index}" for index in batch["index"].tolist()]
        batch["image"].zero_()
        batch["name"].clear()


def test_it_can_be_left_at_any_time_and_begun_again(make_loader: Callable[..., Any]) -> None:
    echoed = minato.echo(make_loader(num_workers=1), 2)
    for batch in echoed:
        assert len(batch["index"]) == 4
        break
    assert len(list(echoed)) == 12


def test_once_gives_the_batches_themselves() -> None:
    batches = [object(), object()]
    assert list(minato.echo(batches, 1)) == batches


@pytest.mark.parametrize("times", [1.5, "2", None, True])
def test_times_that_are_no_whole_number_are_refused(times: Any) -> None:
    with pytest.raises(TypeError, match="times as a whole number"):
        minato.echo([], times)


@pytest.mark.parametrize("times", [0, -1])
def test_times_below_one_are_refused(times: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        minato.echo([], times)


def test_what_has_no_length_has_none_echoed() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(minato.echo(iter([]), 2))
