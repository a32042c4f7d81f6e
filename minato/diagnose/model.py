"""The operational model: from measured totals to what one batch costs each resource, and how busy each stage is.

The unit of everything is the batch that reaches the consumer. A stage's *visit ratio* is how often it runs per batch
(the batch size, for what is done sample by sample); its *rate* is how many batches per second one core would get
through it, from CPU time alone; the rest follows from the observed rate by Little's law.
"""

from __future__ import annotations

from dataclasses import dataclass

from .records import Measurement, StageMeasurement

RATE, BUSY, WAIT = "rate", "busy", "wait"
RANKS = (RATE, BUSY, WAIT)
"""Ways to rank stages: by the rate that each allows, by the computing it takes, by the time it waits."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one batch costs at one stage."""

    name: str
    cpu_s: float
    wall_s: float
    bytes_read: float = 0.0
    is_sequential: bool = False

    def __post_init__(self) -> None:
        if min(self.cpu_s, self.wall_s, self.bytes_read) < 0:
            raise ValueError(f"costs must not be negative, got {self}")


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage in the model."""

    name: str
    kind: str
    visits: float
    """Visit ratio: completions per batch."""
    demand: Demand
    rate_per_core: float | None
    """Batches per second that one core gets through it; None: it takes no CPU time."""
    cores_used: float
    """Cores' worth of CPU time at the measured rate."""
    busy_share: float
    """Share of the places where it can run (workers, or the main process) that it occupies at the measured rate."""
    bytes_per_sample: float
    """Of what it makes."""


def model(measurement: Measurement) -> tuple[StageModel, ...]:
    """Each stage of a measurement, in the pipeline's order."""
    return tuple(_stage(stage, measurement) for stage in measurement.stages)


def _stage(stage: StageMeasurement, measurement: Measurement) -> StageModel:
    batches = measurement.batches
    visits = stage.completions / batches if batches else 0.0
    per_visit = 1.0 / stage.completions if stage.completions else 0.0
    least = stage.cpu_s if stage.cpu_least_s is None else stage.cpu_least_s
    demand = Demand(
        stage.name,
        cpu_s=visits * least * per_visit,
        # Waiting is what is left of the wall time without the CPU time; what others' work added to both is no waiting.
        wall_s=visits * per_visit * (least + max(0.0, stage.wall_s - stage.cpu_s)),
        bytes_read=visits * stage.bytes_read * per_visit,
        is_sequential=stage.is_sequential,
    )
    rate = measurement.rate or 0.0
    places = 1 if stage.is_sequential else measurement.slots
    return StageModel(
        name=stage.name,
        kind=stage.kind,
        visits=visits,
        demand=demand,
        rate_per_core=1.0 / demand.cpu_s if demand.cpu_s > 0 else None,
        cores_used=rate * demand.cpu_s,
        busy_share=min(1.0, rate * visits * stage.wall_s * per_visit / places),
        bytes_per_sample=stage.bytes_out * per_visit,
    )


def occupancy_s(stage: StageModel, slots: int, cores: float) -> float:
    """Seconds for which a batch keeps this stage from taking the next: its time by the places it can run in, and not
    less than its CPU time by the cores. Ranks stages that wait and stages that compute by one measure."""
    if stage.demand.is_sequential:
        return stage.demand.wall_s
    return max(stage.demand.wall_s / slots, stage.demand.cpu_s / cores)


def computing_s(stage: StageModel, slots: int) -> float:
    """Seconds of a place's time, in workers or in the main process, that a batch takes to compute."""
    return stage.demand.cpu_s / (1 if stage.demand.is_sequential else slots)


def waiting_s(stage: StageModel) -> float:
    """Seconds that a batch waits for something that is not the CPU."""
    return max(0.0, stage.demand.wall_s - stage.demand.cpu_s)


def check_rank(rank: object) -> None:
    """Refuse what is no way to rank stages."""
    if rank not in RANKS:
        raise ValueError(f"rank must be 'rate', 'busy' or 'wait', got {rank!r}")


def score(stage: StageModel, slots: int, cores: float, rank: str = RATE) -> float:
    """By what a stage is ranked: the more, the worse. Of RATE the inverse, the lowest rate being the worst."""
    if rank == BUSY:
        return computing_s(stage, slots)
    return waiting_s(stage) if rank == WAIT else occupancy_s(stage, slots, cores)


def bottleneck(stages: tuple[StageModel, ...], slots: int, cores: float, rank: str = RATE) -> StageModel:
    """The stage that holds the others up most; by `rank`, that computes or waits most. The first of equals."""
    return max(stages, key=lambda stage: score(stage, slots, cores, rank))
