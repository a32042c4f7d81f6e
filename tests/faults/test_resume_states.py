"""States as such: plain, small, refused where they do not fit; and batches that were delivered but did not arrive."""

from __future__ import annotations

import io
import json
import random
import signal

import pytest
import torch

from minato import DataLoader
from minato._engine import onto_device
from minato._engine.delivery import Delivery
from minato.errors import LoaderClosed
from tests.support.devices import FakeRuntime

from .data import Rows
from .resume_tools import (
    KINDS,
    Drawing,
    Shuffled,
    comparable,
    draws,
    rows,
    seed_all,
    seeded,
    through_json,
)

# ----------------------------------------------------------------------------------------------------------- the dict


@pytest.mark.parametrize("name", KINDS)
def test_a_state_is_plain(name):
    loader = KINDS[name].loader(2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state
    assert through_json(state) == state


class Endless(Rows):
    """Only its length is large."""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "in_order": True}, {}])
def test_a_state_does_not_grow_with_the_dataset(workers, options):
    def size(length):
        loader = DataLoader(Endless(length), 2, num_workers=workers, **options)
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        return len(json.dumps(loader.state_dict()))

    assert abs(size(1_000_000) - size(100)) < 1000  # stretches of missing samples come and go


def damaged(state, **changed):
    return {**state, **changed}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: damaged(s, version=99), "version 99"),
        (lambda s: {}, "version None"),
        (lambda s: damaged(s, batch_size=7), "batch_size=7, and this one has 4"),
        (lambda s: damaged(s, length=21), "length=21, and this one has 20"),
        (lambda s: damaged(s, drop_last=True), "drop_last=True"),
        (lambda s: damaged(s, kind="iterable"), "kind='iterable'"),
        (lambda s: damaged(s, sampler=["BatchSampler", "Mine"]), "Mine"),
        (lambda s: damaged(s, generators={"loader": ""}), "other random generators"),
        (lambda s: damaged(s, generators={"torch": "?"}), "damaged"),
        (lambda s: damaged(s, epoch={}), "damaged"),
        (lambda s: damaged(s, epoch={**s["epoch"], "map": {**s["epoch"]["map"], "frontier": -1}}), "damaged"),
        (lambda s: damaged(s, epoch={**s["epoch"], "map": {**s["epoch"]["map"], "missing": [[3, 9]]}}), "damaged"),
    ],
)
def test_states_that_do_not_fit_are_refused_by_name(change, message):
    loader = DataLoader(Rows(20), 4, shuffle=True)
    next(iter(loader))
    with pytest.raises(ValueError, match=message):
        DataLoader(Rows(20), 4, shuffle=True).load_state_dict(change(loader.state_dict()))


def test_a_state_is_a_dict():
    with pytest.raises(TypeError, match="a state is a dict"):
        DataLoader(Rows(20)).load_state_dict([1])


def test_a_given_generator_is_asked_for_again():
    loader = DataLoader(Rows(20), 4, shuffle=True, generator=seeded(1))
    with pytest.raises(ValueError, match="generator="):
        DataLoader(Rows(20), 4, shuffle=True).load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="generator="):
        loader.load_state_dict(DataLoader(Rows(20), 4, shuffle=True).state_dict())


def test_a_closed_loader_takes_no_state():
    loader = DataLoader(Rows(20), 4)
    next(iter(loader))
    loader.close()
    state = loader.state_dict()
    with pytest.raises(LoaderClosed, match="new DataLoader"):
        loader.load_state_dict(state)


class Unrepeatable(Shuffled):
    """Draws from where nobody looks."""

    def __iter__(self):
        return iter(random.SystemRandom().sample(range(self.length), self.length))


def test_a_sampler_that_gives_another_order_is_refused():
    loader = DataLoader(Rows(200), 4, sampler=Unrepeatable(200))
    next(iter(loader))
    after = DataLoader(Rows(200), 4, sampler=Unrepeatable(200))
    after.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="another order"):
        iter(after)


