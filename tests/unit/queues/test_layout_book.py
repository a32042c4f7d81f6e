"""The layouts a pool knows: one word per layout, the same in every process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from minato._queues.arena import Arena
from minato._queues.board import NO_LAYOUT
from minato._queues.control import ControlBlock
from minato._queues.layout import learn
from minato._queues.layout_book import MOST_LAYOUTS, LayoutBook


@pytest.fixture
def books() -> Iterator[list[LayoutBook]]:
    """Of three processes."""
    control, arenas = ControlBlock.create(1, 1), [Arena.create()]
    arenas += [Arena(os.dup(arenas[0].fd)) for _ in range(2)]
    yield [LayoutBook(control, arena) for arena in arenas]
    control.close()
    for arena in arenas:
        arena.close()


def test_all_processes_give_a_layout_the_same_word(books: list[LayoutBook]) -> None:
    samples = [torch.zeros(2), (torch.zeros(3), 1), {"a": "text"}]
    words = [books[0].word_for(samples[0]), books[1].word_for(samples[1]), books[2].word_for(samples[2])]
    assert words == [1, 2, 3]
    for book in books:
        assert [book.word_for(sample) for sample in samples] == words
        assert [book.layout(word) for word in words] == [learn(sample) for sample in samples]


def test_a_reader_finds_what_others_registered(books: list[LayoutBook]) -> None:
    word = books[0].word_for([1, 2.0])
    assert books[1].layout(word) == learn([1, 2.0])


@pytest.mark.parametrize("sample", [object(), {1.5: 1}, {("a",): 1}, {None: 1}, [{"a": {b"k": 1}}]])
def test_what_has_no_layout_or_strange_keys_goes_through_the_heap(books: list[LayoutBook], sample: Any) -> None:
    assert books[0].word_for(sample) == NO_LAYOUT


def test_too_many_layouts_go_through_the_heap(books: list[LayoutBook]) -> None:
    words = [books[n % 3].word_for(torch.zeros(n)) for n in range(MOST_LAYOUTS + 3)]
    assert words == [*range(1, MOST_LAYOUTS + 1), *[NO_LAYOUT] * 3]
    assert books[1].word_for(torch.zeros(5)) == 6


def test_keys_that_are_equal_but_of_other_types_do_not_share_a_layout(books: list[LayoutBook]) -> None:
    number, truth = books[0].word_for({1: 5}), books[0].word_for({True: 5})
    assert [type(key) for key in books[0].layout(number).root.keys] == [int]  # type: ignore[union-attr]
    assert truth == NO_LAYOUT
