"""`minato bench storage`: the grid of workers by fetches, on a server that it starts itself."""

import json
from pathlib import Path

import pytest

from minato.cli import main

# Clients keep connections open for the next read, and obstore its threads.
pytestmark = pytest.mark.leaks_ok("clients stay open for as long as the process lives")


def test_grid_is_measured_and_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "grid.svg"
    size = ["--workers", "1", "--fetchers", "2", "8", "--objects", "64", "--latency-ms", "1"]
    assert main(["bench", "storage", "--grid", *size, "--plot", str(plot), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [(point["workers"], point["fetchers"]) for point in points] == [(1, 2), (1, 8)]
    assert all(point["objects_per_s"] > 0 and point["median_request_s"] >= 0.001 for point in points)
    assert "fetchers per worker" in plot.read_text()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--workers", "2"], "--grid"),
        (["--grid", "--workers", "0"], "1 or more"),
        (["--objects", "3"], "--objects"),
        (["--latency-ms", "-1"], "--latency-ms"),
        (["--grid", "--plot", "/nowhere/grid.png"], "/nowhere"),
    ],
)
def test_mistakes_in_the_call_are_told(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "storage", *arguments]) == 2
    assert word in capsys.readouterr().err
