"""What do other machines' CPUs bring? minato's loader with `offload=Ray()` on a cluster of raylets of this machine.

    python benchmarks/offload.py                          # all cases, about 16 minutes
    python benchmarks/offload.py --only capacity kills    # some cases; --list names them
    python benchmarks/offload.py --json out.json

Nodes are raylets with logical CPUs on this machine; samples sleep, which stands for CPUs that are elsewhere. Every
epoch is checked: each index once. Rates are samples per second of whole epochs with persistent workers, once offloading
runs (of stretches of one long epoch where settings are compared); the local rate is measured in the same run.

| case | what | target |
|---|---|---|
| no-stall | a consumer that does not wait, with and without offload, 100 pairs | no remote sample, at most 1 % slower |
| capacity | one local worker, 1, 2 and 4 remote CPUs | at least 0.85 of 2, 3 and 5 times local |
| pinned | one local worker, one remote CPU; both burn CPU time, on a core each | at least 0.85 of 2 times local |
| choice-cpu, -transfer, -read | what is decided against all placements and ratios by 0.1; see there | at least 0.95 |
| slow-net | a token bucket that lets a fifth of the local rate through | never slower than local (0.97) |
| kills | an actor killed each second, then a node | exactly once; the rate afterwards at least 0.8 of before |
| profiling | share of a run of 100 epochs spent measuring; the same with stored metrics | 3 %; at least 80 % less |

Exit status: 0 all targets met, 1 a target missed, 2 a sample lost or repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import torch
from torch.utils.data import Dataset

import minato
from minato.offload import Ray

BATCH = 20
SAMPLE_S = 0.01
LEFT_OUT = (
    15  # batches after a change: six were under way, and those that follow make up for what these had too much of
)
MEASURED = 12  # batches
ENDLESS = 100_000  # samples: more than a sweep takes
PAIRS, SLICE = 100, 40  # slices of each arm; batches in one


class Sleeper:
    """A transform that takes a while."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        time.sleep(SAMPLE_S)
        return image * 2


class Images(Dataset[Any]):
    """Reading takes `read_s` on this machine and `remote_read_s` on others; then comes the transform."""

    def __init__(self, length: int, values: int = 256, remote_read_s: float = 0.0) -> None:
        self.length = length
        self.values = values
        self.remote_read_s = remote_read_s
        self.transform = Sleeper()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.remote_read_s and "raylet" in psutil.Process().parent().name():
            time.sleep(self.remote_read_s)
        image = torch.full((self.values,), float(index))
        image = self.transform(image)
        return image, index


class Cheap(Images):
    """Costs nothing."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.values,), 2.0 * index), index


class Burning(Images):
    """Burns CPU time: the same work wherever it is done, about 10 ms."""

    def __getitem__(self, index: int) -> Any:
        total = 0
        for number in range(120_000):
            total += number * number
        return torch.full((self.values,), 2.0 * index) + 0 * total, index


class WrongEpochError(Exception):
    """A sample was lost or repeated."""


def epoch(loader: Any, during: Callable[[int], None] = lambda _: None) -> float:
    """Samples per second of an epoch, checked."""
    began, seen = time.perf_counter(), []
    for number, (images, indices) in enumerate(loader):
        if not torch.equal(images[:, 0], 2.0 * indices):
            raise WrongEpochError("an image is not that of its index")
        seen += indices.tolist()
        during(number)
    rate = len(seen) / (time.perf_counter() - began)
    if sorted(seen) != list(range(len(loader.dataset))):
        raise WrongEpochError(f"{len(seen)} samples, {len(set(seen))} different ones")
    return rate


@contextmanager
def nodes(*cpus: int) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster with a head without CPUs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster, [cluster.add_node(num_cpus=count) for count in cpus]
    finally:
        cluster.shutdown()


@contextmanager
def loader_of(dataset: Any, cluster: Any = None, workers: int = 1, **ray: Any) -> Iterator[Any]:
    offload = None if cluster is None else Ray(address=cluster.address, **{"store": False, **ray})
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
    with minato.DataLoader(dataset, **options, persistent_workers=True, offload=offload) as loader:
        yield loader


def settle(loader: Any, most: int = 60) -> None:
    """Epochs until it is decided what is offloaded."""
    for _ in range(most):
        epoch(loader)
        if is_settled(loader):
            return
    raise RuntimeError(f"no decision: {loader.stats().offload_decisions}")


def is_settled(loader: Any) -> bool:
    """Whether it is decided what is offloaded."""
    return any(", ratio" in text or text.startswith("local: no gain") for text in loader.stats().offload_decisions)


def rate_of(loader: Any, repeats: int = 3) -> float:
    return statistics.median(epoch(loader) for _ in range(repeats))


# ---- cases ----------------------------------------------------------------------------------------------------------


def no_stall() -> dict[str, Any]:
    """0.2 ms per batch beside 5 ms of work. Short slices of two long epochs, with and without, in pairs: whole epochs
    differ by more than is looked for, as the machine's speed changes meanwhile. CPU time is that of all processes."""
    cheap = Cheap(ENDLESS * 10)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": 1}
    offload = Ray(store=False, profile_steps=10)
    with (
        minato.DataLoader(cheap, **options) as plain,
        minato.DataLoader(cheap, **options, offload=offload) as offloading,
    ):
        streams = Stream(plain), Stream(offloading)
        for stream in streams:
            stream.take(60, 0.005)
        slices: list[list[tuple[float, float]]] = [[], []]
        for number in range(PAIRS):
            for arm in (0, 1) if number % 2 else (1, 0):  # each first in turn
                cpu_s, rate = cpu_time_s(), streams[arm].take(SLICE, 0.005)
                slices[arm].append((rate, (cpu_time_s() - cpu_s) / SLICE))
        remote = offloading.stats().samples_remote
    ratios = [with_it[0] / without[0] for without, with_it in zip(*slices, strict=True)]
    ratio, error = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
    without_s, with_s = (statistics.mean(cpu for _, cpu in arm) for arm in slices)
    return {
        "remote samples": remote,
        "rate with / without": ratio,
        "standard error": error,
        "CPU ms per batch without": 1e3 * without_s,
        "CPU ms per batch with": 1e3 * with_s,
        "met": remote == 0 and ratio >= 0.99,
    }


