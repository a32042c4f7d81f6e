"""An engine that cannot be put together leaves nothing behind, whichever of its parts is missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from minato import DataLoader
from minato._engine import parts
from minato._queues.control import ControlBlock

DATASET = TensorDataset(torch.arange(24))


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError("there is nothing left")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=[False, True], ids=["plain", "traced"])
def loader(request: pytest.FixtureRequest, tmp_path: Path) -> DataLoader:
    trace = str(tmp_path / "trace") if request.param else None
    return DataLoader(DATASET, 4, num_workers=2, persistent_workers=True, timeout=60, trace=trace)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ControlBlock, "create"),
        *((parts, name) for name in ("WorkerPool", "make_away", "make_foresight", "Mender", "Casualties", "Pace")),
        *((parts, name) for name in ("Delivery", "SampleTimes", "make_scaler", "Hangs", "Epochs", "DatasetWatch")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_there_is_given_back(
    loader: DataLoader, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="there is nothing left"):
                iter(loader)
            counts.append(descriptors())
    assert len(set(counts)) == 1, "each failure keeps something open"
    assert torch.cat([batch for (batch,) in loader]).tolist() == list(range(24))
    loader.close()
