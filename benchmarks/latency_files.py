"""Files behind a latency, as on a network file system: how much fetching many at once is worth, at equal workers.

Every file is read from disk, after a pause that stands for the way to the server (`--latency` milliseconds, give or
take a half). Arms, in turn and in rotating order: torch's loader; minato with the sequential, the threaded and the
asyncio fetcher, all with the same number of workers. Each arm must deliver every file exactly once, with its bytes.

    python benchmarks/latency_files.py                       # 20 ms, 2 workers
    python benchmarks/latency_files.py --latency 80 --workers 4

Prints samples per second (medians of `--repeats` epochs, start-up included) and the ratio to torch's loader.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from minato import DataLoader


class LatencyFiles(Dataset[Any]):
    """The files of a folder, by number. A sample is a file's first bytes as a tensor, its number and its checksum."""

    def __init__(self, folder: Path, count: int, latency_s: float) -> None:
        self.folder = folder
        self.count = count
        self.latency_s = latency_s

    def __len__(self) -> int:
        return self.count

    def _pause_s(self, index: int) -> float:
        return self.latency_s * random.Random(index).uniform(0.5, 1.5)

    def _read(self, index: int) -> tuple[torch.Tensor, int, int]:
        data = (self.folder / f"{index}.bin").read_bytes()
        return torch.from_numpy(np.frombuffer(data, np.uint8).copy()), index, zlib.crc32(data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        time.sleep(self._pause_s(index))
        return self._read(index)

    async def __getitem_async__(self, index: int) -> tuple[torch.Tensor, int, int]:
        await asyncio.sleep(self._pause_s(index))
        return self._read(index)


def write_files(folder: Path, count: int, size: int) -> list[int]:
    """Random files; returns their checksums."""
    generator = np.random.default_rng(0)
    checksums = []
    for index in range(count):
        data = generator.bytes(size)
        (folder / f"{index}.bin").write_bytes(data)
        checksums.append(zlib.crc32(data))
    return checksums


def timed_epoch(loader: Iterable[Any], checksums: list[int]) -> float:
    """Seconds for an epoch. Raises if a file is missing, comes twice, or has other bytes."""
    began = time.perf_counter()
    seen: dict[int, int] = {}
    for data, indices, sums in loader:
        for row, index, checksum in zip(data, indices.tolist(), sums.tolist(), strict=True):
            if index in seen:
                raise AssertionError(f"file {index} was delivered twice")
            seen[index] = checksum
            if zlib.crc32(row.numpy()) != checksums[index]:
                raise AssertionError(f"file {index} has other bytes than on disk")
    seconds = time.perf_counter() - began
    if seen != dict(enumerate(checksums)):
        raise AssertionError(f"{len(seen)} of {len(checksums)} files were delivered")
    return seconds


def arms(options: argparse.Namespace) -> dict[str, Callable[[Dataset[Any]], Iterable[Any]]]:
    """Ways to load, by name."""
    common = {"batch_size": options.batch, "shuffle": True, "num_workers": options.workers}
    concurrent = {**common, "num_fetch_workers": options.fetchers}
    return {
        "torch": lambda dataset: TorchLoader(dataset, **common),
        "minato sequential": lambda dataset: DataLoader(dataset, **common),
        "minato threaded": lambda dataset: DataLoader(dataset, fetcher="threaded", **concurrent),
        "minato asyncio": lambda dataset: DataLoader(dataset, fetcher="asyncio", **concurrent),
        "minato threaded, in order": lambda dataset: DataLoader(
            dataset, fetcher="threaded", in_order=True, **concurrent
        ),
    }


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Median samples per second, by arm."""
    with tempfile.TemporaryDirectory() as folder:
        checksums = write_files(Path(folder), options.files, options.size)
        dataset = LatencyFiles(Path(folder), options.files, options.latency / 1000)
        made = list(arms(options).items())
        rates: dict[str, list[float]] = {name: [] for name, _ in made}
        for repeat in range(options.repeats):
            turn = repeat % len(made)
            for name, make in made[turn:] + made[:turn]:
                rates[name].append(options.files / timed_epoch(make(dataset), checksums))
    return {name: statistics.median(values) for name, values in rates.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=20.0, help="milliseconds per file (default 20)")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--size", type=int, default=115_000, help="bytes of a file (default 115,000)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fetchers", type=int, default=16, help="num_fetch_workers (default 16)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    rates = measure(options)
    if options.json:
        print(json.dumps({"options": vars(options), "samples_per_s": rates}))
        return 0
    print(
        f"{options.files} files of {options.size} bytes, {options.latency:g} ms, batch {options.batch}, "
        f"{options.workers} workers, {options.fetchers} fetches each, {os.cpu_count()} cores; every file exactly once"
    )
    for name, rate in rates.items():
        print(f"{name:28} {rate:8.0f} samples/s  {rate / rates['torch']:6.2f} x torch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
