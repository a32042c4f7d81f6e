"""The cache of a loader: the same samples as without, made once, and never stale, torn or beyond its limit."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

import minato
from minato._pipeline import cache, looking, room, store
from minato._pipeline.looking import look
from minato._pipeline.store import CacheStore

N = 24


class Count:
    """Adds to its input; says in a file that it ran, one byte a time."""

    def __init__(self, log: Path, add: float = 1.0) -> None:
        self.log, self.add = str(log), add
        Path(log).touch()

    def __call__(self, x: Any) -> Any:
        with open(self.log, "ab", buffering=0) as file:
            file.write(b".")
        for _ in range(2):
            x = x + self.add
        return x

    @property
    def calls(self) -> int:
        return os.path.getsize(self.log)


class Noise:
    def __call__(self, x: Any) -> Any:
        return x + torch.rand(())


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        for t in self.transforms:
            img = t(img)
        return img


class Images(Dataset[Any]):
    """As most datasets are written: a path and a label, an optional transform, one of the label's."""

    def __init__(self, transform: Any, n: int = N) -> None:
        self.labels = list(range(n))
        self.transform = transform
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        label = self.labels[index]
        img = torch.full((50,), float(label))
        if self.transform is not None:
            img = self.transform(img)
        return img, label + 1


class Opaque(Dataset[Any]):
    def __init__(self, work: Count) -> None:
        self.work = work

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {"x": self.work(torch.full((4,), float(index))), "name": str(index)}


class Batched(Opaque):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def epochs(dataset: Any, count: int, **options: Any) -> list[list[Any]]:
    generator = torch.Generator().manual_seed(3)
    arguments = {"batch_size": 5, "shuffle": True, "in_order": True, "generator": generator, **options}
    with minato.DataLoader(dataset, **arguments) as loader:
        return [list(loader) for _ in range(count)]


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (2, {"multiprocessing_context": "fork"}),
        (2, {"multiprocessing_context": "fork", "persistent_workers": True}),
        (1, {"multiprocessing_context": "spawn", "persistent_workers": True}),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "concatenated"])
def test_content_is_that_without_a_cache(tmp_path: Path, workers: int, options: dict[str, Any], kind: str) -> None:
    """Random stages after the cached ones draw what they would have drawn; the cached ones run once per sample."""
    if kind == "concatenated" and options.get("multiprocessing_context") == "spawn":
        pytest.skip("starting processes anew is slow, and nothing depends on both")

    def make(log: str) -> tuple[Any, Count]:
        count = Count(tmp_path / log)
        dataset: Any = Images(Compose([count, Noise()]))
        if kind == "concatenated":
            dataset = Subset(ConcatDataset([Images(Compose([count, Noise()]), 4), dataset]), list(range(2, N)))
        return dataset, count

    plain, _ = make("plain")
    cached, count = make("cached")
    expected = epochs(
        plain, 3, num_workers=workers, **{**options, "multiprocessing_context": "fork" if workers else None}
    )
    looked = 50  # runs of a stage while it is looked at, at most
    assert_same(epochs(cached, 3, num_workers=workers, cache="after:Count", **options), expected)
    assert len(cached) <= count.calls <= len(cached) + looked


@pytest.mark.parametrize("kind", [Opaque, Batched])
def test_whole_samples_of_opaque_datasets(tmp_path: Path, kind: Any) -> None:
    """A dataset that cannot be split is cached as a whole if all of it is deterministic."""
    dataset = kind(Count(tmp_path / "log"))
    expected = epochs(kind(Count(tmp_path / "other")), 2, num_workers=2)
    assert_same(epochs(dataset, 2, num_workers=2, cache="source"), expected)
    assert dataset.work.calls < 2 * N + 30


def test_changes_of_the_dataset_are_seen(tmp_path: Path) -> None:
    """What the cached code reads begins the cache anew, and so does the token; what it does not read does not."""
    count = Count(tmp_path / "log")
    dataset = Images(count)
    loader = minato.DataLoader(dataset, batch_size=N, num_workers=1, persistent_workers=True, cache="after:Count")
    with loader:
        (before,) = [batch[0] for batch in loader]
        calls = count.calls
        dataset.epoch = 1
        list(loader)
        assert count.calls == calls
        count.add = 2.0
        (after,) = [batch[0] for batch in loader]
        assert torch.equal(after - before, torch.full_like(before, 2.0))
        assert count.calls == calls + N
        loader.cache_token = "new files"
        list(loader)
        assert count.calls == calls + 2 * N
        assert loader.stats().cached_samples == N


class Scaled(Dataset[Any]):
    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), index * self.scale)


