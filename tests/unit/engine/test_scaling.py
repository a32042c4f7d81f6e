"""Decisions about the number of workers are carried out one worker at a time, and nobody spins meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from minato._engine.scaling import PAUSE_S, Scaler
from minato._engine.totals import Totals
from minato._queues.posting import PostingBoard
from minato._scheduler.policy import Controller, Decision, Observation, WorkerLimits
from minato._scheduler.replay import Recorder
from minato._scheduler.threshold import ThresholdRule
from minato._scheduler.window import Window
from minato._workers.pool import WorkerPool

PERIOD_S = 1.0


@dataclass(frozen=True)
class Says:
    """A policy that wants a number that can be changed."""

    wanted: list[int]
    period_s: float = PERIOD_S

    def begin(self, limits: WorkerLimits) -> Controller:
        policy = self

        class Saying:
            def decide(self, observation: Observation) -> Decision:
                return Decision(limits.clamp(policy.wanted[0]), "as said", observation)

        return Saying()


@dataclass
class Pool:
    """Workers that are only counted."""

    active: int
    leaving: int = 0
    most: int = 8
    is_starting: bool = False
    refuses: bool = False
    asked: list[int] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)

    @property
    def has_place(self) -> bool:
        return self.active + self.leaving < self.most

    def resize(self, workers: int) -> None:
        if self.refuses and workers > self.active:
            raise OSError("no more processes")
        self.asked.append(workers)
        self.leaving += max(0, self.active - workers)
        self.active = workers


class Board:
    def count_slow_workers(self) -> int:
        return 0


class Bench:
    """A scaler of two workers at second 0, and its surroundings."""

    def __init__(self, wanted: int) -> None:
        self.now = 0.0
        self.pool, self.policy, self.totals = Pool(2), Says([wanted]), Totals()
        self.window = Window(4, 1 << 30, 4)
        self.scaler = Scaler(
            self.policy,
            WorkerLimits(1, 8, 2.0),
            cast(WorkerPool, self.pool),
            cast(PostingBoard, cast(Any, Board())),
            self.window,
            2,
            self.totals,
            Recorder(ThresholdRule()),
            lambda: self.now,
        )

    def look(self, at: float) -> None:
        self.now = at
        self.scaler.look(0, 0.0)


def test_workers_are_started_one_at_a_time_and_the_next_is_due_at_once() -> None:
    bench = Bench(wanted=5)
    bench.look(PERIOD_S)
    assert (bench.pool.asked, bench.scaler.due) == ([3], PERIOD_S)
    bench.look(PERIOD_S)
    bench.look(PERIOD_S)
    assert bench.pool.asked == [3, 4, 5]
    assert bench.scaler.due == 2 * PERIOD_S, "nobody is lacking any more"
    bench.look(PERIOD_S)
    assert bench.pool.asked == [3, 4, 5]
    (told,) = bench.totals.decisions  # it was one decision
    assert told.startswith("2 to 5 workers: as said (the consumer waits ")


def test_workers_are_let_go_all_at_once() -> None:
    bench = Bench(wanted=1)
    bench.pool.active = 6
    bench.look(PERIOD_S)
    assert bench.pool.asked == [1]


def test_another_decision_takes_the_place_of_one_that_is_being_carried_out() -> None:
    bench = Bench(wanted=7)
    bench.look(PERIOD_S)
    bench.policy.wanted[0] = 2
    bench.look(2 * PERIOD_S)
    bench.look(2 * PERIOD_S)
    assert bench.pool.active == 2


def test_while_leaving_workers_have_all_places_nobody_spins() -> None:
    bench = Bench(wanted=6)
    bench.pool.leaving = 6
    bench.look(PERIOD_S)
    assert (bench.pool.asked, bench.scaler.due) == ([], 2 * PERIOD_S)
    bench.pool.leaving = 5  # one has left
    assert bench.scaler.due == PERIOD_S
    bench.look(PERIOD_S)
    assert bench.pool.asked == [3]


def test_a_system_that_refuses_is_asked_again_later_and_those_that_run_go_on() -> None:
    bench = Bench(wanted=4)
    bench.pool.refuses = True
    bench.look(PERIOD_S)
    assert bench.pool.active == 2
    assert "for want of resources (no more processes)" in bench.totals.decisions[-1]
    assert bench.scaler.due >= PAUSE_S
    bench.pool.refuses = False
    bench.look(bench.scaler.due)
    bench.look(bench.now)
    assert bench.pool.active == 4


def test_nothing_is_decided_while_the_first_workers_are_being_started() -> None:
    bench = Bench(wanted=4)
    bench.pool.is_starting = True
    bench.look(PERIOD_S)
    assert (bench.pool.asked, bench.scaler.due) == ([], 2 * PERIOD_S)
