"""The ledger agrees with a plain list of what was given out and what was delivered."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato._errors import InternalError
from minato._queues.ledger import Ledger


@pytest.mark.parametrize("few", [0, 64], ids=["all at once", "one by one"])
def test_any_course_of_an_epoch_agrees_with_the_model(few: int) -> None:
    with mock.patch("minato._queues.ledger._FEW", few):
        _compare_with_the_model()


@settings(max_examples=80)
@given(st.data())
def _compare_with_the_model(data: st.DataObject) -> None:
    """Batches are issued and positions delivered in any order; all that the ledger tells is checked after each."""
    ledger = Ledger()
    batches: dict[int, range] = {}
    delivered: set[int] = set()
    number = data.draw(st.integers(0, 10**6))
    for _ in range(data.draw(st.integers(1, 20))):
        issued = ledger.issued
        left = [p for p in range(issued) if p not in delivered]
        if not left or data.draw(st.booleans()):
            count = data.draw(st.integers(1, 6))
            assert ledger.issue(number, count) == issued
            batches[number] = range(issued, issued + count)
            number += data.draw(st.integers(1, 3))
        else:
            chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, max_size=8, unique=True))
            if data.draw(st.booleans()):  # what one worker made in one go, over as many batches as it may be
                from_there = left[left.index(chosen[0]) :]
                count = sum(p == from_there[0] + step for step, p in enumerate(from_there[: len(chosen)]))
                chosen = range(from_there[0], from_there[0] + count)
            ledger.deliver(chosen)
            delivered.update(chosen)
        open_batches = [b for b, members in batches.items() if not delivered.issuperset(members)]
        assert list(ledger.open_batches) == open_batches
        assert ledger.oldest == (open_batches[0] if open_batches else None)
        assert ledger.delivered == len(delivered)
        assert ledger.is_delivered(0, ledger.issued).tolist() == [p in delivered for p in range(ledger.issued)]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_whole_batches_are_delivered_in_any_order_over_any_length(sizes: list[int], random: object) -> None:
    ledger = Ledger()
    for batch, size in enumerate(sizes):
        ledger.issue(batch, size)
    order = list(range(len(sizes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for batch in order:
        ledger.deliver_batch(batch)
    assert ledger.delivered == ledger.issued == sum(sizes)
    assert ledger.is_delivered(0, ledger.issued).all()
    assert ledger.oldest is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((-1,), "given out"),
        ((6,), "given out"),
        ((0, 6), "given out"),
        ((2, 2), "delivered twice"),
        ((1,), "delivered twice"),
        ((3, 1), "delivered twice"),
    ],
)
def test_what_must_not_happen_raises_and_changes_nothing(bad: tuple[int, ...], message: str) -> None:
    ledger = Ledger()
    ledger.issue(0, 3)
    ledger.issue(1, 3)
    ledger.deliver([1])
    with pytest.raises(InternalError, match=message):
        ledger.deliver(bad)
    assert ledger.delivered == 1
    assert ledger.undelivered().tolist() == [0, 2, 3, 4, 5]
    assert list(ledger.open_batches) == [0, 1]


@pytest.mark.parametrize("kind", [range, list])
@pytest.mark.parametrize("bad", [range(50, 150), range(150, 250), range(-50, 50)], ids=["twice", "never", "below"])
def test_many_that_must_not_be_delivered_raise_and_change_nothing(bad: range, kind: type) -> None:
    ledger = Ledger()
    for batch in range(2):
        ledger.issue(batch, 100)
    ledger.deliver(range(100))
    with pytest.raises(InternalError, match="delivered"):
        ledger.deliver(bad if kind is range else list(bad))
    assert ledger.delivered == 100
    assert ledger.undelivered().tolist() == list(range(100, 200))
    assert list(ledger.open_batches) == [1]


def test_a_batch_delivered_twice_raises() -> None:
    ledger = Ledger()
    ledger.issue(5, 2)
    ledger.deliver_batch(5)
    with pytest.raises(InternalError, match="batch 5 was delivered twice"):
        ledger.deliver_batch(5)


def test_delivering_nothing_is_nothing() -> None:
    ledger = Ledger()
    ledger.deliver([])
    ledger.deliver(range(0))
    assert (ledger.issued, ledger.delivered, ledger.oldest) == (0, 0, None)


def test_the_home_of_a_position_is_where_it_was_given_out() -> None:
    ledger = Ledger()
    ledger.issue(7, 3)
    ledger.issue(8, 2)
    ledger.issue(9, 4)
    ledger.deliver_batch(8)
    assert [ledger.home_of(position) for position in (0, 2, 5, 8)] == [(7, 0), (7, 2), (9, 0), (9, 3)]