def cpu_time_s() -> float:
    """Of this process and all below it."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def capacity() -> dict[str, Any]:
    found: dict[str, Any] = {"met": True}
    with loader_of(Images(300)) as loader:
        epoch(loader)
        local = rate_of(loader)
    with nodes(4) as (cluster, _):
        for remote in (1, 2, 4):
            with loader_of(Images(300 * (1 + remote)), cluster, max_remote=remote) as loader:
                settle(loader)
                rate = rate_of(loader) / local
                found[f"1:{remote}"] = rate
                found[f"1:{remote} of ideal"] = rate / (1 + remote)
                found[f"1:{remote} placement"] = loader.stats().remote_placement
                found["met"] &= rate / (1 + remote) >= 0.85
    return found


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started meanwhile is kept to a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pinned() -> dict[str, Any]:
    """All of this machine's side, agent included, on one core; all of the cluster on another."""
    here, there, *_ = sorted(os.sched_getaffinity(0)) * 2
    with on_core(there), nodes(1) as (cluster, _), on_core(here):
        with loader_of(Burning(300)) as loader:
            epoch(loader)
            local = rate_of(loader)
        with loader_of(Burning(600), cluster, max_remote=1) as loader:
            settle(loader)
            rate = rate_of(loader) / local
            decided = loader.stats().remote_placement
    found = {"rate / local": rate, "of ideal": rate / 2, "placement": decided, "cores": len({here, there})}
    return {**found, "met": rate / 2 >= 0.85}


