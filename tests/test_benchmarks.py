"""The benchmarks as a whole: one command runs them all, plots come from kept results, peers are told apart."""

import io
import json
from pathlib import Path

import pytest

from benchmarks import peers, plot, run

ROOT = Path(__file__).parent.parent
REPEATS = 3


@pytest.fixture(scope="module", autouse=True)
def _fonts_open() -> None:
    """matplotlib keeps the fonts open that it once used: before the first test, so that none is blamed for it."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set_title("÷ – 0")
    figure.text(0, 0, "bold", fontweight="bold")
    figure.savefig(io.StringIO(), format="svg")


def transport_document() -> dict[str, object]:
    runs = {
        "torch 0 workers": [33.0] * 3,
        "torch 2 workers": [10.0, 12.0, 11.0],
        "minato 2 workers": [22.0, 33.0, 11.0],
        "minato 2 other": [1.0] * 3,
    }
    case = {"case": "cheap", "title": "cheap", "unit": "samples/s", "runs": runs, "targets": []}
    memory = {**case, "unit": "MB"}
    return {"machine": {"cores": 2}, "class": "minato:DataLoader", "repeats": REPEATS, "cases": [case, memory]}


def test_every_table_of_the_runner_is_a_script() -> None:
    assert all(table.script.exists() for table in run.TABLES)


def test_every_script_that_measures_is_a_table_of_the_runner() -> None:
    helpers = {"run", "plot"}
    with_main = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text()}
    assert with_main - helpers == {table.script.stem for table in run.TABLES}


def test_ratios_are_medians_with_the_range_of_repeat_against_repeat() -> None:
    (bar,) = plot.transport_bars(transport_document())
    assert (bar.value, bar.low, bar.high) == (2.0, 1.0, 2.75)
    assert bar.unworked == 3.0


def test_nothing_that_a_plot_says_is_cut_off() -> None:
    from matplotlib.text import Text

    long = "a title that says what was measured, of what, against what, and in which of all settings"
    bars = [plot.Bar("a label of some length, batch 256", 2.0, 1.5, 7.0, "1,234,567 samples/s")]
    figure = plot.figure_of([*bars, plot.Bar("ahead", 1.0, 1.0, 1.0, "10 samples/s", unworked=6.0)], long, long)
    figure.savefig(io.BytesIO(), format="png")  # which lays it out
    words = [text for text in figure.findobj(Text) if len(text.get_text()) > 2]  # ticks beyond the axis are not shown
    boxes = {text.get_text(): text.get_window_extent() for text in words}
    assert {"torch", "ahead", long} <= boxes.keys()
    assert [text for text, box in boxes.items() if box.x0 < 0 or box.x1 > figure.bbox.x1] == []


def test_plots_are_made_from_kept_results(tmp_path: Path) -> None:
    (tmp_path / "transport.json").write_text(json.dumps(transport_document()))
    (tmp_path / "summary.json").write_text("[]")
    assert plot.main([str(tmp_path)]) == 0
    assert (tmp_path / "transport.svg").read_text().count("<svg") == 1
    assert [path.name for path in tmp_path.glob("*.svg")] == ["transport.svg"]


def test_results_of_another_kind_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text('{"machine": {}}')
    assert plot.main([str(tmp_path)]) == 1
    assert "nothing in" in capsys.readouterr().err


def test_a_contender_that_loses_a_sample_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    job = peers.Job(tmp_path, 4, 2, 0)
    images = torch.zeros(2, 3, 4, 4)
    whole = [(images, torch.tensor([0, 1])), (images, torch.tensor([2, 3]))]
    monkeypatch.setitem(peers.CONTENDERS, "whole", lambda _: lambda: whole)
    monkeypatch.setitem(peers.CONTENDERS, "twice", lambda _: lambda: [whole[0], whole[0]])
    assert peers.measure("whole", job, epochs=1).complete
    assert not peers.measure("twice", job, epochs=1).complete


def test_the_picture_of_the_readme_is_made_from_results_in_the_repository(tmp_path: Path) -> None:
    """Who measures again replaces the results, draws, and both are committed."""
    source, picture = ROOT / "benchmarks" / "results" / "transport.json", ROOT / "docs" / "assets" / "transport.svg"
    assert f"]({picture.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert plot.main([str(source), "--out", str(tmp_path / "again.svg")]) == 0
    shapes = [path.read_text().count("<path") for path in (tmp_path / "again.svg", picture)]
    assert shapes[0] == shapes[1]
