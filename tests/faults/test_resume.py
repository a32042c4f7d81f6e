"""An interrupted epoch goes on from its state: nothing lost, nothing twice, random numbers and next epochs the same."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import warnings

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset

from minato import DataLoader
from minato._engine import onto_device
from minato._engine.delivery import Delivery
from minato.errors import LoaderClosed
from tests.support.devices import FakeRuntime

from .data import DiesOnce, Rows
from .resume_tools import (
    KINDS,
    LENGTH,
    SIZE,
    STREAMS,
    Drawing,
    Numbers,
    Shuffled,
    assert_resumes,
    comparable,
    draws,
    interrupted_at,
    rows,
    seed_all,
    seeded,
    through_json,
)

# ------------------------------------------------------------------------------------------------------- every point


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_every_batch_of_an_epoch_is_a_point_to_resume_from(name, workers):
    assert_resumes(KINDS[name], None, workers)


MAP_STYLE = [name for name in KINDS if name not in STREAMS]


@pytest.mark.parametrize(("workers", "other"), [(0, 2), (2, 0), (3, 1)])
@pytest.mark.parametrize("name", MAP_STYLE)
def test_the_rest_may_be_loaded_by_another_number_of_workers(name, workers, other):
    assert_resumes(KINDS[name], [2], workers, other)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", ["shuffled", "re-ordered", "getitems", "batch_sampler"])
def test_the_rest_may_be_loaded_in_another_order(name, in_order):
    assert_resumes(KINDS[name], [0, 2], 2, in_order=in_order, prefetch_factor=3)


@pytest.mark.parametrize("name", ["re-ordered", "stateful stream", "own sampler"])
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_states_and_what_is_left_travel_to_started_workers(name, start_method):
    kind = KINDS[name]
    seed_all(1)
    expected = rows(kind.loader(1))
    seed_all(1)
    head, state = interrupted_at(kind.loader(1), 2)
    after = kind.loader(1, multiprocessing_context=start_method)
    after.load_state_dict(state)
    assert comparable(head + rows(after), kind.ordered) == comparable(expected, kind.ordered)


# -------------------------------------------------------------------------------------------------------- stragglers


class Gated(Drawing):
    """Samples `slow` wait at a gate."""

    def __init__(self, length, slow, gate):
        super().__init__(length)
        self.slow, self.gate = slow, gate

    def __getitem__(self, index):
        if index in self.slow:
            self.gate.wait()
        return super().__getitem__(index)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("other", [0, 2])
def test_samples_that_were_overtaken_are_in_what_is_left(gate, other, in_order):
    """Two samples of the first batch are held up while others are delivered; they keep their random numbers."""
    seed_all(1)
    expected = comparable(rows(DataLoader(Drawing(40), 4, shuffle=True)), ordered=False)
    seed_all(1)
    torch.empty((), dtype=torch.int64).random_()  # the base seed is drawn ahead of the order
    order = torch.randperm(40, generator=seeded(int(torch.empty((), dtype=torch.int64).random_()))).tolist()
    seed_all(1)
    loader = DataLoader(Gated(40, {order[0], order[2]}, gate), 4, shuffle=True, num_workers=3, max_deferral=6)
    head, state = interrupted_at(loader, 3)
    missing = sum(count for _, count in state["epoch"]["map"]["missing"])
    gate.open()
    loader.close()
    assert missing >= 2
    after = DataLoader(Drawing(40), 4, shuffle=True, num_workers=other, in_order=in_order)
    after.load_state_dict(state)
    iterator = iter(after)
    again = rows([next(iterator)])
    if in_order:
        assert {row[0] for row in again[0]} >= {order[0], order[2]}
    resumed_again = DataLoader(Drawing(40), 4, shuffle=True, num_workers=2)
    resumed_again.load_state_dict(after.state_dict())
    assert comparable(head + again + rows(resumed_again), ordered=False) == expected


# ----------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize(("workers", "other"), [(0, 2), (2, 0), (3, 1), (1, 3)])
@pytest.mark.parametrize("name", ["stream", "stateful stream"])
def test_the_rest_of_streams_runs_with_the_workers_it_was_begun_with(name, workers, other):
    kind = KINDS[name]
    seed_all(1)
    expected = rows(kind.loader(workers))
    seed_all(1)
    head, state = interrupted_at(kind.loader(workers), 2)
    after = kind.loader(other)
    after.load_state_dict(state)
    with pytest.warns(UserWarning, match=f"begun with num_workers={workers}"):
        iterator = iter(after)
    assert head + rows(iterator) == expected
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="this epoch of an iterable")
        assert len(rows(after)) == len(rows(kind.loader(other)))


class Uneven(IterableDataset):
    """Streams of very different length."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info().id
        yield from (torch.tensor([float(100 * worker + n)]) for n in range([1, 9, 4][worker]))


