"""Statistics as scalars."""

import pytest

import minato
from minato.integrations import StatsLogger, scalars


def test_every_number_of_the_statistics_is_a_scalar() -> None:
    found = scalars(minato.LoaderStats(workers=3, wait_seconds=0.5))
    assert found["workers"] == 3.0
    assert found["wait_seconds"] == 0.5


def test_the_logger_writes_every_so_many_steps() -> None:
    seen: list[tuple[str, float, int]] = []
    loader = minato.DataLoader(range(20), batch_size=2)
    log = StatsLogger(loader, lambda *record: seen.append(record), every=4)
    for step, _ in enumerate(loader):
        log(step)
    steps = sorted({step for _, _, step in seen})
    assert steps == [0, 4, 8]
    delivered = [value for name, value, _ in seen if name == "minato/samples_delivered"]
    assert delivered == [2.0, 10.0, 18.0]
    assert all(value >= 0 for name, value, _ in seen if name in ("minato/samples_per_s", "minato/waiting_share"))


def test_a_writer_needs_add_scalar_or_to_be_a_function() -> None:
    loader = minato.DataLoader(range(2))
    with pytest.raises(TypeError, match="writer: needed add_scalar"):
        StatsLogger(loader, writer=3)
    with pytest.raises(ValueError, match="every"):
        StatsLogger(loader, writer=print, every=0)
