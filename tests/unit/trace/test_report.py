"""The HTML report: one file that stands alone, says the verdict, and stays small."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minato._instrument import Kind
from minato.trace import RunTrace, read_run
from minato.trace.pictures import CURVE_PARTS, LANE_SPANS, pictures
from minato.trace.reading import DTYPE, Header, ProcessTrace
from minato.trace.report import write_html
from minato.trace.summary import summarize
from tests.support.traces import SyntheticRun

HOSTILE = '</script><script>alert("x")</script>'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two workers, four batches, an operation whose name is markup; the consumer waits for each batch."""
    made = SyntheticRun(tmp_path / "run")
    made.queue("workers", 0, 2)
    for batch in range(4):
        begin = 100.0 * batch
        made.made(batch, batch % 2, begin, 80, samples=8)
        made.op("Loader", batch % 2, begin, 10, kind=Kind.LOADER)
        made.op(HOSTILE, batch % 2, begin + 10, 60, batch, batch)
        made.taken(batch, begin, 85, samples=8)
        made.queue("ready", begin + 80, 1)
        made.queue("ready", begin + 85, 0)
    made.main.note(Kind.DECISION, 10, before=2, target=3, reason="the consumer <waits>")
    made.write()
    return tmp_path / "run"


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_stands_alone_and_says_the_verdict(run: Path, tmp_path: Path) -> None:
    write_html(run, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    verdict = summarize(run).verdict
    assert verdict.bound in page
    assert verdict.text.split(".")[0] in page
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<link|<img|<iframe|\bsrc=|\bhref=|@import|url\(|https?://", markup)
    assert "fetch(" not in page
    assert HOSTILE not in page
    assert page.count("<script") == page.count("</script>") == 2
    assert "2 → 3" in page and "the consumer &lt;waits&gt;" in page


def test_no_more_samples_are_shown_in_the_making_than_were(tmp_path: Path) -> None:
    """Only the first half of the samples was looked at: they stand for all, but not at that moment."""
    run = SyntheticRun(tmp_path)
    for number in range(8):
        run.made(number, 0, number * 10, 10)
        run.taken(number, number * 10, 10)
        if number < 4:
            run.op("Decode", 0, number * 10, 10, number, number)
            run.op("Sample", 0, number * 10, 10, number, number, kind=Kind.SAMPLE)
    run.write()
    trace = read_run(tmp_path)
    activity = pictures(trace, summarize(trace).batches)["activity"]
    assert max(activity["Decode"]) == pytest.approx(1.0)
    assert max(map(sum, zip(*activity.values(), strict=True))) == pytest.approx(1.0)


def test_pictures_show_what_was_recorded(run: Path) -> None:
    trace = read_run(run)
    shown = pictures(trace, summarize(trace).batches)
    assert [lane["name"] for lane in shown["lanes"]] == ["main", "worker 0", "worker 1"]
    assert shown["ops"] == [HOSTILE, "Loader"]
    waits = [span for span in shown["lanes"][0]["spans"] if span[2] == Kind.WAIT]
    assert [(span[0], span[1], span[4]) for span in waits] == [(100_000 * n, 85_000, n) for n in range(4)]
    solid = [piece[2] for piece in shown["lanes"][1]["strip"] if piece[3:] == [1000]]
    assert solid == [1, 0, 1, 0]
    assert [point[:2] for point in shown["waits"]] == [[n, 85.0] for n in range(4)]
    assert shown["quantiles"]["preprocessing"][100] == 80.0
    assert shown["boxes"][0][:3] == [60.0, 60.0, 60.0]
    busy_s = sum(sum(part) for part in shown["activity"].values()) * shown["wall_us"] * 1e-6 / CURVE_PARTS
    assert busy_s == pytest.approx(4 * 0.08, rel=0.02)
    got = sum(shown["throughput"]) * shown["wall_us"] * 1e-6 / len(shown["throughput"])
    assert got == pytest.approx(32, rel=0.02)
    assert max(shown["curves"]["ready"]["high"]) == 1
    assert max(shown["curves"]["workers"]["mean"]) == 2


def many(worker: int, spans: int) -> ProcessTrace:
    """A process with `spans` runs and as many operations, one millisecond each."""
    header = Header("s", "worker", 0, 100 + worker, worker, 0, 0, 0, "op", "here")
    records = np.zeros(2 * spans, DTYPE)
    records["kind"] = np.tile([Kind.RUN, Kind.OP], spans)
    records["name"] = np.tile([0, 1], spans)
    records["start_ns"] = np.repeat(np.arange(spans) * 2_000_000, 2)
    records["duration_ns"] = 1_000_000
    records["count"] = 1
    records["batch"] = np.repeat(np.arange(spans), 2)
    return ProcessTrace(header, ["", "decode"], records, [])


def test_a_long_run_is_thinned_to_a_small_page() -> None:
    """Its longest span stays, all are counted, and the page does not grow with the run."""
    trace = RunTrace(Path("run"), [many(worker, 60_000) for worker in range(3)])
    trace.processes[1].records["duration_ns"][50_000] = 1_900_000
    shown = pictures(trace, [])
    spans = [span for lane in shown["lanes"] for span in lane["spans"]]
    assert len(spans) <= LANE_SPANS
    assert max(span[1] for span in shown["lanes"][1]["spans"] if span[3] == 1) == 1900
    shares = [span[6] for span in spans if span[3] > 1]
    assert min(shares) >= 480 and max(shares) <= 1000  # half of the time, and nearly all around the longest
    assert len(json.dumps(shown)) < 2 << 20


def test_a_run_without_batches_has_a_page(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.queue("workers", 0, 1)
    made.write()
    write_html(tmp_path / "run", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "nothing to judge" in page
    assert data_of(page)["waits"] == []


def test_the_page_lists_the_slowest_samples(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    for batch in range(3):
        made.op("Crop", 0, 100 * batch, 40 + batch, 70 + batch, batch)
        made.op("Sample", 0, 100 * batch, 45 + batch, 70 + batch, batch, Kind.SAMPLE)
        made.made(batch, 0, 100 * batch, 50)
        made.taken(batch, 100 * batch, 60)
    made.write()
    write_html(tmp_path / "run", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index("index 72") < page.index("index 71") < page.index("index 70")
