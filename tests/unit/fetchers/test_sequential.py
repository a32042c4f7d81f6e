"""Fetching from map-style datasets: errors take their samples' places."""

from __future__ import annotations

from typing import Any

import pytest

from minato._errors import CapturedError
from minato._fetchers.sequential import fetch_each, fetch_onto, fetch_together, has_getitems


def capture(error: Exception, key: object) -> CapturedError:
    return CapturedError.capture(error, f"at {key!r}")


class Fragile:
    """Key 3 fails."""

    def __getitem__(self, key: Any) -> Any:
        if key == 3:
            raise KeyError(key)
        return key * 10


class Together(Fragile):
    def __init__(self, result: Any = None) -> None:
        self.result = result
        self.asked: list[Any] = []

    def __getitems__(self, keys: list[Any]) -> Any:
        self.asked.append(keys)
        return self.result if self.result is not None else [self[key] for key in keys]


def test_each_sample_is_fetched_in_order() -> None:
    assert fetch_each(Fragile(), (2, 1, 1), None, capture) == [20, 10, 10]


def test_an_error_takes_only_its_own_place() -> None:
    first, error, last = fetch_each(Fragile(), [1, 3, 2], None, capture)
    assert (first, last) == (10, 20)
    assert isinstance(error, CapturedError)
    assert error.where == "at 3"
    assert isinstance(error.rebuild(), KeyError)


def test_reseeding_comes_before_each_sample() -> None:
    events: list[Any] = []

    class Noting:
        def __getitem__(self, key: Any) -> Any:
            events.append(key)
            raise ValueError

    fetch_each(Noting(), ["a", "b"], lambda number: events.append(number), capture)
    assert events == [0, "a", 1, "b"]


def test_each_sample_is_put_before_the_next_is_fetched() -> None:
    events: list[Any] = []

    class Noting(Fragile):
        def __getitem__(self, key: Any) -> Any:
            events.append(f"fetch {key}")
            return super().__getitem__(key)

    class Current:
        def __setitem__(self, place: int, number: int) -> None:
            events.append(f"at {number}")

    def put(number: int, sample: Any) -> None:
        events.append((number, sample if isinstance(sample, int) else type(sample)))

    def reseed(number: int) -> None:
        events.append(f"seed {number}")

    fetch_onto(put, Noting(), [2, 3], reseed, capture, 7, Current())
    first = ["at 7", "seed 7", "fetch 2", "at -1", (7, 20)]
    assert events == [*first, "at 8", "seed 8", "fetch 3", "at -1", (8, CapturedError)]


def test_what_is_not_caught_ends_the_run_between_two_samples() -> None:
    put: list[int] = []

    class Stopping:
        def __getitem__(self, key: Any) -> Any:
            if key == 2:
                raise KeyboardInterrupt
            return key

    with pytest.raises(KeyboardInterrupt):
        fetch_onto(lambda number, _: put.append(number), Stopping(), [0, 1, 2, 3], None, capture)
    assert put == [0, 1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_not_an_error_goes_through(stop: type[BaseException]) -> None:
    class Stopping:
        def __getitem__(self, key: Any) -> Any:
            raise stop

    with pytest.raises(stop):
        fetch_each(Stopping(), [0], None, capture)


def test_samples_are_fetched_together_as_a_list() -> None:
    dataset = Together()
    assert fetch_together(dataset, (1, 2), capture) == [10, 20]
    assert dataset.asked == [[1, 2]]


@pytest.mark.parametrize("result", [[1], [1, 2, 3], [], (4, 5), {"x": 4}])
def test_the_dataset_decides_what_it_returns(result: Any) -> None:
    """As with torch, which passes on whatever `__getitems__` returns."""
    assert fetch_together(Together(result), [7, 8], capture) is result


def test_an_error_of_fetching_together_takes_all_places() -> None:
    samples = fetch_together(Together(), [1, 3], capture)
    assert [type(s) for s in samples] == [CapturedError] * 2
    assert samples[0].where == "at [1, 3]"


def test_after_an_error_of_fetching_together_each_may_be_fetched_alone() -> None:
    dataset = Together()
    first, error, last = fetch_together(dataset, [1, 3, 2], capture, one_by_one=True)
    assert (first, last) == (10, 20)
    assert error.where == "at 3"
    assert dataset.asked == [[1, 3, 2], [1], [3], [2]]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ([1], False),
        (Fragile(), False),
        (Together(), True),
        (type("Off", (), {"__getitems__": None})(), False),
    ],
)
def test_fetching_together_is_found_as_torch_finds_it(dataset: Any, expected: bool) -> None:
    assert has_getitems(dataset) is expected
