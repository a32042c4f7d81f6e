"""minato's own arguments: refused with a message that says what was needed, what was found, and which argument."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from minato._arguments import OPTIONS, check_num_workers, check_options
from minato._plan import Collate, Order
from minato._planning import decide_collate, decide_order

DEFAULTS: dict[str, Any] = {
    "in_order": None,
    "slow_timeout": "p75",
    "slow_fallback": "p90",
    "warmup_samples": None,
    "max_deferral": None,
    "profile": None,
    "slow_hint": None,
    "adaptive": None,
    "queue_size": 100,
    "min_workers": 1,
    "max_workers": None,
    "fetcher": "sequential",
    "num_fetch_workers": 16,
    "batch_pool": 0,
    "thread_copies": False,
    "memory_budget": None,
    "device": None,
    "device_prefetch": 2,
    "on_error": "raise",
    "sample_retries": 0,
    "max_worker_restarts": 16,
    "worker_affinity": "none",
    "worker_nice": 0,
    "trace": None,
    "cache": None,
    "cache_bytes": None,
    "cache_dir": None,
    "cache_token": None,
    "offload": None,
}


def check(**changed: Any) -> None:
    check_options({**DEFAULTS, **changed}, num_workers=2)


def test_defaults_are_good_and_complete() -> None:
    assert set(DEFAULTS) == set(OPTIONS)
    check()


GOOD = [
    ("in_order", [True, False, None]),
    ("slow_timeout", ["p1", "p99.9", 0.5, 3, None]),
    ("slow_fallback", ["p50", 1.5, None]),
    ("warmup_samples", [1, 64, None]),
    ("max_deferral", [1, None]),
    ("queue_size", [1, 10_000]),
    ("min_workers", [1, 5]),
    ("max_workers", [2, 64, None]),
    ("num_fetch_workers", [1]),
    ("batch_pool", [0, 5]),
    ("memory_budget", [1, 1 << 40, None]),
    ("device_prefetch", [1]),
    ("sample_retries", [0, 3]),
    ("max_worker_restarts", [0]),
    ("worker_affinity", ["none", "spread"]),
    ("worker_nice", [0, 19]),
    ("adaptive", [None, False, True]),
]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in GOOD for v in values])
def test_sensible_values_are_taken(name: str, value: Any) -> None:
    check(**{name: value})


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("in_order", "yes", ValueError, "True, False or None"),
    ("in_order", 2, ValueError, "True, False or None"),
    ("slow_timeout", "75", ValueError, "'p' and a number between 0 and 100"),
    ("slow_timeout", "p", ValueError, "'p' and a number between 0 and 100"),
    ("slow_timeout", "p0", ValueError, "'p' and a number between 0 and 100"),
    ("slow_timeout", "p100", ValueError, "'p' and a number between 0 and 100"),
    ("slow_timeout", "p-5", ValueError, "'p' and a number between 0 and 100"),
    ("slow_timeout", "p\u00b2", ValueError, "'p' and a number between 0 and 100"),
    ("slow_timeout", 0, ValueError, "positive"),
    ("slow_timeout", -1.5, ValueError, "positive"),
    ("slow_timeout", float("nan"), ValueError, "positive"),
    ("slow_timeout", True, TypeError, "percentile such as 'p75', seconds, or None"),
    ("slow_timeout", [1], TypeError, "percentile such as 'p75', seconds, or None"),
    ("slow_fallback", "x90", ValueError, "'p' and a number between 0 and 100"),
    ("warmup_samples", 0, ValueError, "at least 1"),
    ("warmup_samples", 1.0, TypeError, "integer or None"),
    ("max_deferral", 0, ValueError, "at least 1"),
    ("max_deferral", True, TypeError, "integer or None"),
    ("queue_size", 0, ValueError, "at least 1"),
    ("queue_size", None, TypeError, "integer"),
    ("memory_budget", 0, ValueError, "at least 1"),
    ("memory_budget", "1GB", TypeError, "integer or None"),
    ("device_prefetch", 0, ValueError, "at least 1"),
    ("sample_retries", -1, ValueError, "at least 0"),
    ("max_worker_restarts", -1, ValueError, "at least 0"),
    ("worker_affinity", "core", ValueError, "'none' or 'spread'"),
    ("worker_affinity", None, ValueError, "'none' or 'spread'"),
    ("worker_nice", -1, ValueError, "at least 0"),
    ("worker_nice", 20, ValueError, "at most 19"),
    ("worker_nice", 1.5, TypeError, "an integer"),
    ("min_workers", 0, ValueError, "at least 1"),
    ("max_workers", 0, ValueError, "at least 1"),
    ("max_workers", 1, ValueError, "at least num_workers"),
    ("fetcher", "parallel", ValueError, "'sequential', 'threaded' or 'asyncio'"),
    ("num_fetch_workers", 0, ValueError, "at least 1"),
    ("batch_pool", -1, ValueError, "at least 0"),
    ("on_error", "ignore", ValueError, "'raise', 'skip', or a function"),
    ("on_error", None, ValueError, "'raise', 'skip', or a function"),
    ("on_error", ValueError, ValueError, "'raise', 'skip', or a function"),
]


def cases() -> Iterator[Any]:
    for case in BAD:
        yield pytest.param(*case, id=f"{case[0]}={case[1]!r}")


@pytest.mark.parametrize(("name", "value", "error", "needed"), [*cases()])
def test_a_message_says_what_was_needed_what_was_found_and_where(
    name: str, value: Any, error: type[Exception], needed: str
) -> None:
    with pytest.raises(error) as caught:
        check(**{name: value})
    message = str(caught.value)
    assert needed in message
    assert name in message
    assert (repr(value) if not isinstance(value, float) else str(value)) in message


def test_limits_of_workers_are_compared_with_each_other() -> None:
    with pytest.raises(ValueError, match="max_workers=3 and min_workers=4"):
        check(min_workers=4, max_workers=3)


@pytest.mark.parametrize("value", ["raise", "skip", print], ids=str)
def test_ways_to_treat_errors_are_accepted(value: Any) -> None:
    check(on_error=value)


@pytest.mark.parametrize("value", ["many", "2", 2.0])
def test_a_number_of_workers_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="num_workers must be an integer or 'auto'"):
        check_num_workers(value, 1, None, lambda: 4)


@pytest.mark.parametrize(
    ("least", "most", "cores", "expected"),
    [(1, None, 4, 4), (1, None, 64, 12), (1, 2, 64, 2), (3, None, 1, 3), (1, 64, 4, 4)],
)
def test_auto_begins_with_the_cores_within_the_limits(least: int, most: int | None, cores: int, expected: int) -> None:
    assert check_num_workers("auto", least, most, lambda: cores) == expected


# ---- order ---------------------------------------------------------------------------------------------------------


class Map:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> int:
        return key


class Together(Map):
    def __getitems__(self, keys: list[int]) -> list[int]:
        return keys


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(())


class OwnRandom(RandomSampler):
    """The user's own: nothing is known about it."""


