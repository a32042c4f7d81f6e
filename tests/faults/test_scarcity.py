"""Little shared memory, few file descriptors, a small budget, a consumer that keeps everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minato import DataLoader

from .data import Big, DiesOnce, Rows, big_parcel
from .tools import caught_warnings, on_small_disk, run_script


def small_shm(mib):
    """A command that runs another with a /dev/shm of its own of that size."""
    return on_small_disk("/dev/shm", mib)


@pytest.mark.parametrize("mib", [64, 1])
def test_batches_may_be_larger_than_dev_shm(mib, tmp_path):
    """torch's workers die of a bus error here."""
    out = run_script(
        tmp_path,
        f"""
        import os
        import torch
        from minato import DataLoader
        from tests.faults.data import Big, big_parcel

        size = os.statvfs("/dev/shm")
        assert size.f_blocks * size.f_frsize == {mib} << 20
        kib = {mib} * 640  # a batch of two does not fit
        for collate, in_order in ((None, True), (None, False), (big_parcel, True)):
            loader = DataLoader(
                Big(6, kib), 2, num_workers=2, prefetch_factor=1, collate_fn=collate, in_order=in_order
            )
            seen = []
            for batch in loader:
                tensor = batch if collate is None else batch["tensor"]
                assert tensor.nbytes == 2 * kib * 1024
                assert torch.equal(tensor[:, 0], tensor[:, -1])
                seen += tensor[:, 0].tolist()
            assert sorted(seen) == list(range(6))
        print("done")
        """,
        wrapper=small_shm(mib),
    )
    assert out == "done\n"


def test_a_thousand_batches_may_be_kept_with_few_descriptors(tmp_path):
    """torch's loader needs a descriptor for every tensor that is kept."""
    out = run_script(
        tmp_path,
        """
        import os, resource
        import torch
        from minato import DataLoader
        from tests.faults.data import Big

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        dataset, expected = Big(2000, kib=4), torch.arange(2000, dtype=torch.int16)
        for collate in (None, torch.stack):
            kept = list(DataLoader(dataset, 2, num_workers=2, collate_fn=collate))
            assert len(kept) == 1000
            assert torch.equal(torch.cat(kept)[:, 7], expected)
            list(DataLoader(dataset, 2, num_workers=2))
            assert torch.equal(torch.cat(kept)[:, 7], expected)
        print(len(os.listdir("/proc/self/fd")) < 64)
        """,
    )
    assert out == "True\n"


def test_running_out_of_descriptors_is_an_error_that_leaves_nothing_behind(tmp_path):
    out = run_script(
        tmp_path,
        """
        import os, resource
        from minato import DataLoader
        from tests.faults.data import Rows

        list(DataLoader(Rows(8), 4, num_workers=2))
        before = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 8, 256))
        try:
            list(DataLoader(Rows(8), 4, num_workers=8))
        except OSError as error:
            print(type(error).__name__, error.errno)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        print(len(os.listdir("/proc/self/fd")) - before)
        print(len(list(DataLoader(Rows(8), 4, num_workers=2))))
        """,
        wrapper=["env", "PYTHONWARNINGS=ignore:This DataLoader will create"],
    )
    assert out.split() == ["OSError", "24", "0", "2"]


# ------------------------------------------------------------------------------------------------------- memory budget


