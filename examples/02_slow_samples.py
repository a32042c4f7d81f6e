"""One sample in twenty takes twenty times as long. torch's loader and minato's, same workers, same samples.

python examples/02_slow_samples.py
"""
# ruff: noqa: T201  (an example prints)

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import minato

STEP_S = 0.010  # seconds that a training step takes


class Uneven(Dataset[tuple[Tensor, int]]):
    """2 ms of waiting, as for storage; 40 ms for one sample in twenty."""

    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.040 if index % 20 == 7 else 0.002)
        return torch.full((3, 32, 32), float(index)), index


def run(name: str, loader: Any) -> None:
    began, seen = time.perf_counter(), []
    for _, indices in loader:
        time.sleep(STEP_S)
        seen += indices.tolist()
    seconds = time.perf_counter() - began
    busy = len(loader) * STEP_S / seconds
    print(f"{name:18} {seconds:.2f} s, the step was busy {busy:.0%} of it, {len(set(seen))} of {len(seen)} distinct")


if __name__ == "__main__":
    settings: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 4}
    run("torch", TorchLoader(Uneven(), **settings))
    run("minato", minato.DataLoader(Uneven(), **settings))
    run("minato, in order", minato.DataLoader(Uneven(), in_order=True, **settings))
