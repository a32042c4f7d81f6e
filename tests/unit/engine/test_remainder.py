"""What is left of an interrupted epoch, checked against sets of positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._engine.remainder import Delivered, Portion, Rest
from minato._queues.keys import Indices


def delivered(positions: set[int]) -> Delivered:
    frontier = max(positions, default=-1) + 1
    return Delivered(frontier, np.array(sorted(set(range(frontier)) - positions), np.int64))


def positions_of(what: Delivered) -> set[int]:
    return set(range(what.frontier)) - set(what.missing.tolist())


@given(st.sets(st.integers(0, 40)), st.data())
def test_a_run_that_began_with_the_rest_tells_what_is_delivered_in_all(before: set[int], data: st.DataObject) -> None:
    left = [position for position in range(60) if position not in before]
    issued = data.draw(st.integers(0, len(left)))
    waiting = data.draw(st.sets(st.integers(0, issued - 1))) if issued else set()
    after = delivered(before).after(issued, np.array(sorted(waiting), np.int64))
    assert positions_of(after) == before | {left[n] for n in range(issued) if n not in waiting}
    assert after.count == len(positions_of(after))
    assert after.frontier == max(positions_of(after), default=-1) + 1


@given(st.sets(st.integers(0, 60)))
def test_stretches_tell_the_same(before: set[int]) -> None:
    what = delivered(before)
    again = Delivered.from_runs(what.frontier, what.runs())
    assert positions_of(again) == before
    assert all(type(number) is int for run in what.runs() for number in run)


@pytest.mark.parametrize(
    ("frontier", "runs"), [(5, [[3, 3]]), (9, [[4, 1], [2, 1]]), (9, [[2, 2], [3, 1]]), (9, [[2, 0]]), (-1, [])]
)
def test_impossible_stretches_are_refused(frontier: int, runs: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="stretch"):
        Delivered.from_runs(frontier, runs)


def rest_of(before: Delivered, batches: list[Indices], size: int | None) -> list[Portion]:
    rest = Rest(before, size)
    portions = [portion for batch in batches for portion in rest.add(batch)]
    return portions + rest.end()


@given(st.integers(0, 30), st.integers(1, 6), st.sets(st.integers(0, 29)))
def test_samples_that_are_left_make_full_batches_in_order(length: int, size: int, before: set[int]) -> None:
    before = {position for position in before if position < length}
    keys = (np.arange(length) + 100).view(Indices)
    portions = rest_of(delivered(before), [keys[n : n + size] for n in range(0, length, size)], size)
    left = [position for position in range(length) if position not in before]
    assert [origin for portion in portions for origin in portion.origins] == left
    assert [int(str(key)) for portion in portions for key in portion.keys] == [position + 100 for position in left]
    assert [len(portion.keys) for portion in portions[:-1]] == [size] * len(portions[:-1])
    for portion in portions:
        assert portion.is_contiguous == (portion.origins[-1] - portion.origins[0] == len(portion.origins) - 1)


def test_batches_that_are_left_keep_their_members_and_positions() -> None:
    rest = Rest(Delivered(3, np.array([1])), None)
    portions = [portion for batch in (["a"], ["b", "c"], [], ["d", "e"]) for portion in rest.add(batch)]
    assert [(portion.keys, portion.origins) for portion in portions] == [
        (["b", "c"], range(1, 3)),
        (["d", "e"], range(3, 5)),
    ]
    assert rest.end() == []
