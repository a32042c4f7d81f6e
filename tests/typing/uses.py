"""How typed programs use minato. `mypy` reads it with the package (pyproject.toml, `files`); nobody runs it.

Lines at the end with `type: ignore` are improper uses: strict mypy complains of an ignored error that is not there, so
a surface typed as Any would be found out.
"""

from collections.abc import Iterator
from typing import assert_type

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import minato
from minato.integrations import StatsLogger, scalars


class Pairs(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(2), index


def load(index: int) -> Tensor:
    return torch.zeros(index)


def double(x: Tensor) -> Tensor:
    return x * 2


def is_torchs(loader: TorchLoader[tuple[Tensor, int]]) -> None: ...


loader = minato.DataLoader(Pairs(), batch_size=4, shuffle=True, num_workers="auto", in_order=None, on_error="skip")
assert_type(loader, minato.DataLoader[tuple[Tensor, int]])
is_torchs(loader)
assert_type(loader.stats(), minato.LoaderStats)
assert_type(loader.stats().wait_seconds, float)
loader.load_state_dict(loader.state_dict())
with minato.DataLoader(Pairs()) as entered:
    assert_type(entered, minato.DataLoader[tuple[Tensor, int]])
loader.close()

with minato.patch(in_order=True):
    pass


@minato.patch()
def main() -> int:
    return 3


assert_type(main(), int)
staged = minato.StagedDataset(load, [double], 8)
minato.DataLoader(staged, adaptive=minato.PaperPolicy(), fetcher="threaded")
StatsLogger(loader, print)
assert_type(scalars(loader.stats()), dict[str, float])


@minato.deterministic
def crop(x: Tensor) -> Tensor:
    return x[:1]


assert_type(crop(torch.zeros(2)), Tensor)
assert_type(minato.diagnose(loader, max_seconds=1.0, rank="wait").json(), str)
minato.count_bytes(len(b"body"))
assert_type(len(minato.S3Dataset("s3://bucket/")), int)


@minato.traced("decode")
def decode(raw: bytes) -> Tensor:
    return torch.zeros(len(raw))


assert_type(decode(b""), Tensor)


def batches() -> Iterator[Tensor]:
    with minato.mark("epoch"):
        for batch in loader:
            yield batch[0]


minato.DataLoader(Pairs(), num_wrkers=2)  # type: ignore[call-arg]
minato.DataLoader(Pairs(), batch_size="4")  # type: ignore[arg-type]
loader.stats().workers = 3  # type: ignore[misc]
assert loader.stats().no_such_field  # type: ignore[attr-defined]
assert minato.no_such_name  # type: ignore[attr-defined]
