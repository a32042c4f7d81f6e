"""No transform that is random is ever taken for deterministic; and some are found to be deterministic."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import minato
from minato import _instrument
from minato._pipeline.judging import Randomness, Verdict, judge, judge_code

from .transforms import DETERMINISTIC, RANDOM, decode

INPUTS = [torch.arange(3.0), torch.ones(3)]
IMAGE = np.full((8, 8, 3), 100, np.uint8)


def verdict_on(transform: Any, inputs: list[Any]) -> Verdict:
    return judge(transform, transform, inputs)[0]


@pytest.mark.parametrize("name", RANDOM)
def test_randomness_is_never_missed(name: str) -> None:
    """By code alone and by the whole judgement: never "deterministic"."""
    transform = RANDOM[name]
    assert judge_code(transform)[0].randomness is not Randomness.DETERMINISTIC
    found = judge(transform, transform, INPUTS)[0]
    assert found.randomness is not Randomness.DETERMINISTIC
    assert found.reason


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_transforms_are_found(name: str) -> None:
    """Otherwise nothing could be cached."""
    inputs: list[Any] = [np.arange(3.0)] if name == "torch" else INPUTS
    found = verdict_on(DETERMINISTIC[name], inputs)
    assert found.randomness is Randomness.DETERMINISTIC, found.reason


def test_decoding_is_deterministic() -> None:
    """What caches are for."""
    buffer = io.BytesIO()
    Image.fromarray(IMAGE).save(buffer, "PNG")
    assert verdict_on(decode, [buffer.getvalue()]).may_be_cached


def test_running_finds_what_code_does_not_show() -> None:
    """With the code's verdict left out: generators, results, state, each by itself."""
    from minato._pipeline.judging import judge_runs

    state: dict[str, int] = {"calls": 0}

    def keeps_count(x: Any) -> Any:
        state["calls"] += 1
        return x

    drawn = judge_runs(lambda x: (torch.rand(()), x)[1], INPUTS)
    assert drawn is not None
    assert drawn.randomness is Randomness.RANDOM
    other = judge_runs(lambda x: x + id(object()) + len(state), [*INPUTS, object()])
    assert other is not None
    kept = judge_runs(keeps_count, INPUTS, [state])
    assert kept is not None
    assert kept.randomness is Randomness.UNKNOWN


def test_judging_leaves_random_streams_alone() -> None:
    """Seeded programs go on as if nobody had looked."""
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    verdict_on(lambda x: x + 1, INPUTS)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


@minato.traced("scale")
def traced_all_of_it(x: Any) -> Any:
    return x * 2


def traced_in_part(x: Any) -> Any:
    with minato.traced("scale"):
        minato.count_bytes(8)
        return x * 2


@minato.traced("noise")
def traced_and_random(x: Any) -> Any:
    return x + torch.rand(())


@pytest.mark.parametrize("is_traced", [False, True])
def test_spans_and_counts_for_a_trace_are_nothing_random(is_traced: bool, tmp_path: Path) -> None:
    """Though they read clocks, and leave records where there is a trace; what they span is looked at as ever."""
    if is_traced:
        next(iter(minato.DataLoader(minato.StagedDataset(float, [], 8), trace=tmp_path)))
        assert _instrument.active() is not None
    assert verdict_on(traced_all_of_it, INPUTS).may_be_cached
    assert verdict_on(traced_in_part, INPUTS).may_be_cached
    assert judge_code(traced_and_random)[0].randomness is Randomness.RANDOM


def test_user_has_the_last_word() -> None:
    """Marks on functions, classes and objects."""

    @minato.deterministic
    def looks_random(x: Any) -> Any:
        return x + 0 * random.random()

    @minato.stochastic
    class LooksPlain:
        def __call__(self, x: Any) -> Any:
            return x

    assert verdict_on(looks_random, INPUTS).may_be_cached
    assert verdict_on(LooksPlain(), INPUTS).randomness is Randomness.RANDOM
    assert verdict_on(lambda x: looks_random(x), INPUTS).randomness is Randomness.RANDOM  # it drew when it was run
    with pytest.raises(TypeError, match="wrap it in a function"):
        minato.deterministic(len)
