"""What a rate would cost: the cheapest cores, memory and storage bandwidth that give at least so many batches per
second, by the same model as the bound. Pure.

    minimise  core · C + memory · M + storage · B      price per hour
    so that   C ≥ X · Σ cpu_i                          cores for all stages
              B ≥ X · Σ bytes_i                        bandwidth for what they read
              M ≥ X · Σ wall_i · b + cache             a place in workers for each sample in the making, and the cache
              X · wall_i ≤ 1                           for what the main process does: no money helps there

for each place where a cache may be, none among them; the cheapest counts. In each of these every resource has one
constraint of its own, so the optimum of the linear programme is where they hold with equality.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .._pipeline.planning import CachePoint
from .model import Demand
from .predicting import Setting, demands_of, resources_of
from .records import Measurement

CORE, MEMORY_GB, STORAGE_MB_S = "core", "memory_gb", "storage_mb_s"
PRICED = (CORE, MEMORY_GB, STORAGE_MB_S)
"""What prices are of: one core, a gigabyte of memory, a megabyte per second of storage bandwidth. Of what has no price,
as much as one likes is there."""
_ROUNDING = 1e-9  # of a sum of measured times: no worker is to be bought for it


@dataclass(frozen=True, slots=True)
class Purchase:
    """What to have for a rate."""

    rate: float
    """Batches per second that were asked for."""
    cores: float
    workers: int
    """Samples that have to be in the making at once."""
    memory_bytes: float
    """Of the loader: samples in the making, and the cache."""
    storage_bytes_s: float
    cache: str | None
    """Argument of the loader: where to cache, from the second epoch on; None: nowhere."""
    price: float
    """In the unit of the prices."""


def cheapest(
    measurement: Measurement, points: Iterable[CachePoint], min_rate: float, prices: Mapping[str, float]
) -> Purchase:
    """The cheapest resources for `min_rate` batches per second, with one of these caches or without. Raises ValueError
    where no resources are enough."""
    check_prices(prices)
    if not (min_rate > 0 and math.isfinite(min_rate)):
        raise ValueError(f"min_rate must be positive, got {min_rate}")
    choices = [_purchase(measurement, point, min_rate, prices) for point in (None, *points)]
    possible = [choice for choice in choices if choice is not None]
    if not possible:
        raise ValueError(
            f"{min_rate:,.1f} batches/s cannot be had by more cores, memory or storage: what is done for each batch in "
            f"the main process takes longer, or your own loop does"
        )
    return min(possible, key=lambda choice: choice.price)


def check_prices(prices: Mapping[str, float]) -> None:
    """Refuse prices of other things, and below nothing."""
    if unknown := set(prices) - set(PRICED):
        raise ValueError(f"prices may be of {', '.join(PRICED)}, got {', '.join(sorted(map(str, unknown)))}")
    if not prices or not all(price >= 0 for price in prices.values()):
        raise ValueError(f"prices of {', '.join(PRICED)} are needed, none of them negative, got {dict(prices)!r}")


def _purchase(
    measurement: Measurement, point: CachePoint | None, rate: float, prices: Mapping[str, float]
) -> Purchase | None:
    """The least of everything for this rate; None: it cannot be had."""
    demands = _dear(demands_of(measurement, Setting(1, 1, point)), measurement)
    step_s = measurement.step_s or 0.0
    if any(rate * demand.wall_s > 1 for demand in demands if demand.is_sequential) or rate * step_s > 1:
        return None
    busy = rate * sum(demand.wall_s for demand in demands if not demand.is_sequential)
    workers = max(1, math.ceil(busy * (1 - _ROUNDING)))
    cores = rate * sum(demand.cpu_s for demand in demands)
    bytes_s = rate * sum(demand.bytes_read for demand in demands)
    kept = 0.0 if point is None else point.total_bytes * point.share
    memory = workers * resources_of(measurement, None).bytes_per_place + kept
    price = (
        cores * prices.get(CORE, 0.0)
        + memory / 1e9 * prices.get(MEMORY_GB, 0.0)
        + bytes_s / 1e6 * prices.get(STORAGE_MB_S, 0.0)
    )
    cache = None if point is None else f"after:{point.stages[-1]}"
    return Purchase(rate, cores, workers, memory, bytes_s, cache, price)


def _dear(demands: Sequence[Demand], measurement: Measurement) -> list[Demand]:
    """With the CPU time that stages take when all cores are busy: nobody pays for idle ones."""
    return [
        demand if demand.is_sequential else replace(demand, cpu_s=demand.cpu_s * measurement.crowding)
        for demand in demands
    ]
