"""The ways of making a loader that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from .._dataloader import DataLoader
from .workloads import Built, Workload


@dataclass(frozen=True)
class Arm:
    """One contender. `against`: the arm of torch's loader in the same setting, if there is one."""

    name: str
    minato: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None
    epochs_s: float = 1.0
    """How many times the usual seconds it runs: adaptation needs some to settle."""

    def make(self, built: Built) -> Any:
        """A loader over the workload's dataset."""
        cls = DataLoader if self.minato else TorchLoader
        shared = {"batch_size": built.workload.batch_size, "shuffle": True, **built.workload.arguments}
        return cls(self.dataset(built), **{**shared, **self.arguments})

    def dataset(self, built: Built) -> Any:
        """The dataset that this arm loads: a shorter one without workers."""
        return built.dataset if self.arguments.get("num_workers", 0) else built.short


def arms_of(workload: Workload, count: int) -> tuple[Arm, ...]:
    """Torch's loader in its usual settings with `count` workers, minato's in the same ones, and what minato adds."""
    workers = {"num_workers": count}
    persistent = {**workers, "persistent_workers": True}
    word = f"{count} worker" + ("s" if count > 1 else "")
    torch_plain, torch_persistent = f"torch, {word}", f"torch, {word}, persistent"
    arms = [
        Arm("torch, no worker", minato=False),
        Arm(torch_plain, False, workers),
        Arm(f"torch, {word}, out of order", False, {**workers, "in_order": False}),
        Arm(torch_persistent, False, persistent),
        Arm("minato, no worker", True, against="torch, no worker"),
        Arm(f"minato, {word}", True, workers, against=torch_plain),
        Arm(f"minato, {word}, in order", True, {**workers, "in_order": True}, against=torch_plain),
        Arm(f"minato, {word}, persistent", True, persistent, against=torch_persistent),
    ]
    # Samples that wait may have more workers than cores; for others the default limit holds, the cores.
    more = {"max_workers": 4 * count} if workload.waits else {}
    adaptive = {"num_workers": "auto", "persistent_workers": True, **more}
    arms.append(Arm("minato, adaptive", True, adaptive, epochs_s=3.0 if workload.waits else 1.0))
    return tuple(arms)
