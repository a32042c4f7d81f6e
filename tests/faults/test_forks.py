"""A process that forks while it has a loader: the copy and the original do not get into each other's way."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from minato import DataLoader

from .data import Big, Rows, Sleepy
from .tools import forked, run_script, running

persistence = pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])


def firsts(batches):
    return [int(sample[0]) for batch in batches for sample in batch]


@persistence
def test_a_forked_copy_raises_and_the_original_goes_on(persistent):
    """torch's copy would wait for ever, or take batches away from the original."""
    loader = DataLoader(Rows(40), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    seen = firsts([next(iterator)])

    def in_the_copy():
        with pytest.raises(RuntimeError, match="another process"):
            next(iterator)
        loader.stats()

    assert forked(in_the_copy) == 0
    assert seen + firsts(iterator) == list(range(40))


@persistence
def test_a_forked_copy_may_begin_an_iteration_of_its_own(persistent):
    """As the message of its old iterator says."""
    loader = DataLoader(Rows(40), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)

    def in_the_copy():
        assert firsts(loader) == list(range(40))
        loader.close()

    assert forked(in_the_copy) == 0
    assert len(list(iterator)) == 9


def test_a_forked_copy_that_closes_leaves_the_workers_alone():
    with DataLoader(Sleepy(100_000, 0.001), 4, num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        assert forked(loader.close) == 0
        assert len(running(iterator.worker_pids.values())) == 2
        assert [next(iterator)[0, 0].item() for _ in range(20)] == list(range(4, 84, 4))


def test_copies_of_a_loader_do_not_share_memory_with_it():
    """The loader keeps its shared memory from one epoch to the next; a copy has to get its own."""
    dataset = Big(60, kib=64)
    loader = DataLoader(dataset, 4, num_workers=1, timeout=10)
    list(loader)

    def iterate(epoch):
        dataset.epoch = epoch
        seen = []
        for batch in loader:
            seen.append(batch)
            assert (batch == batch[:, :1]).all()
        assert firsts(seen) == [1000 * epoch + index for index in range(60)]

    def in_the_copy():
        for _ in range(3):
            iterate(7)
        loader.close()

    def in_the_original():
        for _ in range(3):
            iterate(3)

    assert forked(in_the_copy, in_the_original) == 0


def test_what_a_copy_iterates_does_not_change_batches_the_original_holds():
    dataset = Big(40, kib=64)
    loader = DataLoader(dataset, 4, num_workers=1, timeout=10)
    held = list(loader)
    before = [batch.clone() for batch in held]

    def in_the_copy():
        held.clear()
        dataset.epoch = 9
        list(loader)
        list(loader)
        loader.close()

    assert forked(in_the_copy) == 0
    assert all(torch.equal(batch, copy) for batch, copy in zip(held, before, strict=True))


class SharedLoaderInside(Dataset):
    """Each sample is an epoch of a loader that was made, and used, in the main process."""

    def __init__(self):
        self.inner = DataLoader(Big(24, kib=64), 4, num_workers=1, timeout=10)
        list(self.inner)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.inner.dataset.epoch = index
        return torch.tensor(firsts(self.inner))


def test_workers_that_inherit_one_loader_each_use_their_own_copy():
    dataset = SharedLoaderInside()
    for index, batch in enumerate(DataLoader(dataset, 1, num_workers=2, timeout=20)):
        assert batch.tolist() == [[1000 * index + number for number in range(24)]]
    dataset.inner.close()


def test_a_forked_copy_that_exits_in_the_usual_way_says_nothing(tmp_path):
    """Its exit handlers know of the original's workers, and must neither wait for them nor end them."""
    out = run_script(
        tmp_path,
        """
        import os, sys
        from minato import DataLoader
        from tests.faults.data import Sleepy

        loader = DataLoader(Sleepy(400, 0.001), 4, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, len(list(iterator)), loader.stats().worker_restarts)
        """,
    )
    assert out.split() == ["0", "99", "0"]
