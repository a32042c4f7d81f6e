"""Streams of iterable datasets, cut into batches as torch cuts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from minato._fetchers.stream import MOST_FAILURES, Stream


class Numbers(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def batches(stream: Stream) -> list[list[Any]]:
    found = []
    while batch := stream.next_batch():
        found.append(batch)
    return found


@given(st.integers(0, 20), st.one_of(st.none(), st.integers(1, 7)), st.booleans())
def test_batches_are_torchs(count: int, batch_size: int | None, drop_last: bool) -> None:
    drop_last = drop_last and batch_size is not None
    loader = DataLoader(Numbers(count), batch_size=batch_size, drop_last=drop_last, collate_fn=lambda x: x)
    expected = [[x] if batch_size is None else x for x in loader]
    stream = Stream(Numbers(count), batch_size, drop_last)
    assert batches(stream) == expected
    assert stream.next_batch() == []


def test_each_sample_can_be_taken_before_the_next_is_asked_for() -> None:
    events: list[Any] = []

    class Noting(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            for number in range(3):
                events.append(f"asked for {number}")
                yield number

    def take(place: int, sample: int) -> str:
        events.append((place, sample))
        return f"taken {sample}"

    stream = Stream(Noting(), 2, drop_last=False)
    assert stream.next_batch(take) == ["taken 0", "taken 1"]
    assert stream.next_batch(take) == ["taken 2"]
    assert events == ["asked for 0", (0, 0), "asked for 1", (1, 1), "asked for 2", (0, 2)]


def test_a_stream_that_ended_is_not_asked_again() -> None:
    asked = []

    class Once:
        def __iter__(self) -> Once:
            return self

        def __next__(self) -> int:
            asked.append(1)
            raise StopIteration

    stream = Stream(Once(), 2, False)
    assert [stream.next_batch(), stream.next_batch()] == [[], []]
    assert len(asked) == 1


def test_an_error_comes_out_and_the_stream_goes_on_if_it_can() -> None:
    class Hiccup:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Hiccup:
            return self

        def __next__(self) -> int:
            self.at += 1
            if self.at == 3:
                raise ValueError("hiccup")
            return self.at

    stream = Stream(Hiccup(), 2, False)
    assert stream.next_batch() == [1, 2]
    with pytest.raises(ValueError, match="hiccup"):
        stream.next_batch()
    assert stream.next_batch() == [4, 5]


class Stumbling:
    """Counts; numbers in `bad` are raised instead."""

    def __init__(self, bad: range | set[int]) -> None:
        self.bad = bad
        self.next = 0

    def __iter__(self) -> Stumbling:
        return self

    def __next__(self) -> int:
        number, self.next = self.next, self.next + 1
        if number in self.bad:
            raise KeyError(number)
        return number


def test_what_came_before_a_failure_is_kept_if_asked_for() -> None:
    stream = Stream(Stumbling({2, 3}), 4, False, keeps=True)
    for _ in range(2):
        with pytest.raises(KeyError):
            stream.next_batch()
    assert stream.next_batch() == [0, 1, 4, 5]
    assert not stream.is_hopeless


def test_what_came_before_a_failure_is_lost_otherwise() -> None:
    stream = Stream(Stumbling({2}), 4, False)
    with pytest.raises(KeyError):
        stream.next_batch()
    assert stream.next_batch() == [3, 4, 5, 6]


def test_a_stream_is_hopeless_after_many_failures_without_a_sample() -> None:
    good = MOST_FAILURES - 1
    stream = Stream(Stumbling({n for n in range(3 * MOST_FAILURES) if n != good}), 2, False, keeps=True)
    hopeless = []
    for _ in range(good + MOST_FAILURES):
        with pytest.raises(KeyError):
            stream.next_batch()
        hopeless.append(stream.is_hopeless)
    assert hopeless == [False] * (good + MOST_FAILURES - 1) + [True]
