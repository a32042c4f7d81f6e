"""Random numbers of samples: a function of the sample, whoever fetches it, in whatever company."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minato._workers.randomness import QUIET_SAMPLES, Randomness, sample_seed


class FakeGenerator:
    """Draws its own seed and a counter; counts what is done to it."""

    def __init__(self) -> None:
        self.state = (0, 0)
        self.seeded = 0

    def draw(self) -> tuple[int, int]:
        self.state = (self.state[0], self.state[1] + 1)
        return self.state

    def glance(self) -> object:
        return self.state

    def rewind(self, glance: Any) -> None:
        self.state = glance

    def save(self) -> Any:
        return self.state

    def restore(self, saved: Any) -> None:
        self.state = saved

    def seed(self, seed: int) -> None:
        self.seeded += 1
        self.state = (seed, 0)


class Bench:
    """Fetches samples by their positions; `sample` draws what it likes."""

    def __init__(self, sample: Callable[[Bench, int], Any], generators: int = 2) -> None:
        self.generators = [FakeGenerator() for _ in range(generators)]
        self.randomness = Randomness(self.generators)
        self.sample = sample
        self.calls: list[int] = []

    def fetch(self, positions: list[int]) -> list[Any]:
        def fetch(reseed: Callable[[int], None] | None) -> list[Any]:
            found = []
            for number, position in enumerate(positions):
                if reseed is not None:
                    reseed(number)
                self.calls.append(position)
                found.append(self.sample(self, position))
            return found

        return self.randomness.fetch(fetch, lambda number: 1000 * positions[number])


def nothing(_bench: Bench, position: int) -> Any:
    return position


def first(bench: Bench, _position: int) -> Any:
    return bench.generators[0].draw()


def first_from(start: int) -> Callable[[Bench, int], Any]:
    return lambda bench, position: bench.generators[0].draw() if position >= start else None


def runs_of(length: int, count: int) -> list[list[int]]:
    return [list(range(at, at + length)) for at in range(0, count, length)]


def test_generators_that_nobody_draws_from_are_soon_left_alone() -> None:
    bench = Bench(nothing)
    for run in runs_of(8, 400):
        bench.fetch(run)
    assert [g.seeded for g in bench.generators] == [QUIET_SAMPLES, QUIET_SAMPLES]
    assert not bench.randomness.seeds
    assert bench.calls == list(range(400))


def test_only_what_is_drawn_from_is_seeded() -> None:
    bench = Bench(first)
    for run in runs_of(8, 400):
        bench.fetch(run)
    assert [g.seeded for g in bench.generators] == [400, QUIET_SAMPLES]
    assert bench.calls == list(range(400))


def test_what_a_sample_draws_is_its_own() -> None:
    bench = Bench(first)
    assert bench.fetch([5, 6, 5]) == [(5000, 1), (6000, 1), (5000, 1)]


def test_a_late_draw_is_found_out_and_the_run_fetched_again_once() -> None:
    bench = Bench(first_from(100))
    for run in runs_of(10, 100):
        bench.fetch(run)
    bench.calls.clear()
    assert bench.fetch(list(range(100, 110))) == [(1000 * p, 1) for p in range(100, 110)]
    assert bench.calls == [*range(100, 110), *range(100, 110)]
    bench.calls.clear()
    assert bench.fetch([110]) == [(110_000, 1)]
    assert bench.calls == [110]


def test_the_second_fetch_of_a_run_leaves_no_trace_on_the_stream() -> None:
    bench = Bench(first_from(40))
    bench.fetch(list(range(40)))
    bench.generators[0].state = (77, 5)
    bench.fetch([40])
    assert bench.generators[0].state == (77, 5)


def partitions(count: int) -> st.SearchStrategy[list[list[int]]]:
    def cut(cuts: set[int]) -> list[list[int]]:
        edges = [0, *sorted(cuts), count]
        return [list(range(a, b)) for a, b in pairwise(edges) if b > a]

    return st.sets(st.integers(1, count - 1), max_size=12).map(cut)


@settings(max_examples=60, derandomize=True)
@given(partitions(120), st.sampled_from([0, 1, 20, 31, 32, 33, 64, 119]), st.integers(0, 1))
def test_any_division_into_runs_gives_the_same_samples(runs: list[list[int]], start: int, which: int) -> None:
    """Samples draw from a position on: before, while and after the generators are given up."""

    def sample(bench: Bench, position: int) -> Any:
        return bench.generators[which].draw() if position >= start else None

    bench = Bench(sample)
    found = [sample for run in runs for sample in bench.fetch(run)]
    salt = which
    assert found == [((1000 * p) ^ salt, 1) if p >= start else None for p in range(120)]


def test_a_generator_first_drawn_from_in_the_second_fetch_is_found_out_too() -> None:
    """With seeds of their own, samples may take other branches."""

    def sample(bench: Bench, position: int) -> Any:
        if position < 40:
            return None
        seed, _ = bench.generators[0].draw()
        return bench.generators[1].draw() if seed == 1000 * position else None

    bench = Bench(sample)
    bench.fetch(list(range(40)))
    assert bench.fetch([40, 41]) == [(40_000 ^ 1, 1), (41_000 ^ 1, 1)]


def test_the_main_process_keeps_its_own_streams() -> None:
    generators = (FakeGenerator(), FakeGenerator())
    randomness = Randomness(generators)
    generators[0].state, generators[1].state = (3, 3), (4, 4)
    with pytest.raises(KeyError), randomness.preserved():
        generators[0].draw()
        generators[1].seed(9)
        raise KeyError
    assert [g.state for g in generators] == [(3, 3), (4, 4)]


def draw_all(position: int) -> Any:
    return random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(()).item(), position


@pytest.mark.parametrize("length", [1, 8, 40, 120])
def test_the_real_generators_give_the_same_for_any_division(length: int) -> None:
    """Quiet at first, so that all three are given up; then samples draw from all of them."""
    randomness = Randomness()
    found = []
    with randomness.preserved():
        for run in runs_of(length, 120):

            def fetch(reseed: Any, run: list[int] = run) -> list[Any]:
                samples = []
                for number, position in enumerate(run):
                    if reseed is not None:
                        reseed(number)
                    samples.append(draw_all(position) if position >= 100 else None)
                return samples

            found += randomness.fetch(fetch, lambda number, run=run: sample_seed(1, run[number], run[number]))
    expected = []
    with randomness.preserved():
        for position in range(100, 120):
            alone = Randomness()

            def fetch_one(reseed: Any, position: int = position) -> list[Any]:
                reseed(0)
                return [draw_all(position)]

            expected += alone.fetch(fetch_one, lambda _, p=position: sample_seed(1, p, p))
    assert found[100:] == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2, 3), (1, 3, 2)),
        ((1, 2, 3), (2, 2, 3)),
        ((1, 2, "a"), (1, 2, "b")),
        ((0, 0, 0), (0, 0, 1)),
        ((0, 0, -1), (0, 0, 1)),
    ],
)
def test_seeds_differ_where_samples_differ(one: Any, other: Any) -> None:
    assert sample_seed(*one) != sample_seed(*other)


@pytest.mark.parametrize("key", [5, -5, 2**100, np.int64(5), "five", ("a", 5), None, 1.5, True])
def test_any_key_gives_a_seed_that_fits(key: Any) -> None:
    seed = sample_seed(2**62, 10, key)
    assert 0 <= seed < 2**63
    assert seed == sample_seed(2**62, 10, key)
    assert sample_seed(1, 2, np.int64(7)) == sample_seed(1, 2, 7)
