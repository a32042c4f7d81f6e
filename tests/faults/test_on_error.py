"""Samples that fail: fetched again, left out, or raised, as `on_error` and `sample_retries` say. torch's raises."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

from minato import DataLoader
from minato.errors import SampleError

from .data import Rows, row
from .tools import caught_warnings

pytestmark = pytest.mark.filterwarnings("ignore:.* is left out, as on_error says:RuntimeWarning")


class Failing(Rows):
    """Samples in `bad` fail: `times` times each, or always. Tries are counted by marks."""

    def __init__(self, length, bad, marks=None, times=None):
        super().__init__(length)
        self.bad, self.marks, self.times = frozenset(bad), marks, times

    def __getitem__(self, index):
        if index in self.bad and (self.times is None or self.failed_before(index) < self.times):
            raise ValueError(f"sample {index} is bad")
        return row(index)

    def failed_before(self, index):
        """How often it failed; one more from now on."""
        for tries in range(self.times):
            if self.marks.once(f"fail-{index}-{tries}"):
                return tries
        return self.times


class Words(Dataset):
    """Samples with text, a number and a tensor; those in `bad` fail."""

    def __init__(self, length, bad):
        self.length, self.bad = length, bad

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index in self.bad:
            raise LookupError(index)
        return {"text": f"number {index}", "number": index, "row": row(index)}


class Together(Failing):
    """Fetches whole batches, all or nothing."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Ragged(Failing):
    """Samples of a length of their own."""

    def __getitem__(self, index):
        return super().__getitem__(index)[:1].expand(1 + index % 3)


class FailsCollating:
    """Stacks samples; a batch with sample `bad` in it fails, `times` times or always."""

    def __init__(self, bad, marks, times=1 << 20):
        self.bad, self.marks, self.times = bad, marks, times

    def __call__(self, samples):
        rows = torch.stack(samples)
        tried = len(self.marks.named("collate-"))
        if (rows == self.bad).any() and tried < self.times:
            self.marks.once(f"collate-{tried}")
            raise ArithmeticError(f"no batch with {self.bad}")
        return rows


class Stream(IterableDataset):
    """Counts to `length`; numbers in `bad` fail. Not a generator: it goes on after a failure."""

    def __init__(self, length, bad):
        self.length, self.bad = length, bad

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        number, self.next = self.next, self.next + 1
        if number >= self.length:
            raise StopIteration
        if number in self.bad:
            raise ValueError(f"number {number} is bad")
        return number


class Generated(Stream):
    """A generator, which ends with its first failure."""

    def __iter__(self):
        for number in range(self.length):
            if number in self.bad:
                raise ValueError(f"number {number} is bad")
            yield number


class Unstartable(IterableDataset):
    def __iter__(self):
        raise LookupError("no stream today")


def refuse_four(samples):
    if 4 in samples:
        raise ArithmeticError("four is not collated")
    return list(samples)