@pytest.mark.parametrize("cache", [None, "source"])
def test_a_change_of_the_dataset_leaves_the_order_of_later_epochs_as_it_is(cache: str | None) -> None:
    """Workers that are kept would be asked to begin anew without another seed, as with torch."""
    dataset = Scaled()
    expected = []
    generator = torch.Generator().manual_seed(5)
    plain = torch.utils.data.DataLoader(dataset, 8, True, num_workers=1, persistent_workers=True, generator=generator)
    for _ in range(3):
        expected.append([index for batch in plain for index in batch[:, 0].tolist()])
    del plain
    options = {"num_workers": 1, "persistent_workers": True, "generator": torch.Generator().manual_seed(5)}
    found = []
    with minato.DataLoader(dataset, 8, True, in_order=True, cache=cache, **options) as loader:
        for epoch in range(3):
            dataset.scale = 1.0 + epoch
            found.append([index / dataset.scale for batch in loader for index in batch[:, 0].tolist()])
    assert found == expected


def test_limit_is_kept(tmp_path: Path) -> None:
    """What does not fit is made anew; the bytes stay below the limit."""
    dataset = Images(Count(tmp_path / "log"))
    expected = epochs(Images(Count(tmp_path / "other")), 2)
    generator = torch.Generator().manual_seed(3)
    with pytest.warns(UserWarning, match="will be cached"):
        loader = minato.DataLoader(
            dataset, batch_size=5, shuffle=True, generator=generator, in_order=True, cache="source", cache_bytes=9000
        )
        iter(loader)
    generator.manual_seed(3)
    with loader:
        assert_same([list(loader) for _ in range(2)], expected)
        assert 0 < loader.stats().cached_samples < N
        assert loader.stats().cached_bytes <= 9000


def test_memory_that_runs_short_is_told_once_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again and again while the cache fills."""
    left = iter([1 << 50, 1 << 50, 1 << 50, 0])
    expected = epochs(Images(Count(tmp_path / "other")), 3)
    monkeypatch.setattr(room, "CHECK_EVERY_BYTES", 100)
    monkeypatch.setattr(store, "available_bytes", lambda: next(left))
    generator = torch.Generator().manual_seed(3)
    options = {"batch_size": 5, "shuffle": True, "generator": generator, "in_order": True}
    with minato.DataLoader(Images(Count(tmp_path / "log")), cache="source", **options) as loader:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = [list(loader) for _ in range(3)]
        assert loader.stats().cached_samples == 3
        assert "3 of 24 samples, and no more are added, as memory runs short" in loader.stats().cache_note
    assert_same(found, expected)
    (one,) = told
    assert "memory runs short" in str(one.message)


@pytest.mark.parametrize("workers", [0, 2], ids=["without workers", "workers that are kept"])
def test_what_is_kept_is_given_up_where_others_need_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Between epochs, and kept anew as far as there is room: the samples are the same throughout."""
    kept = {"num_workers": workers, "persistent_workers": workers > 0}
    expected = epochs(Images(Count(tmp_path / "other")), 4, **kept)
    generator = torch.Generator().manual_seed(3)
    options = {"batch_size": 5, "shuffle": True, "generator": generator, "in_order": True, **kept}
    count = Count(tmp_path / "log")
    with minato.DataLoader(Images(count), cache="after:Count", **options) as loader:
        found = [list(loader), list(loader)]
        assert loader.stats().cached_samples == N
        calls = count.calls
        with monkeypatch.context() as short, pytest.warns(UserWarning, match="what was kept is given up"):
            short.setattr(cache, "available_bytes", lambda: 1000)
            found.append(list(loader))
        assert count.calls == calls + N, "they are made anew"
        found.append(list(loader))
        assert count.calls == calls + N
    assert_same(found, expected)


def test_a_limit_beyond_what_there_is_counts_as_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "available_bytes", lambda: 20_000)
    loader = minato.DataLoader(Images(Count(tmp_path / "log")), cache="source", cache_bytes=1 << 40)
    with loader, pytest.warns(UserWarning, match="room for 0 MB: .* will be cached"):
        iter(loader)


