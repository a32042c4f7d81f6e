"""What is under way is bounded; learned metrics survive, damage does not matter."""

from pathlib import Path

import numpy as np
import pytest
import torch

from minato.offload import Ray
from minato.offload._deciding import LocalMetrics, RemoteMetrics
from minato.offload._flow import FIRST_BYTES, Flow
from minato.offload._splitting import finish, is_splittable, read, transform
from minato.offload._store import FILE, MetricStore
from minato.offload._wire import unwrap, weigh, wrap
from tests.integration.offload_data import Drawing, Transformed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bytes_in_flight_are_bounded_but_one_call_is_always_allowed() -> None:
    flow = Flow(4 * FIRST_BYTES, None)
    sent = 0
    while flow.may_send(sent, 0):
        flow.send(1)
        sent += 1
    assert sent == 4
    assert Flow(1, None).may_send(0, 0), "a sample larger than the bound must not hang"
    flow.shrink()
    flow.arrived(0, FIRST_BYTES, 1, [b"x" * FIRST_BYTES], 0.1)
    assert not flow.may_send(3, 0), "the store was full: half as much from now on"


def test_no_call_asks_for_more_samples_than_may_be_under_way() -> None:
    """Cheap samples are asked for many at a time, but large ones only as the bound allows."""
    flow = Flow(1000, None)
    for _ in range(20):
        flow.arrived(0, flow.send(1), 1, [b"x" * 300], 1e-6)
    assert flow.chunk(0) == 3
    flow.shrink()
    assert flow.chunk(0) == 1
    flow.shrink()
    assert flow.chunk(0) == 1, "one sample at least, however large"


def test_each_actor_is_asked_for_as_much_as_it_makes_in_a_while() -> None:
    """A slow machine's calls last no longer than others'."""
    flow = Flow(1 << 40, None)
    for _ in range(30):
        for actor, sample_s in ((0, 1e-3), (1, 10e-3)):
            samples = flow.chunk(actor)
            flow.arrived(actor, flow.send(samples), samples, [b"x"], samples * sample_s)
    assert flow.chunk(0) == 50
    assert flow.chunk(1) == 5
    assert flow.chunk(2) == 1, "one that is new"


def test_bandwidth_is_kept_over_time() -> None:
    """A token bucket: after any time, no more than the rate and a short burst."""
    clock = Clock()
    flow, rate = Flow(1 << 40, 1000.0, clock), 1000.0
    total = 0
    for _ in range(2000):
        clock.now += 0.01
        while flow.may_send(1, 0):
            expected = flow.send(1)
            flow.arrived(0, expected, 1, [b"x" * 100], 0.001)
            total += 100
    assert total <= rate * clock.now + rate
    assert total >= 0.5 * rate * clock.now - FIRST_BYTES


def test_bandwidth_that_was_not_used_is_not_saved_up() -> None:
    """After a pause, hardly more than the rate: a measurement would take it for what the network can do."""
    clock = Clock()
    flow = Flow(1 << 40, 1e6, clock)
    flow.arrived(0, flow.send(1), 1, [b"x" * 1000], 0.001)
    clock.now += 3600.0
    total = 0
    for _ in range(100):
        clock.now += 0.01
        while flow.may_send(1, 0):
            flow.arrived(0, flow.send(1), 1, [b"x" * 1000], 0.001)
            total += 1000
    assert 0.99e6 <= total <= 1.1e6


def test_parcels_carry_samples_as_they_are() -> None:
    sample = {"a": torch.rand(100, 100), "b": np.arange(5000), "c": "text", "d": 3}
    parcel = wrap(sample)
    assert weigh(parcel) >= 40_000 + 40_000
    back = unwrap(parcel, writable=True)
    assert torch.equal(back["a"], sample["a"])
    assert np.array_equal(back["b"], sample["b"])
    assert (back["c"], back["d"]) == ("text", 3)


def test_samples_in_two_halves_are_the_samples_in_one() -> None:
    """Read here, transformed there, with the same random numbers."""
    dataset = Transformed(10, 0.0)
    assert is_splittable(dataset)
    assert is_splittable(torch.utils.data.Subset(dataset, [1, 2]))
    assert not is_splittable(Drawing(10))
    both = torch.utils.data.ConcatDataset([dataset, torch.utils.data.Subset(dataset, [4, 2])])
    for key, seed in ((3, 11), (11, 12), (-1, 13)):
        reading = read(both, key, seed)
        assert reading is not None
        done, sample = finish(reading, transform(both, reading.half))
        again = read(both, key, seed)
        assert again is not None
        assert done
        assert torch.equal(sample[0], finish(again, transform(both, again.half))[1][0])
        assert sample[1] == both[key][1]


def test_metrics_are_kept_by_pipeline_and_nodes(tmp_path: Path) -> None:
    store = MetricStore(tmp_path)
    local, remotes = LocalMetrics(1, 2, 3, 4), {"sample": RemoteMetrics("sample", 1, 2, 3, 4)}
    store.save("pipeline", local, ("a:4", "b:8"), remotes)
    assert store.local("pipeline") == local
    assert store.local("another") is None
    assert store.remotes("pipeline", ("a:4", "b:8")) == remotes
    assert store.remotes("pipeline", ("a:4",)) == {}
    (tmp_path / FILE).write_text("{damaged")
    assert store.local("pipeline") is None
    MetricStore(None).save("pipeline", local, (), remotes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"placement": "everywhere"}, "placement must be one of"),
        ({"ratio": 1.5}, "ratio must be a number from 0 to 1"),
        ({"ratio": "some"}, "ratio must be a number from 0 to 1"),
        ({"max_remote": 0}, "max_remote must be an integer of at least 1"),
        ({"prefer": "cheap"}, "prefer must be"),
        ({"max_bandwidth": -1}, "max_bandwidth must be a number above"),
        ({"min_speedup": 0.5}, "min_speedup must be a number of at least 1"),
        ({"call_timeout_s": None}, "call_timeout_s must be a number above 0"),
    ],
)
def test_arguments_are_checked_at_once(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ray(**arguments)  # type: ignore[arg-type]


def test_arguments_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "offload.yaml"
    file.write_text("placement: batch\nratio: 0.3\nmax_remote: 8\n")
    assert Ray.from_yaml(file) == Ray(placement="batch", ratio=0.3, max_remote=8)
    file.write_text("")
    assert Ray.from_yaml(file) == Ray()
    file.write_text("dispatcher: here\n")
    with pytest.raises(ValueError, match="dispatcher not known"):
        Ray.from_yaml(file)
    file.write_text("- batch\n")
    with pytest.raises(TypeError, match="names and values"):
        Ray.from_yaml(file)
