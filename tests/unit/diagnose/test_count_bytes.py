"""Bytes that users' code says it has read: counted for the sample it reads them for, whoever makes the sample."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import minato
from minato._instrument import Kind, Tally, TraceOptions
from minato._pipeline.looking import choose_indices
from minato.diagnose.counting import Counters
from minato.diagnose.probing import probe
from minato.diagnose.timing import SampleTimer
from minato.trace.reading import read_run

LENGTH, NBYTES = 48, 1_000_000


class Told(Dataset[Any]):
    """Reads nothing that could be seen, and says how much."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        minato.count_bytes(NBYTES)
        return torch.tensor(float(index))

    async def __getitem_async__(self, index: int) -> Any:
        """A part before it waits, one after, one in a task of its own and one in a thread."""
        minato.count_bytes(NBYTES // 4)
        await asyncio.gather(self._part(), asyncio.to_thread(minato.count_bytes, NBYTES // 4))
        minato.count_bytes(NBYTES // 4)
        return torch.tensor(float(index))

    async def _part(self) -> None:
        await asyncio.sleep(0.001)
        minato.count_bytes(NBYTES // 4)


class Together(Told):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


FETCHERS: list[dict[str, Any]] = [
    {},
    {"fetcher": "threaded", "num_fetch_workers": 3},
    {"fetcher": "asyncio", "num_fetch_workers": 3},
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", FETCHERS, ids=["sequential", "threads", "asyncio"])
def test_bytes_are_counted_for_their_own_sample_while_training(options: dict[str, Any], workers: int) -> None:
    loader = minato.DataLoader(Told(), batch_size=4, num_workers=workers, **options)
    with loader, minato.diagnose.watch(loader) as watched:
        for _ in loader:
            pass
    (stage,) = watched.measurement().stages
    # What the process reads besides (modules, /proc) is seen as well; no sample's megabyte is missing or doubled.
    assert round(stage.bytes_read / NBYTES, 1) == stage.completions > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_of_samples_that_are_fetched_together(workers: int) -> None:
    loader = minato.DataLoader(Together(), batch_size=4, num_workers=workers)
    with loader, minato.diagnose.watch(loader) as watched:
        for _ in loader:
            pass
    (stage,) = watched.measurement().stages
    assert round(stage.bytes_read / NBYTES, 1) == stage.completions > 0


def tell(value: Any) -> Any:
    minato.count_bytes(3 * NBYTES)
    return value


def collate(samples: list[Any]) -> Any:
    minato.count_bytes(5 * NBYTES)
    return torch.stack(samples)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_each_stage_has_its_own() -> None:
    dataset = minato.StagedDataset(Told().__getitem__, [abs, tell], LENGTH)
    found = probe(dataset, choose_indices(dataset, 8), 4, collate, 1.0)
    each = {stage.name: round(stage.bytes_read / stage.completions / NBYTES, 1) for stage in found.stages}
    assert each == {"load": 1, "abs": 0, "tell": 3, "collate": 5}
    counters = Counters()
    SampleTimer(counters).sample(dataset, 3)
    assert {name: total["bytes_read"] // NBYTES for name, total in counters.totals().items()} == {
        "load": 1, "abs": 0, "tell": 3,
    }  # fmt: skip
    loader = minato.DataLoader(Told(), batch_size=4, num_workers=1, collate_fn=collate)
    with loader, minato.diagnose.watch(loader) as watched:
        for _ in loader:
            pass
    collation = watched.measurement().stages[-1]
    assert round(collation.bytes_read / collation.completions / NBYTES, 1) == 5


def test_a_diagnosis_tells_them() -> None:
    found = minato.diagnose(minato.DataLoader(Told(), batch_size=4), max_seconds=1.0, storage_bytes_s=1e9)
    assert "  1 MB  " in found.table()
    assert found.stages[0].demand.bytes_read == pytest.approx(4 * NBYTES, rel=0.05)


def test_a_trace_has_them_where_a_sample_is_loaded(tmp_path: Path) -> None:
    loader = minato.DataLoader(Told(), batch_size=4, num_workers=2, trace=TraceOptions(tmp_path, "op"))
    with loader:
        for _ in loader:
            pass
    loads = [event for process in read_run(tmp_path).processes for event in process.events(Kind.LOADER)]
    assert [event.nbytes for event in loads] == [NBYTES] * LENGTH


def test_nobody_measures() -> None:
    """Nothing is counted, nothing is looked at, and nothing is left behind."""
    minato.count_bytes(10)
    minato.count_bytes("not even looked at")  # type: ignore[arg-type]
    with Tally() as told:
        pass
    minato.count_bytes(10)
    assert told.nbytes == 0


def test_other_threads_do_not_count_for_a_sample_they_know_nothing_of() -> None:
    with Tally() as told:
        thread = threading.Thread(target=minato.count_bytes, args=(10,))
        thread.start()
        thread.join()
        minato.count_bytes(3)
        with Tally() as inner:
            minato.count_bytes(4)
    assert (told.nbytes, inner.nbytes) == (7, 4)


def test_many_threads_with_the_context_of_a_sample_lose_nothing() -> None:
    async def all_at_once(count: Callable[[int], None]) -> None:
        await asyncio.gather(*(asyncio.to_thread(_often, count) for _ in range(8)))

    with Tally() as told:
        asyncio.run(all_at_once(minato.count_bytes))
    assert told.nbytes == 8 * 500


def _often(count: Callable[[int], None]) -> None:
    for _ in range(500):
        count(1)


@pytest.mark.parametrize(("given", "kind"), [(-1, ValueError), (1.5, TypeError), ("a", TypeError), (None, TypeError)])
def test_what_is_no_number_of_bytes_is_refused(given: Any, kind: type[Exception]) -> None:
    with Tally() as told, pytest.raises(kind, match=r"^count_bytes needs a number of bytes, .* got "):
        minato.count_bytes(given)
    assert told.nbytes == 0
