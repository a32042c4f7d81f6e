"""Offloading to a real Ray cluster of two nodes: the same batches, exactly once, whatever dies."""

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from minato import DataLoader
from minato.offload import Ray
from minato.trace import Kind, read_run
from tests.integration.offload_data import Awaited, Drawing, Failing, OnlyHere, Transformed, pad_together
from tests.support.ray_cluster import RayCluster, ray_cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(400)  # processes of Ray take seconds to start, each of them


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as started:
        started.add(2)
        yield started


@contextlib.contextmanager
def loading(cluster: RayCluster, dataset: Any, ray: dict[str, Any], **options: Any) -> Iterator[DataLoader[Any]]:
    offload = Ray(address=cluster.address, **{"store": False, "max_remote": 2, **ray})
    options = {"batch_size": 8, "num_workers": 1, "shuffle": True, **options}
    generator = torch.Generator().manual_seed(7)
    with DataLoader(dataset, generator=generator, offload=offload, **options) as loader:
        yield loader


def epochs_until(loader: DataLoader[Any], enough: Callable[[], bool], most: int = 200) -> list[list[Any]]:
    """Epochs until something has happened."""
    epochs = []
    for _ in range(most):
        epochs.append(list(loader))
        if enough():
            return epochs
        time.sleep(0.3)  # leaves the processor to what is being started
    pytest.fail(f"did not happen: {loader.stats()}")


def remote_work(loader: DataLoader[Any], samples: int = 1) -> Callable[[], bool]:
    before = loader.stats().samples_remote
    return lambda: loader.stats().samples_remote >= before + samples


