"""Samples in stages: when one is put aside, what it goes on with, and that nothing runs twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from minato._queues.arena import Arena
from minato._queues.control import ControlBlock
from minato._queues.posting import PostingBoard
from minato._queues.taking import TakingBoard
from minato._records import Run
from minato._workers.parking import Parking

THRESHOLD_S = 5.0


class Clock:
    """Time that passes when a stage says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Two workers of a pool with six tickets; worker 0 is the one on trial."""

    def __init__(self) -> None:
        self.control, self.arena = ControlBlock.create(8, 2), Arena.create()
        self.posting = PostingBoard(self.control, self.arena)
        self.board = TakingBoard(self.control, self.arena, 0)
        self.other = TakingBoard(self.control, self.arena, 1)
        self.posting.publish(
            epoch=0, seed=1, position=0, keys=[10, 11, 12, 13, 14, 15], rows=6, slot=0, flags=0, first=True
        )
        self.posting.set_threshold(THRESHOLD_S)
        self.clock = Clock()
        self.calls: list[tuple[str, int]] = []
        self.seconds = {"load": 1.0, "first": 1.0, "second": 1.0, "third": 1.0}
        self.parking = Parking(
            self.board,
            lambda key: self._stage("load", key),
            [lambda v, name=name: self._stage(name, v + 100) for name in ("first", "second", "third")],
            self.clock,
        )

    def _stage(self, name: str, value: int) -> int:
        self.calls.append((name, value))
        self.clock.now += self.seconds[name]
        return value

    def pull(self) -> Run:
        run = self.board.pull(1)
        assert isinstance(run, Run)
        return run

    def close(self) -> None:
        self.control.close()
        self.arena.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_a_fast_sample_goes_through_at_once(bench: Bench) -> None:
    done = bench.parking.begin(bench.pull(), seed=1)
    assert done is not None
    assert (done.value, done.seconds, bench.parking.parked) == (310, 4.0, 0)


def test_a_slow_sample_is_finished_where_few_hold_slow_ones(bench: Bench) -> None:
    bench.seconds["load"] = 9.0
    done = bench.parking.begin(bench.pull(), seed=1)
    assert done is not None
    assert done.seconds == 12.0


def test_a_slow_sample_is_parked_where_all_others_hold_slow_ones_too(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["first"] = 9.0
    assert bench.parking.begin(bench.pull(), seed=1) is None
    assert bench.parking.parked == 1
    assert bench.posting.parked(0) == [(0, 0)]
    assert bench.board.slow_holders == 1, "a worker that has parked its sample holds no slow one"


def test_a_parked_sample_goes_on_with_the_next_stage_and_none_runs_twice(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["first"] = 9.0
    bench.parking.begin(bench.pull(), seed=1)
    bench.other.mark_slow(False)
    bench.clock.now += 1000.0
    assert bench.parking.has_room()
    done = bench.parking.resume()
    assert done is not None
    assert done.value == 310
    assert done.seconds == 12.0, "time spent parked is no work"
    assert [name for name, _ in bench.calls] == ["load", "first", "second", "third"]
    assert bench.posting.parked(0) == []
    assert bench.posting.hand(0).keys == [10]


def test_without_other_work_nothing_is_parked(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    runs = [bench.pull()]
    while isinstance(taken := bench.other.pull(1), Run):
        runs.append(taken)
    assert bench.parking.begin(runs[0], seed=1) is not None


def test_without_a_threshold_nothing_is_parked(bench: Bench) -> None:
    bench.posting.set_threshold(None)
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    assert bench.parking.begin(bench.pull(), seed=1) is not None


def test_a_sample_of_an_abandoned_epoch_is_dropped(bench: Bench) -> None:
    bench.other.mark_slow(True)
    bench.seconds["load"] = 9.0
    bench.parking.begin(bench.pull(), seed=1)
    bench.posting.abandon_epochs_before(1)
    assert bench.posting.held() == {0}
    assert bench.parking.resume() is None
    assert bench.posting.held() == set()


def test_an_error_in_a_stage_is_raised_and_the_worker_counts_as_fast_again(bench: Bench) -> None:
    bench.seconds["load"] = 9.0

    def broken(_: Any) -> Any:
        raise ValueError("broken")

    parking = Parking(bench.board, lambda key: bench._stage("load", key), [broken], bench.clock)
    with pytest.raises(ValueError, match="broken"):
        parking.begin(bench.pull(), seed=1)
    assert bench.board.slow_holders == 0


def test_a_parked_samples_random_numbers_are_its_own(bench: Bench) -> None:
    def draw(values: list[float]) -> list[float]:
        return [*values, random.random(), float(np.random.rand()), torch.rand(()).item()]

    def slow(values: list[float]) -> list[float]:
        bench.clock.now += 9.0
        return draw(values)

    def fetch(parks: bool) -> Any:
        bench.other.mark_slow(parks)
        parking = Parking(bench.board, lambda _: draw([]), [slow, draw], bench.clock)
        done = parking.begin(bench.pull(), seed=77)
        if parks:
            assert done is None
            parking.begin(bench.pull(), seed=5)  # another sample draws in between
            bench.other.mark_slow(False)
            done = parking.resume()
        assert done is not None
        return done.value

    saved = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        assert fetch(parks=True) == fetch(parks=False)
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
        torch.set_rng_state(saved[2])
