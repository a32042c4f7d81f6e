"""What is taken for the limit of a storage: more reads at once that give no more bytes."""

from __future__ import annotations

import threading
import time

import pytest
from torch.utils.data import Dataset

from minato.diagnose.storage import Level, StorageCurve, probe_storage

LEVEL_S = 0.4


class Shared(Dataset):
    """All reads go through one line, which gives a kilobyte each 4 ms."""

    def __init__(self) -> None:
        self.line = threading.Lock()

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> bytes:
        with self.line:
            time.sleep(0.004)
        return bytes(1000)


class Distant(Dataset):
    """Every read takes 50 ms, however many there are."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> bytes:
        time.sleep(0.050)
        return bytes(1000)


def curve(*levels: tuple[float, float]) -> StorageCurve:
    """(bytes per second, median of a read) at 1, 2, 4, ... reads at once."""
    made = [Level(2**n, bytes_s, bytes_s / 1000, 0.1, read_s) for n, (bytes_s, read_s) in enumerate(levels)]
    return StorageCurve(tuple(made), "loading")


@pytest.mark.parametrize(
    ("levels", "has_plateau"),
    [
        ([(1e6, 0.010)], False),
        ([(1e6, 0.010), (2e6, 0.010)], False),
        ([(1e6, 0.010), (1e6, 0.020)], True),
        ([(1e6, 0.010), (1.9e6, 0.010), (2e6, 0.019)], True),
        ([(1e6, 0.010), (0.7e6, 0.010)], False),  # a slow sample came by chance: the others took what they take
        ([(1e6, 0.010), (0.7e6, 0.010), (2e6, 0.010)], False),
        (
            [(1e6, 0.010), (1e6, 0.010), (1e6, 0.010)],
            True,
        ),  # a line that is not fair, and lets one through all the time
    ],
)
def test_a_plateau_is_where_more_reads_give_no_more_and_not_by_chance(
    levels: list[tuple[float, float]], has_plateau: bool
) -> None:
    assert curve(*levels).has_plateau is has_plateau


def test_a_storage_that_all_share_has_a_limit() -> None:
    found = probe_storage(Shared(), range(64), [], LEVEL_S, 0)
    assert found is not None
    assert 0 < found.bytes_s <= 1000 / 0.004


def test_a_storage_that_is_only_far_away_has_none() -> None:
    found = probe_storage(Distant(), range(64), [], LEVEL_S, 0)
    assert found is None
