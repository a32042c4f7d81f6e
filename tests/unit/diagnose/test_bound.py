"""The linear programme against a search that knows nothing of linear programming."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minato.diagnose.bound import CONSUMER, CPU, PLACES, SEQUENTIAL, STORAGE, Resources, solve
from minato.diagnose.model import Demand, bottleneck, model
from minato.diagnose.records import LOAD, TRANSFORM, Measurement, StageMeasurement

SECONDS = st.floats(0.0005, 2.0)


@st.composite
def demands(draw: st.DrawFn) -> list[Demand]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        cpu_s = draw(SECONDS)
        wall_s = cpu_s + draw(st.sampled_from([0.0, 0.001, 0.5]))
        bytes_read = draw(st.sampled_from([0.0, 1e5, 3e6]))
        made.append(Demand(f"stage {number}", cpu_s, wall_s, bytes_read, draw(st.booleans())))
    return made


RESOURCES = st.builds(
    Resources,
    cores=st.sampled_from([0.5, 1.0, 2.0, 12.0]),
    places=st.sampled_from([None, 1.0, 4.0, 64.0]),
    storage_bytes_s=st.sampled_from([None, 1e6, 1e8]),
    memory_bytes=st.sampled_from([None, 1e8]),
    bytes_per_place=st.sampled_from([0.0, 2e7]),
    step_s=st.sampled_from([None, 0.01, 1.0]),
)


def is_feasible(rate: float, demands: list[Demand], resources: Resources) -> bool:
    """Whether the resources are enough for `rate` batches per second, each checked by itself."""
    places = sum(rate * d.wall_s for d in demands if not d.is_sequential)
    return (
        sum(rate * d.cpu_s for d in demands) <= resources.cores
        and (resources.places is None or places <= resources.places)
        and all(rate * d.wall_s <= 1 for d in demands if d.is_sequential)
        and (
            resources.storage_bytes_s is None or rate * sum(d.bytes_read for d in demands) <= resources.storage_bytes_s
        )
        and (resources.memory_bytes is None or places * resources.bytes_per_place <= resources.memory_bytes)
        and (resources.step_s is None or rate * resources.step_s <= 1)
    )


@settings(max_examples=60)
@given(demands(), RESOURCES)
def test_bound_is_the_fastest_feasible_rate(demands: list[Demand], resources: Resources) -> None:
    """Found again by trying rates: bisection over what is feasible."""
    low, high = 0.0, 1e7
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if is_feasible(middle, demands, resources) else (low, middle)
    bound = solve(demands, resources)
    assert bound.rate == pytest.approx(low, rel=1e-6)
    assert sum(bound.cores.values()) <= resources.cores * (1 + 1e-6)


@settings(max_examples=40)
@given(demands(), RESOURCES)
def test_named_limit_is_what_holds_the_rate(demands: list[Demand], resources: Resources) -> None:
    """With twice as much of it (or a consumer, a stage, twice as fast) the bound rises; so it was binding."""
    bound = solve(demands, resources)
    looser = {
        CPU: lambda: (demands, _with(resources, cores=2 * resources.cores)),
        PLACES: lambda: (demands, _with(resources, places=2 * (resources.places or 0))),
        STORAGE: lambda: (demands, _with(resources, storage_bytes_s=2 * (resources.storage_bytes_s or 0))),
        "memory": lambda: (demands, _with(resources, memory_bytes=2 * (resources.memory_bytes or 0))),
        CONSUMER: lambda: (demands, _with(resources, step_s=(resources.step_s or 0) / 2)),
        SEQUENTIAL: lambda: ([_faster(d) if d.is_sequential else d for d in demands], resources),
    }[bound.limit]
    changed, more = looser()
    # Two limits can bind at the same rate; then loosening one of them changes nothing, and either name is right.
    raised = solve(changed, more).rate
    assert raised >= bound.rate * (1 - 1e-9)
    binding = [not is_feasible(bound.rate * 1.001, changed, more)]
    assert raised > bound.rate * (1 + 1e-9) or any(binding)


def _with(resources: Resources, **changes: float) -> Resources:
    fields = {name: getattr(resources, name) for name in Resources.__slots__}
    return Resources(**{**fields, **changes})


def _faster(demand: Demand) -> Demand:
    return Demand(demand.name, demand.cpu_s / 2, demand.wall_s / 2, demand.bytes_read, demand.is_sequential)


def test_rates_follow_from_totals() -> None:
    """5 ms of CPU per sample and batches of 8 give 25 batches per second and core; a filter doubles the visits."""
    burn = StageMeasurement("burn", TRANSFORM, completions=80, cpu_s=0.4, wall_s=0.4)
    read = StageMeasurement("read", LOAD, completions=160, cpu_s=0.0, wall_s=0.8, bytes_read=1600)
    measured = Measurement(
        stages=(read, burn), samples=80, batch_size=8, dataset_samples=1000, workers=2, concurrency=1, prefetch=2,
        cores=2.0, rate=10.0, rate_change=0.0,
    )  # fmt: skip
    reading, burning = model(measured)
    assert burning.rate_per_core == pytest.approx(25.0)
    assert burning.cores_used == pytest.approx(0.4)
    assert reading.visits == 16
    assert reading.rate_per_core is None
    assert reading.demand.bytes_read == 160
    assert reading.busy_share == pytest.approx(0.4)
    assert bottleneck((reading, burning), measured.slots, measured.cores).name == "read"
