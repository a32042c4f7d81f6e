"""Samples known to be slow are begun early: batches stay what they are, whatever dies; what was learned is kept."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from minato import DataLoader

LENGTH, BATCH = 96, 8
SLOW = (5, 17, 40, 41, 42, 90)


class Uneven(Dataset[Any]):
    """Some samples take long; every sample says when it was begun. Sample `deadly` kills its worker, once."""

    def __init__(self, slow_s: float = 0.03, deadly: Path | None = None) -> None:
        self.slow_s = slow_s
        self.deadly = deadly

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        began = time.monotonic()
        if self.deadly is not None and index == SLOW[2] and not self.deadly.exists():
            self.deadly.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.slow_s if index in SLOW else 0.001)
        return {"index": index, "noise": torch.rand(2), "began": torch.tensor(began, dtype=torch.float64)}


def is_slow(index: int) -> bool:
    return index in SLOW


def epoch_of(loader: Any) -> list[dict[str, torch.Tensor]]:
    return [{name: value.clone() for name, value in batch.items()} for batch in loader]


def begun(batches: list[dict[str, torch.Tensor]]) -> dict[int, float]:
    pairs = ((batch["index"].tolist(), batch["began"].tolist()) for batch in batches)
    return {index: began for indices, times in pairs for index, began in zip(indices, times, strict=True)}


def began_before_turn(batches: list[dict[str, torch.Tensor]]) -> int:
    """Of an epoch in order: the most samples before a slow one that were begun later than it. By chance, it would be
    those of a worker's run, half a batch at most."""
    times = begun(batches)
    return max(sum(times[other] > times[index] for other in range(index)) for index in SLOW)


@pytest.mark.parametrize("hint", [is_slow, [index in SLOW for index in range(LENGTH)]], ids=["function", "table"])
def test_in_order_hinted_samples_begin_before_their_turn_and_batches_are_torchs(hint: Any) -> None:
    loader = DataLoader(Uneven(), batch_size=BATCH, num_workers=2, prefetch_factor=4, slow_hint=hint)
    torchs = TorchLoader(Uneven(0), batch_size=BATCH)
    with loader:
        batches = epoch_of(loader)
    assert [batch["index"].tolist() for batch in batches] == [batch["index"].tolist() for batch in torchs]
    assert began_before_turn(batches) >= BATCH


def test_what_a_sample_draws_does_not_depend_on_when_it_is_begun() -> None:
    def noise(**options: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        with DataLoader(Uneven(), batch_size=BATCH, num_workers=2, generator=generator, **options) as loader:
            return torch.cat([batch["noise"] for batch in epoch_of(loader)])

    assert torch.equal(noise(), noise(slow_hint=is_slow))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("collate_fn", [None, list], ids=["rows", "function"])
def test_a_kill_amid_early_samples_loses_nothing(tmp_path: Path, in_order: bool, collate_fn: Any) -> None:
    loader = DataLoader(
        Uneven(deadly=tmp_path / "killed"),
        batch_size=BATCH,
        shuffle=True,
        num_workers=3,
        in_order=in_order,
        slow_hint=is_slow,
        collate_fn=collate_fn,
    )
    with loader, pytest.warns(RuntimeWarning, match="its samples go to other workers"):
        batches = list(loader)
    if collate_fn is None:
        indices = [batch["index"].tolist() for batch in batches]
    else:
        indices = [[sample["index"] for sample in batch] for batch in batches]
    assert sorted(itertools.chain(*indices)) == list(range(LENGTH))
    assert loader.stats().worker_restarts == 1


def test_an_interrupted_epoch_with_early_samples_goes_on_where_it_was() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Uneven(), batch_size=BATCH, num_workers=2, slow_hint=is_slow)

    with make() as first:
        before = [batch["index"].tolist() for batch in itertools.islice(iter(first), 4)]
        state = first.state_dict()
    with make() as second:
        second.load_state_dict(state)
        after = [batch["index"].tolist() for batch in second]
    assert list(itertools.chain(*before, *after)) == list(range(LENGTH))


def test_slow_samples_of_an_earlier_epoch_are_known() -> None:
    loader = DataLoader(Uneven(0.15), batch_size=BATCH, num_workers=2, prefetch_factor=4, slow_timeout=0.075)
    with loader:
        first = epoch_of(loader)
        costs = loader._profile.profile.costs
        assert {index for index in range(LENGTH) if costs.get(index) is not None} >= set(SLOW[2:5])
        second = epoch_of(loader)
        assert began_before_turn(second) >= BATCH > began_before_turn(first)
        assert list(begun(second)) == list(range(LENGTH))


def test_a_hint_that_raises_is_told_and_costs_no_batch() -> None:
    def broken(index: int) -> bool:
        raise KeyError(index)

    loader = DataLoader(Uneven(0), batch_size=BATCH, num_workers=1, slow_hint=broken)
    with loader, pytest.warns(RuntimeWarning, match="slow_hint raised KeyError"):
        batches = epoch_of(loader)
    assert list(begun(batches)) == list(range(LENGTH))


def test_a_profile_is_kept_in_its_file_and_known_from_the_first_sample_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profile.json"
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2, "profile": path, "warmup_samples": 8}
    dataset = Uneven(0.15)  # far slower than the others also where the machine is busy
    with DataLoader(dataset, **options) as loader:
        for _ in range(2):  # from the second on it is known from the start what is slow
            epoch_of(loader)
    assert json.loads(path.read_text())["costs"]["length"] == LENGTH
    assert os.listdir(path.parent) == ["profile.json"]
    with DataLoader(dataset, **options, prefetch_factor=4) as later:
        assert later.stats().slow_threshold is not None
        assert {index for index in SLOW if later._profile.profile.costs.get(index) is not None} == set(SLOW)
        assert began_before_turn(epoch_of(later)) >= BATCH
    with DataLoader(torch.utils.data.Subset(Uneven(), range(10)), **options) as other:
        assert len(other._profile.profile.costs) == 0, "costs of single samples belong to a dataset of another length"


def test_without_the_argument_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with DataLoader(Uneven(0), batch_size=BATCH, num_workers=1) as loader:
        epoch_of(loader)
    assert os.listdir(tmp_path) == []


def test_a_profile_that_cannot_be_written_is_told_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    loader = DataLoader(Uneven(0), batch_size=BATCH, num_workers=1, profile=tmp_path / "file" / "profile.json")
    with pytest.warns(RuntimeWarning, match="could not be saved"), loader:
        assert len(epoch_of(loader)) == LENGTH // BATCH


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("profile", 3, TypeError, "profile must be the path"),
        ("slow_hint", 3, TypeError, "slow_hint must be a function"),
        ("slow_hint", {1: True}, TypeError, "slow_hint must be a function"),
        ("slow_hint", [True], ValueError, "each of the 96 samples, got 1"),
        ("slow_hint", [-1.0] * LENGTH, ValueError, "finite and not negative"),
    ],
)
def test_values_that_make_no_sense_are_refused_at_once(name: str, value: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        DataLoader(Uneven(), **{name: value})


def test_a_file_that_is_no_profile_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    with pytest.raises(ValueError, match="is not a saved profile"):
        DataLoader(Uneven(), profile=tmp_path / "other")
