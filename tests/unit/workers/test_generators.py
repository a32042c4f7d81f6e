"""The three global generators: looked at, put back, and seeded for a sample."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minato._workers.generators import Generator, NumpyGenerator, PythonGenerator, TorchGenerator, all_generators, mix

DRAWS: dict[str, tuple[type[Any], list[Callable[[], Any]]]] = {
    "random": (
        PythonGenerator,
        [
            random.random,
            lambda: random.randint(0, 9),
            lambda: random.gauss(0, 1),
            lambda: random.sample(range(50), 5),
        ],
    ),
    "numpy": (
        NumpyGenerator,
        [
            np.random.rand,
            np.random.randn,
            lambda: np.random.randint(9),
            lambda: np.random.permutation(5).tolist(),
        ],
    ),
    "torch": (
        TorchGenerator,
        [
            lambda: torch.rand(()).item(),
            lambda: torch.randn(3).tolist(),
            lambda: torch.randint(9, ()).item(),
            lambda: torch.randperm(5).tolist(),
            lambda: torch.nn.functional.dropout(torch.ones(8)).tolist(),
        ],
    ),
}
NORMAL = [("random", 2), ("numpy", 1), ("torch", 1)]  # made in pairs; rewinding does not bring back the spare one
CASES = [(name, number) for name, (_, draws) in DRAWS.items() for number in range(len(draws))]


@pytest.fixture(autouse=True)
def _streams_are_left_alone() -> Iterator[None]:
    saved = [(generator, generator.save()) for generator in all_generators()]
    yield
    for generator, state in saved:
        generator.restore(state)


def without_address(made: Any) -> Any:
    """As on a Python or numpy whose memory is not laid out as expected."""
    made._block = None
    return made


@pytest.fixture(params=[lambda made: made, without_address], ids=["by address", "by functions"])
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


EACH = pytest.mark.parametrize(("name", "number"), CASES)


@EACH
def test_a_draw_is_seen_and_undone(name: str, number: int, way: Any) -> None:
    kind, draws = DRAWS[name]
    generator: Generator = way(kind())
    before = generator.glance()
    assert generator.glance() == before
    drawn = draws[number]()
    assert generator.glance() != before
    generator.rewind(before)
    assert generator.glance() == before
    if (name, number) not in NORMAL:
        assert draws[number]() == drawn


@EACH
def test_a_saved_state_comes_back_whole(name: str, number: int, way: Any) -> None:
    """A spare normal deviate included."""
    kind, draws = DRAWS[name]
    generator: Generator = way(kind())
    draws[number]()
    state = generator.save()
    expected = [draw() for draw in draws] + [draws[number]()]
    generator.seed(3)
    for draw in draws:
        draw()
    generator.restore(state)
    assert [draw() for draw in draws] + [draws[number]()] == expected


@EACH
def test_a_seed_decides_what_is_drawn(name: str, number: int, way: Any) -> None:
    kind, draws = DRAWS[name]
    generator: Generator = way(kind())

    def drawn(seed: int) -> list[Any]:
        generator.seed(seed)
        return [draws[number]() for _ in range(6)]

    one, other = mix(1), mix(2)
    assert drawn(one) == drawn(one)
    assert drawn(one) != drawn(other)
    for seed in (0, 1, 2**63 - 1):
        drawn(seed)


@pytest.mark.parametrize("name", DRAWS)
def test_seeding_is_seen(name: str, way: Any) -> None:
    generator: Generator = way(DRAWS[name][0]())
    generator.seed(mix(1))
    glance = generator.glance()
    generator.seed(mix(2))
    assert generator.glance() != glance


@pytest.mark.parametrize("name", DRAWS)
def test_seeding_forgets_a_spare_normal_deviate(name: str) -> None:
    """Half of a pair drawn by one sample must not reach the next."""
    normal = {"random": lambda: random.gauss(0, 1), "numpy": np.random.randn, "torch": lambda: torch.randn(()).item()}
    generator = DRAWS[name][0]()
    generator.seed(5)
    expected = normal[name]()
    generator.seed(6)
    normal[name]()
    generator.seed(5)
    assert normal[name]() == expected


def test_the_address_is_found_on_this_machine() -> None:
    assert all(generator._block is not None for generator in all_generators())  # type: ignore[attr-defined]


def test_torchs_initial_seed_stays_that_of_the_process(way: Any) -> None:
    torch.manual_seed(1234)
    generator = way(TorchGenerator())
    generator.seed(99)
    torch.rand(())
    assert torch.initial_seed() == 1234
    glance = generator.glance()
    torch.rand(3)
    generator.rewind(glance)
    assert torch.initial_seed() == 1234


def test_torchs_stream_is_the_seeds_own() -> None:
    TorchGenerator().seed(99)
    assert torch.equal(torch.rand(5), torch.rand(5, generator=torch.Generator().manual_seed(99)))


def test_draws_after_many_blocks_are_undone() -> None:
    """MT19937 makes 624 numbers at a time; rewinding has to cross such a block."""
    for name, (kind, draws) in DRAWS.items():
        generator = kind()
        before = generator.glance()
        drawn = [draws[0]() for _ in range(2000)]
        generator.rewind(before)
        assert [draws[0]() for _ in range(2000)] == drawn, name


@given(st.lists(st.integers(), max_size=4), st.lists(st.integers(), max_size=4))
def test_mixing_gives_seeds_that_fit_and_tell_inputs_apart(one: list[int], other: list[int]) -> None:
    seed = mix(*one)
    assert 0 <= seed < 2**63
    assert seed == mix(*one)
    masked = [[v & 0xFFFF_FFFF_FFFF_FFFF for v in values] for values in (one, other)]
    assert (seed == mix(*other)) <= (masked[0] == masked[1])