class Stream:
    """A loader's batches, one after the other, checked."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches = iter(loader)
        self._seen: set[int] = set()

    def take(self, batches: int, step_s: float = 0.0) -> float:
        """Samples per second of so many batches."""
        began, samples = time.perf_counter(), 0
        for _ in range(batches):
            images, indices = next(self._batches)
            if not torch.equal(images[:, 0], 2.0 * indices):
                raise WrongEpochError("an image is not that of its index")
            fresh = set(indices.tolist())
            if len(fresh) < len(indices) or fresh & self._seen:
                raise WrongEpochError("a sample came twice")
            self._seen |= fresh
            samples += len(indices)
            if step_s:
                time.sleep(step_s)
        return samples / (time.perf_counter() - began)

    def rate(self) -> float:
        """The same of what is done now: what was begun before comes first, and is left out."""
        self.take(LEFT_OUT)
        return self.take(MEASURED)


def choice(dataset: Any, **ray: Any) -> dict[str, Any]:
    """What is decided, and all that could have been. All in one epoch, which is long: one that begins has batches that
    were made in the one before it, by whatever was done then. Of each placement, ratios are gone through upwards until
    the rate has fallen by 30 %. The best of each, the ratio below it (what is too much shows once it has piled up),
    and what was decided are then measured in turn."""
    with nodes(2) as (cluster, _), loader_of(dataset, cluster, max_remote=2, **ray) as loader:
        stream = Stream(loader)
        while not is_settled(loader):
            stream.take(5)
        stats, controller = loader.stats(), loader._remote.controller
        final = []
        for placement in ("transform", "sample", "batch"):
            sweep: list[float] = []
            while len(sweep) < 11 and (not sweep or sweep[-1] > max(sweep) * 0.7):
                controller.pin(placement, len(sweep) / 10)
                sweep.append(stream.rate())
            final += [(placement, tenths / 10) for tenths in range(max(0, peak(sweep) - 1), peak(sweep) + 1)]
        rates: dict[Any, list[float]] = {}
        for _ in range(3):
            for one in final:
                controller.pin(*one)
                rates.setdefault(one, []).append(stream.rate())
            controller.unpin()
            rates.setdefault("decided", []).append(stream.rate())
    decided, *others = (statistics.median(rates[one]) for one in ("decided", *final))
    found: dict[str, Any] = {"decided": f"{stats.remote_placement} {stats.remote_ratio:.2f}", "rate": decided}
    found |= {f"{name} {ratio}": rate for (name, ratio), rate in zip(final, others, strict=True)}
    return {**found, "of best": decided / max(others), "met": decided / max(others) >= 0.95}


def peak(rates: list[float]) -> int:
    """Where they are highest, neighbours considered: each by itself is a short measurement."""
    smooth = [statistics.mean(rates[max(0, at - 1) : at + 2]) for at in range(len(rates))]
    return smooth.index(max(smooth))


def choice_cpu() -> dict[str, Any]:
    return choice(Images(ENDLESS))


def choice_transfer() -> dict[str, Any]:
    """80 kB samples, 4 MB/s."""
    return choice(Images(ENDLESS, values=20_000), max_bandwidth=4e6)


def choice_read() -> dict[str, Any]:
    """Reading takes 30 ms on other machines, and no time here."""
    return choice(Images(ENDLESS, remote_read_s=0.03))


def slow_net() -> dict[str, Any]:
    dataset = Images(300, values=20_000)
    with loader_of(dataset) as loader:
        epoch(loader)
        local = rate_of(loader)
    slow: dict[str, Any] = {"max_remote": 2, "max_bandwidth": 0.2 * local * 80_000}
    with nodes(2) as (cluster, _), loader_of(dataset, cluster, **slow) as loader:
        settle(loader)
        rate = rate_of(loader) / local
        stats = loader.stats()
    found = {"rate / local": rate, "decided": f"{stats.remote_placement} {stats.remote_ratio:.2f}"}
    return {**found, "met": rate >= 0.97}


def kills() -> dict[str, Any]:
    def kill_actor() -> None:
        actors = [p for p in psutil.process_iter(["cmdline"]) if "FetchActor" in " ".join(p.info["cmdline"] or [])]
        for victim in actors[:1]:
            victim.kill()

    due = time.monotonic()

    def each_second(_: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + 1.0
            kill_actor()

    both: dict[str, Any] = {"placement": "sample", "ratio": "greedy", "max_remote": 4}
    with (
        nodes(2, 2) as (cluster, started),
        warnings.catch_warnings(action="ignore"),
        loader_of(Images(1200), cluster, **both) as loader,
    ):
        for _ in range(30):
            epoch(loader)
            if loader.stats().remote_actors == 4:
                break
        before = rate_of(loader)
        killed = epoch(loader, during=each_second)
        cluster.remove_node(started[0], allow_graceful=False)
        node = epoch(loader)
        after = [epoch(loader) for _ in range(5)][-1]
        actors = loader.stats().remote_actors
    expected = before * 3 / 5  # two actors and the local worker are left
    return {
        "rate before": before,
        "while an actor dies each second": killed / before,
        "while a node dies": node / before,
        "after, of what is left": after / expected,
        "actors left": actors,
        "met": after / expected >= 0.8,
    }


def profiling() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, nodes(2) as (cluster, _):
        steps = []
        for _ in range(2):
            with loader_of(Images(1000), cluster, max_remote=2, store=directory) as loader:
                settle(loader)
                steps.append(loader._remote.controller.profile_steps)
    share = steps[0] / (100 * 1000 / BATCH)
    found = {"batches measured": steps[0], "of 100 epochs": share, "with stored metrics": steps[1]}
    return {**found, "met": share <= 0.03 and steps[1] <= 0.2 * steps[0]}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "no-stall": no_stall,
    "capacity": capacity,
    "pinned": pinned,
    "choice-cpu": choice_cpu,
    "choice-transfer": choice_transfer,
    "choice-read": choice_read,
    "slow-net": slow_net,
    "kills": kills,
    "profiling": profiling,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return 0
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # listen on 127.0.0.1 only: whoever reaches Ray runs code
    torch.set_num_threads(1)
    results = {}
    for name in options.only:
        try:
            results[name] = CASES[name]()
        except WrongEpochError as error:
            print(f"{name}: {error}")
            return 2
        for key, value in results[name].items():
            print(f"{name:15} {key:35} {value:.3g}" if isinstance(value, float) else f"{name:15} {key:35} {value}")
        sys.stdout.flush()
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    return 0 if all(result["met"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
