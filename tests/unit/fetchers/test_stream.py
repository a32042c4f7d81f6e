"""Streams of iterable datasets, cut into batches as torch cuts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from minato._fetchers.stream import Stream


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
