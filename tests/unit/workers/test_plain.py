"""States become plain values and come back."""

import json
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from minato._workers import plain


@pytest.mark.parametrize(
    "value",
    [None, 3, "text", [1, [2.5, True]], {"a": {"b": []}}, (1, 2), {1: "one"}, torch.arange(3), {"t": torch.ones(2)}],
    ids=str,
)
def test_what_others_hand_us_comes_back(value: Any) -> None:
    packed = plain.pack(value, "somebody")
    assert plain.is_plain(packed)
    again = plain.unpack(json.loads(json.dumps(packed)))
    assert type(again) is type(value)
    assert str(again) == str(value)


@pytest.mark.parametrize("value", [(1,), {1: 2}, OrderedDict(), np.float64(1), [torch.ones(1)], b"x", {"a": (1,)}])
def test_only_what_json_gives_back_is_plain(value: Any) -> None:
    assert not plain.is_plain(value)


def test_objects_are_refused_by_the_name_of_their_owner() -> None:
    with pytest.raises(TypeError, match="the state of the sampler cannot be saved"):
        plain.pack({"generator": random.Random(1)}, "the sampler")


SOURCES = {
    "torch": (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(2, generator=g).tolist()),
    "python": (lambda: random.Random(1), lambda g: [g.random(), g.gauss(0, 1)]),
    "numpy state": (lambda: np.random.RandomState(1), lambda g: [g.rand(), g.randn()]),
    "numpy generator": (lambda: np.random.default_rng(1), lambda g: [g.random(), g.integers(9, dtype=np.uint8)]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_generator_goes_on_from_its_state(name: str) -> None:
    make, draw = SOURCES[name]
    generator = make()
    draw(generator)
    source = plain.source_of(generator)
    assert source is not None
    state = json.loads(json.dumps(source.to_plain(source.read())))
    assert plain.is_plain(state)
    expected = [draw(generator) for _ in range(3)]
    other = plain.source_of(make())
    assert other is not None
    source.set(other.from_plain(state))
    assert [draw(generator) for _ in range(3)] == expected


@pytest.mark.parametrize("value", [3, "x", random.SystemRandom(), None, torch.ones(1)])
def test_other_things_are_no_generators(value: Any) -> None:
    assert plain.source_of(value) is None


def test_the_process_has_three() -> None:
    sources = plain.process_sources()
    before = plain.read_all(sources)
    saved = plain.states_to_plain(sources, before)
    drawn = [random.random(), np.random.rand(), torch.rand(1).item()]
    assert not plain.same_states(before, plain.read_all(sources))
    plain.set_all(sources, plain.states_from_plain(sources, json.loads(json.dumps(saved))))
    assert plain.same_states(before, plain.read_all(sources))
    assert [random.random(), np.random.rand(), torch.rand(1).item()] == drawn
