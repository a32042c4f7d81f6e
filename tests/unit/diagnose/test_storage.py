"""What is taken for the limit of a storage: more reads at once that give no more bytes."""

from __future__ import annotations

import pytest

from minato.diagnose.storage import Level, StorageCurve


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
