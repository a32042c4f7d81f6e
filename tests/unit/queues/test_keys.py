"""Keys of tickets come back as they were, types included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato._queues.arena import Arena
from minato._queues.keys import read_keys, unpickled, write_keys

KEY = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(),
    st.booleans(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
    st.floats(allow_nan=False),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.integers(-(2**31), 2**31 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.lists(st.integers(), max_size=3),
)


def typed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value), [typed(v) for v in value]
    return type(value), value


@settings(max_examples=150)
@given(st.one_of(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(KEY)), st.data())
def test_any_stretch_of_keys_comes_back_with_its_types(keys: list[Any], data: st.DataObject) -> None:
    arena = Arena.create()
    try:
        write_keys(arena, 2, [0] * 50)  # what an earlier batch left
        nbytes = write_keys(arena, 2, keys)
        first = data.draw(st.integers(0, len(keys)))
        count = data.draw(st.integers(0, len(keys) - first))
        found = unpickled(read_keys(arena, 2, nbytes, first, count))
        assert typed(found) == typed(keys[first : first + count])
    finally:
        arena.close()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([], True),
        ([0, -1, 2**63 - 1, -(2**63)], True),
        ([2**63], False),
        ([True], False),
        ([np.int64(3)], False),
        ([1, "a"], False),
        ((1, 2), True),
    ],
)
def test_only_plain_ints_are_words(keys: Any, words: bool) -> None:
    arena = Arena.create()
    assert (write_keys(arena, 0, keys) == 0) is words
    arena.close()


def test_three_keys_that_look_like_a_pickle_are_left_alone() -> None:
    assert unpickled([1, 2, 3]) == [1, 2, 3]
    keys = [b"data", 0, 1]
    arena = Arena.create()
    nbytes = write_keys(arena, 0, keys)
    assert unpickled(read_keys(arena, 0, nbytes, 0, 3)) == keys
    arena.close()
