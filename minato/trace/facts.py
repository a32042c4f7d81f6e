"""What was measured of a run, as far as the verdict goes by it: summary.py fills it in, verdict.py judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .samples import SampleTimes


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """One worker."""

    name: str
    samples: int
    sample_median_s: float
    sample_p25_s: float | None = None
    """A worker that is slow is so with all samples; one that met a few slow ones is not. None: not known."""
    starved: float | None = None
    """Share of its work for which it wanted a core that others had; None: the system did not tell."""

    @property
    def with_a_core_s(self) -> float:
        """What its samples would have taken with a core at all times."""
        return self.sample_median_s * (1 - min(1.0, self.starved or 0.0))


@dataclass(frozen=True, slots=True)
class OpFact:
    """One operation, without those inside another."""

    name: str
    is_loading: bool
    total_s: float
    cpu_s: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """What was measured. Seconds."""

    batches: int
    waited_s: float
    """Of the consumer, for batches; each pool's first is left out, since workers were just starting."""
    stepped_s: float
    """Of the consumer, between taking a batch and asking for the next."""
    startup_s: float = 0.0
    """Waits for the first batches."""
    mean_delay_s: float = 0.0
    busy_share: float = 0.0
    """Of the time of workers, spent on samples."""
    work_s: float = 0.0
    """Work on samples, over all workers."""
    work_cpu_s: float = 0.0
    samples: SampleTimes = field(default_factory=SampleTimes)
    ops: Sequence[OpFact] = ()
    inner: Sequence[OpFact] = ()
    """The user's own spans, inside others or where there are none."""
    workers: Sequence[WorkerFact] = ()
    crowded_cpu: float = 0.0
    """Cores' worth of CPU time that a worker used, of those that work on several samples at once."""
    is_inline: bool = False
    """There are no workers: the consumer makes samples itself."""
    starved: float | None = None
    """Share of the work for which a core was wanted that others had; None: the system did not tell."""

    @property
    def wait_share(self) -> float:
        return self.waited_s / whole if (whole := self.waited_s + self.stepped_s) else 0.0
