"""The cheapest resources for a rate: against a linear programme solved by scipy, and in made-up cases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch.utils.data import TensorDataset

import minato
from minato._pipeline.looking import choose_indices, look
from minato._pipeline.planning import CachePoint
from minato.diagnose.measuring import Seen
from minato.diagnose.pricing import Purchase, cheapest
from minato.diagnose.records import LOAD, TRANSFER, TRANSFORM, Measurement, StageMeasurement
from minato.diagnose.report import conclude

GB, MB = 10**9, 10**6
READ = StageMeasurement("load", LOAD, 80, cpu_s=0.08, wall_s=0.8, bytes_out=80 * MB, bytes_read=80 * MB)
DECODE = StageMeasurement("decode", TRANSFORM, 80, cpu_s=1.6, wall_s=1.6, bytes_out=80 * 2 * MB)
HAND_OVER = StageMeasurement("transfer", TRANSFER, 10, cpu_s=0.01, wall_s=0.01, is_sequential=True)
PHOTOS = Measurement(
    stages=(READ, DECODE, HAND_OVER), samples=80, batch_size=8, dataset_samples=1000, workers=2, concurrency=1,
    prefetch=2, cores=2.0, rate=10.0, rate_change=0.0,
)  # fmt: skip
DECODED = CachePoint(("load", "decode"), 2 * MB, 2 * GB, 1.0, saved_s=0.0298, is_whole=True)
SOURCE = CachePoint(("load",), MB, GB, 1.0, saved_s=0.009, is_whole=False)


@example(25.0, {"core": 0.0, "memory_gb": 1.0, "storage_mb_s": 0.0})  # six workers, and a rounding error
@given(
    st.floats(0.1, 50.0),
    st.fixed_dictionaries({"core": st.floats(0, 5), "memory_gb": st.floats(0, 5), "storage_mb_s": st.floats(0, 5)}),
)
def test_without_a_cache_it_is_the_optimum_of_the_linear_programme(rate: float, prices: dict[str, float]) -> None:
    found = cheapest(PHOTOS, [], rate, prices)
    # A batch of 8: 0.169 s of CPU, 0.24 s in workers, 8 MB read; a sample in the making takes 2 MB.
    workers = math.ceil(rate * 0.24 * (1 - 1e-9))
    solved = linprog(
        c=[prices["core"], prices["memory_gb"], prices["storage_mb_s"]],
        A_ub=[[-1, 0, 0], [0, -1, 0], [0, 0, -1]],
        b_ub=[-rate * 0.169, -workers * 2 * MB / GB, -rate * 8],
    )
    assert found.price == pytest.approx(solved.fun, rel=1e-6, abs=1e-9)
    assert (found.rate, found.cache, found.workers) == (rate, None, workers)
    assert found.cores == pytest.approx(rate * 0.169)


@pytest.mark.parametrize(
    ("prices", "cache"),
    [
        ({"core": 1.0, "memory_gb": 100.0}, None),
        ({"core": 1.0, "memory_gb": 0.1}, "after:decode"),
        ({"storage_mb_s": 1.0, "memory_gb": 1.0}, "after:load"),
    ],
    ids=["dear memory", "dear cores", "dear storage"],
)
def test_what_is_dear_decides_where_to_cache(prices: dict[str, float], cache: str | None) -> None:
    found = cheapest(PHOTOS, [SOURCE, DECODED], 10.0, prices)
    assert found.cache == cache
    if cache is not None:
        assert found.storage_bytes_s == 0.0


def test_a_rate_that_the_main_process_cannot_hand_over_is_refused() -> None:
    """A batch takes it a millisecond."""
    assert cheapest(PHOTOS, [], 999.0, {"core": 1.0}).workers == 240
    with pytest.raises(ValueError, match="cannot be had"):
        cheapest(PHOTOS, [DECODED], 1001.0, {"core": 1.0})
    with pytest.raises(ValueError, match="your own loop"):
        cheapest(replace(PHOTOS, step_s=0.1), [], 11.0, {"core": 1.0})


@pytest.mark.parametrize(
    ("rate", "prices", "told"),
    [
        (0.0, {"core": 1.0}, "min_rate"),
        (math.inf, {"core": 1.0}, "min_rate"),
        (1.0, {}, "prices of core"),
        (1.0, {"core": -1.0}, "negative"),
        (1.0, {"gpu": 1.0}, "got gpu"),
    ],
)
def test_what_makes_no_sense_is_refused(rate: float, prices: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        cheapest(PHOTOS, [], rate, prices)


def test_a_diagnosis_has_it() -> None:
    data: Any = TensorDataset(torch.arange(64))
    loader = minato.DataLoader(data, batch_size=8, num_workers=2)
    seen = Seen(replace(PHOTOS, dataset_samples=64), look(data, choose_indices(data, 4), 1.0), None, 0.0)
    found = conclude(loader, seen, ()).plan(5.0, {"core": 0.04, "memory_gb": 0.005})
    assert isinstance(found, minato.diagnose.Purchase) and isinstance(found, Purchase)
    assert found.price > 0