def test_a_small_budget_narrows_the_window_and_delivers_everything(in_order):
    loader = DataLoader(
        Big(120), 4, num_workers=2, prefetch_factor=8, memory_budget=2 * 4 * 300 * 1024, in_order=in_order
    )
    seen, windows, flights = [], [], []
    for batch in loader:
        seen += batch[:, 0].tolist()
        windows.append(loader.stats().window)
        flights.append(loader.stats().batches_in_flight)
    assert sorted(seen) == list(range(120))
    assert windows[-1] == 2
    assert max(flights[len(flights) // 2 :]) <= 2
    assert loader.stats().memory_budget in (0, 2 * 4 * 300 * 1024)  # 0: its iterator has ended


def test_a_budget_below_one_batch_still_delivers_everything(in_order):
    loader = DataLoader(Big(24), 4, num_workers=2, memory_budget=1, in_order=in_order)
    iterator = iter(loader)
    seen = next(iterator)[:, 0].tolist()
    assert loader.stats().window == 1
    seen += [sample[0].item() for batch in iterator for sample in batch]
    assert sorted(seen) == list(range(24))


def test_a_roomy_budget_leaves_the_window_as_asked():
    loader = DataLoader(Rows(400), 4, num_workers=2, prefetch_factor=3)
    iterator = iter(loader)
    for _ in range(20):
        next(iterator)
    assert loader.stats().window == 6
    assert loader.stats().batches_in_flight <= 6


@pytest.mark.parametrize("collate", [None, big_parcel], ids=["default", "custom"])
def test_huge_samples_arrive_whole(collate):
    loader = DataLoader(Big(4, kib=40 * 1024), 2, num_workers=2, prefetch_factor=1, collate_fn=collate)
    for number, batch in enumerate(loader):
        tensor = batch if collate is None else batch["tensor"]
        assert tensor.shape == (2, 40 << 19)
        for part in (slice(0, 5), slice(-5, None), slice(None, None, 4099)):
            assert (tensor[:, part] == torch.tensor([[2 * number], [2 * number + 1]])).all()
        del batch, tensor


def test_the_window_opens_again_after_a_few_large_batches():
    loader = DataLoader(Swelling(400), 4, num_workers=2, prefetch_factor=4, memory_budget=8 << 20)
    windows = []
    for batch in loader:
        windows.append((batch.nbytes, loader.stats().window))
    assert min(window for _, window in windows) <= 2
    assert windows[-1][1] == 8


class Swelling(Rows):
    """Samples 40 to 47 are a megabyte each, the others are small."""

    def __getitem__(self, index):
        return torch.full((1 << 20 if 40 <= index < 48 else 64,), index % 100, dtype=torch.uint8)


# -------------------------------------------------------------------------------------------------------- kept batches


def test_a_consumer_that_keeps_batches_gets_copies_and_slots_stay_few(in_order):
    loader = DataLoader(Big(1200, kib=16), 4, num_workers=2, prefetch_factor=2, in_order=in_order)
    kept, slots = [], []
    for batch in loader:
        kept.append(batch)
        slots.append(loader.stats().slots)
    stats = loader.stats()
    assert stats.batches_delivered == stats.batches_copied + stats.batches_zero_copy == 300
    assert stats.batches_copied >= 280
    assert max(slots) <= 16
    assert sorted(torch.cat(kept)[:, 0].tolist()) == list(range(1200))


def test_a_consumer_that_keeps_nothing_gets_no_copies():
    loader = DataLoader(Big(1200, kib=16), 4, num_workers=2)
    for _ in loader:
        pass
    assert loader.stats().batches_copied == 0
    assert loader.stats().batches_zero_copy == 300


def contents(batch):
    """A deep copy of a batch, as a list of arrays."""
    return [copied(part) for part in (batch.values() if isinstance(batch, dict) else [batch])]


def copied(part):
    return part.numpy().copy() if isinstance(part, torch.Tensor) else np.array(part)


@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
@pytest.mark.parametrize("collate", [None, big_parcel], ids=["default", "custom"])
def test_batches_that_are_held_never_change(collate, persistent, in_order):
    """Some are held for long, some for a while, most not at all: leases come back in every order."""
    dataset = Big(48, kib=64)
    loader = DataLoader(dataset, 2, num_workers=2, collate_fn=collate, in_order=in_order, persistent_workers=persistent)
    held = []
    for dataset.epoch in range(6):
        passing = []
        for number, batch in enumerate(loader):
            if number % 5 == dataset.epoch % 5:
                held.append((batch, contents(batch)))
            passing = [*passing[-2:], (batch, contents(batch))]
            batch_before, copy = passing[0]
            assert_equal(contents(batch_before), copy)
    loader.close()
    list(DataLoader(Big(48, kib=64), 2, num_workers=2))
    assert len(held) > 20
    for batch, copy in held:
        assert_equal(contents(batch), copy)


def assert_equal(got, expected):
    assert all(np.array_equal(mine, copy) for mine, copy in zip(got, expected, strict=True))


def test_parts_of_a_batch_that_are_held_never_change():
    dataset = Big(48, kib=64)
    loader = DataLoader(dataset, 2, num_workers=2, collate_fn=big_parcel)
    held = []
    for dataset.epoch in range(3):
        for batch in loader:
            part = (batch["tensor"][1, 5:9], batch["array"][0, 2:4], batch["tensor"].numpy()[0, ::512])
            held.append((part, [copied(view) for view in part]))
    assert len(held) == 72
    for part, copy in held:
        assert_equal([copied(view) for view in part], copy)


def test_held_batches_survive_deaths(marks):
    loader = DataLoader(DiesOnce(200, [10, 90, 150], marks), 4, num_workers=2, in_order=False)
    with caught_warnings():
        held = [(batch, batch.clone()) for batch in loader]
    list(loader)
    assert loader.stats().worker_restarts == 3
    assert all(torch.equal(batch, copy) for batch, copy in held)
