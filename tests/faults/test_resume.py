"""An interrupted epoch goes on from its state: nothing lost, nothing twice, random numbers and next epochs the same."""

from __future__ import annotations

import os
import signal
import warnings

import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper

from minato import DataLoader

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
    interrupted_at,
    rows,
    seed_all,
    seeded,
    through_json,
)
from .tools import running, until

# ------------------------------------------------------------------------------------------------------- every point


@pytest.mark.parametrize("workers", [0, 2])
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


@pytest.mark.parametrize(
    ("name", "start_method"),
    [
        *(("re-ordered", start_method) for start_method in ("forkserver", "spawn")),
        ("stateful stream", "spawn"),
        ("own sampler", "forkserver"),
    ],
)
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


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("point", [0, 1, 3])
def test_a_data_pipe_is_shuffled_as_it_was(point, workers):
    def loader():
        pipe = IterableWrapper(range(20)).shuffle().sharding_filter()
        return DataLoader(pipe, 4, shuffle=True, num_workers=workers)

    seed_all(1)
    whole = loader()
    expected = [rows(whole), rows(whole)]
    seed_all(1)
    head, state = interrupted_at(loader(), point)
    seed_all(2)
    after = loader()
    after.load_state_dict(state)
    assert [head + rows(after), rows(after)] == expected


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


def check_next_epoch(kind, loader, workers):
    """The epoch that `loader` begins next is the one that another begins with its state."""
    state = through_json(loader.state_dict())
    expected = rows(loader)
    seed_all(2)
    after = kind.loader(workers)
    after.load_state_dict(state)
    assert comparable(rows(after), kind.ordered) == comparable(expected, kind.ordered)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["re-ordered", "own sampler", "stateful sampler", "stream"])
def test_a_state_taken_before_the_first_epoch_begins_it(name, workers):
    kind = KINDS[name]
    seed_all(1)
    check_next_epoch(kind, kind.loader(workers), workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["re-ordered", "re-ordered, generator", "own sampler", "stream"])
def test_a_state_taken_after_an_epoch_begins_the_next(name, workers):
    kind = KINDS[name]
    seed_all(1)
    loader = kind.loader(workers)
    list(loader)
    check_next_epoch(kind, loader, workers)


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
    victims = list(iterator.worker_pids.values())
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    # Or the successor of one may do all the work before the other's death is there to be seen.
    until(lambda: not running(victims), "both to be dead")
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
