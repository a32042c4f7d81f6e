"""What is posted next: the sampler's batches, or turns of the workers' streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from minato._engine.feeds import StreamFeed, make_feed
from minato._plan import Collate, Order, Source, WorkerPlan
from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.fields import Batch, Flag
from minato._queues.posting import PostingBoard
from minato._queues.taking import TakingBoard
from minato._records import EarlyStart


def plan(**changed: Any) -> WorkerPlan:
    """A plan with sensible values; unknown fields of a newer plan count as off."""
    values: dict[str, Any] = {
        "source": Source.MAP,
        "order": Order.IN_ORDER,
        "collate": Collate.ROWS,
        "collate_fn": list,
        "num_workers": 3,
        "worker_init_fn": None,
        "batch_size": 2,
        "drop_last": False,
        **changed,
    }
    return WorkerPlan(**{field.name: values.get(field.name, False) for field in fields(WorkerPlan)})


@pytest.fixture
def board() -> Iterator[PostingBoard]:
    made = PostingBoard(ControlBlock.create(16, 3), Arena.create())
    yield made
    made.control.close()
    made.arena.close()


def post_all(feed: Any, board: PostingBoard, most: int = 10) -> int:
    for number in range(most):
        if not feed.post(board, number):
            return number
    return most


def test_batches_of_the_sampler_become_tickets(board: PostingBoard) -> None:
    feed = make_feed(4, 99, plan(), [[5, 6], (7, 8), [9]])
    assert post_all(feed, board) == 3
    assert feed.exhausted
    assert feed.out == [0, 1, 2] == list(feed.ledger.open_batches)
    assert feed.oldest == 0
    worker = TakingBoard(board.control, board.arena)
    runs = [worker.pull(2) for _ in range(5)]
    assert [(r.keys, r.position, r.epoch, r.seed) for r in runs] == [  # type: ignore[union-attr]
        ([key], position, 4, 99) for position, key in enumerate([5, 6, 7, 8, 9])
    ]


def test_the_sampler_is_asked_only_when_a_batch_is_posted(board: PostingBoard) -> None:
    asked: list[int] = []

    class Sampler:
        def __iter__(self) -> Iterator[list[int]]:
            for n in range(3):
                asked.append(n)
                yield [n]

    feed = make_feed(0, 0, plan(), Sampler())
    assert asked == []
    feed.post(board, 0)
    assert asked == [0]


def test_without_batching_a_key_is_a_batch(board: PostingBoard) -> None:
    feed = make_feed(0, 0, plan(collate=Collate.NONE), ["a", (1, 2)])
    assert post_all(feed, board) == 2
    worker = TakingBoard(board.control, board.arena)
    assert [worker.pull(1).keys for _ in range(2)] == [["a"], [(1, 2)]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("collate", "flags"), [(Collate.ROWS, 0), (Collate.FUNCTION, Flag.COLLATE), (Collate.NONE, Flag.COLLATE)]
)
def test_a_function_of_the_user_is_called_by_a_worker(board: PostingBoard, collate: Collate, flags: int) -> None:
    make_feed(0, 0, plan(collate=collate), [[1]]).post(board, 0)
    assert board.field(0, Batch.FLAGS) == flags


def test_an_error_of_the_sampler_posts_nothing(board: PostingBoard) -> None:
    def sampler() -> Iterator[list[int]]:
        yield [1]
        raise ValueError("sampler")

    feed = make_feed(0, 0, plan(), sampler())
    feed.post(board, 0)
    with pytest.raises(ValueError, match="sampler"):
        feed.post(board, 1)
    assert feed.out == [0]
    assert board.next_number == 1


def test_a_delivered_batch_may_still_have_stragglers(board: PostingBoard) -> None:
    """When samples overtake, a batch's tickets may outlive its rows: its record stays in use."""
    feed = make_feed(0, 0, plan(order=Order.SAMPLES_OVERTAKE), [[1, 2], [3, 4]])
    post_all(feed, board)
    feed.out.remove(0)
    assert feed.oldest == 0
    feed.ledger.deliver_batch(0)
    assert feed.oldest == 1
    opened = feed.open_epoch()
    assert (list(opened.homes), list(opened.slots), opened.ledger) == ([1], [1], feed.ledger)


def test_in_order_recovery_needs_no_ledger() -> None:
    assert make_feed(0, 0, plan(), ()).open_epoch().ledger is None


def stream(order: Order = Order.IN_ORDER, **changed: Any) -> StreamFeed:
    feed = make_feed(0, 0, plan(source=Source.ITERABLE, order=order, **changed), iter(lambda: 0, 1))
    assert isinstance(feed, StreamFeed)
    return feed


def turns(board: PostingBoard, feed: StreamFeed) -> list[int]:
    return [board.field(batch, Batch.WORKER) for batch in feed.out]


def test_streams_take_turns_round_and_round(board: PostingBoard) -> None:
    feed = stream()
    post_all(feed, board, 7)
    assert turns(board, feed) == [0, 1, 2, 0, 1, 2, 0]
    assert board.field(0, Batch.ROWS) == 2


def test_a_stream_that_ended_has_no_more_turns(board: PostingBoard) -> None:
    feed = stream()
    post_all(feed, board, 3)
    feed.ended(1)
    post_all(feed, board, 4)
    assert turns(board, feed)[3:] == [0, 2, 0, 2]
    assert not feed.unfinished(1)
    assert feed.unfinished(0)


def test_the_fastest_stream_gets_the_turn_when_batches_may_overtake(board: PostingBoard) -> None:
    feed = stream(Order.BATCHES_OVERTAKE)
    post_all(feed, board, 3)
    feed.delivered(2)
    feed.post(board, 3)
    assert turns(board, feed) == [0, 1, 2, 2]


def test_the_epoch_ends_when_all_streams_have(board: PostingBoard) -> None:
    feed = stream()
    post_all(feed, board, 6)
    for batch in range(3):
        feed.ended(batch)
    assert not feed.post(board, 6)
    assert feed.exhausted
    assert all(feed.unfinished(worker) for worker in range(3))  # batches posted meanwhile are still out
    for batch in range(3, 6):
        feed.ended(batch)
    assert not any(feed.unfinished(worker) for worker in range(3))


def test_without_batching_a_turn_is_one_sample(board: PostingBoard) -> None:
    feed = stream(batch_size=None, collate=Collate.NONE)
    feed.post(board, 0)
    assert board.field(0, Batch.ROWS) == 1


def early(places: list[int], lead: int) -> Any:
    class Known:
        def early(self, keys: Any) -> EarlyStart | None:
            found = [place for place in places if place < len(keys) and keys[place] >= 100]
            return EarlyStart(found, lead) if found else None

    return Known()


def test_slow_samples_are_given_out_before_their_turn_and_the_others_in_order(board: PostingBoard) -> None:
    """From two batches before on: 100 when batch 0 is under way, 101 and 102 when batch 1 is; each once."""
    batches = [[1, 2], [3, 4], [5, 100], [101, 102], [6, 7]]
    feed = make_feed(0, 0, plan(), batches, early([0, 1], lead=2))
    post_all(feed, board)
    worker = TakingBoard(board.control, board.arena)
    taken = []
    while (run := worker.pull(1)) is not None:
        taken += run.keys  # type: ignore[union-attr]
        worker.drop()
    assert taken == [100, 1, 2, 101, 102, 3, 4, 5, 6, 7]
