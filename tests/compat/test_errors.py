"""Exceptions in user code: their own type, their own words, and the next batch comes as if nothing had happened."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import IterableDataset

from .checks import first_outcome, outcomes, told
from .data import BrokenStream, Endless, Indices, Raising, RaisingOnTheSpot, StumblingStream
from .pieces import Fussy, a_fussy_exception, a_key_error, a_local_exception

KINDS = [ValueError, IndexError, KeyError, RuntimeError, ZeroDivisionError, NotImplementedError, OSError, MemoryError]


def plain(seen):
    """Batches as lists, exceptions as their types."""
    return [batch.tolist() if isinstance(batch, torch.Tensor) else type(batch) for batch in seen]


def refuse_three(samples):
    if 3 in samples:
        raise LookupError("three is not collated")
    return torch.tensor(samples)


def refuse_to_start(worker_id):
    raise ArithmeticError(f"worker {worker_id} will not start")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_exception_in_the_dataset_keeps_its_type_and_words(loader_class, num_workers, kind):
    loader = loader_class(Raising(6, {3: kind("boom at three")}), batch_size=2, num_workers=num_workers)
    seen = outcomes(loader)
    assert plain(seen) == [[0, 1], kind, [4, 5]]
    assert "boom at three" in told(seen[1])


def test_the_traceback_in_the_worker_is_told(loader_class):
    loader = loader_class(Raising(6, {3: ValueError("boom")}), batch_size=2, num_workers=1)
    words = told(outcomes(loader)[1])
    assert "Traceback" in words
    assert "in __getitem__" in words
    assert "data.py" in words


def test_a_key_error_of_several_lines_is_told_in_full(loader_class, num_workers):
    loader = loader_class(RaisingOnTheSpot(a_key_error), batch_size=2, num_workers=num_workers)
    seen = outcomes(loader)
    assert plain(seen) == [[0, 1], KeyError, [4, 5], [6, 7]]
    assert "first line" in told(seen[1])
    assert "second line" in told(seen[1])


def test_every_batch_may_fail_and_the_epoch_still_ends(loader_class, num_workers):
    errors = {index: ValueError(f"number {index}") for index in range(0, 20, 2)}
    seen = outcomes(loader_class(Raising(20, errors), batch_size=2, num_workers=num_workers))
    assert plain(seen) == [ValueError] * 10
    assert all(f"number {2 * place}" in told(error) for place, error in enumerate(seen))


def test_two_failures_in_one_batch_give_the_first_of_them(loader_class):
    errors = {2: ValueError("at two"), 3: KeyError("at three")}
    assert plain(outcomes(loader_class(Raising(6, errors), batch_size=2))) == [[0, 1], ValueError, [4, 5]]


@pytest.mark.parametrize("workers", [1, 2], ids="{} workers".format)
def test_two_failures_in_one_batch_give_one_exception(loader_class, workers):
    errors = {2: ValueError("at two"), 3: ValueError("at three")}
    seen = outcomes(loader_class(Raising(6, errors), batch_size=2, num_workers=workers))
    assert plain(seen) == [[0, 1], ValueError, [4, 5]]


def test_without_batching_only_the_sample_is_missing(loader_class, num_workers):
    loader = loader_class(Raising(4, {1: ValueError("boom")}), batch_size=None, num_workers=num_workers)
    first, error, *others = outcomes(loader)
    assert (first, others) == (0, [2, 3])
    assert type(error) is ValueError


def test_the_next_epoch_is_not_affected(loader_class):
    loader = loader_class(Raising(6, {3: ValueError("boom")}), batch_size=2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert plain(outcomes(loader)) == [[0, 1], ValueError, [4, 5]]


def test_an_exception_in_collate_fn_keeps_its_type(loader_class, num_workers):
    seen = outcomes(loader_class(Indices(6), batch_size=2, collate_fn=refuse_three, num_workers=num_workers))
    assert plain(seen) == [[0, 1], LookupError, [4, 5]]
    assert "three is not collated" in told(seen[1])


def test_an_exception_in_worker_init_fn_comes_with_the_first_batch(loader_class):
    error = first_outcome(loader_class(Indices(4), batch_size=2, num_workers=1, worker_init_fn=refuse_to_start))
    assert type(error) is ArithmeticError
    assert "worker 0 will not start" in told(error)


@pytest.mark.parametrize("workers", [0, 1], ids="{} workers".format)
def test_an_exception_in_a_generator_ends_its_stream(loader_class, workers):
    seen = outcomes(loader_class(BrokenStream(), batch_size=2, num_workers=workers))
    assert plain(seen) == [[0, 1], ValueError]
    assert "the stream broke at 3" in told(seen[1])


def test_an_exception_in_one_stream_leaves_the_others_alone(loader_class):
    seen = outcomes(loader_class(BrokenStream(), batch_size=1, num_workers=2))
    assert plain(seen) == [[0], [0], [1], [1], [2], [2], ValueError, ValueError]


@pytest.mark.parametrize("workers", [0, 1], ids="{} workers".format)
def test_a_stream_that_can_go_on_goes_on_after_an_exception(loader_class, workers):
    seen = outcomes(loader_class(StumblingStream(), batch_size=2, num_workers=workers))
    assert plain(seen) == [[0, 1], ValueError, [4, 5], [6, 7]]


def test_an_exception_in_iter_of_a_stream_is_raised(loader_class, num_workers):
    error = first_outcome(loader_class(NoStart(), batch_size=2, num_workers=num_workers))
    assert type(error) is LookupError
    assert "nothing to iterate" in told(error)


class NoStart(IterableDataset):
    def __iter__(self):
        raise LookupError("nothing to iterate")


def failing_sampler():
    yield from range(3)
    raise FloatingPointError("the sampler broke")


class FailingSampler:
    def __iter__(self):
        return failing_sampler()


def test_an_exception_in_the_sampler_is_raised_here(loader_class, num_workers):
    loader = loader_class(Endless(), batch_size=1, sampler=FailingSampler(), num_workers=num_workers)
    with pytest.raises(FloatingPointError, match="the sampler broke"):
        list(loader)


# ----------------------------------------------------------------------------------------------- where minato does more


def test_an_exception_of_any_class_arrives_as_itself(minato_class, num_workers):
    seen = outcomes(minato_class(RaisingOnTheSpot(a_fussy_exception), batch_size=2, num_workers=num_workers))
    assert plain(seen) == [[0, 1], Fussy, [4, 5], [6, 7]]
    assert "code 7: not today" in told(seen[1])


def test_an_exception_nobody_else_can_import_is_told_all_the_same(minato_class, num_workers):
    seen = outcomes(minato_class(RaisingOnTheSpot(a_local_exception), batch_size=2, num_workers=num_workers))
    assert [place for place, batch in enumerate(seen) if isinstance(batch, Exception)] == [1]
    assert "only known here" in told(seen[1])


def test_a_note_names_the_sample(minato_class):
    error = outcomes(minato_class(RaisingOnTheSpot(a_key_error), batch_size=2, num_workers=2))[1]
    assert any(re.search(r"\b3\b", note) for note in error.__notes__)
