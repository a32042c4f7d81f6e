"""The most batches per second that the resources allow: a linear programme, solved by scipy's HiGHS.

    maximise  X                                        batches per second
    so that   X · cpu_i  ≤ θ_i                         each stage gets θ_i cores
              Σ θ_i      ≤ cores
              X · wall_i ≤ s_i                         each parallel stage occupies s_i of the places in workers
              Σ s_i      ≤ places                      workers × fetches at once, if they are given; what memory allows
              X · wall_i ≤ 1                           a sequential stage is in one place: the main process
              X · Σ bytes_i ≤ storage bandwidth
              X · step   ≤ 1                           the consumer, if its own time is known

What the solution is held up by is read from the duals: the constraint whose loosening would raise X.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .model import Demand

CPU, PLACES, MEMORY, STORAGE, CONSUMER, SEQUENTIAL = "cpu", "workers", "memory", "storage", "consumer", "sequential"
"""What can limit."""
_NOTHING_S = 1e-12  # a batch that costs nothing anywhere still has a bound: HiGHS wants bounded problems


@dataclass(frozen=True, slots=True)
class Resources:
    """What there is."""

    cores: float
    places: float | None = None
    """Samples that may be worked on at once; None: as many as one likes."""
    storage_bytes_s: float | None = None
    memory_bytes: float | None = None
    bytes_per_place: float = 0.0
    """Memory that a sample being worked on takes."""
    step_s: float | None = None
    """Seconds per batch of the consumer itself."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The solution."""

    rate: float
    """Batches per second, at most."""
    limit: str
    """The resource that holds it there."""
    stage: str | None
    """The stage that needs most of it, if it is about stages."""
    cores: dict[str, float]
    """Cores for each stage at this rate."""
    places: dict[str, float]
    """Places in workers for each parallel stage at this rate."""


def solve(demands: Sequence[Demand], resources: Resources) -> Bound:
    """The bound of a pipeline with these costs per batch."""
    if resources.cores <= 0:
        raise ValueError(f"cores must be positive, got {resources.cores}")
    rows, limits, names = _constraints(demands, resources)
    result = _linprog()(
        c=[-1.0] + [0.0] * (2 * len(demands)),
        A_ub=rows,
        b_ub=limits,
        bounds=[(0.0, None)] * (1 + 2 * len(demands)),
        method="highs",
    )
    if not result.success:
        raise ArithmeticError(f"the bound could not be computed: {result.message}")
    rate = float(result.x[0])
    limit, stage = _limiting(result, names, demands)
    return Bound(
        rate=rate,
        limit=limit,
        stage=stage,
        cores={demand.name: rate * demand.cpu_s for demand in demands},
        places={demand.name: rate * demand.wall_s for demand in demands if not demand.is_sequential},
    )


def _constraints(
    demands: Sequence[Demand], resources: Resources
) -> tuple[list[list[float]], list[float], list[tuple[str, str | None]]]:
    """Rows over (X, θ_1.., s_1..), their right sides, and what each is about."""
    count = len(demands)
    rows, limits, names = [], [], list[tuple[str, str | None]]()

    def add(row: list[float], limit: float, about: str, stage: str | None = None) -> None:
        rows.append(row)
        limits.append(limit)
        names.append((about, stage))

    def row(x: float, cores: dict[int, float], places: dict[int, float]) -> list[float]:
        return [x, *(cores.get(i, 0.0) for i in range(count)), *(places.get(i, 0.0) for i in range(count))]

    parallel = [i for i, demand in enumerate(demands) if not demand.is_sequential]
    for i, demand in enumerate(demands):
        add(row(max(demand.cpu_s, _NOTHING_S), {i: -1.0}, {}), 0.0, CPU, demand.name)
        if demand.is_sequential:
            add(row(demand.wall_s, {}, {}), 1.0, SEQUENTIAL, demand.name)
        else:
            add(row(demand.wall_s, {}, {i: -1.0}), 0.0, PLACES, demand.name)
    add(row(0.0, dict.fromkeys(range(count), 1.0), {}), resources.cores, CPU)
    if resources.places is not None:
        add(row(0.0, {}, dict.fromkeys(parallel, 1.0)), resources.places, PLACES)
    if resources.memory_bytes is not None and resources.bytes_per_place > 0:
        add(row(0.0, {}, dict.fromkeys(parallel, 1.0)), resources.memory_bytes / resources.bytes_per_place, MEMORY)
    if resources.storage_bytes_s is not None:
        add(row(sum(demand.bytes_read for demand in demands), {}, {}), resources.storage_bytes_s, STORAGE)
    if resources.step_s is not None:
        add(row(resources.step_s, {}, {}), 1.0, CONSUMER)
    if not demands:
        add(row(_NOTHING_S, {}, {}), resources.cores, CPU)
    return rows, limits, names


def _limiting(result: Any, names: list[tuple[str, str | None]], demands: Sequence[Demand]) -> tuple[str, str | None]:
    """What the duals say: the resource, and the stage that uses most of it."""
    weights = dict[str, float]()
    slack = result.ineqlin.residual
    for (about, stage), dual, left in zip(names, result.ineqlin.marginals, slack, strict=True):
        # A resource is binding when its own row is; the rows of single stages only pass it on.
        if (stage is None or about == SEQUENTIAL) and dual < 0 and left < 1e-6:
            weights[about] = max(weights.get(about, 0.0), -float(dual))
    limit = max(weights, key=lambda about: weights[about]) if weights else CPU
    if not demands or limit == CONSUMER:
        return limit, None
    most = max(demands, key=lambda demand: _need(demand, limit))
    return limit, most.name if _need(most, limit) > 0 else None


def _need(demand: Demand, limit: str) -> float:
    """How much of what limits a stage takes."""
    if limit == CPU:
        return demand.cpu_s
    if limit == STORAGE:
        return demand.bytes_read
    return demand.wall_s if demand.is_sequential == (limit == SEQUENTIAL) else 0.0


def _linprog() -> Any:
    try:
        from scipy.optimize import linprog
    except ImportError as error:
        raise ImportError("the bound of a pipeline needs scipy: pip install 'minato[diagnose]'") from error
    return linprog