class Answers:
    """An `on_error` function that gives one answer after the other, the last for ever, and remembers what it saw."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    def __call__(self, error):
        self.seen.append(error)
        return self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)


def numbers(batches):
    """The samples of each batch, as numbers; every one was whole."""
    batches = list(batches)
    for batch in batches:
        assert (batch == batch[..., :1]).all(), "a row was mixed from two samples"
    return [batch[..., 0].tolist() for batch in batches]


def sizes_of(count, size):
    """Full batches, and what is left."""
    return [size] * (count // size) + [count % size] * (count % size > 0)


def assert_all_good_once(batches, length, bad, size):
    """Each good sample once, none of the others, all batches full but the last."""
    got = numbers(batches)
    good = sorted(set(range(length)) - set(bad))
    assert sorted(number for batch in got for number in batch) == good
    assert [len(batch) for batch in got] == sizes_of(len(good), size)


@pytest.fixture(params=[0, 2], ids="{} workers".format)
def workers(request):
    return request.param


# ---------------------------------------------------------------------------------------------------- leaving out


@pytest.mark.parametrize("collate", [None, torch.stack], ids=["default-collate", "custom-collate"])
@pytest.mark.parametrize("bad", [[], [0], [13, 14], [41], range(0, 42, 3), range(42)], ids=str)
def test_skip_keeps_all_batches_full_but_the_last(bad, collate, in_order, workers):
    loader = DataLoader(
        Failing(42, bad), 4, num_workers=workers, in_order=in_order, collate_fn=collate, on_error="skip"
    )
    assert_all_good_once(list(loader), 42, bad, 4)
    stats = loader.stats()
    assert (stats.samples_skipped, stats.samples_retried) == (len(bad), 0)
    assert sorted(stats.skipped) == sorted(bad)
    assert stats.samples_delivered == 42 - len(bad)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(1, 40),
    bad=st.sets(st.integers(0, 39)),
    size=st.integers(1, 7),
    workers=st.integers(0, 3),
    in_order=st.booleans(),
    shuffle=st.booleans(),
    custom=st.booleans(),
)
def test_any_set_of_failing_samples_is_left_out_and_no_other(length, bad, size, workers, in_order, shuffle, custom):
    loader = DataLoader(
        Failing(length, bad),
        size,
        shuffle=shuffle,
        num_workers=workers,
        in_order=in_order,
        collate_fn=torch.stack if custom else None,
        on_error="skip",
    )
    assert_all_good_once(list(loader), length, bad, size)


def test_skip_names_the_first_sample_in_one_warning_per_loader(workers):
    loader = DataLoader(Failing(42, [5, 6, 20]), 4, num_workers=workers, in_order=True, on_error="skip")
    with caught_warnings() as caught:
        list(loader)
        list(loader)
    assert [
        (category, "sample index 5 failed (fetch: ValueError: sample 5 is bad)" in text) for category, text in caught
    ]
    assert len(caught) == 1
    assert caught[0][0] is RuntimeWarning
    assert loader.stats().samples_skipped == 6


def test_the_names_of_skipped_samples_are_bounded(workers):
    loader = DataLoader(Failing(150, range(120)), 10, num_workers=workers, on_error="skip")
    assert_all_good_once(list(loader), 150, range(120), 10)
    assert (loader.stats().samples_skipped, len(loader.stats().skipped)) == (120, 100)


def test_skip_with_drop_last_gives_full_batches_only(in_order, workers):
    loader = DataLoader(
        Failing(43, [3, 11]), 4, num_workers=workers, in_order=in_order, drop_last=True, on_error="skip"
    )
    got = numbers(loader)
    assert {len(batch) for batch in got} == {4}
    assert len(got) in (9, 10)  # 41 good samples, and torch's own drop_last has dropped some of them before
    seen = [number for batch in got for number in batch]
    assert len(set(seen)) == len(seen)
    assert not {3, 11} & set(seen)


@pytest.mark.parametrize("overtake", [False, True])
def test_a_batch_samplers_batches_shrink_and_keep_their_members(overtake, workers):
    batches = [[0, 1, 2], [3, 4], [5], [6, 7, 8, 9]]
    loader = DataLoader(
        Failing(10, [1, 3, 4, 9]),
        batch_sampler=batches,
        num_workers=workers,
        in_order=not overtake,
        on_error="skip",
    )
    got = numbers(loader)
    assert (sorted(got) if overtake else got) == [[0, 2], [5], [6, 7, 8]]
    assert loader.stats().samples_skipped == 4


def test_torchs_batch_sampler_given_by_the_user_shrinks_too(workers):
    sampler = BatchSampler(SequentialSampler(range(8)), 4, drop_last=False)
    loader = DataLoader(Failing(8, [2]), batch_sampler=sampler, num_workers=workers, on_error="skip")
    assert numbers(loader) == [[0, 1, 3], [4, 5, 6, 7]]


def test_without_batching_a_failed_sample_is_missing(workers):
    loader = DataLoader(Failing(6, [0, 3, 5]), batch_size=None, num_workers=workers, on_error="skip")
    assert [sample[0].item() for sample in loader] == [1, 2, 4]


def test_texts_of_shrunk_and_mended_batches_belong_to_their_samples(in_order, workers):
    loader = DataLoader(Words(23, {2, 3, 9, 22}), 4, num_workers=workers, in_order=in_order, on_error="skip")
    seen = []
    for batch in loader:
        assert batch["text"] == [f"number {number}" for number in batch["number"].tolist()]
        assert (batch["row"][:, 0] == batch["number"]).all()
        seen += batch["number"].tolist()
    assert sorted(seen) == sorted(set(range(23)) - {2, 3, 9, 22})


def test_texts_of_a_batch_samplers_shrunk_batch_belong_to_their_samples(workers):
    loader = DataLoader(
        Words(8, {1, 2, 6}), batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7]], num_workers=workers, on_error="skip"
    )
    assert [batch["text"] for batch in loader] == [["number 0", "number 3"], ["number 4", "number 5", "number 7"]]


def test_samples_without_fixed_layout_can_be_left_out(in_order, workers):
    loader = DataLoader(
        Ragged(20, [4, 5, 17]), 3, num_workers=workers, in_order=in_order, collate_fn=list, on_error="skip"
    )
    got = [[sample[0].item() for sample in batch] for batch in loader]
    assert sorted(number for batch in got for number in batch) == sorted(set(range(20)) - {4, 5, 17})
    assert [len(batch) for batch in got] == sizes_of(17, 3)


@pytest.mark.parametrize("overtake", [False, True])
def test_a_dataset_that_fetches_batches_loses_only_what_fails(overtake, workers):
    loader = DataLoader(Together(18, [2, 7]), 4, num_workers=workers, in_order=not overtake, on_error="skip")
    assert_all_good_once(list(loader), 18, [2, 7], 4)
    assert sorted(loader.stats().skipped) == [2, 7]


def test_keys_that_are_not_numbers_can_be_replaced(workers):
    class Named(Dataset):
        def __getitem__(self, key):
            if key in ("c", "f"):
                raise KeyError(key)
            return key

    loader = DataLoader(Named(), 3, sampler=list("abcdefgh"), num_workers=workers, in_order=True, on_error="skip")
    got = list(loader)
    assert sorted(key for batch in got for key in batch) == list("abdegh")
    assert [len(batch) for batch in got] == [3, 3]
    assert sorted(loader.stats().skipped) == ["c", "f"]


def test_persistent_workers_skip_in_every_epoch(in_order):
    loader = DataLoader(
        Failing(30, [4, 28, 29]),
        4,
        shuffle=not in_order,
        num_workers=2,
        in_order=in_order,
        persistent_workers=True,
        on_error="skip",
    )
    for epoch in range(1, 5):
        assert_all_good_once(list(loader), 30, [4, 28, 29], 4)
        assert loader.stats().samples_skipped == 3 * epoch
    next(iter(loader))
    assert_all_good_once(list(loader), 30, [4, 28, 29], 4)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_skip_needs_no_fork(method):
    loader = DataLoader(
        Failing(20, [3, 19]), 4, num_workers=2, in_order=True, multiprocessing_context=method, on_error=skip_all
    )
    assert_all_good_once(list(loader), 20, [3, 19], 4)


def skip_all(error):
    return "skip"


def test_kills_between_mendings_lose_nothing(in_order, marks):
    bad = range(0, 120, 5)
    dataset = Failing(120, bad, marks, times=2)
    loader = DataLoader(
        dataset, 4, num_workers=2, in_order=in_order, on_error="skip", sample_retries=1, max_worker_restarts=1000
    )
    batches = []
    with caught_warnings():
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            batches.append(batch)
            if number % 3 == 1:
                for pid in iterator.worker_pids.values():
                    os.kill(pid, signal.SIGKILL)
    assert_all_good_once(batches, 120, set(loader.stats().skipped), 4)
    assert set(loader.stats().skipped) <= set(bad)
    assert loader.stats().worker_restarts > 0


# --------------------------------------------------------------------------------------------------- trying again


@pytest.mark.parametrize("collate", [None, torch.stack], ids=["default-collate", "custom-collate"])
def test_a_sample_that_fails_for_a_while_is_fetched_again(collate, in_order, workers, marks):
    bad = [0, 5, 6, 7, 21]
    loader = DataLoader(
        Failing(22, bad, marks, times=2),
        4,
        num_workers=workers,
        in_order=in_order,
        collate_fn=collate,
        sample_retries=2,
    )
    batches = list(loader)
    assert_all_good_once(batches, 22, [], 4)
    if in_order or not workers:
        assert numbers(batches) == [list(range(at, min(at + 4, 22))) for at in range(0, 22, 4)]
    assert loader.stats().samples_retried == 10
    assert loader.stats().samples_skipped == 0


def test_the_error_is_raised_when_all_retries_failed(workers, marks):
    loader = DataLoader(Failing(12, [5], marks, times=9), 4, num_workers=workers, in_order=True, sample_retries=2)
    iterator = iter(loader)
    assert numbers([next(iterator)]) == [[0, 1, 2, 3]]
    with pytest.raises(ValueError, match="sample 5 is bad"):
        next(iterator)
    assert numbers(iterator) == [[8, 9, 10, 11]]
    assert len(marks.named("fail-5-")) == 3


def test_a_sample_is_skipped_when_all_retries_failed(in_order, workers, marks):
    loader = DataLoader(
        Failing(12, [5], marks, times=9), 4, num_workers=workers, in_order=in_order, sample_retries=1, on_error="skip"
    )
    assert_all_good_once(list(loader), 12, [5], 4)
    assert len(marks.named("fail-5-")) == 2
    assert (loader.stats().samples_retried, loader.stats().samples_skipped) == (1, 1)


# --------------------------------------------------------------------------------------------------- a function


def test_a_function_is_told_all_about_the_failure(workers):
    answers = Answers("skip")
    loader = DataLoader(Failing(10, [7]), 4, num_workers=workers, in_order=True, on_error=answers)
    assert_all_good_once(list(loader), 10, [7], 4)
    (seen,) = answers.seen
    assert type(seen) is SampleError
    assert (seen.index, seen.position, seen.epoch, seen.stage, seen.tries) == (7, 7, 0, "fetch", 1)
    assert type(seen.error) is ValueError
    assert str(seen.error) == "sample 7 is bad"
    assert "in __getitem__" in seen.traceback
    assert seen.worker in ((0, 1) if workers else (None,))


def test_a_function_may_retry_and_then_skip(in_order, workers):
    answers = Answers("retry", "retry", "skip")
    loader = DataLoader(Failing(10, [7]), 4, num_workers=workers, in_order=in_order, on_error=answers)
    assert_all_good_once(list(loader), 10, [7], 4)
    assert [(seen.index, seen.tries) for seen in answers.seen] == [(7, 1), (7, 2), (7, 3)]
    assert (loader.stats().samples_retried, loader.stats().samples_skipped) == (2, 1)


def test_a_function_is_asked_after_the_retries(workers, marks):
    answers = Answers("skip")
    loader = DataLoader(Failing(10, [7], marks, times=9), 4, num_workers=workers, on_error=answers, sample_retries=2)
    assert_all_good_once(list(loader), 10, [7], 4)
    assert [seen.tries for seen in answers.seen] == [3]


def test_a_function_may_raise_what_failed(workers):
    answers = Answers("skip", "raise")
    loader = DataLoader(Failing(12, [1, 6]), 4, num_workers=workers, in_order=True, on_error=answers)
    iterator = iter(loader)
    first = numbers([next(iterator)])[0]
    assert len(first) == 4
    with pytest.raises(ValueError, match="sample 6 is bad"):
        next(iterator)
    assert 1 not in first
    assert len(answers.seen) == 2
    assert all(len(batch) in (3, 4) for batch in numbers(iterator))


def test_another_answer_is_an_error_that_says_so(workers):
    iterator = iter(DataLoader(Failing(8, [1]), 4, num_workers=workers, in_order=True, on_error=Answers("ignore")))
    with pytest.raises(ValueError, match="on_error must return 'raise', 'skip' or 'retry', got 'ignore'"):
        next(iterator)
    assert numbers(iterator) == [[4, 5, 6, 7]]


def refuse(error):
    raise KeyError("cannot decide")


def test_a_function_that_fails_is_told_as_its_own_error(workers):
    iterator = iter(DataLoader(Failing(8, [1]), 4, num_workers=workers, in_order=True, on_error=refuse))
    with pytest.raises(KeyError, match="cannot decide"):
        next(iterator)
    assert numbers(iterator) == [[4, 5, 6, 7]]


# ---------------------------------------------------------------------------------------------------- collation


def test_a_batch_that_cannot_be_collated_is_left_out_whole(in_order, workers, marks):
    answers = Answers("skip")
    collate = FailsCollating(5, marks)
    loader = DataLoader(Rows(12), 4, num_workers=workers, in_order=in_order, collate_fn=collate, on_error=answers)
    got = numbers(loader)
    (seen,) = answers.seen
    assert (seen.stage, type(seen.error), len(seen.index)) == ("collate", ArithmeticError, 4)
    assert sorted(seen.index + [number for batch in got for number in batch]) == list(range(12))
    assert loader.stats().samples_skipped == 4


def test_a_batch_that_cannot_be_collated_is_tried_again(in_order, workers, marks):
    collate = FailsCollating(5, marks, times=2)
    loader = DataLoader(Rows(12), 4, num_workers=workers, in_order=in_order, collate_fn=collate, sample_retries=2)
    assert_all_good_once(list(loader), 12, [], 4)
    assert len(marks.named("collate-")) == 2


def test_an_error_of_collating_is_raised_after_the_retries(workers, marks):
    collate = FailsCollating(5, marks)
    loader = DataLoader(Rows(12), 4, num_workers=workers, in_order=True, collate_fn=collate, sample_retries=1)
    iterator = iter(loader)
    assert numbers([next(iterator)]) == [[0, 1, 2, 3]]
    with pytest.raises(ArithmeticError, match="no batch with 5"):
        next(iterator)
    assert numbers(iterator) == [[8, 9, 10, 11]]
    assert len(marks.named("collate-")) == 2


# ------------------------------------------------------------------------------------------------- streams


@pytest.fixture(params=[0, 1], ids="{} workers".format)
def readers(request):
    """One stream, in this process or in a worker."""
    return request.param


def test_a_stream_goes_on_after_a_sample_that_is_left_out(readers):
    loader = DataLoader(Stream(12, [0, 3, 4, 11]), 3, num_workers=readers, on_error="skip")
    with caught_warnings() as caught:
        got = [batch.tolist() for batch in loader]
    assert got == [[1, 2, 5], [6, 7, 8], [9, 10]]
    assert len(caught) == 1
    stats = loader.stats()
    assert (stats.samples_skipped, stats.skipped, stats.samples_delivered) == (4, (), 8)


def test_a_stream_without_batching_goes_on_after_a_sample_that_is_left_out(readers):
    assert list(DataLoader(Stream(5, [1, 4]), None, num_workers=readers, on_error="skip")) == [0, 2, 3]


def test_streams_of_several_workers_lose_only_what_fails(in_order):
    loader = DataLoader(Stream(9, [2, 7]), 2, num_workers=2, in_order=in_order, on_error="skip")
    got = sorted(number for batch in loader for number in batch.tolist())
    assert got == sorted(2 * [0, 1, 3, 4, 5, 6, 8])


def test_a_generator_ends_with_its_first_failure(readers):
    loader = DataLoader(Generated(9, [4]), 2, num_workers=readers, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_function_decides_about_a_streams_failure(readers):
    answers = Answers("retry", "skip", "raise")
    iterator = iter(DataLoader(Stream(9, [1, 2, 7]), 2, num_workers=readers, on_error=answers))
    assert [next(iterator).tolist(), next(iterator).tolist()] == [[0, 3], [4, 5]]
    with pytest.raises(ValueError, match="number 7 is bad"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[6, 8]]
    assert {(seen.index, seen.position, seen.stage) for seen in answers.seen} == {(None, None, "fetch")}


def test_retries_do_not_apply_to_a_stream(readers):
    """It has no sample that could be asked for again."""
    with pytest.raises(ValueError, match="number 1 is bad"):
        list(DataLoader(Stream(9, [1]), 2, num_workers=readers, sample_retries=5))


def test_a_stream_that_only_fails_ends_with_its_error(readers):
    loader = DataLoader(Stream(5000, range(3, 5000)), 3, num_workers=readers, on_error="skip")
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="is bad") as caught:
        next(iterator)
    assert any("raised 1000 times in a row" in note for note in caught.value.__notes__)


def test_a_stream_that_cannot_be_started_is_an_error_whatever_on_error_says(readers):
    with pytest.raises(LookupError, match="no stream today"):
        list(DataLoader(Unstartable(), 3, num_workers=readers, on_error="skip"))


def test_a_streams_batch_that_cannot_be_collated_is_left_out(readers):
    loader = DataLoader(Stream(9, []), 3, num_workers=readers, collate_fn=refuse_four, on_error="skip")
    assert list(loader) == [[0, 1, 2], [6, 7, 8]]
    assert loader.stats().samples_skipped == 3
