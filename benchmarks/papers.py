"""Headline tables of published systems that no other script has, in shape: same direction, ratio set by the fixture.

    python benchmarks/papers.py                     # all, about three minutes on two idle cores
    python benchmarks/papers.py --only ops tail     # some; --list names them
    python benchmarks/papers.py --json out.json

    ops       Lotus, table II: what each operation of image classification takes, and its share below 10 ms
    waits     Lotus, fig. 2 and 5: long waits with short delays if loading is the limit, the reverse if the step is
    spread    Lotus, fig. 4: how batch times spread as batches grow
    workers   Lotus, fig. 6: more workers than cores cost CPU time and bring nothing
    tail      MinatoLoader, fig. 8: how busy an accelerator is with a heavy tail; equal workers, then more of them
    prefetch  MinatoLoader, sec. 3: deeper prefetching alone does not help torch's loader with uneven samples

Each case prints its table and what must hold in it. Exit status: 0 all hold, 1 one does not, 2 a sample was lost or
repeated.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader

import minato
from benchmarks import harness
from benchmarks.workloads import WrongBatchError, check_exactly_once
from minato.bench.memory import cpu_seconds
from minato.bench.realistic import UnevenWaits, make_jpeg
from minato.trace.summary import Summary, summarize

Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """What must hold in a table."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Found:
    """The rows of a table and what must hold in them."""

    rows: list[Row]
    claims: list[Claim]


# ---- image classification --------------------------------------------------------------------------------------------


class Photos:
    """JPEG files in memory and the usual four transforms, as `ImageFolder` would have them."""

    def __init__(self, length: int, stored: int = 48) -> None:
        self.length = length
        self.files = [make_jpeg(seed) for seed in range(stored)]
        self.transform = Compose([RandomResizedCrop(), RandomHorizontalFlip(), ToTensor(), Normalize()])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index % len(self.files)])) as file:
            image = file.convert("RGB")
        return self.transform(image), index


class Compose:
    """Applies a list of transforms in turn."""

    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomResizedCrop:
    """As torchvision's by default: 8 to 100 % of the area, bilinear. Square here."""

    def __call__(self, image: Any) -> Any:
        from PIL import Image

        side = int(min(image.size) * (0.08 + 0.92 * torch.rand(1).item()) ** 0.5)
        left, top = (int((extent - side) * torch.rand(1).item()) for extent in image.size)
        box = (left, top, left + side, top + side)
        return image.resize((224, 224), Image.Resampling.BILINEAR, box)


class RandomHorizontalFlip:
    def __call__(self, image: Any) -> Any:
        from PIL import Image

        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1).item() < 0.5 else image


class ToTensor:
    def __call__(self, image: Any) -> Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)


class Normalize:
    def __call__(self, image: Tensor) -> Tensor:
        return image.sub(0.45).div(0.22)


def read(loader: Iterable[Any], length: int, step_s: float = 0.0) -> float:
    """Seconds of one epoch, checked; the consumer sleeps `step_s` per batch."""
    delivered: list[Tensor] = []
    began = time.perf_counter()
    for _, indices in loader:
        delivered.append(indices.clone())
        if step_s:
            time.sleep(step_s)
    seconds = time.perf_counter() - began
    check_exactly_once(delivered, length)
    return seconds


def traced(dataset: Any, step_s: float = 0.0, **options: Any) -> Summary:
    """One epoch of minato's loader with a trace of every operation."""
    with tempfile.TemporaryDirectory(prefix="minato-papers-") as directory:
        trace = minato.trace.TraceOptions(f"{directory}/run", granularity="op")
        with minato.DataLoader(dataset, shuffle=True, trace=trace, **options) as loader:
            read(loader, len(dataset), step_s)
        return summarize(f"{directory}/run")


def ops() -> Found:
    """Table II has Loader 4.76, RandomResizedCrop 1.11, ToTensor 0.34, Normalize 0.21, flip 0.06 ms."""
    summary = traced(Photos(512), batch_size=32, num_workers=1)
    rows = [
        {"operation": op.name, "mean ms": round(op.mean_ms, 3), "P90 ms": round(op.p90_ms, 3), "<10 ms": op.under_10ms}
        for op in summary.ops
    ]
    mean = {op.name: op.mean_ms for op in summary.ops}
    order = ["Loader", "RandomResizedCrop", "RandomHorizontalFlip"]
    return Found(
        rows,
        [
            Claim("decoding is the dearest, then the crop; the flip is below both", _falls([mean[n] for n in order])),
            Claim("most calls take less than 10 ms", min(op.under_10ms for op in summary.ops) > 0.9),
        ],
    )


def waits() -> Found:
    """The same loader beside a consumer that takes no time, and beside one that takes far longer than a batch."""
    rows, seen = [], {}
    for name, step_s in (("no step", 0.0), ("long step", 0.25)):
        summary = traced(Photos(320), step_s, batch_size=16, num_workers=2)
        seen[name] = summary
        rows.append(
            {
                "consumer": name,
                "waits over 1 ms": round(summary.waits.over_short, 3),
                "delays over a step": round(summary.delays.over_step, 3),
                "mean delay s": round(summary.delays.spread.mean, 3),
                "verdict": summary.verdict.bound,
            }
        )
    idle, busy = seen["no step"], seen["long step"]
    return Found(
        rows,
        [
            Claim("without a step most batches are waited for", idle.waits.over_short > 0.5),
            Claim("with a long step most batches lie ready", busy.waits.ready > 0.7),
            Claim("the verdicts differ", idle.verdict.bound != busy.verdict.bound),
        ],
    )


