"""A worker killed before every single store of every call: nothing is lost, nothing is served twice, no held batch
changes, whether the death is noticed at once or long after."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from minato._queues.fields import Header

from .crew import Crew

SCENARIOS = [(1, 0), (1, 3), (4, 0), (4, 1)]  # tickets per pull, and at which occurrence of the call the worker dies


@contextmanager
def crew(late: bool, collates: bool, parks: bool = False, orphans: bool = False) -> Iterator[Crew]:
    """Three batches for three workers. `orphans`: left over by a worker that died before, and its rows too."""
    made = Crew(late, collates, parks, workers=3)
    try:
        for _ in range(3):
            made.post()
        if orphans:
            die_with_a_run_in_hand(made)
        yield made
    finally:
        made.close()


def die_with_a_run_in_hand(made: Crew) -> None:
    whole_from, made.whole_from = made.whole_from, 4
    hand = made.hands[2]
    hand.step(4)
    hand.step()
    hand.dead = True
    made.recover()
    made.whole_from = whole_from


def kill_inside(made: Crew, call: str, want: int, occurrence: int, stores: int) -> bool:
    """Kill worker 0 inside a call, after `stores` stores of it. False: the call was over before, or never came."""
    hand = made.hands[0]
    for _ in range(occurrence + 1):
        while hand.next_call != call:
            if not hand.step(want):
                return False
        if occurrence:
            occurrence -= 1
            hand.step(want)
    hand.board.fuse.left = stores
    hand.step(want)
    return hand.dead


def check_that_work_goes_on(made: Crew, want: int, others: int) -> None:
    """Another worker takes `others` steps before the death is noticed; then everything is finished."""
    for _ in range(others):
        made.hands[1].step(want)
        made.deliver(keep=True)
        made.check()
    made.recover()
    made.finish()


def failures(late: bool, collates: bool, parks: bool, call: str, orphans: bool, others: int) -> list[object]:
    found: list[object] = []
    for want, occurrence in SCENARIOS:
        for stores in count():
            with crew(late, collates, parks, orphans) as made:
                if not kill_inside(made, call, want, occurrence, stores):
                    break
                try:
                    check_that_work_goes_on(made, want, others)
                except Exception as error:
                    found.append(((want, occurrence, stores), repr(error)[:200]))
    return found


MODES = {
    "in order": (False, False, False),
    "overtaking": (True, False, False),
    "in order, collated": (False, True, False),
    "overtaking, collated": (True, True, False),
    "in order, parking": (False, False, True),
    "overtaking, parking": (True, False, True),
}
CALLS = ["pull", "claim", "bind", "commit", "collate", "finish"]


def cases() -> Iterator[Any]:
    for case in itertools.product(MODES, [*CALLS, "park", "unpark"], [False, True], [0, 5, 40]):
        mode, call, orphans, others = case
        if (call in ("park", "unpark")) > MODES[mode][2]:
            continue
        label = f"{mode}, {call}, {'with orphans' if orphans else 'fresh'}, {others} steps later"
        yield pytest.param(*case, id=label)


@pytest.mark.parametrize(("mode", "call", "orphans", "others"), [*cases()])
def test_a_kill_inside_a_call_loses_nothing(mode: str, call: str, orphans: bool, others: int) -> None:
    assert failures(*MODES[mode], call, orphans, others) == []


def test_a_result_handed_in_by_halves_is_not_used_for_other_samples() -> None:
    """A worker had all samples of a batch and died handing in their collation; other samples get the batch's rows."""
    found = []
    for stores in count():
        with crew(late=True, collates=True) as made:
            made.hands[0].step(4)
            made.whole_from = 0
            made.hands[1].step(1)
            if not kill_inside(made, "finish", 4, 0, stores):
                break
            made.recover()
            made.hands[1].step(1)
            try:
                made.finish()
            except Exception as error:
                found.append((stores, repr(error)[:200]))
    assert found == []


def test_recovery_twice_posts_nothing_twice() -> None:
    with crew(late=True, collates=False) as made:
        made.hands[0].step(4)
        made.hands[0].dead = True
        made.recover()
        words = made.control.words
        orphans = words[Header.ORPHAN_TAIL] - words[Header.ORPHAN_HEAD]
        made.recover()
        assert words[Header.ORPHAN_TAIL] - words[Header.ORPHAN_HEAD] == orphans == 1
        made.finish()
