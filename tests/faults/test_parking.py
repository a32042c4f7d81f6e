"""Slow samples are put aside between two stages, in running workers: nothing is lost, doubled, or done twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from minato import DataLoader, StagedDataset
from minato._engine.mending import Mender

from .data import die
from .test_scaling import Scripted
from .tools import Marks, caught_warnings, until

LENGTH, BATCH = 40, 4
DEAR_S = 0.006  # seconds; more than half of what a worker takes at once, so that it takes single samples
ANY_S = 1e-6  # a threshold that every sample is past


class Load:
    """What a sample begins with. Takes long enough that samples are taken one by one."""

    def __init__(self, marks=None, deadly=()):
        self.marks, self.deadly = marks, deadly

    def __call__(self, index):
        time.sleep(DEAR_S)
        if index in self.deadly and self.marks.once(f"death-{index}", os.getpid()):
            die("SIGKILL")
        return torch.full((3,), float(index))


class Plus:
    """Not idempotent; and in one process it meets a sample once."""

    def __init__(self, number):
        self.number, self.met = number, set()

    def __call__(self, x):
        before = x[0].item()
        assert before not in self.met, f"transform {self.number} ran twice on {before}"
        self.met.add(before)
        return x * 2 + self.number


class Fails:
    """Fails on some samples: the first time in all processes, or always."""

    def __init__(self, values, marks=None):
        self.values, self.marks = values, marks

    def __call__(self, x):
        value = x[0].item()
        if value in self.values and (self.marks is None or self.marks.once(f"failed-{value}")):
            raise ValueError(f"no good: {value}")
        return x


def made(*transforms, load=None, length=LENGTH):
    return StagedDataset(load or Load(), transforms, length)


def result(index, *numbers):
    for number in numbers:
        index = index * 2 + number
    return float(index)


def values(batches):
    return [value for batch in batches for value in batch[:, 0].tolist()]


def whole(loader, epochs=1, numbers=(1, 2)):
    expected = [result(index, *numbers) for index in range(LENGTH)]
    for _ in range(epochs):
        assert sorted(values(loader)) == expected


@pytest.mark.parametrize("slow_timeout", ["p75", ANY_S], ids=["while there is no threshold", "with a threshold"])
def test_stats_tell_what_the_stages_of_dear_samples_took(slow_timeout):
    loader = DataLoader(made(Plus(1), torch.neg), BATCH, num_workers=2, in_order=False, slow_timeout=slow_timeout)
    batches = list(loader)
    loader.close()
    stages = {stage.name: stage for stage in loader.stats().stages}
    assert list(stages) == ["load", "Plus", "neg"]
    assert stages["load"].median >= DEAR_S > stages["neg"].median
    assert loader.stats().sample_bytes >= batches[0][0].nbytes


def parked(loader):
    until(lambda: loader.stats().samples_parked, "a sample to be parked")
    return loader.stats().samples_parked


@pytest.mark.parametrize(
    ("context", "collate_fn"),
    [("fork", None), ("fork", torch.stack), ("forkserver", None), ("spawn", torch.stack)],
    ids=["fork, rows", "fork, function", "forkserver, rows", "spawn, function"],
)
def test_samples_that_were_put_aside_are_torchs(context, collate_fn):
    dataset = made(Plus(1), Plus(2))
    loader = DataLoader(
        dataset,
        BATCH,
        num_workers=1,
        in_order=False,
        slow_timeout=ANY_S,
        multiprocessing_context=context,
        collate_fn=collate_fn,
    )
    expected = torch.cat(list(torch.utils.data.DataLoader(made(Plus(1), Plus(2)), BATCH)))
    got = torch.cat(list(loader))
    assert torch.equal(got[got[:, 0].argsort()], expected)
    assert parked(loader) > 3


def test_in_order_samples_are_torchs_and_wait_only_for_earlier_ones(tmp_path, monkeypatch):
    marks = Marks(tmp_path)
    reopen = Mender._reopen

    def tell(self, batch, tickets):
        reopen(self, batch, tickets)
        marks.once("reopened")

    class WaitsForTheFirst:
        """Sample 6 is under way when sample 0 is offered again."""

        def __call__(self, x):
            if x[0].item() == result(6, 1):
                marks.wait_for("reopened")
            return x

    monkeypatch.setattr(Mender, "_reopen", tell)
    dataset = made(Plus(1), WaitsForTheFirst(), Fails([result(0, 1)], marks), Plus(2))
    # Sample 0 is made twice, in the same process.
    dataset.transforms[0].__class__ = type("Plus", (Plus,), {"__call__": lambda self, x: x * 2 + self.number})
    loader = DataLoader(dataset, BATCH, num_workers=1, slow_timeout=ANY_S, sample_retries=1, in_order=True)
    assert values(loader) == [result(index, 1, 2) for index in range(LENGTH)]
    assert parked(loader) >= 1


class Draws(Dataset):
    """Draws from all generators, before and between and after its transforms."""

    def __init__(self):
        self.transform = torch.nn.Sequential()
        self.transforms = _Compose([self.draw, self.draw])

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(DEAR_S)
        drawn = self.transforms(self.draw([float(index)]))
        return torch.tensor(self.draw(drawn), dtype=torch.float64)

    @staticmethod
    def draw(values):
        return [*values, random.random(), random.gauss(0, 1), float(np.random.randn()), torch.randn(()).item()]


class _Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x


def test_a_parked_sample_draws_what_it_would_have_drawn():
    def drawn(**arguments):
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(Subset(Draws(), range(LENGTH)), BATCH, shuffle=True, generator=generator, **arguments)
        rows = torch.cat(list(loader))
        assert bool(loader.stats().samples_parked) == (arguments.get("slow_timeout") is not None)
        return rows[rows[:, 0].argsort()]

    assert torch.equal(
        drawn(num_workers=1, slow_timeout=ANY_S, in_order=False), drawn(num_workers=2, slow_timeout=None)
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_s_parked_samples_are_made_once_more_and_no_more(tmp_path, persistent):
    dataset = made(Plus(1), Plus(2), load=Load(Marks(tmp_path), deadly=(9, 21)))
    loader = DataLoader(
        dataset, BATCH, num_workers=1, in_order=False, slow_timeout=ANY_S, persistent_workers=persistent
    )
    with caught_warnings() as caught:
        whole(loader, epochs=1 if persistent else 2)
    assert len(caught) == 2
    assert parked(loader) > 0
    loader.close()


def test_workers_come_and_go_with_samples_put_aside():
    chance = random.Random(8)
    loader = DataLoader(
        made(Plus(1), Plus(2)),
        BATCH,
        num_workers=2,
        in_order=False,
        slow_timeout=ANY_S,
        adaptive=Scripted((1, 3, 2)),
        max_workers=3,
        max_worker_restarts=1000,
    )
    with caught_warnings():
        for kills in (False, True):
            iterator, got = iter(loader), []
            for batch in iterator:
                got.append(batch)
                if kills and chance.random() < 0.3 and iterator.worker_pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice([*iterator.worker_pids.values()]), signal.SIGKILL)
            assert sorted(values(got)) == [result(index, 1, 2) for index in range(LENGTH)]
    assert parked(loader) > 0


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_taken_while_samples_are_parked_leaves_out_none(persistent):
    def loader():
        return DataLoader(
            made(_Double(), _Double()),
            BATCH,
            num_workers=1,
            shuffle=True,
            generator=torch.Generator().manual_seed(1),
            slow_timeout=ANY_S,
            persistent_workers=persistent,
        )

    for _ in range(30):  # samples are put aside for moments: an epoch may go by without a look that finds one
        first, got = loader(), []
        for batch in first:
            got.append(batch)
            if first.stats().queue_temp:
                break
        state = first.state_dict()
        first.close()
        if len(got) < LENGTH // BATCH:
            break
    assert len(got) < LENGTH // BATCH, "nothing was parked"
    second = loader()
    second.load_state_dict(state)
    got += list(second)
    assert sorted(values(got)) == [result(index, 0, 0) for index in range(LENGTH)]
    whole(second, numbers=(0, 0))
    second.close()


def test_what_is_parked_of_an_abandoned_epoch_is_dropped():
    loader = DataLoader(
        made(_Double(), _Double()),
        BATCH,
        num_workers=2,
        in_order=False,
        slow_timeout=ANY_S,
        persistent_workers=True,
    )
    for _ in range(3):
        next(iter(loader))
    whole(loader, epochs=2, numbers=(0, 0))  # what is parked now may be of the epoch to come
    loader.close()


class _Double:
    def __call__(self, x):
        return x * 2


def test_samples_that_fail_in_a_later_stage_are_left_out_or_raised():
    bad = [result(index, 1) for index in (3, 17)]
    arguments = {"num_workers": 1, "in_order": False, "slow_timeout": ANY_S}
    loader = DataLoader(made(Plus(1), Fails(bad), Plus(2)), BATCH, on_error="skip", **arguments)
    with pytest.warns(RuntimeWarning, match="left out"):
        got = values(loader)
    assert sorted(got) == [result(index, 1, 2) for index in range(LENGTH) if index not in (3, 17)]
    assert sorted(loader.stats().skipped) == [3, 17]
    assert parked(loader) > 0
    loader = DataLoader(made(Plus(1), Fails(bad), Plus(2)), BATCH, **arguments)
    with pytest.raises(ValueError, match="no good") as caught:
        list(loader)
    assert any("sample index" in note for note in caught.value.__notes__)


class HangsOnce:
    def __init__(self, value, marks):
        self.value, self.marks = value, marks

    def __call__(self, x):
        if x[0].item() == self.value and self.marks.once("hung"):
            time.sleep(60)
        return x


def test_a_sample_that_hangs_after_it_was_parked_is_made_anew(tmp_path):
    transforms = (Plus(1), HangsOnce(result(5, 1), Marks(tmp_path)), Plus(2))
    loader = DataLoader(
        made(*transforms),
        BATCH,
        num_workers=1,
        in_order=False,
        slow_timeout=ANY_S,
        timeout=1.0,
        sample_retries=1,
    )
    whole(loader)
    assert parked(loader) > 0
    assert loader.stats().samples_retried == 1


@pytest.mark.parametrize("max_deferral", [1, 3, 8])
@pytest.mark.parametrize("workers", [1, 3])
def test_no_sample_falls_behind_further_than_allowed(max_deferral, workers):
    class Slow(Plus):
        def __call__(self, x):
            if x[0].item() % 16 == 3:
                time.sleep(10 * DEAR_S)
            return super().__call__(x)

    loader = DataLoader(
        made(Slow(1), Plus(2)),
        BATCH,
        num_workers=workers,
        in_order=False,
        slow_timeout=2 * DEAR_S,
        max_deferral=max_deferral,
    )
    homes = {result(index, 1, 2): index // BATCH for index in range(LENGTH)}
    batches = [values([batch]) for batch in loader]
    deferrals = [number - homes[value] for number, batch in enumerate(batches) for value in batch]
    assert sorted(value for batch in batches for value in batch) == sorted(homes)
    assert max(deferrals) == loader.stats().largest_deferral <= max_deferral


class Held(Dataset):
    """Opaque. Sample 1 waits until it may go on."""

    def __init__(self, marks):
        self.marks = marks

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 1:
            self.marks.wait_for("go")
        return torch.full((3,), float(index))


def test_an_opaque_worker_at_a_slow_sample_counts_as_slow_and_the_queues_show_who_waits(tmp_path):
    marks = Marks(tmp_path)
    loader = DataLoader(Held(marks), BATCH, num_workers=2, prefetch_factor=2, in_order=True, slow_timeout=0.05)
    iterator = iter(loader)
    until(lambda: loader.stats().workers_slow == 1, "the worker to count as slow")
    until(lambda: loader.stats().queue_batch == 1, "the batch behind to be complete")
    # Sample 2 may have been taken together with the one that waits.
    until(lambda: loader.stats().queue_fast >= 2, "the others of the batch to wait")
    stats = loader.stats()
    assert (stats.queue_slow, stats.queue_temp) == (0, 0)
    marks.once("go")
    assert values(iterator) == [float(index) for index in range(12)]
    assert loader.stats().workers_slow == 0
