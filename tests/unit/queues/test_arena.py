"""The arena: all mappings of a piece show the same memory, and memory given back is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato._queues.arena import Arena, Stretch

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create()
    yield made
    made.close()


@pytest.fixture
def other(arena: Arena) -> Iterator[Arena]:
    """The same file, as another process has it."""
    made = Arena(os.dup(arena.fd), is_worker=True)
    yield made
    made.close()


def real_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


@settings(max_examples=30)
@given(
    writes=st.lists(
        st.tuples(
            st.sampled_from([Stretch.SLOT, Stretch.KEYS, Stretch.LAYOUT, Stretch.WORKER, Stretch.UPDATE]),
            st.integers(0, 5),
            st.integers(0, 3 * MIB),
            st.binary(min_size=1, max_size=64),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_what_one_mapping_writes_all_others_read(writes: list[tuple[int, int, int, bytes]]) -> None:
    """Through views of any length taken at any time, old ones included; pieces never overlap."""
    arena = Arena.create()
    other = Arena(os.dup(arena.fd))
    try:
        model: dict[tuple[int, int], bytearray] = {}
        old = []
        for stretch, number, offset, data in writes:
            end = offset + len(data)
            view = arena.view(stretch, number, end)
            assert len(view) >= end
            view[offset:end] = np.frombuffer(data, np.uint8)
            piece = model.setdefault((stretch, number), bytearray(4 * MIB))
            piece[offset:end] = data
            old.append((stretch, number, view, other.view(stretch, number, end)))
        for stretch, number, view, seen in old:
            expected = model[stretch, number]
            assert view.tobytes() == bytes(expected[: len(view)])
            assert seen.tobytes() == bytes(expected[: len(seen)])
    finally:
        arena.close()
        other.close()


def test_a_longer_mapping_keeps_the_content_and_the_shorter_one(arena: Arena) -> None:
    short = arena.view(Stretch.SLOT, 3, 10)
    short[:3] = 1, 2, 3
    long = arena.view(Stretch.SLOT, 3, len(short) + 1)
    assert len(long) > len(short)
    long[1] = 9
    assert short[:3].tolist() == [1, 9, 3]


def test_an_unwritten_piece_takes_no_memory(arena: Arena) -> None:
    assert not arena.view(Stretch.SLOT, 7, 64 * MIB)[-10:].any()
    assert real_bytes(arena) < MIB


@pytest.mark.parametrize("keep", [0, 1, 4096, 5000, MIB])
def test_discarding_gives_memory_back_but_for_what_is_kept(arena: Arena, other: Arena, keep: int) -> None:
    view = arena.view(Stretch.SLOT, 0, 4 * MIB)
    view[:] = 1
    neighbour = arena.view(Stretch.SLOT, 1, MIB)
    neighbour[:] = 2
    arena.discard(Stretch.SLOT, 0, keep)
    pages = -(-keep // 4096) * 4096
    assert real_bytes(arena) <= pages + MIB  # before they are read, which makes pages of holes
    assert view[:pages].all()
    assert not view[pages:].any()
    assert not other.view(Stretch.SLOT, 0, 4 * MIB)[pages:].any()
    assert (neighbour == 2).all()
    view[:] = 3
    assert (other.view(Stretch.SLOT, 0, 4 * MIB) == 3).all()


def test_discarding_what_was_never_mapped_is_nothing(arena: Arena) -> None:
    arena.discard(Stretch.SLOT, 100)


def test_the_first_and_far_pieces_do_not_overlap(arena: Arena) -> None:
    views = [arena.view(stretch, number, 8) for stretch in range(6) for number in (0, 1, 999)]
    for value, view in enumerate(views, 1):
        view[:8] = value
    assert [int(view[0]) for view in views] == list(range(1, len(views) + 1))


def test_a_workers_writes_to_the_program_stay_its_own(arena: Arena, other: Arena) -> None:
    arena.view(Stretch.PROGRAM, 0, 8)[:8] = 5
    mine = other.view(Stretch.PROGRAM, 0, 8)
    assert mine[0] == 5
    mine[0] = 6
    assert arena.view(Stretch.PROGRAM, 0, 8)[0] == 5


def test_a_piece_has_a_largest_size(arena: Arena) -> None:
    with pytest.raises(MemoryError, match="at most 1073741824 bytes, 1073741825 were needed"):
        arena.view(Stretch.LAYOUT, 0, (1 << 30) + 1)


def test_views_outlive_the_arena_and_closing_twice_is_fine() -> None:
    arena = Arena.create()
    view = arena.view(Stretch.SLOT, 0, 8)
    view[0] = 4
    arena.close()
    arena.close()
    assert view[0] == 4


def test_mappings_take_no_file_descriptors(arena: Arena) -> None:
    before = len(os.listdir("/proc/self/fd"))
    views = [arena.view(Stretch.SLOT, number, 1) for number in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(views) == 50
