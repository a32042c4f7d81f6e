"""A remote side that cannot be had: the loader says so, and nothing half-started remains."""

import time
from typing import Any

import pytest

import minato
from minato._protocols import Orders
from minato._scheduler.leisure import Leisure


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


class Listening(Unwilling):
    """An `offload=` that takes no work, and notes how long the consumer waited for each batch."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def attach(self, seat: Any) -> Any:
        return self

    due = time.monotonic() + 3600
    keeps_batches = False

    def set_aside(self, tickets: int) -> int:
        return 0

    def asked(self) -> None: ...

    def returned(self, samples: int, waited_s: float) -> None:
        self.waits.append(waited_s)

    def look(self) -> Orders:
        return _NOTHING

    def recall(self, why: str) -> Orders:
        return _NOTHING

    def detach(self) -> None: ...


_NOTHING = Orders()


class Slow:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


@pytest.mark.parametrize("in_order", [True, False])
def test_only_waiting_for_a_batch_counts_as_waiting_not_what_next_itself_takes(in_order: bool) -> None:
    def waits_of(sample_s: float, until_ready: bool) -> list[float]:
        offload = Listening()
        with minato.DataLoader(Slow(sample_s), 4, num_workers=1, in_order=in_order, offload=offload) as loader:
            for number, _ in enumerate(loader, 1):
                while until_ready and number < len(loader) and not loader.stats().batches_ready:
                    time.sleep(0.01)
            assert sum(offload.waits) == pytest.approx(loader.stats().wait_seconds)
        return offload.waits

    assert sum(waits_of(sample_s=0.05, until_ready=False)[1:]) > 0.01
    assert waits_of(sample_s=0.0, until_ready=True)[1:] == [0.0] * 5


def test_batches_that_were_made_ready_aside_are_told_of_once_when_the_consumer_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that makes them ready works beside a remote side too, and tells it nothing itself."""
    monkeypatch.setattr(Leisure, "is_enough", property(lambda _: True))
    offload = Listening()
    with minato.DataLoader(Slow(0.0), 4, num_workers=1, offload=offload) as loader:
        batches = iter(loader)
        beforehand = batches._engine._beforehand  # type: ignore[attr-defined]
        for number in range(1, 7):
            next(batches)
            for _ in range(500):
                if number == 6 or len(beforehand):
                    break
                time.sleep(0.01)
                beforehand.arrived()  # as if the batch had just come: there was no other yet the last time
            assert len(beforehand) == (number < 6)
            assert len(offload.waits) == number
        assert next(batches, None) is None
    assert len(offload.waits) == 6