@pytest.mark.parametrize("point", range(7))
def test_streams_that_end_early_are_not_asked_again(point):
    whole = rows(DataLoader(Uneven(), 2, num_workers=3))
    loader = DataLoader(Uneven(), 2, num_workers=3)
    head, state = interrupted_at(loader, point)
    after = DataLoader(Uneven(), 2, num_workers=3)
    after.load_state_dict(state)
    assert head + rows(after) == whole


class BadState(Numbers):
    """Cannot save its state after all."""

    def state_dict(self):
        raise KeyError("no state today")

    def load_state_dict(self, state):
        raise NotImplementedError


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_fails_to_save_its_state_still_loads(workers):
    loader = DataLoader(BadState(), SIZE, num_workers=workers)
    iterator = iter(loader)
    head = rows([next(iterator)])
    with pytest.raises(KeyError, match="no state today"):
        loader.state_dict()
    assert sorted(row[0] for batch in head + rows(iterator) for row in batch) == list(range(LENGTH))


class Odd(Numbers):
    """Its state is no state."""

    def state_dict(self):
        return {"of": Shuffled()}

    def load_state_dict(self, state):
        raise NotImplementedError


def test_a_state_that_cannot_be_saved_plainly_is_named():
    loader = DataLoader(Odd(), SIZE)
    next(iter(loader))
    with pytest.raises(TypeError, match="state of the dataset cannot be saved"):
        loader.state_dict()


# ------------------------------------------------------------------------------------------------ when a state is taken


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["re-ordered", "own sampler", "stateful sampler", "stream"])
def test_a_state_taken_before_the_first_epoch_begins_it(name, workers):
    kind = KINDS[name]
    seed_all(1)
    loader = kind.loader(workers)
    state = through_json(loader.state_dict())
    expected = rows(loader)
    seed_all(2)
    after = kind.loader(workers)
    after.load_state_dict(state)
    assert comparable(rows(after), kind.ordered) == comparable(expected, kind.ordered)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["re-ordered", "re-ordered, generator", "own sampler", "stream"])
