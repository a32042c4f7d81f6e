"""`device=` on whole loaders, with a fake accelerator whose copies are done when the test says so."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import minato
from minato._engine import onto_device
from minato.trace import Kind, read_run
from tests.support.devices import FakeRuntime

LARGE = 20_000  # floats per sample: such tensors are views of shared memory, not copies


class Numbers(Dataset[Any]):
    def __init__(self, length: int, bad: int | None = None, size: int = 4) -> None:
        self.length, self.bad, self.size = length, bad, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        return {"x": torch.full((self.size,), float(index)), "name": str(index)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        step = 1 if worker is None else worker.num_workers
        for index in range(0 if worker is None else worker.id, 12, step):
            yield torch.full((4,), float(index))


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, accelerators: None) -> FakeRuntime:
    fake = FakeRuntime(at_once=True)
    monkeypatch.setattr(onto_device, "make_runtime", lambda: fake)
    return fake


def numbers(batch: Any) -> list[float]:
    tensor = batch["x"] if isinstance(batch, dict) else batch
    return [float(number) for number in tensor.content[:, 0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_arrives_once_on_the_device(runtime: FakeRuntime, workers: int) -> None:
    with minato.DataLoader(Numbers(23), 4, num_workers=workers, device="cuda", device_prefetch=3) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [numbers(batch) for batch in batches] == [
                [float(n) for n in range(i, min(i + 4, 23))] for i in range(0, 23, 4)
            ]
            assert batches[0]["name"] == ["0", "1", "2", "3"]
            assert {batch["x"].device for batch in batches} == {torch.device("cuda:0")}


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_go_to_the_device_too(runtime: FakeRuntime, workers: int) -> None:
    with minato.DataLoader(Stream(), 3, num_workers=workers, device=1) as loader:
        batches = list(loader)
    assert sorted(number for batch in batches for number in numbers(batch)) == list(range(12))
    assert {batch.device.index for batch in batches} == {1}


def test_re_ordered_delivery_loses_nothing(runtime: FakeRuntime) -> None:
    with minato.DataLoader(Numbers(40), 4, shuffle=True, num_workers=2, device="cuda") as loader:
        assert sorted(number for batch in loader for number in numbers(batch)) == list(range(40))


def test_batches_are_dealt_to_several_devices(runtime: FakeRuntime) -> None:
    with minato.DataLoader(Numbers(12), 2, num_workers=2, device=["cuda:0", "cuda:1"]) as loader:
        assert loader.stats().batches_on_device == ()
        batches, queues = [], []
        for batch in loader:
            batches.append(batch)
            queues.append(loader.stats().batches_on_device)
    assert all(len(lengths) == 2 and max(lengths) <= 2 for lengths in queues), "one queue for each device"
    assert queues[-1] == (0, 0)
    assert [batch["x"].device.index for batch in batches] == [0, 1, 0, 1, 0, 1]
    assert [numbers(batch)[0] for batch in batches] == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_at_its_own_turn(runtime: FakeRuntime, workers: int) -> None:
    with minato.DataLoader(Numbers(12, bad=5), 2, num_workers=workers, device="cuda", device_prefetch=4) as loader:
        iterator = iter(loader)
        assert [numbers(next(iterator))[0] for _ in range(2)] == [0, 2]
        with pytest.raises(ValueError, match="sample 5 is bad"):
            next(iterator)
        assert [numbers(batch)[0] for batch in iterator] == [6, 8, 10]


def test_slots_stay_lent_until_their_copies_are_done(runtime: FakeRuntime) -> None:
    runtime._at_once = False
    runtime.pin = lambda tensor: tensor  # type: ignore[method-assign]  # the arena's memory is pinned already
    with minato.DataLoader(Numbers(40, size=LARGE), 4, num_workers=2, device="cuda", device_prefetch=1) as loader:
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(3)]
        begun = len(runtime.begun)
        assert loader.stats().slots_lent == begun >= 3
        runtime.side[0].work()
        batches.append(next(iterator))
        assert loader.stats().slots_lent == len(runtime.begun) - begun
        runtime.side[0].work()
        assert [numbers(batch)[0] for batch in batches] == [0, 4, 8, 12]


def test_while_copies_are_late_batches_are_copied_out_and_stay_right(runtime: FakeRuntime) -> None:
    runtime._at_once = False
    runtime.pin = lambda tensor: tensor  # type: ignore[method-assign]
    with minato.DataLoader(Numbers(80, size=LARGE), 4, num_workers=2, device="cuda") as loader:
        batches = list(loader)  # none of the copies is done by now
        assert loader.stats().batches_copied > 0
        runtime.side[0].work()
    assert [numbers(batch)[0] for batch in batches] == list(range(0, 80, 4))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["break", "close"])
def test_an_iterator_left_early_releases_everything(runtime: FakeRuntime, workers: int, way: str) -> None:
    runtime._at_once = False
    loader = minato.DataLoader(Numbers(40, size=LARGE), 4, num_workers=workers, device="cuda")
    iterator = iter(loader)
    batch = next(iterator)
    if way == "close":
        iterator.close()
    del iterator
    gc.collect()
    assert runtime.held == 0
    assert numbers(batch)[0] == 0
    loader.close()


def test_a_closed_loader_hands_out_nothing_that_was_copied_ahead(runtime: FakeRuntime) -> None:
    runtime._at_once = False
    loader = minato.DataLoader(Numbers(40), 4, num_workers=2, device="cuda", device_prefetch=3)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert runtime.held == 0
    with pytest.raises(minato.errors.LoaderClosed):
        next(iterator)


def test_persistent_workers_begin_a_new_epoch_from_its_first_batch(runtime: FakeRuntime) -> None:
    with minato.DataLoader(Numbers(24), 4, num_workers=2, persistent_workers=True, device="cuda") as loader:
        for seen in (1, 3, 6):
            batches = []
            for batch in loader:
                batches.append(batch)
                if len(batches) == seen:
                    break
            assert [numbers(batch)[0] for batch in batches] == [4.0 * i for i in range(seen)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["in the loop", "after leaving it"])
@pytest.mark.parametrize("kind", ["in order", "re-ordered", "stream"])
def test_a_state_counts_what_was_handed_out_and_not_what_was_copied_ahead(
    runtime: FakeRuntime, workers: int, way: str, kind: str
) -> None:
    def make() -> Any:
        dataset = Stream() if kind == "stream" else Numbers(24)
        shuffle = None if kind == "stream" else kind == "re-ordered"
        return minato.DataLoader(dataset, 2, shuffle, num_workers=workers, device="cuda", device_prefetch=3)

    with make() as first, make() as second:
        iterator = iter(first)
        seen = [number for _ in range(2) for number in numbers(next(iterator))]
        if way == "after leaving it":
            iterator.close()
        second.load_state_dict(first.state_dict())
        rest = [number for batch in second for number in numbers(batch)]
        assert sorted(seen + rest) == list(range(12 if kind == "stream" else 24))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_before_the_first_batch_and_after_the_last_has_the_whole_epoch(
    runtime: FakeRuntime, workers: int
) -> None:
    with minato.DataLoader(Numbers(12), 2, num_workers=workers, device="cuda") as loader:
        iterator = iter(loader)
        states = [loader.state_dict()]
        list(iterator)
        states.append(loader.state_dict())
        for state in states:
            loader.load_state_dict(state)
            assert [numbers(batch)[0] for batch in loader] == [0, 2, 4, 6, 8, 10]


def test_persistent_workers_count_what_was_handed_out_in_every_epoch(runtime: FakeRuntime) -> None:
    def make() -> Any:
        return minato.DataLoader(Numbers(12), 2, num_workers=2, persistent_workers=True, device="cuda")

    with make() as first, make() as second:
        list(first)
        next(iter(first))
        second.load_state_dict(first.state_dict())
        assert [numbers(batch)[0] for batch in second] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu"), ["cpu", "cpu"]])
def test_on_the_cpu_batches_are_the_same_objects(device: Any) -> None:
    made: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        made.append(object())
        return made[-1]

    loader = minato.DataLoader(Numbers(6), 2, collate_fn=collate, device=device)
    assert loader.device is device
    assert all(batch is original for batch, original in zip(loader, made, strict=False))
    assert len(made) == 3
    assert iter(loader)._prefetcher is None


def test_copies_of_a_loader_keep_their_device(runtime: FakeRuntime) -> None:
    loader = pickle.loads(pickle.dumps(minato.DataLoader(Numbers(4), 2, device="cuda:1")))
    assert [batch["x"].device.index for batch in loader] == [1, 1]


BAD = [
    ("cuda:2", ValueError, "there are 2 accelerators here"),
    (2, ValueError, "there are 2 accelerators here"),
    (["cuda:0", "cuda:7"], ValueError, "there are 2 accelerators here"),
    ("xpu", ValueError, "of type 'cuda', not 'xpu'"),
    (["cuda:0", "cpu"], ValueError, "of type 'cuda', not 'cpu'"),
    ("graphics card", ValueError, "is no device"),
    (-1, ValueError, "is no device"),
    ([], ValueError, "must name a device"),
    (True, TypeError, "must be a device"),
    (1.5, TypeError, "must be a device"),
]


@pytest.mark.parametrize(("device", "error", "message"), BAD, ids=[str(case[0]) for case in BAD])
def test_a_device_that_is_not_there_is_refused_at_construction(
    accelerators: None, device: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        minato.DataLoader(Numbers(4), device=device)
    assert repr(device) in str(caught.value)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda")])
def test_without_any_accelerator_an_accelerator_is_refused(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no accelerator that torch can use; leave device=None"):
        minato.DataLoader(Numbers(4), device=device)


def test_devices_without_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    with pytest.raises(ValueError, match="MPS has no streams"):
        minato.DataLoader(Numbers(4), device="mps")


def test_a_batch_that_waits_for_another_try_holds_up_none_that_is_there(runtime: FakeRuntime) -> None:
    """The second batch fails and is tried again later; the first one, copied already, is handed out meanwhile."""
    loader = minato.DataLoader(
        Numbers(8, bad=3), 2, num_workers=1, device="cuda", sample_retries=2, on_error="skip", in_order=True
    )
    with loader, pytest.warns(RuntimeWarning, match="left out"):
        seen = [number for batch in loader for number in numbers(batch)]
    assert sorted(seen) == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("workers", [0, 2])
def test_transfers_are_traced_and_batches_consumed_when_handed_out(
    runtime: FakeRuntime, tmp_path: Any, workers: int
) -> None:
    """Each batch has one transfer, and is consumed after it, in the order of delivery."""
    loader = minato.DataLoader(
        Numbers(12), batch_size=2, num_workers=workers, device=["cuda:0", "cuda:1"], trace=tmp_path
    )
    assert [numbers(batch) for batch in loader] == [[float(n), n + 1.0] for n in range(0, 12, 2)]
    loader.close()
    (main,) = read_run(tmp_path).mains
    sent = {event.batch: event.end_ns for event in main.events(Kind.TRANSFER)}
    consumed = [(event.batch, event.start_ns) for event in main.events(Kind.CONSUMED)]
    assert [batch for batch, _ in consumed] == list(range(6))
    assert sent.keys() == set(range(6))
    assert all(sent[batch] <= at for batch, at in consumed)