def plain(batches: list[Any]) -> list[Any]:
    """Batches as they can be compared."""

    def strip(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {key: strip(one) for key, one in value.items()}
        return [strip(one) for one in value] if isinstance(value, (list, tuple)) else value

    return [strip(batch) for batch in batches]


def test_batches_and_random_numbers_are_those_of_one_machine(cluster: RayCluster) -> None:
    """In order, with the same seed: what was made elsewhere, in whatever placement, cannot be told from what was made
    here. A state taken meanwhile is gone on from as if nothing had been offloaded."""
    dataset, found = Transformed(96), []
    with loading(cluster, dataset, {"placement": "sample", "ratio": 0.5}, in_order=True) as loader:
        for placement in ("sample", "batch", "transform"):
            if found:
                loader._remote.controller.pin(placement, 0.5)  # type: ignore[union-attr]
            found += epochs_until(loader, remote_work(loader, 40))
        iterator = iter(loader)
        found.append([next(iterator) for _ in range(5)])
        state = loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        found[-1] += list(loader)
    with DataLoader(
        dataset, 8, True, num_workers=1, in_order=True, generator=torch.Generator().manual_seed(7)
    ) as alone:
        expected = [list(alone) for _ in found]
    assert [plain(epoch) for epoch in found] == [plain(epoch) for epoch in expected]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_state_goes_from_an_offloading_loader_to_one_that_does_not_and_back(
    cluster: RayCluster, in_order: bool
) -> None:
    """Each sample of the epoch once, and as one machine would have made it."""
    dataset, half = Transformed(96), {"placement": "sample", "ratio": 0.5}

    def alone() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(7)
        return DataLoader(dataset, 8, True, num_workers=1, in_order=in_order, generator=generator)

    def begun(loader: DataLoader[Any]) -> tuple[list[Any], Any]:
        iterator = iter(loader)
        return [next(iterator) for _ in range(5)], loader.state_dict()

    def gone_on(loader: DataLoader[Any], state: Any) -> list[Any]:
        loader.load_state_dict(state)
        return list(loader)

    with alone() as local:
        first_here, here = begun(local)
    with loading(cluster, dataset, half, in_order=in_order) as loader:
        before = len(epochs_until(loader, remote_work(loader, 40)))
        first_away, away = begun(loader)
        is_remote = remote_work(loader, 10)
        to_away = first_here + gone_on(loader, here)
        epochs_until(loader, is_remote)
    with alone() as local:
        to_here = first_away + gone_on(local, away)
    with alone() as local:
        expected = [list(local) for _ in range(1 + before)]
    for found, wanted in ((to_here, expected[before]), (to_away, expected[0])):
        assert (plain(found) == plain(wanted)) if in_order else (by_index(found) == by_index(wanted))


def by_index(epoch: list[Any]) -> list[Any]:
    """Samples in an order that does not depend on batches."""
    return sorted(
        (int(index), image.tolist()) for images, indices in epoch for image, index in zip(images, indices, strict=True)
    )


def test_collate_functions_run_elsewhere_and_failing_samples_are_left_out(cluster: RayCluster) -> None:
    """The user's collate function gives what it gives here, random numbers included; then with samples that fail."""
    dataset = Failing(96, failing=-1)
    options: dict[str, Any] = {"collate_fn": pad_together, "in_order": True, "on_error": "skip"}
    with loading(cluster, dataset, {"placement": "batch", "ratio": 1.0}, **options) as loader:
        found = epochs_until(loader, remote_work(loader, 40))
        dataset.failing = 3
        with warnings.catch_warnings(action="ignore"):
            (left,) = epochs_until(loader, remote_work(loader, 0), most=1)
        assert sorted(i for indices, _, _ in left for i in indices) == [i for i in range(96) if i % 10 != 3]
        assert loader.stats().samples_skipped == 10
    dataset.failing = -1
    with DataLoader(dataset, 8, True, num_workers=1, generator=torch.Generator().manual_seed(7), **options) as alone:
        expected = [list(alone) for _ in found]
    assert [plain(epoch) for epoch in found] == [plain(epoch) for epoch in expected]


def test_awaited_samples_are_made_elsewhere_as_here(cluster: RayCluster) -> None:
    """Actors await as the workers do, with the same random numbers."""
    dataset, options = Awaited(96), {"fetcher": "asyncio", "num_fetch_workers": 4, "in_order": True}
    with loading(cluster, dataset, {"placement": "sample", "ratio": 0.5}, **options) as loader:
        found = epochs_until(loader, remote_work(loader, 40))
    generator = torch.Generator().manual_seed(7)
    with DataLoader(dataset, 8, True, num_workers=1, generator=generator, **options) as alone:
        expected = [list(alone) for _ in found]
    assert [plain(epoch) for epoch in found] == [plain(epoch) for epoch in expected]


def test_a_consumer_that_does_not_wait_starts_nothing(cluster: RayCluster) -> None:
    """No stall: no agent, no remote sample."""
    slow = {"profile_steps": 5, "consumer_rate": 0.01}  # said, since on a busy machine any consumer may have to wait
    with loading(cluster, Drawing(120, 0.0), slow, num_workers=2) as loader:
        for _ in loader:
            time.sleep(0.03)
            assert not agents()
        stats = loader.stats()
    assert stats.samples_remote == 0
    assert any("no stall" in text for text in stats.offload_decisions)


def test_a_stall_is_measured_decided_and_remembered(cluster: RayCluster, tmp_path: Path) -> None:
    """Each epoch is complete while placements are measured; a second loader takes what the first has learned."""
    settings = {"profile_steps": 5, "store": str(tmp_path), "recheck_every": 10}
    dataset = Drawing(160, 0.005)
    with loading(cluster, dataset, settings, persistent_workers=True, trace=tmp_path / "trace") as loader:
        for epoch in epochs_until(loader, lambda: any(", ratio" in t for t in loader.stats().offload_decisions)):
            assert sorted(i for batch in epoch for i in batch["index"].tolist()) == list(range(160))
        assert remote_work(loader, 0)()
        decisions = loader.stats().offload_decisions
        iterator = iter(loader)
        seen = [int(i) for _ in range(5) for i in next(iterator)["index"]]
        state = loader.state_dict()
        del iterator  # as long as it is held, it has the cluster
        loader.load_state_dict(state)
        seen += [int(i) for batch in loader for i in batch["index"]]
        assert sorted(seen) == list(range(160)), "re-ordered, gone on from a state"
        assert [text.split(":")[0] for text in decisions[1:3]] == ["measured sample", "measured batch"]
    (main,) = read_run(tmp_path / "trace").mains
    assert [note.fields["reason"] for note in main.notes if note.kind is Kind.DECISION][: len(decisions)] == [
        *decisions
    ]
    assert sum(event.count for event in main.events(Kind.OFFLOADED)) > 0
    with loading(cluster, dataset, settings, persistent_workers=True) as loader:
        epochs_until(loader, remote_work(loader))
        assert not any(text.startswith("measured") for text in loader.stats().offload_decisions)


def test_missing_data_elsewhere_leaves_transforms_to_be_offloaded(cluster: RayCluster) -> None:
    """Actors that cannot read are not asked to; one warning says so, and epochs are complete."""
    with loading(cluster, OnlyHere(96), {"ratio": 0.5}) as loader:
        with pytest.warns(RuntimeWarning, match="no sample") as caught:
            epochs_until(loader, lambda: any(", ratio" in text for text in loader.stats().offload_decisions))
        assert len(caught) == 1
        epochs = epochs_until(loader, remote_work(loader))
        assert sorted(i for _, indices in epochs[-1] for i in indices.tolist()) == list(range(96))
        stats = loader.stats()
    assert stats.remote_placement == "transform"
    assert any(text.startswith("not sample: ") for text in stats.offload_decisions)


def test_killed_actors_node_and_agent_cost_no_sample(cluster: RayCluster) -> None:
    """Actors one after the other, then a node, then the agent itself; at last offloading goes on."""
    node = cluster.add(1)
    dataset = Drawing(400, 0.004)
    with loading(cluster, dataset, {"placement": "sample", "ratio": 0.6, "max_remote": 3}) as loader:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            epochs_until(loader, lambda: loader.stats().remote_actors == 3)
            for victim in ("actor", "node", "agent"):
                seen: list[int] = []
                for number, batch in enumerate(loader):
                    seen += batch["index"].tolist()
                    if number == 10:
                        _kill(victim, cluster, node)
                assert sorted(seen) == list(range(400)), victim
            loader._remote._retry_at = 0.0  # type: ignore[union-attr]
            epochs_until(loader, remote_work(loader))
        assert len([one for one in caught if "offloading" in str(one.message)]) == 1


def _kill(victim: str, cluster: RayCluster, node: int) -> None:
    if victim == "node":
        cluster.kill(node)
        return
    (agent,) = agents()
    if victim == "agent":
        os.kill(agent.pid, signal.SIGKILL)
        return
    actors = [p for p in psutil.process_iter(["name", "cmdline"]) if "FetchActor" in " ".join(p.info["cmdline"] or [])]
    assert actors
    actors[0].kill()


def agents() -> list[psutil.Process]:
    """Agents of this process."""
    return [p for p in psutil.Process().children() if "minato.offload._agent_main" in p.cmdline()]


def test_a_cluster_of_its_own_listens_on_the_loopback_only_and_ends_with_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reaches Ray runs code."""
    for name in ("RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("minato.offload._finding._last_started", lambda _: None)
    offload = Ray(placement="sample", ratio=0.5, store=False, use_this_node=True, local_cpus=1)
    with DataLoader(Drawing(96, 0.002), 8, num_workers=1, offload=offload) as loader:
        epochs_until(loader, remote_work(loader))
        (agent,) = agents()
        started = [agent, *agent.children(recursive=True)]
        heard_at = {
            one.laddr.ip.removeprefix("::ffff:")
            for process in started
            for one in process.net_connections(kind="inet")
            if one.status == psutil.CONN_LISTEN
        }
        servers = [process for process in started if process.name() in ("raylet", "gcs_server")]
        assert len(servers) == 2
    assert heard_at == {"127.0.0.1"}
    assert not psutil.wait_procs([agent, *servers], timeout=90)[1], "it has ended"


def test_without_a_cluster_everything_is_made_here(cluster: RayCluster) -> None:
    """One warning, a complete epoch. Last in this module: it ends the cluster."""
    dataset = Drawing(400, 0.004)
    with loading(cluster, dataset, {"placement": "sample", "ratio": 0.6, "call_timeout_s": 5.0}) as loader:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            epochs_until(loader, remote_work(loader))
            seen: list[int] = []
            for number, batch in enumerate(loader):
                seen += batch["index"].tolist()
                if number == 10:
                    cluster.kill_all()
            assert sorted(seen) == list(range(400))
        assert len([one for one in caught if "offloading" in str(one.message)]) == 1
