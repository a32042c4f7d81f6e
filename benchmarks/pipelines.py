"""Real pipelines, trained for real on this CPU: MONAI, albumentations, scipy, tokenizers; torch's loader and minato's.

    python benchmarks/pipelines.py                        # all, 3 repeats, about two minutes on two idle cores
    python benchmarks/pipelines.py --only audio text
    python benchmarks/pipelines.py --json out.json

Model and workers share the cores, as on a machine without accelerator, so what a loader saves is less than its own
speed-up. Arms run in turn; each repeat trains a fresh model for two epochs with a fresh loader with persistent workers.
Every epoch is checked: each sample once. The loss of the last epoch has to be below that of the first.

Exit status: 0, 1 if minato was more than 5 % slower than torch's loader anywhere, 2 if a sample was lost or repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader

import minato
from benchmarks import harness
from benchmarks.real_pipelines import PIPELINES, Pipeline
from benchmarks.workloads import WrongBatchError, check_exactly_once

LOADERS: dict[str, Any] = {"torch": TorchLoader, "minato": minato.DataLoader}
EVEN = 0.95  # of torch's rate; two runs of one loader differ by as much


@dataclass(frozen=True)
class Trained:
    """One training. Rates are samples per second; `waited` is the share of the time spent in `next()`."""

    rate: float
    waited: float
    losses: tuple[float, ...]
    """Mean of each epoch."""


def train(pipeline: Pipeline, cls: Any, dataset: Any, epochs: int = 2, workers: int = 2) -> Trained:
    """Train a fresh model with a fresh loader of class `cls`; every epoch is checked."""
    torch.manual_seed(0)
    model = pipeline.make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = cls(
        dataset,
        batch_size=pipeline.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=pipeline.collate_fn,
    )
    waited, losses, began = 0.0, [], time.perf_counter()
    try:
        for _ in range(epochs):
            seconds, loss = _epoch(pipeline, loader, model, optimizer, len(dataset))
            waited += seconds
            losses.append(loss)
        elapsed = time.perf_counter() - began
    finally:
        harness.close(loader)
    return Trained(epochs * len(dataset) / elapsed, waited / elapsed, tuple(losses))


def _epoch(pipeline: Pipeline, loader: Any, model: Any, optimizer: Any, length: int) -> tuple[float, float]:
    """Seconds waited for batches, and the mean loss."""
    delivered: list[Tensor] = []
    losses: list[float] = []
    waited, asked = 0.0, time.perf_counter()
    for batch in loader:
        waited += time.perf_counter() - asked
        delivered.append(pipeline.indices_of(batch).clone())
        loss = pipeline.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        asked = time.perf_counter()
    check_exactly_once(delivered, length)
    return waited, statistics.fmean(losses)


def compare(pipeline: Pipeline, samples: int, repeats: int) -> dict[str, list[Trained]]:
    """Both loaders in turn."""
    dataset = pipeline.make_dataset(samples)
    results: dict[str, list[Trained]] = {name: [] for name in LOADERS}
    for repeat in range(repeats):
        for name in list(LOADERS)[:: 1 if repeat % 2 == 0 else -1]:
            results[name].append(train(pipeline, LOADERS[name], dataset))
    return results


def show(name: str, results: dict[str, list[Trained]]) -> float:
    """Print a line for each loader; minato's rate over torch's."""
    middles = {}
    for loader, trained in results.items():
        rates = [each.rate for each in trained]
        middles[loader] = statistics.median(rates)
        waited = statistics.median(each.waited for each in trained)
        first, last = (statistics.median(each.losses[which] for each in trained) for which in (0, -1))
        print(
            f"{name:14} {loader:8} {middles[loader]:8.1f} samples/s ({min(rates):.1f} .. {max(rates):.1f}), "
            f"waited {waited:.0%}, loss {first:.3f} to {last:.3f}",
            flush=True,
        )
    ratio = middles["minato"] / middles["torch"]
    print(f"{name:14} minato / torch = {ratio:.2f}\n", flush=True)
    return ratio


def main(argv: list[str] | None = None) -> int:
    """Run the pipelines; returns the exit status."""
    names = [pipeline.name for pipeline in PIPELINES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names)
    parser.add_argument("--samples", type=int, default=192, help="of an epoch (default 192)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    machine = harness.machine()
    print("  ".join(f"{key} {value}" for key, value in machine.items()) + "\n", flush=True)
    ratios, raw = {}, {}
    for pipeline in PIPELINES:
        if options.only and pipeline.name not in options.only:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries, about much that is not ours
            try:
                results = compare(pipeline, options.samples, options.repeats)
            except ModuleNotFoundError as error:
                print(f"{pipeline.name}: {error.name} is not installed\n")
                continue
        ratios[pipeline.name] = show(pipeline.name, results)
        raw[pipeline.name] = {loader: [asdict(each) for each in trained] for loader, trained in results.items()}
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "results": raw}, indent=1))
    return int(any(ratio < EVEN for ratio in ratios.values()))


if __name__ == "__main__":
    try:
        status = main()
    except WrongBatchError as error:
        print(f"exactly-once violated: {error}", file=sys.stderr)
        status = 2
    sys.exit(status)