def test_a_state_taken_after_an_epoch_begins_the_next(name, workers):
    kind = KINDS[name]
    seed_all(1)
    loader = kind.loader(workers)
    list(loader)
    state = through_json(loader.state_dict())
    expected = rows(loader)
    seed_all(2)
    after = kind.loader(workers)
    after.load_state_dict(state)
    assert comparable(rows(after), kind.ordered) == comparable(expected, kind.ordered)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_taken_after_the_last_batch_but_in_the_loop_leaves_an_empty_rest(workers):
    loader = KINDS["re-ordered"].loader(workers)
    for _ in loader:
        state = loader.state_dict()
    after = KINDS["re-ordered"].loader(workers)
    after.load_state_dict(state)
    assert list(after) == []
    assert len(list(after)) == len(after)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_survives_the_loop_that_was_left(workers):
    """After `break` the iterator is garbage, and its workers are gone."""
    loader = DataLoader(Rows(20), 4, num_workers=workers)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    state = loader.state_dict()
    loader.close()
    after = DataLoader(Rows(20), 4, num_workers=workers)
    after.load_state_dict(state)
    assert [batch[0, 0].item() for batch in after] == [8, 12, 16]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_taken_right_after_loading_is_what_was_loaded(workers):
    loader = DataLoader(Rows(20), 4, num_workers=workers)
    next(iter(loader))
    state = loader.state_dict()
    after = DataLoader(Rows(20), 4, num_workers=workers)
    after.load_state_dict(state)
    assert after.state_dict() == state
    after.load_state_dict(after.state_dict())
    assert len(list(after)) == 4
    assert len(list(after)) == 5


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_an_iterator_that_is_alive_keeps_its_course(workers, persistent):
    loader = DataLoader(Rows(20), 4, num_workers=workers, persistent_workers=persistent)
    alive = iter(loader)
    next(alive)
    state = loader.state_dict()
    next(alive)
    loader.load_state_dict(state)
    assert [batch[0, 0].item() for batch in alive] == [8, 12, 16]
    assert [batch[0, 0].item() for batch in loader] == [4, 8, 12, 16]
    assert len(list(loader)) == len(loader) == 5


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "name", ["re-ordered", "shuffled", "own sampler", "batch_sampler", "stream", "stateful stream"]
)
def test_a_resumed_epoch_can_be_resumed_again(name, workers):
    """One batch per life of the process."""
    kind = KINDS[name]
    seed_all(1)
    whole = kind.loader(workers)
    expected = [rows(whole), rows(whole)]
    seed_all(1)
    loader = kind.loader(workers)
    found = []
    for _ in expected[0]:
        head, state = interrupted_at(loader, 1)
        found += head
        loader = kind.loader(workers)
        loader.load_state_dict(state)
    assert list(loader) == []
    assert comparable(found, kind.ordered) == comparable(expected[0], kind.ordered)
    assert comparable(rows(loader), kind.ordered) == comparable(expected[1], kind.ordered)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["re-ordered", "subset", "shuffled"])
def test_what_the_loop_draws_does_not_disturb_following_epochs(name, workers):
    """A model's dropout draws from the generator that samplers take their seeds from."""
    kind = KINDS[name]

    def looped(batches):
        found = []
        for batch in batches:
            torch.rand(3)
            found += rows([batch])
        return found

    seed_all(1)
    whole = kind.loader(workers)
    expected = [looped(whole), looped(whole)]
    seed_all(1)
    loader = kind.loader(workers)
    iterator = iter(loader)
    head = []
    for _ in range(2):
        head += rows([next(iterator)])
        torch.rand(3)
    state = loader.state_dict()
    seed_all(2)
    after = kind.loader(workers)
    after.load_state_dict(state)
    assert comparable(head + looped(after), kind.ordered) == comparable(expected[0], kind.ordered)
    assert comparable(looped(after), kind.ordered) == comparable(expected[1], kind.ordered)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_was_an_error_is_not_tried_again(workers):
    loader = DataLoader(Failing(), 2, num_workers=workers)
    iterator = iter(loader)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    after = DataLoader(Failing(), 2, num_workers=workers)
    after.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in after] == [[2, 3], [4, 5]]


class Failing(Rows):
    def __init__(self):
        super().__init__(6)

    def __getitem__(self, index):
        return index + 0 // index


# ------------------------------------------------------------------------------------------------ persistent workers


