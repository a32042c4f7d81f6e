"""Measuring on object storage: a real server with a slow network on this machine, and the grid of workers × fetchers.

Each object begins with its number, so that whoever reads them can tell that all came, each once, and whole.
"""

from __future__ import annotations

import io
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._dataloader import DataLoader
from ..storage import S3Dataset
from ..testing import Faults, FaultyProxy, S3Server
from .datasets import WrongBatchError, check_exactly_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUCKET = "bench"
OBJECT_BYTES = 115_000  # the mean size of an image of ImageNet, as in the published measurements
_NUMBER_BYTES = 8


def object_bytes(number: int, nbytes: int = OBJECT_BYTES) -> bytes:
    """Object `number`: the number, bytes drawn from it, the number again."""
    middle = np.random.default_rng(number).bytes(nbytes - 2 * _NUMBER_BYTES)
    edge = number.to_bytes(_NUMBER_BYTES, "little")
    return edge + middle + edge


def numbers_in(batch: Tensor) -> Tensor:
    """The numbers of the objects that are the rows of a batch of bytes; raises unless their ends agree."""
    first = batch[:, :_NUMBER_BYTES].contiguous().view(torch.int64)[:, 0]
    last = batch[:, -_NUMBER_BYTES:].contiguous().view(torch.int64)[:, 0]
    if not torch.equal(first, last):
        raise WrongBatchError("an object's two ends are of different objects")
    return first.clone()


@dataclass(frozen=True)
class Remote:
    """A server with objects in it and a proxy in front."""

    server: S3Server
    proxy: FaultyProxy
    count: int

    def dataset(self, **options: Any) -> S3Dataset:
        """The objects, reached through the proxy, as tensors of bytes."""
        return S3Dataset(f"s3://{BUCKET}/", decode="tensor", endpoint=self.proxy.url, **options)


@contextmanager
def remote_objects(count: int, nbytes: int = OBJECT_BYTES, faults: Faults | None = None) -> Iterator[Remote]:
    """Serve `count` objects; credentials are put into the environment meanwhile."""
    with S3Server() as server:
        for number in range(count):
            server.put(BUCKET, f"{number:06}.bin", object_bytes(number, nbytes))
        before = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            with FaultyProxy(server.port, faults) as proxy:
                yield Remote(server, proxy, count)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class Timed(Dataset[tuple[Any, float]]):
    """Samples with the seconds that each took."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, float]:
        began = time.perf_counter()
        return self.dataset[index], time.perf_counter() - began

    async def __getitem_async__(self, index: int) -> tuple[Any, float]:
        began = time.perf_counter()
        return await self.dataset.__getitem_async__(index), time.perf_counter() - began


@dataclass(frozen=True)
class GridPoint:
    """One setting of the grid."""

    workers: int
    fetchers: int
    """Reads at once in each worker."""
    objects_per_s: float
    mbit_per_s: float
    """Of 1024² bits, as published."""
    median_request_s: float


def measure_grid(
    remote: Remote,
    workers: Sequence[int],
    fetchers: Sequence[int],
    fetcher: str = "threaded",
    batch_size: int = 32,
    progress: Callable[[GridPoint], None] | None = None,
) -> list[GridPoint]:
    """An epoch by each number of workers with each number of fetchers, each checked for exactly-once delivery."""
    dataset = Timed(remote.dataset())
    points = []
    for worker_count in workers:
        for fetch_count in fetchers:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This DataLoader will create")  # a grid goes beyond the cores
                options: dict[str, Any] = {"fetcher": fetcher, "num_fetch_workers": fetch_count}
                with DataLoader(dataset, batch_size, shuffle=True, num_workers=worker_count, **options) as loader:
                    points.append(_point(loader, worker_count, fetch_count, remote.count))
            if progress is not None:
                progress(points[-1])
    return points


def _point(loader: Any, workers: int, fetchers: int, count: int) -> GridPoint:
    seen: list[Tensor] = []
    times: list[float] = []
    total_bytes = 0
    began = time.perf_counter()
    for batch, seconds in loader:
        seen.append(numbers_in(batch))
        times.extend(seconds.tolist())
        total_bytes += batch.numel()
    elapsed = time.perf_counter() - began
    check_exactly_once(seen, count)
    mbit = total_bytes * 8 / 1024**2
    return GridPoint(workers, fetchers, count / elapsed, mbit / elapsed, statistics.median(times))


def plot_grid(points: Sequence[GridPoint], title: str = "") -> Figure:
    """Two heat maps over workers × fetchers: throughput, and the median time of a request."""
    from matplotlib.figure import Figure

    workers = sorted({point.workers for point in points})
    fetchers = sorted({point.fetchers for point in points})
    figure = Figure(figsize=(11, 0.7 * len(workers) + 2.2), layout="constrained")
    shown: list[tuple[str, Callable[[GridPoint], float], str]] = [
        ("throughput, Mbit/s", lambda point: point.mbit_per_s, "viridis"),
        ("median request, ms", lambda point: 1e3 * point.median_request_s, "magma_r"),
    ]
    for axes, (name, value_of, colours) in zip(figure.subplots(1, 2), shown, strict=True):
        values = np.full((len(workers), len(fetchers)), np.nan)
        for point in points:
            values[workers.index(point.workers), fetchers.index(point.fetchers)] = value_of(point)
        axes.imshow(values, cmap=colours, aspect="auto", origin="lower")
        axes.set_xticks(range(len(fetchers)), fetchers)
        axes.set_yticks(range(len(workers)), workers)
        axes.set_xlabel("fetchers per worker")
        axes.set_ylabel("workers")
        axes.set_title(name)
        middle = float(np.nanmin(values) + np.nanmax(values)) / 2
        light_is_high = colours == "viridis"
        for (row, column), value in np.ndenumerate(values):
            dark = (value > middle) == light_is_high
            axes.text(column, row, f"{value:,.0f}", ha="center", va="center", color="black" if dark else "white")
    figure.suptitle(title)
    return figure


def grid_image(points: Sequence[GridPoint], title: str = "", kind: str = "png") -> bytes:
    """The plot as a file of that kind."""
    out = io.BytesIO()
    plot_grid(points, title).savefig(out, format=kind, dpi=120)
    return out.getvalue()