def spread() -> Found:
    """Sizes of files vary, so batch times do; the range between quartiles grows with the batch."""
    rows, ranges = [], []
    for batch_size in (8, 16, 32, 64):
        times = traced(Photos(512), batch_size=batch_size, num_workers=1, in_order=True).batch_time
        ranges.append(times.iqr)
        rows.append({"batch": batch_size, "mean s": round(times.mean, 4), "std %": round(times.std_percent, 1)})
        rows[-1]["IQR s"] = round(times.iqr, 4)
    return Found(rows, [Claim("the range between quartiles grows from batches of 8 to 64", ranges[-1] > ranges[0])])


def workers() -> Found:
    """Rate and CPU time per sample, up to four workers per core; the published curve is flat after 20 of 28."""
    dataset, rows, rates = Photos(384), [], {}
    cores = harness.machine()["cores"]
    for count in sorted({1, cores, 2 * cores, 4 * cores}):
        for name, cls in (("torch", TorchLoader), ("minato", minato.DataLoader)):
            loader = cls(dataset, batch_size=16, shuffle=True, num_workers=count)
            cpu = cpu_seconds()
            seconds = read(loader, len(dataset))
            del loader
            rates[name, count] = len(dataset) / seconds
            spent = (cpu_seconds() - cpu) / len(dataset) * 1e3
            rows.append({"workers": count, "loader": name, "samples/s": round(rates[name, count])})
            rows[-1]["CPU ms per sample"] = round(spent, 2)
    flat = [rates[name, 4 * cores] < 1.3 * rates[name, cores] for name in ("torch", "minato")]
    return Found(rows, [Claim("beyond one worker per core the rate hardly rises", all(flat))])


def tail_costs(length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """10 ms, one in ten 400 ms."""
    return np.where(np.arange(length) % 10 == 3, 0.400, 0.010)


def tail() -> Found:
    """Batches of 4, step of 50 ms, 4 workers: an event simulation gives 0.60 with torch's loader, 0.92 with ours."""
    dataset, step_s, rows, busy = UnevenWaits(tail_costs(400)), 0.050, [], {}
    for count in (4, 16):
        for name, cls in (("torch", TorchLoader), ("minato", minato.DataLoader)):
            shares = []
            for _ in range(2):
                seconds = read(cls(dataset, batch_size=4, shuffle=True, num_workers=count), len(dataset), step_s)
                shares.append(len(dataset) / 4 * step_s / seconds)
            busy[name, count] = statistics.median(shares)
            bound = max(100 * step_s, float(dataset.costs.sum()) / count)
            rows.append({"workers": count, "loader": name, "busy": round(busy[name, count], 3)})
            rows[-1]["of what the bound allows"] = round(busy[name, count] * bound / (100 * step_s), 3)
    return Found(
        rows,
        [
            Claim("at equal workers minato keeps the accelerator busier", busy["minato", 4] > busy["torch", 4]),
            Claim("with more workers too", busy["minato", 16] >= 0.97 * busy["torch", 16]),
        ],
    )


def prefetch() -> Found:
    """torch's loader at depths 2, 4 and 8 on uneven samples, minato's at its default beside it."""
    dataset, step_s, rows, rates = UnevenWaits(tail_costs(320)), 0.050, [], {}
    arms: list[tuple[str, Any, int]] = [("torch", TorchLoader, depth) for depth in (2, 4, 8)]
    for name, cls, depth in [*arms, ("minato", minato.DataLoader, 2)]:
        loader = cls(dataset, batch_size=4, shuffle=True, num_workers=4, prefetch_factor=depth)
        rates[name, depth] = len(dataset) / read(loader, len(dataset), step_s)
        rows.append({"loader": name, "prefetch_factor": depth, "samples/s": round(rates[name, depth], 1)})
    deepest = max(rates["torch", depth] for depth in (4, 8))
    return Found(rows, [Claim("minato at 2 beats torch at any depth", rates["minato", 2] > deepest)])


def _falls(values: list[float]) -> bool:
    return all(after < before for before, after in pairwise(values))


CASES: dict[str, Callable[[], Found]] = {
    "ops": ops,
    "waits": waits,
    "spread": spread,
    "workers": workers,
    "tail": tail,
    "prefetch": prefetch,
}


def show(name: str, found: Found) -> None:
    """The table and its claims."""
    print(f"{name}: {(CASES[name].__doc__ or '').splitlines()[0]}")
    heads = list(found.rows[0])
    widths = [max(len(head), *(len(str(row[head])) for row in found.rows)) for head in heads]
    print("  " + "  ".join(head.rjust(width) for head, width in zip(heads, widths, strict=True)))
    for row in found.rows:
        print("  " + "  ".join(str(row[head]).rjust(width) for head, width in zip(heads, widths, strict=True)))
    for claim in found.claims:
        print(f"  {'holds' if claim.holds else 'DOES NOT HOLD'}: {claim.text}")
    print(flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the cases; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    if options.list:
        print("\n".join(CASES))
        return 0
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    machine = harness.machine()
    print("  ".join(f"{key} {value}" for key, value in machine.items()) + "\n", flush=True)
    found = {}
    for name in options.only or CASES:
        found[name] = CASES[name]()
        show(name, found[name])
    if options.json:
        tables = {
            name: {"rows": each.rows, "claims": [vars(claim) for claim in each.claims]} for name, each in found.items()
        }
        options.json.write_text(json.dumps({"machine": machine, "tables": tables}, indent=1))
    return int(any(not claim.holds for each in found.values() for claim in each.claims))


if __name__ == "__main__":
    try:
        status = main()
    except WrongBatchError as error:
        print(f"exactly-once violated: {error}", file=sys.stderr)
        status = 2
    sys.exit(status)
