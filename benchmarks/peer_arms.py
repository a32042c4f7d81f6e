"""How minato, torch's loader and their peers are made over the same files: one function per contender.

Each is given a `Job` and returns something to iterate: an epoch of batches of (images, indices). A peer imports its
library inside, so that one that is not installed is told and the others run. `FORMAT` says what a contender reads:
"files" are JPEG files, the others are the same bytes in the peer's own form, made before the clock starts.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

SIDE = 224  # pixels of a decoded image


@dataclass(frozen=True)
class Job:
    """What every contender gets: a directory of files named by number, and how to batch them."""

    directory: Path
    length: int
    batch_size: int
    workers: int

    def path(self, index: int) -> Path:
        return self.directory / "files" / f"{index:06d}.jpg"


Batch = tuple[Tensor, Tensor]
Epochs = Callable[[], Iterable[Any]]
"""Each call is an epoch."""


def decode(data: bytes) -> Tensor:
    """Decode, resize, to float: what all contenders but DALI do with a file."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32)
    return torch.from_numpy(pixels).permute(2, 0, 1).div(255).contiguous()


def stack(samples: list[tuple[Tensor, int]]) -> Batch:
    return torch.stack([image for image, _ in samples]), torch.tensor([index for _, index in samples])


class Files(Dataset[tuple[Tensor, int]]):
    """The dataset that people write."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return self.job.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return decode(self.job.path(index).read_bytes()), index


# ---- loaders of torch's kind -----------------------------------------------------------------------------------------


def torch_loader(job: Job) -> Epochs:
    return _again(_as_torch(TorchLoader, job))


def torch_out_of_order(job: Job) -> Epochs:
    return _again(_as_torch(TorchLoader, job, in_order=False))


def minato_loader(job: Job) -> Epochs:
    import minato

    return _again(_as_torch(minato.DataLoader, job))


def minato_in_order(job: Job) -> Epochs:
    import minato

    return _again(_as_torch(minato.DataLoader, job, in_order=True))


def torchdata_stateful(job: Job) -> Epochs:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return _again(_as_torch(StatefulDataLoader, job))


def _again(loader: Any) -> Epochs:
    """A loader that is iterated anew for each epoch."""
    return lambda: loader


def _as_torch(cls: Any, job: Job, **more: Any) -> Any:
    settings = {"shuffle": True, "num_workers": job.workers, "persistent_workers": True, **more}
    return cls(Files(job), batch_size=job.batch_size, **settings)


def torchdata_nodes(job: Job) -> Epochs:
    """Processes map, the main process batches: the composition of its own examples."""
    import torchdata.nodes as nodes
    from torch.utils.data import RandomSampler

    files = Files(job)
    source = nodes.SamplerWrapper(RandomSampler(files))
    mapped = nodes.ParallelMapper(source, files.__getitem__, num_workers=job.workers, in_order=False, method="process")
    batched = nodes.ParallelMapper(nodes.Batcher(mapped, job.batch_size, drop_last=False), stack, num_workers=1)
    loader = nodes.Loader(nodes.Prefetcher(batched, prefetch_factor=4))
    return _again(loader)


# ---- others ----------------------------------------------------------------------------------------------------------


def spdl(job: Job) -> Epochs:
    """Threads; Pillow releases the interpreter while it decodes."""
    from spdl.pipeline import PipelineBuilder

    files = Files(job)

    def epoch() -> Iterator[Any]:
        order = random.sample(range(job.length), job.length)
        pipeline = (
            PipelineBuilder()
            .add_source(order)
            .pipe(files.__getitem__, concurrency=job.workers, output_order="completion")
            .aggregate(job.batch_size)
            .pipe(stack)
            .add_sink(4)
            .build(num_threads=job.workers + 1)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return epoch


def grain(job: Job) -> Epochs:
    """Its own processes; samples are numpy arrays there."""
    import grain.python as pygrain

    files = Files(job)

    def load(index: int) -> dict[str, Any]:
        image, number = files[int(index)]
        return {"image": image.numpy(), "index": np.int64(number)}

    numbers = iter(range(1 << 30))

    def epoch() -> Iterator[Any]:
        made = (
            pygrain.MapDataset.range(job.length)
            .shuffle(seed=next(numbers))
            .map(load)
            .batch(job.batch_size, drop_remainder=False)
            .to_iter_dataset(pygrain.ReadOptions(num_threads=2, prefetch_buffer_size=4))
            .mp_prefetch(pygrain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=2))
        )
        for batch in made:
            yield torch.from_numpy(batch["image"]), torch.from_numpy(batch["index"])

    return epoch


def webdataset(job: Job) -> Epochs:
    """Tar shards, read from front to back and shuffled in a buffer."""
    import webdataset as wds

    shards = sorted(str(path) for path in (job.directory / "shards").glob("*.tar"))
    made = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(64)
        .map(lambda sample: (decode(sample["jpg"]), int(sample["__key__"])))
        .batched(job.batch_size, collation_fn=stack)
    )
    loader = wds.WebLoader(made, batch_size=None, num_workers=job.workers, persistent_workers=True)
    return _again(loader)


def prepare_shards(job: Job) -> None:
    """As many shards as four times the workers, so that each has some."""
    import webdataset as wds

    (job.directory / "shards").mkdir(exist_ok=True)
    count = 4 * job.workers
    for shard in range(count):
        with wds.TarWriter(str(job.directory / "shards" / f"{shard:04d}.tar")) as writer:
            for index in range(shard, job.length, count):
                writer.write({"__key__": f"{index:06d}", "jpg": job.path(index).read_bytes()})


def litdata(job: Job) -> Epochs:
    """Its own chunks, made by its own optimiser."""
    from litdata import StreamingDataLoader, StreamingDataset

    class Decoded(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            data, number = super().__getitem__(index)
            return decode(data), number

    made = Decoded(str(job.directory / "chunks"), shuffle=True)
    loader = StreamingDataLoader(
        made, batch_size=job.batch_size, num_workers=job.workers, persistent_workers=True, collate_fn=stack
    )
    return _again(loader)


def _raw(spec: tuple[str, int]) -> tuple[bytes, int]:
    return Path(spec[0]).read_bytes(), spec[1]


def prepare_chunks(job: Job) -> None:
    from litdata import optimize

    specs = [(str(job.path(index)), index) for index in range(job.length)]
    out = str(job.directory / "chunks")
    optimize(fn=_raw, inputs=specs, output_dir=out, chunk_bytes="4MB", num_workers=1, mode="overwrite")


def ray_data(job: Job) -> Epochs:
    """Tasks of a local cluster that is up before the clock starts."""
    import ray

    ray.init(num_cpus=job.workers, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    paths = [{"path": str(job.path(index)), "index": index} for index in range(job.length)]

    def load(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": decode(Path(row["path"]).read_bytes()).numpy(), "index": row["index"]}

    def epoch() -> Iterator[Any]:
        made = ray.data.from_items(paths, override_num_blocks=4 * job.workers).random_shuffle().map(load)
        for batch in made.iter_torch_batches(batch_size=job.batch_size, prefetch_batches=2):
            yield batch["image"], batch["index"]

    return epoch


def dali(job: Job) -> Epochs:
    """Its own decoder and resampling, so not the same pixels; threads in C++."""
    from nvidia.dali import fn, pipeline_def, types

    paths = [str(job.path(index)) for index in range(job.length)]

    @pipeline_def(batch_size=job.batch_size, num_threads=job.workers, device_id=None)
    def pipeline() -> Any:
        data, label = fn.readers.file(
            files=paths, labels=list(range(job.length)), random_shuffle=True, name="files", prefetch_queue_depth=2
        )
        images = fn.resize(fn.decoders.image(data, device="cpu"), resize_x=SIDE, resize_y=SIDE)
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", std=[255.0] * 3), label

    made = pipeline()
    made.build()
    full, rest = divmod(job.length, job.batch_size)

    def epoch() -> Iterator[Any]:
        for number in range(full + bool(rest)):
            images, labels = made.run()
            count = job.batch_size if number < full else rest
            yield (
                torch.from_numpy(images.as_array()[:count].copy()),
                torch.from_numpy(labels.as_array()[:count, 0].copy()),
            )

    return epoch


CONTENDERS: dict[str, Callable[[Job], Epochs]] = {
    "torch": torch_loader,
    "torch, out of order": torch_out_of_order,
    "minato": minato_loader,
    "minato, in order": minato_in_order,
    "torchdata stateful": torchdata_stateful,
    "torchdata nodes": torchdata_nodes,
    "SPDL": spdl,
    "Grain": grain,
    "WebDataset": webdataset,
    "LitData": litdata,
    "Ray Data": ray_data,
    "DALI (CPU)": dali,
}
PREPARED: dict[str, Callable[[Job], None]] = {"WebDataset": prepare_shards, "LitData": prepare_chunks}
PACKAGES = {
    "torchdata stateful": "torchdata",
    "torchdata nodes": "torchdata",
    "SPDL": "spdl-core",
    "Grain": "grain",
    "WebDataset": "webdataset",
    "LitData": "litdata",
    "Ray Data": "ray",
    "DALI (CPU)": "nvidia-dali-cuda120",
}


def indices_of(batch: Any) -> list[int]:
    """Which samples a batch holds; images are touched, so that what is made lazily is made."""
    images, indices = batch
    float(images[-1, 0, 0, 0])
    return [int(each) for each in indices]


def save_job(job: Job, path: Path) -> None:
    path.write_text(json.dumps({**vars(job), "directory": str(job.directory)}), encoding="utf-8")


def load_job(path: Path) -> Job:
    told = json.loads(path.read_text(encoding="utf-8"))
    return Job(Path(told["directory"]), told["length"], told["batch_size"], told["workers"])
