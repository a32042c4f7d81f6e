"""The board under all kinds of interleaving: every position is delivered once, whoever dies, wherever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from minato._queues.fields import Batch, Header, State
from minato._queues.reopening import Ticket, reopen
from minato._records import EarlyStart, Run

from .crew import Crew

WORKERS = 3
SETTINGS = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


class BoardMachine(RuleBasedStateMachine):
    """Workers pull, claim, commit, finish and die in any order; the main process posts, delivers, recovers."""

    late: bool
    collates: bool
    fused: bool
    parks = False
    away = False
    early = False
    """Whether some tickets are offered before their turn."""

    def __init__(self) -> None:
        super().__init__()
        self.crew = Crew(self.late, self.collates, self.parks, WORKERS, away=self.away)

    @rule(rows=st.sampled_from([4, 4, 4, 3]), early=st.sets(st.integers(0, 3)), lead=st.integers(0, 3))
    @precondition(lambda self: self.crew.may_post())
    def post(self, rows: int, early: set[int], lead: int) -> None:
        # Rows of a late epoch are alike but for its last batch; in order, any size goes.
        rows = 4 if self.late else rows
        places = [place for place in early if place < rows] if self.early else []
        self.crew.post(rows, EarlyStart(places, lead) if places else None)

    @rule(worker=st.integers(0, WORKERS - 1), want=st.integers(1, 4), steps=st.integers(1, 3))
    def work(self, worker: int, want: int, steps: int) -> None:
        hand = self.crew.hands[worker]
        for _ in range(steps):
            if not hand.dead:
                hand.step(want)

    @rule(worker=st.integers(0, WORKERS - 1))
    def kill_between_calls(self, worker: int) -> None:
        self.crew.hands[worker].dead = True

    @rule(worker=st.integers(0, WORKERS - 1), stores=st.integers(0, 12))
    @precondition(lambda self: self.fused)
    def kill_inside_a_call(self, worker: int, stores: int) -> None:
        hand = self.crew.hands[worker]
        hand.board.fuse.left = stores
        while not hand.dead and hand.step():
            pass
        hand.board.fuse.left = None

    @rule()
    @precondition(lambda self: any(hand.dead for hand in self.crew.hands))
    def recover(self) -> None:
        self.crew.recover()

    @rule()
    def recover_for_no_reason(self) -> None:
        if not any(hand.dead for hand in self.crew.hands):
            self.crew.recover()

    @rule(keep=st.booleans())
    def deliver(self, keep: bool) -> None:
        self.crew.deliver(keep)

    @rule()
    @precondition(lambda self: self.crew.lent)
    def user_lets_go(self) -> None:
        self.crew.lent.pop(0)

    @rule()
    @precondition(lambda self: len(self.crew.void) < self.crew.window)
    def abandon(self) -> None:
        self.crew.abandon()

    @rule()
    def reclaim(self) -> None:
        self.crew.reclaim()

    @invariant()
    def all_is_well(self) -> None:
        self.crew.check()
        if not any(hand.dead for hand in self.crew.hands):
            assert self.crew.board.held() == self.crew.held_by_hands()

    def teardown(self) -> None:
        try:
            self.crew.finish()
        finally:
            self.crew.close()


MODES = pytest.mark.parametrize(
    ("late", "collates"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["in order", "overtaking", "in order, collated", "overtaking, collated"],
)


def machine(**settings: Any) -> type[BoardMachine]:
    return type("Machine", (BoardMachine,), settings)


@MODES
def test_everything_is_delivered_once_when_workers_die_between_calls(late: bool, collates: bool) -> None:
    run_state_machine_as_test(machine(late=late, collates=collates, fused=False), settings=SETTINGS)


@MODES
def test_everything_is_delivered_once_when_workers_die_inside_calls(late: bool, collates: bool) -> None:
    run_state_machine_as_test(machine(late=late, collates=collates, fused=True), settings=SETTINGS)


@pytest.mark.parametrize("late", [False, True], ids=["in order", "overtaking"])
@pytest.mark.parametrize("fused", [False, True], ids=["between calls", "inside calls"])
def test_everything_is_delivered_once_when_samples_are_parked(late: bool, fused: bool) -> None:
    run_state_machine_as_test(machine(late=late, collates=False, fused=fused, parks=True), settings=SETTINGS)


@MODES
def test_everything_is_delivered_once_when_work_is_set_aside(late: bool, collates: bool) -> None:
    run_state_machine_as_test(machine(late=late, collates=collates, fused=True, away=True), settings=SETTINGS)


@MODES
def test_everything_is_delivered_once_when_tickets_are_taken_early(late: bool, collates: bool) -> None:
    chosen = machine(late=late, collates=collates, fused=True, early=True, parks=not collates)
    run_state_machine_as_test(chosen, settings=SETTINGS)


@pytest.mark.parametrize("late", [False, True], ids=["in order", "overtaking"])
def test_the_next_batch_goes_into_the_slot_that_came_back_while_the_consumer_waits(late: bool) -> None:
    crew = Crew(late, collates=False, workers=1)
    try:
        for _ in range(3):
            crew.post()
        while not crew.deliver(keep=True):
            assert crew.hands[0].step(crew.rows)
        used = next(iter(crew.slots._warm))
        crew.lent.clear()
        assert not crew.deliver(), "the consumer waits"
        while crew.board.field(1, Batch.SLOT) < 0:
            assert crew.hands[0].step(crew.rows)
        assert crew.board.field(1, Batch.SLOT) == used
        crew.check()
    finally:
        crew.close()


def free_slots(crew: Crew) -> list[int]:
    words, base = crew.control.words, crew.control.free_base
    return words[base : base + words[Header.FREE_SLOTS]].tolist()


def test_slots_without_memory_are_under_all_others() -> None:
    crew = Crew(late=False, collates=False, workers=1)
    try:
        warm = {1, 2}
        crew.board.is_warm = warm.__contains__
        for _ in range(5):
            crew.post()
        assert sorted(free_slots(crew)) == [0, 1, 2, 3, 4]
        assert set(free_slots(crew)[-2:]) == warm
    finally:
        crew.close()


@pytest.mark.parametrize("late", [False, True], ids=["in order", "overtaking"])
@pytest.mark.parametrize(
    ("tickets", "want", "expected"),
    [
        (100, 100, [100]),
        (100, 99, [50, 50]),
        (100, 40, [34, 33, 33]),
        (100, 34, [34, 33, 33]),
        (7, 3, [3, 2, 2]),
        (7, 1, [1] * 7),
        (1, 5, [1]),
    ],
)
def test_a_batch_is_cut_into_even_runs_none_longer_than_wished_for(
    late: bool, tickets: int, want: int, expected: list[int]
) -> None:
    """A few tickets that are left over would be a run of their own."""
    crew = Crew(late, collates=False, workers=1)
    try:
        crew.post(tickets)
        runs = []
        while sum(runs) < tickets:
            run = crew.hands[0].board.pull(want, with_rows=late)
            assert isinstance(run, Run)
            runs.append(len(run.keys))
        assert runs == expected
    finally:
        crew.close()


@pytest.mark.parametrize(("want", "said"), [(4, 1), (2, 0)], ids=["in one go", "in two"])
def test_a_batch_says_whether_one_worker_made_it_in_one_go(want: int, said: int) -> None:
    crew = Crew(late=True, collates=False, workers=1)

    def complete() -> int:
        while crew.board.state(0) != State.READY:
            assert crew.hands[0].step(want)
        return crew.board.field(0, Batch.RUN)

    try:
        crew.post()
        assert complete() == said
        reopen(crew.board, 0, [Ticket(0, 1, 1)], rows_are_spare=True)
        assert complete() == 0, "a row was made later"
        assert crew.deliver()
        crew.check()
    finally:
        crew.close()
