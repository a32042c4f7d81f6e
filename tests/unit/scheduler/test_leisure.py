"""Whether there is time to make the next batch ready between two."""

from __future__ import annotations

from minato._scheduler.leisure import BEFORE, PAUSE, TRIAL, Leisure


def watched(step_s: float, cost_s: float, batches: int = BEFORE) -> Leisure:
    leisure = Leisure()
    for _ in range(batches):
        leisure.stepped(step_s)
        leisure.handed_over(cost_s)
    return leisure


def test_a_step_that_holds_the_work_of_next_is_used() -> None:
    assert watched(step_s=0.010, cost_s=0.0005).is_enough


def test_nothing_is_begun_before_some_batches_were_watched() -> None:
    assert not watched(step_s=0.010, cost_s=0.0005, batches=BEFORE - 1).is_enough


def test_a_consumer_that_comes_back_at_once_does_all_itself() -> None:
    assert not watched(step_s=0.0001, cost_s=0.0005).is_enough


def test_where_next_hardly_counts_no_thread_is_needed() -> None:
    assert not watched(step_s=1.0, cost_s=0.0005).is_enough


def test_a_loop_that_becomes_fast_does_all_itself_again() -> None:
    leisure = watched(step_s=0.010, cost_s=0.0005)
    for _ in range(60):
        leisure.stepped(0.0001)
    assert not leisure.is_enough


def test_a_thread_that_is_mostly_late_is_left_out_for_a_while() -> None:
    leisure = watched(step_s=0.010, cost_s=0.0005)
    for number in range(TRIAL):
        leisure.was_in_time(number % 4 == 0)
    assert not leisure.is_enough
    for _ in range(PAUSE):
        leisure.stepped(0.010)
    assert leisure.is_enough


def test_a_thread_that_is_late_now_and_then_goes_on() -> None:
    leisure = watched(step_s=0.010, cost_s=0.0005)
    for number in range(4 * TRIAL):
        leisure.was_in_time(number % 4 != 0)
    assert leisure.is_enough
