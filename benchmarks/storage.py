"""Is object storage as good as a local disk? minato's loader against torch's, on a real S3 server with a slow network.

    python benchmarks/storage.py                       # everything, about 10 minutes
    python benchmarks/storage.py --only latency-20     # some cases; --list names them
    python benchmarks/storage.py --quick --json out.json --plot grid.png

`rclone serve s3` on this machine serves objects of 115 kB; a proxy in front of it adds latency and faults. Server,
proxy, workers and training loop share the cores, so on few cores CPU time is what is measured. The baseline is torch's
loader with a dataset that reads one object after the other by boto3, same workers. The raw ceiling is obstore alone, as
many requests at once as all workers together make, no loader, nothing verified: in one process that keeps its client
and its connections from one repeat to the next, and in as many processes as there are workers, started in every epoch.
Of minato's there is an arm that starts its workers in every epoch, as all others do, and one that keeps them, of which
the second of two epochs in a row counts; these compare lengths only, as obstore alone does. What minato does by
default, comparing every object with its MD5, has a ceiling of its own: obstore alone with the same comparison. minato
reads whole objects by a client of its own: what the loader costs beside its client is told by the arm that reads by
obstore as the ceiling does, and by minato's client without a loader. No target hangs on these two.

Exit status: 0 all targets met, 1 a target missed, 2 a sample lost, repeated or mixed up.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import minato
from benchmarks import harness
from benchmarks.harness import Arm, Case, Target
from benchmarks.workloads import Workload, WrongBatchError, check_exactly_once
from minato.bench.storage import (
    BUCKET,
    Remote,
    Timed,
    grid_image,
    measure_grid,
    numbers_in,
    object_bytes,
    remote_objects,
)
from minato.storage import HedgePolicy
from minato.storage.clients import client_for
from minato.storage.location import make_location
from minato.storage.obstore_library import library
from minato.testing import Faults

WORKERS = 4
BATCH = 32
_CACHE_EPOCHS = 5  # of the case of caches, for each repeat


class Objects:
    """Only the reader of batches: every arm has its own way to the same objects."""

    def __init__(self, length: int) -> None:
        self.length = length

    def read(self, batch: Tensor) -> Tensor:
        return numbers_in(batch)


class SequentialBoto3(Dataset[Tensor]):
    """What people write: one boto3 client per worker, one object after the other."""

    def __init__(self, url: str, length: int) -> None:
        self.url, self.length = url, length
        self.client: Any = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        if self.client is None:
            import boto3

            self.client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")
        body = self.client.get_object(Bucket=BUCKET, Key=f"{index:06}.bin")["Body"].read()
        return torch.frombuffer(bytearray(body), dtype=torch.uint8)


class LocalFiles(Dataset[Tensor]):
    """The same objects as files of this machine."""

    def __init__(self, root: Path, length: int) -> None:
        self.root, self.length = str(root), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        with open(f"{self.root}/{index:06}.bin", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


class OnThreads:
    """An "arm" without a loader: `fetch(number)` on threads of this process, as fast as they come."""

    def __init__(self, fetch: Callable[[int], Any], length: int, threads: int) -> None:
        self.fetch, self.length, self.threads = fetch, length, threads

    def __iter__(self) -> Iterator[Tensor]:
        def edges(number: int) -> Tensor:
            data = bytes(self.fetch(number))
            return torch.frombuffer(bytearray(data[:8] + data[-8:]), dtype=torch.uint8)

        with ThreadPoolExecutor(self.threads) as pool:
            for row in pool.map(edges, range(self.length)):
                yield row[None]


def obstore_alone(remote: Remote, threads: int, compares: bool = False) -> OnThreads:
    return OnThreads(obstore_reader(remote.proxy.url, compares), remote.count, threads)


def direct_alone(remote: Remote, threads: int) -> OnThreads:
    """The client that minato has by default, without its loader."""
    client = client_for(make_location(BUCKET, "direct", remote.proxy.url, "us-east-1"))
    return OnThreads(lambda number: client.backend.get(f"{number:06}.bin").data, remote.count, threads)


def obstore_reader(url: str, compares: bool = False) -> Callable[[int], Any]:
    """Reads an object by its number; `compares`: with its MD5, which its ETag is."""
    obstore = library()  # as loaded for this process: one that was forked may not use its parent's
    options: Any = {"allow_http": True, "pool_max_idle_per_host": "128"}
    store = obstore._store.S3Store(BUCKET, endpoint=url, region="us-east-1", client_options=options)

    def read(number: int) -> Any:
        result = obstore.get(store, f"{number:06}.bin")
        data = result.bytes()
        if compares and hashlib.md5(data).hexdigest() != result.meta["e_tag"].strip('"'):
            raise WrongBatchError(f"object {number} is not what its ETag says")
        return data

    return read


class OnProcesses:
    """The same in several processes, which are started for every epoch as a loader's workers are. Only the ends of
    objects are passed on."""

    def __init__(self, remote: Remote, processes: int, threads: int) -> None:
        self.remote, self.processes, self.threads = remote, processes, threads

    def __iter__(self) -> Iterator[Tensor]:
        context = multiprocessing.get_context("fork")
        processes, receiving = [], []
        for number in range(self.processes):
            receiver, sending = context.Pipe(duplex=False)
            numbers = range(number, self.remote.count, self.processes)
            arguments = (self.remote.proxy.url, numbers, self.threads, sending)
            processes.append(context.Process(target=send_ends, args=arguments, daemon=True))
            processes[-1].start()
            sending.close()
            receiving.append(receiver)
        while receiving:
            for receiver in [end for end in receiving if end in wait(receiving)]:
                try:
                    yield torch.frombuffer(bytearray(receiver.recv_bytes()), dtype=torch.uint8).view(-1, 16)
                except EOFError:
                    receiving.remove(receiver)
        for process in processes:
            process.join()


def send_ends(url: str, numbers: range, threads: int, sending: Any) -> None:
    """What a process of `OnProcesses` does."""
    read = obstore_reader(url)

    def ends(number: int) -> bytes:
        data = bytes(read(number))
        return data[:8] + data[-8:]

    with ThreadPoolExecutor(threads) as pool:
        lump: list[bytes] = []
        for found in pool.map(ends, numbers):
            lump.append(found)
            if len(lump) == BATCH:
                sending.send_bytes(b"".join(lump))
                lump.clear()
        if lump:
            sending.send_bytes(b"".join(lump))


def s3torchconnector(remote: Remote, threads: int) -> OnThreads:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    config = S3ClientConfig(force_path_style=True)
    keys = S3MapDataset.from_objects(
        [f"s3://{BUCKET}/{number:06}.bin" for number in range(remote.count)],
        region="us-east-1",
        endpoint=remote.proxy.url,
        transform=lambda reader: reader.read(),
        s3client_config=config,
    )
    return OnThreads(lambda number: keys[number], remote.count, threads)


def torch_arm(remote: Remote) -> Arm:
    dataset = SequentialBoto3(remote.proxy.url, remote.count)
    return Arm("torch, boto3 one by one", lambda _: TorchLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS))


def minato_arm(
    remote: Remote, name: str, fetcher: str, fetchers: int, keep_workers: bool = False, **options: Any
) -> Arm:
    dataset = remote.dataset(**options)

    def make(_: Any) -> Iterable[Any]:
        return minato.DataLoader(
            dataset, BATCH, shuffle=True, num_workers=WORKERS, fetcher=fetcher, num_fetch_workers=fetchers,
            persistent_workers=keep_workers,
        )  # fmt: skip

    # Kept workers begin the next epoch by themselves. Measured alone, an epoch would have that part for nothing, and
    # the arm after it would bear its cost: so two epochs in a row, of which the second counts, and an end.
    return Arm(name, make, epochs=2 if keep_workers else 1)


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    objects: int
    repeats: int
    failing_objects: int


FULL = Scale(3072, 3, 10_000)
QUICK = Scale(512, 1, 1_000)


@dataclass
class Outcome:
    """Lines to print, values to keep, whether all targets were met."""

    text: str
    values: dict[str, Any]
    met: bool


def judged(name: str, title: str, arms: list[Arm], targets: list[Target], scale: Scale, length: int) -> Outcome:
    """Run arms side by side through the harness of all benchmarks."""
    workload = Workload(Objects, length, length)
    case = Case(name, title, workload, tuple(arms), tuple(targets), baseline=arms[0].name)
    results = harness.run_rates(case, scale.repeats, quick=False)
    verdicts = harness.judge_all(case, results)
    text = harness.format_case(case, results, verdicts)
    return Outcome(text, results, all(verdict.outcome != "MISSED" for verdict in verdicts))


def latency(milliseconds: int, scale: Scale) -> Outcome:
    """All arms at one latency; 16 fetchers per worker, 32 where the way is long."""
    fetchers = 32 if milliseconds >= 50 else 16
    count = scale.objects // 2 if milliseconds >= 50 else scale.objects
    with remote_objects(count, faults=Faults(latency_s=milliseconds / 1e3)) as remote:
        arms, targets = latency_arms(remote, fetchers)
        torch_row, ours = arms[0].name, arms[1].name
        if milliseconds == 0:
            others = [
                minato_arm(remote, "minato, boto3 threaded", "threaded", 8, backend="boto3"),
                minato_arm(remote, "minato, aioboto3 asyncio", "asyncio", 16, backend="aioboto3"),
            ]
            arms += others
            targets += [Target(ours, torch_row, 2.0), *(Target(arm.name, torch_row, 1.0) for arm in others)]
        elif milliseconds == 20:
            targets.append(Target(ours, torch_row, 8.0))
            if importlib.util.find_spec("s3torchconnector") is None:
                print("not compared with s3torchconnector: pip install s3torchconnector", flush=True)
            else:
                arms.append(Arm("s3torchconnector, 64 threads", lambda _: s3torchconnector(remote, 64)))
                targets.append(Target(ours, arms[-1].name, 1.0))
        else:
            targets.append(Target(ours, torch_row, 20.0))
        title = f"{milliseconds} ms latency, {WORKERS} workers x {fetchers} fetchers, {count} objects of 115 kB"
        return judged(f"latency-{milliseconds}", title, arms, targets, scale, count)


def latency_arms(remote: Remote, fetchers: int) -> tuple[list[Arm], list[Target]]:
    """What is measured at every latency. The first arm is torch's, the second minato's as it is by default."""

    def ours(name: str, keep_workers: bool = False, fetcher: str = "threaded", **options: Any) -> Arm:
        return minato_arm(remote, f"minato, {name}", fetcher, fetchers, keep_workers, **options)

    threads = WORKERS * fetchers
    started = ours("threaded, length only", verify="length")
    kept = ours("length only, workers kept", True, verify="length")
    compared = ours("threaded, workers kept", True)
    alone = Arm("obstore alone", lambda _: obstore_alone(remote, threads))
    alone_compared = Arm("obstore alone, MD5 compared", lambda _: obstore_alone(remote, threads, True))
    in_processes = Arm("obstore alone, processes", lambda _: OnProcesses(remote, WORKERS, fetchers))
    arms = [
        torch_arm(remote),
        ours("threaded"),
        started,
        kept,
        ours("obstore, length only, workers kept", True, backend="obstore", verify="length"),
        ours("asyncio", fetcher="asyncio"),
        alone,
        in_processes,
        Arm("minato's client alone", lambda _: direct_alone(remote, threads)),
        compared,
        alone_compared,
    ]
    targets = [
        Target(started.name, in_processes.name, 0.85),
        Target(started.name, alone.name, 0.85),
        Target(kept.rows()[-1], alone.name, 0.85),
        Target(compared.rows()[-1], alone_compared.name, 0.85),
    ]
    return arms, targets


class SlowFiles(LocalFiles):
    """Files of a network file system: opening one takes a while."""

    seconds = 0.010

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds)
        return super().__getitem__(index)


def files(scale: Scale) -> Outcome:
    """The same fetchers on a slow file system."""
    count = scale.objects // 2
    with tempfile.TemporaryDirectory() as root:
        for number in range(count):
            Path(root, f"{number:06}.bin").write_bytes(object_bytes(number))
        dataset = SlowFiles(Path(root), count)
        options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS}
        arms = [
            Arm("torch", lambda _: TorchLoader(dataset, **options)),
            Arm("minato, sequential", lambda _: minato.DataLoader(dataset, **options)),
            Arm("minato, threaded", lambda _: minato.DataLoader(dataset, **options, fetcher="threaded")),
        ]
        title = f"files that take 10 ms to open, {WORKERS} workers, 16 fetchers"
        return judged("files", title, arms, [Target(arms[2].name, arms[0].name, 4.0)], scale, count)


def cache(scale: Scale) -> Outcome:
    """Second and later epochs, against files of this machine."""
    with remote_objects(scale.objects) as remote, tempfile.TemporaryDirectory() as root:
        for number in range(remote.count):
            Path(root, f"{number:06}.bin").write_bytes(object_bytes(number))
        files = LocalFiles(Path(root), remote.count)
        memory = remote.dataset(cache=2 * remote.count * 115_000)
        directory = remote.dataset(cache=Path(root, "cache"))

        def warm(dataset: Any) -> Callable[[Any], Iterable[Any]]:
            def make(_: Any) -> Iterable[Any]:
                loader = minato.DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
                for _batch in loader:
                    pass
                return loader

            return make

        arms = [
            Arm("local directory", warm(files)),
            Arm("memory cache", warm(memory)),
            Arm("directory cache", warm(directory)),
        ]
        targets = [Target(arm.name, arms[0].name, 0.9) for arm in arms[1:]]
        # An epoch takes a fifth of a second, in which anything may happen: more of them than of others.
        more = replace(scale, repeats=_CACHE_EPOCHS * scale.repeats)
        outcome = judged("cache", "second and later epochs, minato's loader", arms, targets, more, remote.count)
        requests, epochs = remote.proxy.counts()["get"], 2 * (more.repeats + 1)
        return Outcome(
            f"{outcome.text}\n  requests: {requests} for 2 x {remote.count} objects in {epochs} epochs",
            outcome.values | {"requests": requests},
            outcome.met and requests == 2 * remote.count,
        )


def tail(scale: Scale) -> Outcome:
    """1.5 % of requests take a second more, so that P99 is among them: with and without second requests, in order and
    re-ordered."""
    rows: dict[str, Any] = {}
    lines = ["tail: 20 ms latency, 1.5 % of requests 1 s more   [ms]"]
    faults = Faults(latency_s=0.020, slow_share=0.015, slow_s=1.0, seed=5)
    with remote_objects(scale.objects) as remote:
        for name, hedge, in_order in [
            ("no hedging, re-ordered", None, False),
            ("no hedging, in order", None, True),
            ("hedging, re-ordered", HedgePolicy(), False),
        ]:
            dataset = Timed(remote.dataset(hedge=hedge))
            remote.proxy.set(faults)
            loader = minato.DataLoader(
                dataset, BATCH, shuffle=True, num_workers=WORKERS, in_order=in_order, fetcher="asyncio",
                num_fetch_workers=4,
            )  # fmt: skip
            reads: list[float] = []
            waits: list[float] = []
            seen: list[Tensor] = []
            last = time.perf_counter()
            for batch, seconds in loader:
                waits.append(time.perf_counter() - last)
                seen.append(numbers_in(batch))
                reads.extend(seconds.tolist())
                last = time.perf_counter()
            check_exactly_once(seen, remote.count)
            loader.close()
            extra = remote.proxy.counts()["get"] / remote.count - 1
            late = sum(wait > 0.5 for wait in waits)
            p99 = sorted(reads)[int(len(reads) * 0.99)]
            rows[name] = {"p50_s": statistics.median(reads), "p99_s": p99, "extra": extra, "late_batches": late}
            lines.append(
                f"  {name:26} read P50 {1e3 * statistics.median(reads):7.1f}  P99 {1e3 * p99:7.1f}   requests "
                f"{100 * extra:+.1f} %   batches waited for over 0.5 s: {late} of {len(waits)}"
            )
    cut = rows["no hedging, re-ordered"]["p99_s"] / rows["hedging, re-ordered"]["p99_s"]
    extra = rows["hedging, re-ordered"]["extra"]
    fewer = (
        rows["no hedging, re-ordered"]["late_batches"] <= 2 * 2
    )  # the last batches of an epoch have nobody to wait for
    met = cut >= 5 and extra <= 0.05 and fewer
    lines.append(
        f"  target P99 cut >= 5x at <= 5 % extra: {cut:.1f}x at {100 * extra:.1f} %: {'met' if met else 'MISSED'}"
    )
    return Outcome("\n".join(lines), rows, met)


def failing(scale: Scale) -> Outcome:
    """10 % of requests fail; every byte of every object is compared."""
    count, nbytes = scale.failing_objects, 16_000
    faults = Faults(busy_share=0.04, reset_share=0.03, truncate_share=0.03, seed=9)
    with remote_objects(count, nbytes) as remote:
        dataset = remote.dataset()
        remote.proxy.set(faults)
        began = time.perf_counter()
        loader = minato.DataLoader(
            dataset, BATCH, shuffle=True, num_workers=WORKERS, fetcher="threaded", num_fetch_workers=16
        )
        seen: list[Tensor] = []
        for batch in loader:
            numbers = numbers_in(batch)
            for row, number in zip(batch, numbers.tolist(), strict=True):
                if row.numpy().tobytes() != object_bytes(number, nbytes):
                    raise WrongBatchError(f"object {number} has wrong bytes")
            seen.append(numbers)
        loader.close()
        seconds = time.perf_counter() - began
        check_exactly_once(seen, count)
        counts = dict(remote.proxy.counts())
    failed = counts["busy"] + counts["reset"] + counts["truncate"]
    text = (
        f"failing: {count} objects of 16 kB, {failed} of {counts['requests']} requests failed (503, reset, truncated)\n"
        f"  every byte right, none missing, none twice; {seconds:.1f} s"
    )
    return Outcome(text, counts | {"seconds": seconds}, failed >= 0.08 * counts["requests"])


def grid(scale: Scale, plot: Path | None) -> Outcome:
    """Workers x fetchers, as in the paper."""
    is_full = scale.objects >= FULL.objects
    sizes = (1, 2, 4, 8) if is_full else (1, 4)
    fetchers = (1, 4, 16, 32) if is_full else (1, 16)
    lines = ["grid: 20 ms latency   workers x fetchers: objects/s, median request"]
    with remote_objects(scale.objects // 4, faults=Faults(latency_s=0.020)) as remote:
        points = measure_grid(remote, sizes, fetchers)
    for point in points:
        lines.append(
            f"  {point.workers:2} x {point.fetchers:2}: {point.objects_per_s:7,.0f}  {point.mbit_per_s:6,.0f} Mbit/s  "
            f"{1e3 * point.median_request_s:6.1f} ms"
        )
    if plot is not None:
        plot.write_bytes(grid_image(points, "115 kB objects, 20 ms latency", plot.suffix.lstrip(".") or "png"))
        lines.append(f"  plotted in {plot}")
    return Outcome("\n".join(lines), {"points": [asdict(point) for point in points]}, True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    cases: dict[str, Callable[[Scale], Outcome]] = {
        "latency-0": lambda scale: latency(0, scale),
        "latency-20": lambda scale: latency(20, scale),
        "latency-80": lambda scale: latency(80, scale),
        "files": files,
        "cache": cache,
        "tail": tail,
        "failing": failing,
        "grid": lambda scale: grid(scale, options.plot),
    }
    parser.add_argument("--only", nargs="+", choices=cases, metavar="CASE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer objects, one repeat")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="write the heat maps of the grid")
    options = parser.parse_args()
    if options.list:
        print("\n".join(cases))
        return 0
    scale = QUICK if options.quick else FULL
    if options.repeats:
        scale = replace(scale, repeats=options.repeats)
    torch.set_num_threads(1)
    outcomes: dict[str, Outcome] = {}
    for name in options.only or cases:
        try:
            outcomes[name] = cases[name](scale)
        except WrongBatchError as error:
            print(f"{name}: {error}")
            return 2
        print(outcomes[name].text, flush=True)
    if options.json:
        values = {name: outcome.values for name, outcome in outcomes.items()}
        options.json.write_text(json.dumps({"machine": harness.machine(), "cases": values}, indent=1))
    return 0 if all(outcome.met for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    sys.exit(main())