RANDOM = [
    RandomSampler(Map()),
    WeightedRandomSampler([1.0, 1.0], 2),
    SubsetRandomSampler([0, 1]),
    DistributedSampler(Map(), 2, 0, shuffle=True),
]
FIXED = [
    SequentialSampler(Map()),
    DistributedSampler(Map(), 2, 0, shuffle=False),
    OwnRandom(Map()),
    [3, 1, 2],
]
IN, BATCHES, SAMPLES = Order.IN_ORDER, Order.BATCHES_OVERTAKE, Order.SAMPLES_OVERTAKE


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def name(value: Any) -> str:
    return type(value).__name__ + (f"-{value.shuffle}" if hasattr(value, "shuffle") else "")


@pytest.mark.parametrize("sampler", [*RANDOM, *FIXED], ids=name)
@pytest.mark.parametrize("own_batching", [True, False])
@pytest.mark.parametrize("dataset", [Map(), Together(), Stream()], ids=name)
def test_the_order_that_was_asked_for_is_kept(dataset: Any, own_batching: bool, sampler: Any) -> None:
    """True is torch's order, always; False lets as much overtake as the batches' making allows."""
    assert decide_order(True, dataset, sampler, own_batching) is IN
    samples = type(dataset) is Map and own_batching
    assert decide_order(False, dataset, sampler, own_batching) is (SAMPLES if samples else BATCHES)


NOBODY_SAYS = [*itertools.product([Map(), Together(), Stream()], [True, False], RANDOM + FIXED)]


@pytest.mark.parametrize(("dataset", "own_batching", "sampler"), NOBODY_SAYS, ids=lambda v: str(name(v)))
def test_without_a_wish_only_torchs_random_order_may_change(dataset: Any, own_batching: bool, sampler: Any) -> None:
    expected = IN
    if own_batching and any(sampler is known for known in RANDOM) and not isinstance(dataset, IterableDataset):
        expected = SAMPLES if type(dataset) is Map else BATCHES
    assert decide_order(None, dataset, sampler, own_batching) is expected


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("sampler", RANDOM, ids=name)
def test_deterministic_algorithms_keep_order_unless_told_otherwise(sampler: Any) -> None:
    assert decide_order(None, Map(), sampler, True) is IN
    assert decide_order(False, Map(), sampler, True) is SAMPLES


@pytest.mark.parametrize(
    ("function", "batched", "expected"),
    [
        (default_collate, True, Collate.ROWS),
        (default_collate, False, Collate.NONE),
        (list, True, Collate.FUNCTION),
        (list, False, Collate.NONE),
    ],
)
def test_who_collates(function: Any, batched: bool, expected: Collate) -> None:
    assert decide_collate(function, batched) is expected


def test_a_cache_does_not_go_with_concurrent_fetchers() -> None:
    with pytest.raises(ValueError, match=r"cache.* needs fetcher='sequential', got fetcher='threaded'"):
        check(cache="auto", fetcher="threaded")
