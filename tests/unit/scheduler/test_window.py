"""How many batches are kept in flight within the memory budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._scheduler.window import Window


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], 3),
        ([0], 8),
        ([1], 8),
        ([125], 8),
        ([126], 7),
        ([500], 2),
        ([501], 1),
        ([1000], 1),
        ([10**9], 1),
        ([10, 500], 2),
    ],
)
def test_the_window_follows_the_largest_batch_seen_lately(sizes: list[int], expected: int) -> None:
    window = Window(8, 1000, first=3)
    for size in sizes:
        window.observe(size)
    assert window.size == expected


def test_it_shrinks_at_once_and_opens_slowly() -> None:
    window = Window(10, 1000, first=3)
    window.observe(1000)
    sizes = []
    for _ in range(60):
        window.observe(100)
        sizes.append(window.size)
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 9


@given(st.integers(1, 100), st.integers(1, 10**12), st.lists(st.integers(0, 10**12), max_size=20))
def test_it_stays_between_one_and_the_plan_and_under_the_budget(most: int, budget: int, sizes: list[int]) -> None:
    window = Window(most, budget, first=3)
    for size in sizes:
        window.observe(size)
        assert 1 <= window.size <= most
        assert window.size == 1 or window.size * size <= budget * (1 + 1e-9)


def test_it_is_narrowed_while_the_budget_is_what_bounds_it() -> None:
    window = Window(4, 1000, 4)
    assert not window.is_narrowed
    for batch_bytes, narrowed in ((200, False), (400, True), (200, True)):
        window.observe(batch_bytes)
        assert window.is_narrowed is narrowed
    window.resize(2)
    assert not window.is_narrowed


def test_before_the_first_batch_it_is_no_wider_than_the_plan() -> None:
    assert Window(2, 1000, first=3).size == 2
