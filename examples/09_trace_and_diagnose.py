"""Which part of the pipeline is slow, and what to do about it: a trace, its report, a diagnosis, a better loader.

Needs `pip install 'minato[diagnose]'`. python examples/09_trace_and_diagnose.py
"""
# ruff: noqa: T201  (an example prints)

import subprocess
import sys
import time

import torch
from torch import Tensor

import minato


def load(index: int) -> Tensor:
    return torch.full((3, 32, 32), float(index))


def decode(x: Tensor) -> Tensor:
    """Takes 3 ms of a core, and gives the same each time."""
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        x = x.flip(2)
    return x


def flip(x: Tensor) -> Tensor:
    return x.flip(2) if torch.rand(()) < 0.5 else x


def make_loader(trace: str | None = None) -> minato.DataLoader[Tensor]:
    dataset = minato.StagedDataset(load, [minato.deterministic(decode), flip], length=400)
    return minato.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=1, trace=trace)


if __name__ == "__main__":
    with make_loader(trace="run1") as loader:
        for _ in loader:
            with minato.mark("train_step"):
                time.sleep(0.005)
    # The same as on the command line: minato trace report run1. With --html run1.html: a page with pictures.
    report = [sys.executable, "-m", "minato", "trace", "report", "run1", "--html", "run1.html"]
    print(subprocess.run(report, check=True, capture_output=True, text=True).stdout)

    loader = make_loader()
    print(minato.diagnose(loader, max_seconds=4))  # on the command line: minato diagnose MODULE:make_loader
    with minato.optimize(loader, allow=["num_workers"], max_seconds=4) as better:  # does what the diagnosis advises
        print(f"\noptimized: {better.num_workers} workers instead of {loader.num_workers}, cache={better.cache!r}")
