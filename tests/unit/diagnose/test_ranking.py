"""Which stage is called the bottleneck, by each way to rank them: a table of made-up stages."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import minato
from minato._pipeline.looking import choose_indices, look
from minato.cli import main
from minato.diagnose.measuring import Seen
from minato.diagnose.model import Demand, StageModel, bottleneck, check_rank
from minato.diagnose.records import LOAD, TRANSFER, TRANSFORM, Measurement, StageMeasurement
from minato.diagnose.report import Diagnosis, conclude


def stages_of(**costs: tuple[float, ...]) -> tuple[StageModel, ...]:
    """CPU and wall seconds of a batch by stage; `main` runs in the main process."""
    return tuple(
        StageModel(
            name=name,
            kind="",
            visits=1.0,
            demand=Demand(name, cpu, wall, is_sequential=name == "main"),
            rate_per_core=None,
            cores_used=0.0,
            busy_share=0.0,
            bytes_per_sample=0.0,
        )
        for name, (cpu, wall) in costs.items()
    )


TABLE: list[tuple[dict[str, tuple[float, float]], int, float, tuple[str, str, str]]] = [
    # Costs (CPU, wall); places in workers; cores; the worst by rate, by computing, by waiting.
    ({"a": (1.0, 1.0), "b": (0.1, 3.0)}, 2, 2.0, ("b", "a", "b")),
    ({"a": (1.0, 1.0), "b": (0.1, 3.0)}, 16, 2.0, ("a", "a", "b")),  # places enough to wait in: the cores decide
    ({"a": (0.2, 1.2), "b": (0.6, 0.6), "c": (0.5, 1.6)}, 2, 2.0, ("c", "b", "c")),
    ({"a": (2.0, 2.0), "main": (1.2, 1.2)}, 2, 2.0, ("main", "main", "a")),  # one at a time, whatever the workers do
    ({"a": (2.0, 2.1), "main": (0.8, 0.8)}, 2, 2.0, ("a", "a", "a")),
    ({"a": (1.0, 1.0), "b": (1.0, 1.0)}, 1, 1.0, ("a", "a", "a")),  # the first of equals
]


@pytest.mark.parametrize(("costs", "slots", "cores", "worst"), TABLE)
def test_worst_stage_by_each_rank(
    costs: dict[str, tuple[float, float]], slots: int, cores: float, worst: tuple[str, str, str]
) -> None:
    stages = stages_of(**costs)
    found = tuple(bottleneck(stages, slots, cores, rank).name for rank in ("rate", "busy", "wait"))
    assert found == worst
    assert bottleneck(stages, slots, cores).name == worst[0]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(("rank", "cost"), [("rate", (0.2, 0.9)), ("busy", (0.5, 0.5)), ("wait", (0.1, 0.6))])
def test_a_stage_planted_anywhere_is_found(place: int, rank: str, cost: tuple[float, float]) -> None:
    costs = dict.fromkeys("abc", (0.1, 0.12)) | {"abc"[place]: cost}
    assert bottleneck(stages_of(**costs), 2, 2.0, rank).name == "abc"[place]


@pytest.mark.parametrize("given", ["fast", "", "RATE", None, 1, ["rate"]])
def test_other_ranks_are_refused_before_anything_is_measured(given: Any) -> None:
    loader = minato.DataLoader(Untouchable())
    with pytest.raises(ValueError, match=r"^rank must be 'rate', 'busy' or 'wait', got "):
        minato.diagnose(loader, rank=given)
    with pytest.raises(ValueError, match=r"^rank must be 'rate', 'busy' or 'wait', got "):
        minato.diagnose.watch(loader).diagnosis(rank=given)
    with pytest.raises(ValueError, match="rank"):
        check_rank(given)


class Untouchable(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("asked for a sample")


# ---- in words --------------------------------------------------------------------------------------------------------

DATA = TensorDataset(torch.arange(64))
MIXED = Measurement(
    stages=(
        StageMeasurement("load", LOAD, completions=80, cpu_s=0.1, wall_s=1.0),
        StageMeasurement("decode", TRANSFORM, completions=80, cpu_s=0.8, wall_s=0.8),
        StageMeasurement("transfer", TRANSFER, completions=10, cpu_s=0.001, wall_s=0.001, is_sequential=True),
    ),
    samples=80, batch_size=8, dataset_samples=64, workers=2, concurrency=1, prefetch=2, cores=2.0, rate=10.0,
    rate_change=0.0,
)  # fmt: skip


def said(rank: str, measurement: Measurement = MIXED) -> Diagnosis:
    loader = minato.DataLoader(DATA, batch_size=8, num_workers=measurement.workers)
    seen = Seen(measurement, look(DATA, choose_indices(DATA, 4), 1.0), None, 0.0)
    return conclude(loader, seen, (), rank)


def test_words_say_by_what_the_stage_was_chosen() -> None:
    assert said("rate").verdict.startswith("The bottleneck is the stage 'load': 56% of a sample's time")
    assert said("busy").verdict.startswith(
        "The busiest stage is 'decode': computing in it takes 40% of the workers' time; what holds the rate at 10.0"
    )
    wait = said("wait")
    assert wait.verdict.startswith(
        "The stage that waits most is 'load': 90 ms per batch off the CPU, 90% of its time; what holds the rate at 10.0"
    )
    assert wait.verdict.endswith("make 'load' wait less, or use more cores.")
    assert [said(rank).sureness for rank in ("rate", "busy", "wait")] == ["medium", "high", "high"]
    report = json.loads(wait.json())
    assert (report["rank"], report["bottleneck"]) == ("wait", "load")
    assert [line for line in said("busy").dot().splitlines() if "red" in line and "decode" in line]


def test_where_nothing_waits_that_is_said() -> None:
    computing = tuple(stage for stage in MIXED.stages if stage.name != "load")
    found = said("wait", Measurement(**{**_fields(MIXED), "stages": computing}))
    assert found.verdict.startswith("No stage waits for long; the most does 'decode': ")
    alone = said("busy", Measurement(**{**_fields(MIXED), "workers": 0, "rate": 5.0}))
    assert "takes 40% of the main process's time" in alone.verdict


def _fields(measurement: Measurement) -> dict[str, Any]:
    return {name: getattr(measurement, name) for name in Measurement.__dataclass_fields__}


def make_loader() -> Any:
    return minato.DataLoader(DATA, batch_size=8)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", f"{__name__}:make_loader", "--max-seconds", "1", "--rank", "busy"]) == 0
    assert capsys.readouterr().out.startswith("The busiest stage is ")
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", f"{__name__}:make_loader", "--rank", "fast"])
    assert ended.value.code == 2
    assert "--rank" in capsys.readouterr().err