@pytest.mark.parametrize("name", ["re-ordered", "re-ordered, generator", "own sampler", "stream", "stateful stream"])
@pytest.mark.parametrize("point", [0, 2, "all", "end"])
def test_persistent_workers_go_on_in_any_epoch(name, point):
    """The base seed is drawn once, and each epoch's seed derived from it; streams draw on where they were."""
    kind = KINDS[name]
    seed_all(1)
    whole = kind.loader(2, persistent_workers=True)
    expected = [comparable(rows(whole), kind.ordered) for _ in range(4)]
    whole.close()
    seed_all(1)
    loader = kind.loader(2, persistent_workers=True)
    first = comparable(rows(loader), kind.ordered)
    if point == "end":
        head, state = rows(loader), through_json(loader.state_dict())
    else:
        head, state = interrupted_at(loader, 5 if point == "all" else point)
    loader.close()
    seed_all(2)
    after = kind.loader(2, persistent_workers=True)
    after.load_state_dict(state)
    second = comparable(head if point == "end" else head + rows(after), kind.ordered)
    later = [comparable(rows(after), kind.ordered) for _ in range(2)]
    after.close()
    assert [first, second, *later] == expected


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_persistent_workers_and_others_may_follow_each_other(before, after):
    kind = KINDS["re-ordered"]
    seed_all(1)
    expected = comparable(rows(kind.loader(2)), ordered=False)
    seed_all(1)
    head, state = interrupted_at(kind.loader(2, persistent_workers=before), 2)
    loader = kind.loader(2, persistent_workers=after)
    loader.load_state_dict(state)
    assert comparable(head + rows(loader), ordered=False) == expected
    for _ in range(2):
        assert sorted(row[0] for batch in rows(loader) for row in batch) == list(range(LENGTH))


# ------------------------------------------------------------------------------------------------------------- deaths


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
@pytest.mark.parametrize("deadly", [{1}, {30}, {5, 30}])
def test_deaths_before_and_after_change_nothing(deadly, marks, in_order):
    loader = DataLoader(DiesOnce(40, deadly, marks), 4, num_workers=2, in_order=in_order)
    head, state = interrupted_at(loader, 4)
    loader.close()
    after = DataLoader(DiesOnce(40, deadly, marks), 4, num_workers=3, in_order=in_order)
    after.load_state_dict(state)
    numbers = [row[0] for batch in head + rows(after) for row in batch]
    assert sorted(numbers) == list(range(40))
    assert len(marks.named("death")) == len(deadly)


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
def test_a_worker_killed_with_stragglers_in_hand_gives_them_back(gate, in_order):
    """What is left of an interrupted epoch is replayed like any other work, with its own random numbers."""
    seed_all(1)
    expected = comparable(rows(DataLoader(Drawing(24), 4)), ordered=False)
    seed_all(1)
    loader = DataLoader(Drawing(24), 4, num_workers=2, in_order=in_order)
    head, state = interrupted_at(loader, 2)
    loader.close()
    slow = set(range(24)) - {int(row[0]) for batch in head for row in batch}
    after = DataLoader(Gated(24, slow, gate), 4, num_workers=2, in_order=in_order)
    after.load_state_dict(state)
    iterator = iter(after)
    for pid in iterator.worker_pids.values():
        os.kill(pid, signal.SIGKILL)
    gate.open()
    assert comparable(head + rows(iterator), ordered=False) == expected
    assert after.stats().worker_restarts == 2


# -------------------------------------------------------------------------------------------------------- distributed


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("tell", [True, False])
def test_ranks_stay_aligned(tell, shuffle):
    """Both ranks resume the same epoch, whether or not they are told again which one it is."""

    def loader(rank):
        sampler = DistributedSampler(Drawing(30), num_replicas=2, rank=rank, shuffle=shuffle, seed=5)
        return DataLoader(Drawing(30), 4, sampler=sampler, num_workers=2), sampler

    seen = []
    for rank in range(2):
        first, sampler = loader(rank)
        sampler.set_epoch(3)
        head, state = interrupted_at(first, 2)
        after, sampler = loader(rank)
        after.load_state_dict(state)
        if tell:
            sampler.set_epoch(3)
        rest = rows(after)
        assert len(head) + len(rest) == len(after) == 4
        seen += [int(row[0]) for batch in head + rest for row in batch]
        sampler.set_epoch(4)
        expected, sampler = loader(rank)
        sampler.set_epoch(4)
        assert sorted(r[0] for b in rows(after) for r in b) == sorted(r[0] for b in rows(expected) for r in b)
    assert sorted(seen) == list(range(30))


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
