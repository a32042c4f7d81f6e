"""Samples in stages: when one is put aside, what it goes on with, and that nothing runs twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from minato import StagedDataset
from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.posting import PostingBoard
from minato._queues.stage_notes import StageReader
from minato._queues.taking import TakingBoard
from minato._records import Run
from minato._workers.parking import Begun, Outcome, Parking
from minato._workers.parking_rules import ParkingRule
from minato._workers.stages import find_stages

THRESHOLD_S = 5.0
STAGES = ("first", "second", "third")


class Clock:
    """Time that passes when a stage says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Two workers of a pool with two batches of three tickets; worker 0 is the one on trial."""

    def __init__(self, in_order: bool = False, most: int = 100) -> None:
        self.control, self.arena = ControlBlock.create(8, 2), Arena.create()
        self.posting = PostingBoard(self.control, self.arena)
        self.board = TakingBoard(self.control, self.arena, 0)
        self.other = TakingBoard(self.control, self.arena, 1)
        self.clock = Clock()
        for board in (self.board, self.other):
            board.now_ns = lambda: int(self.clock() * 1e9)
        self.post(keys=[10, 11, 12], first=True)
        self.post(keys=[13, 14, 15])
        self.posting.set_threshold(THRESHOLD_S)
        self.calls: list[tuple[str, int]] = []
        self.seconds = dict.fromkeys(("load", *STAGES), 1.0)
        self.parking = self.made_of(
            lambda key: self._stage("load", key),
            *(lambda v, name=name: self._stage(name, v + 100) for name in STAGES),
            in_order=in_order,
            most=most,
        )

    def post(self, keys: list[int], epoch: int = 0, first: bool = False) -> None:
        number = self.posting.next_number
        self.posting.publish(
            epoch=epoch, seed=1, position=3 * number, keys=keys, rows=len(keys), slot=number, flags=0, first=first
        )

    def made_of(self, load: Any, *transforms: Any, in_order: bool = False, most: int = 100) -> Parking:
        begin = find_stages(StagedDataset(load, transforms, 1000))
        assert begin is not None
        return Parking(self.board, begin, ParkingRule(in_order, max_deferral=6), most, self.clock)

    def _stage(self, name: str, value: int) -> int:
        self.calls.append((name, value))
        self.clock.now += self.seconds[name]
        return value

    def pull(self) -> Run:
        run = self.board.pull(1)
        assert isinstance(run, Run)
        return run

    def make(self, parking: Parking | None = None, seed: int = 1) -> Begun | None:
        """The next ticket's sample; None if it was parked."""
        parking = self.parking if parking is None else parking
        return self.go_on(parking.begin(self.pull(), seed), parking)

    def resume(self, parking: Parking | None = None) -> Begun | None:
        parking = self.parking if parking is None else parking
        begun = parking.resume()
        return None if begun is None else self.go_on(begun, parking)

    def go_on(self, begun: Begun, parking: Parking) -> Begun | None:
        while (outcome := parking.advance(begun)) is Outcome.GOES_ON:
            pass
        return begun if outcome is Outcome.DONE else None

    def close(self) -> None:
        self.control.close()
        self.arena.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def ordered() -> Iterator[Bench]:
    made = Bench(in_order=True)
    yield made
    made.close()


def test_a_fast_sample_goes_through_at_once(bench: Bench) -> None:
    done = bench.make()
    assert done is not None
    assert (done.sample.result, done.seconds, bench.parking.parked) == (310, 4.0, 0)


def test_a_slow_sample_is_finished_where_few_hold_slow_ones(bench: Bench) -> None:
    bench.seconds["load"] = 9.0
    done = bench.make()
    assert done is not None
    assert done.seconds == 12.0


