"""Resuming against a plain model: whatever the lives of a run look like, together they deliver the epoch."""

from __future__ import annotations

import json

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minato import DataLoader

from .resume_tools import Drawing, rows, seed_all


class Life:
    """How long the process lives, and what its loader looks like."""

    def __init__(self, batches, workers, in_order, prefetch):
        self.batches, self.workers, self.in_order, self.prefetch = batches, workers, in_order, prefetch

    def __repr__(self):
        return f"Life({self.batches}, {self.workers}, {self.in_order}, {self.prefetch})"

    def loader(self, length, size, drop_last, shuffle):
        options = {"prefetch_factor": self.prefetch} if self.workers else {}
        return DataLoader(
            Drawing(length),
            size,
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.workers,
            in_order=self.in_order,
            **options,
        )


LIVES = st.builds(
    Life, st.integers(0, 6), st.sampled_from([0, 0, 1, 2, 3]), st.sampled_from([None, True, False]), st.integers(1, 3)
)


def model(length, size, drop_last):
    """Sizes of the batches of an epoch."""
    sizes = [size] * (length // size)
    return sizes if drop_last or length % size == 0 else [*sizes, length % size]


@settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    length=st.integers(0, 30),
    size=st.integers(1, 7),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    lives=st.lists(LIVES, min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_the_lives_of_a_run_deliver_each_epoch_once(length, size, drop_last, shuffle, lives, seed):
    if shuffle and length == 0:
        shuffle = False  # torch refuses it
    seed_all(seed)
    whole = DataLoader(Drawing(length), size, shuffle=shuffle, drop_last=drop_last)
    expected = [rows(whole), rows(whole)]
    assert [len(batch) for batch in expected[0]] == model(length, size, drop_last)
    seed_all(seed)
    found, state = [], None
    for life in lives:
        loader = life.loader(length, size, drop_last, shuffle)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        left = len(loader) - len(found)
        found += rows(next(iterator) for _ in range(min(life.batches, left)))
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator
        loader.close()
        torch.rand(1)  # another process has another generator
    last = lives[-1].loader(length, size, drop_last, shuffle)
    last.load_state_dict(state)
    found += rows(last)
    assert [len(batch) for batch in found] == model(length, size, drop_last)
    assert_same(found, expected[0], all(not life.workers or life.in_order for life in lives))
    assert_same(rows(last), expected[1], not lives[-1].workers or bool(lives[-1].in_order))
    last.close()


def assert_same(found, expected, in_order):
    if in_order:
        assert found == expected
    else:
        assert sorted(row for batch in found for row in batch) == sorted(row for batch in expected for row in batch)
