"""The number of workers changes while they run: no sample is lost, none is doubled, and nobody is left over."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from minato import DataLoader, PaperPolicy
from minato._scheduler.policy import Decision
from minato._scheduler.replay import Recording, replay
from minato._workers.pool import WorkerPool

from .tools import caught_warnings

LENGTH, BATCH = 400, 4


class Short(Dataset):
    """Each sample takes about a millisecond."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(0.001)
        return index


@dataclass(frozen=True)
class Scripted:
    """A policy that goes through given numbers of workers."""

    targets: tuple[int, ...]
    period_s: float = 0.01

    def begin(self, limits):
        targets = itertools.cycle(self.targets)

        class Controller:
            def decide(self, observation):
                assert 0 <= observation.queue_occupancy <= 1
                assert 0 <= observation.wait_share <= 1
                return Decision(limits.clamp(next(targets)), "as scripted", observation)

        return Controller()


def whole(batches, in_order):
    expected = list(range(LENGTH))
    got = [index for batch in batches for index in batch.tolist()]
    assert (got if in_order else sorted(got)) == expected
    assert all(len(batch) == BATCH for batch in batches)


@pytest.mark.parametrize(
    ("context", "in_order", "collate_fn"),
    [
        *(("fork", in_order, collate_fn) for in_order in (True, False) for collate_fn in (None, torch.tensor)),
        ("forkserver", True, torch.tensor),  # takes seconds, and order and collation know nothing of it
        ("forkserver", False, None),
    ],
)
def test_workers_come_and_go_and_nothing_is_lost(in_order, context, collate_fn):
    loader = DataLoader(
        Short(),
        BATCH,
        num_workers=2,
        # A fork server starts processes one by one, the slower the busier the machine is.
        adaptive=Scripted((1, 4, 2, 5, 3), period_s=0.01 if context == "fork" else 0.2),
        max_workers=5,
        in_order=in_order,
        multiprocessing_context=context,
        collate_fn=collate_fn,
    )
    whole(list(loader), in_order)
    decisions = loader.stats().decisions
    assert decisions or context != "fork"  # a fork server may still be starting workers when all is done
    assert all("workers: as scripted (the consumer waits " in text for text in decisions)


def test_persistent_workers_come_and_go_over_epochs():
    loader = DataLoader(
        Short(),
        BATCH,
        num_workers=1,
        adaptive=Scripted((4, 1)),
        max_workers=4,
        persistent_workers=True,
        shuffle=True,
    )
    for _ in range(3):
        whole(list(loader), in_order=False)
    loader.close()
    stats = loader.stats()
    assert {moment.workers for moment in stats.history} <= {1, 2, 3, 4}
    assert stats.history[-1].time_s > 0
    recording = loader._profile.recorder.recording
    again = replay(Recording.from_json(recording.to_json()), Scripted((4, 1)))
    changes = [d.target for d in again.decisions if d.target != d.observation.workers]
    assert len(changes) >= len(stats.decisions), "the policy, told the same again, decides the same"


def test_kills_and_changes_at_once_lose_nothing():
    chance = random.Random(3)
    loader = DataLoader(
        Short(),
        BATCH,
        num_workers=3,
        adaptive=Scripted((1, 4, 2)),
        max_workers=4,
        shuffle=True,
        max_worker_restarts=1000,
    )
    with caught_warnings():
        iterator, batches = iter(loader), []
        for batch in iterator:
            batches.append(batch)
            if chance.random() < 0.2 and iterator.worker_pids:
                with contextlib.suppress(ProcessLookupError):  # it was dismissed a moment ago, and is gone
                    os.kill(chance.choice([*iterator.worker_pids.values()]), signal.SIGKILL)
    whole(batches, in_order=False)


def test_workers_that_cannot_be_started_are_done_without(monkeypatch):
    start_one = WorkerPool._start_one

    def refuse(pool, worker):
        if worker >= 2:
            raise BlockingIOError("no more processes")
        start_one(pool, worker)

    monkeypatch.setattr(WorkerPool, "_start_one", refuse)
    loader = DataLoader(Short(), BATCH, num_workers=2, adaptive=Scripted((4,)), max_workers=4, shuffle=True)
    whole(list(loader), in_order=False)
    assert "no more processes" in loader.stats().decisions[1]


def test_an_error_of_a_policy_is_raised_and_costs_no_batch():
    @dataclass(frozen=True)
    class Broken(Scripted):
        def begin(self, limits):
            class Controller:
                calls = 0

                def decide(self, observation):
                    Controller.calls += 1
                    if Controller.calls == 3:
                        raise KeyError("broken policy")
                    return Decision(limits.clamp(2), "as scripted", observation)

            return Controller()

    loader = DataLoader(Short(), BATCH, num_workers=2, adaptive=Broken((2,)), max_workers=4)
    iterator, batches, errors = iter(loader), [], 0
    while True:
        try:
            batches.append(next(iterator))
        except KeyError:
            errors += 1
        except StopIteration:
            break
    whole(batches, in_order=True)
    assert errors == 1


def test_the_paper_policy_adds_workers_while_the_queue_is_empty():
    loader = DataLoader(Short(), BATCH, num_workers=1, adaptive=PaperPolicy(period_s=0.02), max_workers=4, shuffle=True)
    whole(list(loader), in_order=False)
    assert loader.stats().decisions
    assert {int(text.split()[2]) for text in loader.stats().decisions} <= {1, 2, 3, 4}


def test_auto_begins_with_the_cores_and_stays_within_the_limits():
    loader = DataLoader(Short(), BATCH, num_workers="auto", max_workers=3, shuffle=True)
    assert loader.num_workers == min(len(os.sched_getaffinity(0)), 3)
    assert loader.adaptive is True
    whole(list(loader), in_order=False)


def test_the_default_policy_runs_an_epoch():
    loader = DataLoader(Short(), BATCH, num_workers=1, adaptive=True, max_workers=8, shuffle=True)
    whole(list(loader), in_order=False)
    stats = loader.stats()
    assert stats.samples_fast + stats.samples_slow > 0
    assert 0 < stats.sample_median <= stats.sample_p99


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"adaptive": "yes", "num_workers": 1}, TypeError, "adaptive must be True, False, None or a policy"),
        ({"adaptive": True}, ValueError, "adaptive needs workers"),
        ({"num_workers": "many"}, TypeError, "num_workers must be an integer or 'auto'"),
        ({"num_workers": "auto", "min_workers": 5, "max_workers": 2}, ValueError, "max_workers must be at least"),
    ],
)
def test_what_cannot_be_adapted_is_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        DataLoader(Short(), BATCH, **arguments)


def test_streams_have_a_fixed_number_of_workers():
    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(Stream(), 2, num_workers=1, adaptive=True)
    loader = DataLoader(Stream(), 2, num_workers="auto", max_workers=1)
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(8))