def test_a_slow_sample_is_parked_where_all_others_hold_slow_ones_too(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["first"] = 9.0
    assert bench.make() is None
    assert bench.parking.parked == 1
    assert bench.posting.parked(0) == [(0, 0)]
    assert bench.board.count_slow_workers() == 1, "a worker that has parked its sample holds no slow one"
    assert not bench.parking.is_due()


def test_what_stages_took_is_noted_without_the_time_spent_parked(bench: Bench) -> None:
    begin = find_stages(StagedDataset(lambda key: bench._stage("load", key), [_Named(bench, "third")], 1000))
    assert begin is not None
    parking = Parking(bench.board, begin, ParkingRule(False, max_deferral=6), 100, bench.clock)
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make(parking) is None
    bench.clock.now += 1000.0
    assert bench.resume(parking) is not None
    assert StageReader(bench.control).new_notes() == [("load", 9.0), ("_Named", 1.0)]


class _Named:
    """A stage with a name of its own."""

    def __init__(self, bench: Bench, name: str) -> None:
        self._bench, self._name = bench, name

    def __call__(self, value: int) -> int:
        return self._bench._stage(self._name, value)


def test_a_worker_in_a_long_stage_counts_as_slow_before_it_can_say_so(bench: Bench) -> None:
    bench.other.pull(1)
    bench.seconds["first"] = 9.0
    assert bench.make() is None


def test_a_parked_sample_goes_on_with_the_next_stage_and_none_runs_twice(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["first"] = 9.0
    bench.make()
    bench.other.mark_slow(False)
    bench.clock.now += 1000.0
    assert bench.parking.is_due()
    done = bench.resume()
    assert done is not None
    assert done.sample.result == 310
    assert done.seconds == 12.0, "time spent parked is no work"
    assert [name for name, _ in bench.calls] == ["load", *STAGES]
    assert bench.posting.parked(0) == []
    assert bench.posting.hand(0).keys == [10]


def test_a_sample_waits_once(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make() is None
    assert bench.resume() is not None, "whoever goes on with it finishes it, whatever the others hold"


def test_without_other_work_nothing_is_parked(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    begun = bench.parking.begin(bench.pull(), 1)
    while isinstance(bench.other.pull(1), Run):
        pass
    assert bench.go_on(begun, bench.parking) is not None


def test_tickets_of_the_next_epoch_are_no_reason_to_wait(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make() is None
    while isinstance(bench.other.pull(1), Run):
        pass
    bench.other.mark_slow(True)
    bench.post(keys=[20, 21], epoch=1, first=True)
    assert bench.parking.is_due()


def test_at_the_end_of_an_epoch_the_long_ones_are_made_first(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make() is None
    bench.posting.note_all_posted(0)
    assert bench.parking.is_due()
    assert bench.make() is not None


def test_a_sample_that_has_fallen_behind_waits_no_longer(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make() is None
    bench.post(keys=[16, 17, 18])
    assert not bench.parking.is_due()
    bench.post(keys=[19, 20, 21])
    assert bench.parking.is_due()


def test_without_a_threshold_nothing_is_parked(bench: Bench) -> None:
    bench.posting.set_threshold(None)
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make() is not None


@pytest.mark.parametrize("most", [1, 2])
def test_the_temp_queues_have_a_bound_together(most: int) -> None:
    bench = Bench(most=most)
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert [bench.make() is None for _ in range(3)] == [True] * most + [False] * (3 - most)
    bench.close()


def test_a_dismissed_worker_parks_nothing(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    bench.posting.dismiss(0)
    assert bench.make() is not None


def test_a_sample_of_an_abandoned_epoch_is_dropped(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    bench.make()
    bench.posting.abandon_epochs_before(1)
    assert bench.posting.held() == {0}
    assert bench.parking.is_due()
    assert bench.resume() is None
    assert bench.posting.held() == set()


def test_in_order_a_sample_waits_only_for_one_that_is_wanted_before_it(ordered: Bench) -> None:
    bench = ordered
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.make() is not None, "all that could be taken comes later"
    taken = [bench.other.pull(1) for _ in range(2)]
    assert all(isinstance(run, Run) and run.batch == 0 for run in taken)
    begun = bench.parking.begin(bench.pull(), 1)
    assert begun.run.batch == 1
    with bench.control.lock:
        bench.posting.post_orphan(0, 2, 1)  # whoever had it is gone
    assert bench.go_on(begun, bench.parking) is None
    assert not bench.parking.is_due()
    assert bench.pull().batch == 0
    assert bench.parking.is_due()
    bench.board.drop()
    assert bench.resume() is not None


def test_an_error_in_a_stage_is_raised_and_the_worker_counts_as_fast_again(bench: Bench) -> None:
    bench.seconds["load"] = 9.0

    def broken(_: Any) -> Any:
        assert bench.board.count_slow_workers() == 1
        raise ValueError("broken")

    parking = bench.made_of(lambda key: bench._stage("load", key), broken)
    with pytest.raises(ValueError, match="broken"):
        bench.make(parking)
    bench.board.drop()
    assert bench.board.count_slow_workers() == 0


def test_a_parked_samples_random_numbers_are_its_own(bench: Bench) -> None:
    def draw(values: list[float]) -> list[float]:
        return [*values, random.random(), float(np.random.randn()), torch.randn(()).item(), random.gauss(0, 1)]

    def slow(values: list[float]) -> list[float]:
        bench.clock.now += 9.0
        return draw(values)

    def fetch(parks: bool) -> Any:
        bench.other.mark_slow(parks)
        parking = bench.made_of(lambda _: draw([]), slow, draw)
        done = bench.make(parking, seed=77)
        if parks:
            assert done is None
            bench.make(parking, seed=5)  # another sample draws in between
            done = bench.resume(parking)
        assert done is not None
        return done.sample.result

    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        assert fetch(parks=True) == fetch(parks=False)
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        torch.set_rng_state(saved[2])
