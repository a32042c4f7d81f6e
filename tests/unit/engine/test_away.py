"""A remote side that cannot be had: the loader says so, and nothing half-started remains."""

from typing import Any

import pytest

import minato


class Unwilling:
    """An `offload=` whose work cannot begin."""

    most_remote = 2
    lanes = 4
    closed = 0

    def check(self, dataset: Any, fetcher: str) -> None:
        """Everything is taken."""

    def open(self) -> "Unwilling":
        return self

    def attach(self, seat: Any) -> None:
        raise OSError("nobody can be reached")

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1


def test_an_epoch_whose_remote_side_fails_to_begin_leaves_nothing_behind() -> None:
    """The leak check around the test sees descriptors, mappings and processes."""
    offload = Unwilling()
    loader = minato.DataLoader(range(20), batch_size=4, num_workers=1, offload=offload)
    for _ in range(2):
        with pytest.raises(OSError, match="nobody can be reached"):
            iter(loader)
    loader.close()
    assert offload.closed == 1