def test_random_generators_are_left_alone_when_resuming_fails():
    loader = DataLoader(Rows(200), 4, sampler=Unrepeatable(200))
    next(iter(loader))
    after = DataLoader(Rows(200), 4, sampler=Unrepeatable(200))
    after.load_state_dict(loader.state_dict())
    seed_all(6)
    expected = draws()
    seed_all(6)
    with pytest.raises(ValueError, match="another order"):
        iter(after)
    assert draws() == expected


# --------------------------------------------------------------------------------------- batches that did not arrive


class Interrupted(Drawing):
    """Ctrl-C while sample 8 is fetched, the first time."""

    def __init__(self, marks):
        super().__init__(20)
        self.marks = marks

    def __getitem__(self, index):
        if index == 8 and self.marks.once("interrupt"):
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_a_batch_lost_to_an_interrupt_is_in_what_is_left(marks):
    seed_all(1)
    expected = rows(DataLoader(Drawing(20), 4))
    seed_all(1)
    loader = DataLoader(Interrupted(marks), 4)
    found = []
    with pytest.raises(KeyboardInterrupt):
        found += (rows([batch])[0] for batch in loader)
    after = DataLoader(Drawing(20), 4)
    after.load_state_dict(loader.state_dict())
    assert rows(after) == expected[2:]


@pytest.fixture
def interrupted_delivery(monkeypatch):
    """Ctrl-C while the third batch is being handed over."""
    take, count = Delivery.take, iter(range(1000))

    def interrupted(self, batch):
        if next(count) == 2:
            signal.raise_signal(signal.SIGINT)
        return take(self, batch)

    monkeypatch.setattr(Delivery, "take", interrupted)


@pytest.mark.parametrize("name", ["sequential", "re-ordered", "batch_sampler", "stream", "stateful stream"])
def test_a_batch_lost_to_an_interrupt_while_it_is_handed_over_is_in_what_is_left(name, interrupted_delivery):
    kind = KINDS[name]
    seed_all(1)
    loader = kind.loader(2)
    iterator = iter(loader)
    head = rows([next(iterator), next(iterator)])
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    state = loader.state_dict()
    loader.close()
    after = kind.loader(2)
    after.load_state_dict(state)
    found = head + rows(after)
    seed_all(1)
    assert comparable(found, kind.ordered) == comparable(rows(kind.loader(2)), kind.ordered)


def test_a_lost_batch_is_still_in_what_is_left_when_later_ones_have_arrived(interrupted_delivery):
    loader = DataLoader(Rows(40), 4, num_workers=2)
    iterator = iter(loader)
    found = [next(iterator), next(iterator)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    found += [next(iterator), next(iterator)]
    after = DataLoader(Rows(40), 4, num_workers=2)
    after.load_state_dict(loader.state_dict())
    assert [batch[0, 0].item() for batch in found] == [0, 4, 12, 16]
    assert [batch[0, 0].item() for batch in after] == [8, 20, 24, 28, 32, 36]


@pytest.fixture
def device(monkeypatch):
    """A fake accelerator."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(onto_device, "make_runtime", lambda: FakeRuntime(at_once=True))
    return "cuda"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["sequential", "re-ordered", "batch_sampler", "stateful stream"])
def test_batches_that_wait_on_a_device_are_in_what_is_left(name, workers, device):
    kind = KINDS[name]
    seed_all(1)
    loader = kind.loader(workers, device=device, device_prefetch=2)
    iterator = iter(loader)
    head = [row for _ in range(2) for row in next(iterator).content.tolist()]
    state = through_json(loader.state_dict())
    rest = [row for batch in iterator for row in batch.content.tolist()]
    loader.close()
    after = kind.loader(workers)
    after.load_state_dict(state)
    again = [row for batch in rows(after) for row in batch]
    if kind.ordered:
        assert [row[0] for row in again] == [row[0] for row in rest]
    assert sorted(row[0] for row in head + again) == sorted(row[0] for row in head + rest)
