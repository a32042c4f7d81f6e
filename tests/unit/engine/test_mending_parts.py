"""Small parts of mending and of waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minato._engine.feeds import TicketFeed, make_feed
from minato._engine.hangs import Patience
from minato._plan import Collate
from minato._queues.fields import Batch, Flag, State
from minato._queues.keys import Placed
from minato._queues.posting import PostingBoard
from minato._queues.reopening import keys_of, set_key
from minato._workers.stacks import innermost

from .test_feeds import board, plan, post_all

__all__ = ["board"]


def feed_of(batches: list[Any], **changed: Any) -> TicketFeed:
    feed = make_feed(0, 0, plan(mends=True, skips=True, short_batch_last=True, **changed), batches)
    assert isinstance(feed, TicketFeed)
    return feed


def plainly(keys: Sequence[Any]) -> list[Any]:
    """Keys without the places they come from."""
    return [key.key if isinstance(key, Placed) else key for key in keys]


def make_sound(board: PostingBoard, *batches: int) -> None:
    for batch in batches:
        board.control.words[board.control.batch(batch) + Batch.STATE] = State.READY


def test_keys_taken_for_others_are_followed_by_full_batches(board: PostingBoard) -> None:
    feed = feed_of([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]])
    assert feed.post(board, 0)
    assert plainly(feed.replacements([0, 1])) == [4, 5]
    make_sound(board, 0)
    assert feed.post(board, 1)
    assert feed.post(board, 2) is False  # what is left may still be needed
    assert not feed.exhausted
    assert plainly(keys_of(board, 1, 0, 3)) == [6, 7, 8]
    make_sound(board, 1)
    assert feed.post(board, 2)
    assert plainly(keys_of(board, 2, 0, 2)) == [9, 10]
    assert not feed.post(board, 3)
    assert feed.exhausted


def test_spare_keys_end_with_the_sampler(board: PostingBoard) -> None:
    feed = feed_of([[1, 2], [3]])
    assert feed.post(board, 0)
    assert plainly(feed.replacements([0, 1])) == [3]
    assert feed.replacements([0]) == []
    assert not feed.post(board, 1)
    assert feed.exhausted


def test_keys_that_are_given_back_are_posted_again_as_the_last_batch(board: PostingBoard) -> None:
    feed = feed_of([[1, 2], [3, 4]])
    assert post_all(feed, board) == 2
    assert feed.exhausted
    assert feed.last_of(feed.out) == 1
    feed.out.remove(1)
    feed.give_back(1, [2], [3])
    assert not feed.exhausted
    make_sound(board, 0)
    assert feed.post(board, 2)
    assert feed.last_of(feed.out) == 2
    assert plainly(keys_of(board, 2, 0, 1)) == [3]


def test_a_short_rest_is_dropped_where_short_batches_are(board: PostingBoard) -> None:
    feed = feed_of([[1, 2, 3], [4, 5, 6]], drop_last=True)
    assert feed.post(board, 0)
    assert plainly(feed.replacements([0])) == [4]
    assert not feed.post(board, 1)
    assert feed.exhausted


def test_a_batch_with_an_error_keeps_the_rest_back(board: PostingBoard) -> None:
    feed = feed_of([[1, 2, 3], [4, 5]])
    assert feed.post(board, 0)
    assert plainly(feed.replacements([0])) == [4]
    make_sound(board, 0)
    board.control.words[board.control.batch(0) + Batch.FLAGS] |= Flag.ERROR
    assert not feed.post(board, 1)
    assert not feed.exhausted


@pytest.mark.parametrize("key", [9, "nine", 1 << 80, None, (1, 2)], ids=repr)
def test_a_ticket_may_get_a_key_of_any_kind(board: PostingBoard, key: Any) -> None:
    feed = feed_of([[1, 2, 3]], collate=Collate.ROWS)
    assert feed.post(board, 0)
    set_key(board, 0, 1, key)
    assert plainly(keys_of(board, 0, 0, 3)) == [1, key, 3]


def test_waiting_without_limit_is_never_over() -> None:
    patience = Patience(0)
    assert patience.deadline is None
    assert not patience.is_over
    assert not patience.extend(1e18)


def test_waiting_is_extended_no_further_than_twice() -> None:
    patience = Patience(1000.0)
    assert patience.deadline is not None
    first = patience.deadline
    assert not patience.extend(None)
    assert not patience.extend(first - 10_000)
    assert patience.extend(first + 500)
    assert patience.deadline == first + 500
    assert not patience.extend(first + 1500)


def test_the_innermost_line_of_a_stack_is_named() -> None:
    stack = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n  File "b.py", line 9 in g'
    assert innermost(stack) == 'at File "a.py", line 3 in f'
    assert innermost("") == "at a place that is not known"
