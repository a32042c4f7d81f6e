"""What the loader does, while a plain loop trains: scalars every few steps, a torch.profiler trace, a verdict.

python examples/04_statistics.py
"""
# ruff: noqa: T201  (an example prints)

import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import minato
from minato.integrations import StatsLogger
from minato.trace.summary import summarize


def load(index: int) -> Tensor:
    return torch.full((64,), float(index))


def scale(x: Tensor) -> Tensor:
    return x / 1_000


def shift(x: Tensor) -> Tensor:
    return (x - x.mean()).sort().values


def write(name: str, value: float, step: int) -> None:
    """Instead of it: torch.utils.tensorboard.SummaryWriter(), or anything else with add_scalar."""
    if name in ("minato/samples_per_s", "minato/waiting_share", "minato/batches_ready"):
        print(f"step {step:3}  {name:22} {value:10.2f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the profiler's own
    dataset = minato.StagedDataset(load, [scale, shift], length=2_000)
    model = torch.nn.Linear(64, 1)
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        with minato.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2, trace=run) as loader:
            log = StatsLogger(loader, write, every=20)
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                for step, batch in enumerate(loader):
                    model(batch).sum().backward()
                    log(step)
        spans = [event for event in profiler.key_averages() if event.key.startswith("enumerate(DataLoader)")]
        print(f"torch.profiler saw {sum(span.count for span in spans)} calls of next()")
        print(summarize(run).verdict.text)
