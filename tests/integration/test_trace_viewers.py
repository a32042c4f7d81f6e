"""Timelines as Perfetto reads them: with its own parser, see tests/support/perfetto.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minato import DataLoader, StagedDataset
from minato.trace import TraceOptions, chrome, read_run
from tests.support import perfetto

BATCHES, SIZE = 8, 4

pytestmark = pytest.mark.skipif(bool(perfetto.missing()), reason=f"not here: {perfetto.missing()}")

FOUND_WRONG = "select name, value from stats where severity != 'info' and value > 0"
SLICES = "select name, count(*) as n from slice group by name"
ARROWS = """
    select source.name as made, target.name as taken, made_args.display_value as made_id, taken_args.display_value as id
    from flow join slice source on source.id = flow.slice_out join slice target on target.id = flow.slice_in
    left join args made_args on made_args.arg_set_id = source.arg_set_id and made_args.key = 'args.correlation'
    left join args taken_args on taken_args.arg_set_id = target.arg_set_id and taken_args.key = 'args.correlation'
"""
STRAY = """
    select part.name from slice part left join slice whole on whole.id = part.parent_id
    where part.name in ('SLoader', 'Scrop') and (whole.name is null or whole.name != 'Sample')
"""
PROCESSES = "select name from process where name is not null"
COUNTERS = "select distinct name from counter_track"
QUERIES = (FOUND_WRONG, SLICES, ARROWS, STRAY, PROCESSES, COUNTERS)


def load(index: int) -> torch.Tensor:
    return torch.full((4,), float(index))


def crop(sample: torch.Tensor) -> torch.Tensor:
    return sample * 2


def make_run(path: Path, fetcher: str = "sequential", in_order: bool | None = None) -> None:
    data = StagedDataset(load, [crop], BATCHES * SIZE)
    trace = TraceOptions(path, "op")
    with DataLoader(data, SIZE, num_workers=2, fetcher=fetcher, in_order=in_order, trace=trace) as loader:
        assert sum(batch.sum() >= 0 for batch in loader) == BATCHES


def check(file: Path) -> dict[str, int]:
    """All that holds of any of our timelines; gives how many slices there are of each name."""
    wrong, slices, arrows, stray, processes, counters = perfetto.ask(file, QUERIES)
    assert wrong == []
    found = {row["name"]: row["n"] for row in slices}
    written = json.loads(file.read_text())["traceEvents"]
    assert sum(found.values()) >= sum(event["ph"] == "X" for event in written)
    for number in range(BATCHES):
        arrow = next(row for row in arrows if row["taken"] == f"SBatchConsumed_{number}")
        assert arrow["made"] == f"SBatchPreprocessed_{number}"
        assert arrow["made_id"] == arrow["id"] == str(-1 - number)
        assert found[f"SBatchWait_{number}"] == 1
    assert sum(row["taken"].startswith("SBatchConsumed") for row in arrows) == BATCHES
    assert stray == []
    assert {"minato worker 0", "minato worker 1"} <= {row["name"] for row in processes}
    assert any("ready" in row["name"] for row in counters)
    return found


@pytest.mark.parametrize("fetcher", ["sequential", "threaded"])
@pytest.mark.parametrize("in_order", [True, False])
def test_perfetto_shows_spans_and_arrows_of_a_run(tmp_path: Path, fetcher: str, in_order: bool) -> None:
    """One arrow a batch, from its making to its taking, with negative ids; operations inside their samples."""
    make_run(tmp_path / "run", fetcher, in_order)
    chrome.export(read_run(tmp_path / "run"), tmp_path / "fine.json")
    found = check(tmp_path / "fine.json")
    assert found["Sample"] == found["SLoader"] == found["Scrop"] == BATCHES * SIZE


def test_perfetto_shows_batches_only_where_that_was_asked_for(tmp_path: Path) -> None:
    """The coarse file."""
    make_run(tmp_path / "run")
    chrome.export(read_run(tmp_path / "run"), tmp_path / "coarse.json", granularity="batch")
    assert not {"Sample", "SLoader", "Scrop"} & check(tmp_path / "coarse.json").keys()


def test_perfetto_shows_a_profilers_spans_and_ours_in_one(tmp_path: Path) -> None:
    """A real run of torch.profiler with our events merged into it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        make_run(tmp_path / "run")
    profiler.export_chrome_trace(str(tmp_path / "prof.json"))
    chrome.merge(read_run(tmp_path / "run"), tmp_path / "prof.json", tmp_path / "merged.json")
    found = check(tmp_path / "merged.json")
    assert found["aten::sum"] >= BATCHES
    assert found["Scrop"] == BATCHES * SIZE


def test_perfetto_would_tell_what_is_no_trace(tmp_path: Path) -> None:
    """So that silence of the other tests means something."""
    (tmp_path / "bad.json").write_text('{"traceEvents": [{"ph": "X", "ts": ')
    with pytest.raises(ValueError):
        perfetto.ask(tmp_path / "bad.json", [FOUND_WRONG])
