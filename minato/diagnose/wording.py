"""Numbers and limits in words, for somebody who knows nothing of the model."""

from __future__ import annotations

from .bound import CONSUMER, CPU, PLACES, Bound
from .measuring import Seen
from .records import Measurement


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 1e6 else "less than 1 MB"


def workers_in_words(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def cores_in_words(count: float) -> str:
    return f"{count:g} core{'s' * (count != 1)}"


def mostly_waits(measurement: Measurement) -> bool:
    waiting = sum(max(0.0, stage.wall_s - stage.cpu_s) for stage in measurement.stages)
    return waiting > 0.5 * sum(stage.wall_s for stage in measurement.stages)


def in_seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.2g} µs"


def in_bytes(value: float) -> str:
    if value < 1:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def limit_in_words(bound: Bound, seen: Seen, as_configured: bool = True) -> str:
    """What holds the rate, for somebody who knows nothing of the model; as the loader is, or with as many workers as
    one likes."""
    measurement = seen.measurement
    cores, others = measurement.cores, measurement.others_cores
    taken = f", {others:.1f} of {'it' if cores == 1 else 'them'} with other programs" if others else ""
    busy = "its only core is busy" if cores == 1 else f"all {cores:g} cores are busy"
    enough = "" if measurement.workers < cores or mostly_waits(measurement) else ", no fewer than cores"
    words = {
        CPU: f"the CPU: {busy}{taken}" if as_configured else f"its {cores_in_words(cores)}{taken}",
        PLACES: f"the number of workers ({measurement.workers}{enough})",
        "memory": "memory for samples in the making",
        "storage": f"the storage, which gives {(measurement.storage_bytes_s or 0) / 1e6:,.0f} MB/s",
        CONSUMER: "your own loop",
        "sequential": "what the main process does for each batch",
    }
    if as_configured and bound.limit in (CPU, PLACES) and measurement.workers == 0:
        return "one process doing everything in turn (num_workers=0)"
    return words.get(bound.limit, bound.limit)