def test_a_file_of_before_does_not_count_as_taken_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that fills its disk is found again; it would not fit a second time."""
    dataset, options = Images(Count(tmp_path / "log")), {"cache": "source", "cache_dir": str(tmp_path / "cache")}
    first = epochs(dataset, 1, **options)
    (file,) = (tmp_path / "cache").iterdir()
    usage = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(epochs(dataset, 1, **options), first)
    assert list((tmp_path / "cache").iterdir()) == [file]


def test_files_are_used_again_and_checked(tmp_path: Path) -> None:
    """A second loader finds the first one's entries; damaged ones are not served; another dataset has another file."""
    folder = tmp_path / "cache"

    def run(add: float = 1.0) -> tuple[Any, int]:
        count = Count(tmp_path / "log", add)
        os.truncate(count.log, 0)
        made = epochs(Images(count), 1, cache="after:Count", cache_dir=folder, num_workers=1)
        return made, count.calls

    first, calls = run()
    again, fewer = run()
    assert_same(again, first)
    assert fewer == calls - N
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[-2000:] = bytes(2000)
    file.write_bytes(data)
    assert_same(run()[0], first)
    run(2.0)
    assert len(list(folder.iterdir())) == 2


class Killer(Dataset[Any]):
    """Kills its process at one index, the first time."""

    def __init__(self, flag: Path) -> None:
        self.flag = str(flag)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        if index == 7 and minato.get_worker_info() is not None and not os.path.exists(self.flag):
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), float(index))


def test_death_of_a_worker_costs_nothing(tmp_path: Path) -> None:
    """Entries of before stay, the sample in hand is made by another worker, every sample is there once per epoch."""
    dataset = minato.deterministic(Killer(tmp_path / "flag"))
    with minato.DataLoader(dataset, batch_size=4, num_workers=2, cache="source") as loader:
        with pytest.warns(RuntimeWarning, match="killed by signal"):
            first = torch.cat(list(loader))[:, 0].tolist()
        assert first == torch.cat(list(loader))[:, 0].tolist() == list(range(N))
        assert loader.stats().worker_restarts == 1
        assert loader.stats().cached_samples == N


def test_half_written_entry_is_never_served() -> None:
    """A process that ends at any moment of adding an entry leaves none, and does not hold others up."""
    store = CacheStore.in_memory(4, 1 << 20, 0)
    moments = ["_take", "_commit"]
    for moment in moments:
        pid = os.fork()
        if pid == 0:
            setattr(CacheStore, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            store.put(1, store.generation, np.ones(100))
            os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        assert store.get(1, store.generation) is None
    holder = os.fork()
    if holder == 0:
        with store._lock:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(holder, 0)
    assert store.put(1, store.generation, np.ones(100))
    assert np.array_equal(store.get(1, store.generation), np.ones(100))
    old = store.generation
    assert store.begin_generation() != old
    assert store.get(1, old) is None
    assert not store.put(1, old, np.ones(100))
    store.close()


def test_what_cannot_be_cached_is_refused(tmp_path: Path) -> None:
    """With the stage and the reason; "auto" goes on without, and says why."""
    dataset = Images(Compose([Noise(), Count(tmp_path / "log")]))
    with pytest.raises(ValueError, match="'Noise' is random"):
        next(iter(minato.DataLoader(dataset, cache="after:Count")))
    with pytest.raises(ValueError, match="there is no stage 'Crop'; there are 'load', 'Noise', 'Count'"):
        next(iter(minato.DataLoader(dataset, cache="after:Crop")))
    with pytest.raises(ValueError, match="cache must be 'auto'"):
        minato.DataLoader(dataset, cache="yes")
    with pytest.raises(ValueError, match="needs a cache"):
        minato.DataLoader(dataset, cache_bytes=5)
    with pytest.raises(ValueError, match="needs a dataset with indices"):
        minato.DataLoader(_Stream(), cache="auto")
    with minato.DataLoader(_Drawn(None), cache="auto") as loader:
        next(iter(loader))
        assert loader.stats().cache_note.startswith("nothing is cached: the first stage, 'load', is random")


class _Drawn(Images):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(2), index


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_sizes_come_with_an_error() -> None:
    """A hundredth of the samples tells the size of all of them."""
    dataset = minato.StagedDataset(lambda i: np.zeros(1000 + i % 7, np.uint8), [lambda x: x.repeat(3)], 10_000)
    seen = look(dataset, range(0, 10_000, 100), 30.0)
    exact = sum(1000 + i % 7 for i in range(10_000))
    for stage, factor in zip(seen.stages, (1, 3), strict=True):
        assert abs(stage.size.total_bytes - factor * exact) < 0.02 * factor * exact
        assert 0 < stage.size.error_bytes < 0.01 * factor * exact


def test_a_reading_that_waited_for_a_core_does_not_make_entries_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    began_and_ended = iter([0.0, 2.0, 5.0, 5.5, 7.0, 8.0])
    monkeypatch.setattr(looking, "time", SimpleNamespace(perf_counter=began_and_ended.__next__))
    sample, seconds = looking._stored(torch.arange(4))
    assert torch.equal(sample, torch.arange(4))
    assert seconds == 1.0
