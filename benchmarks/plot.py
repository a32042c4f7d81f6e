"""Plots of results that were measured before: nothing is run here.

    python benchmarks/plot.py results                  # every JSON file it knows, as SVG beside it
    python benchmarks/plot.py results/transport.json --out docs/assets/transport.svg   # the picture of the README

It knows what `transport.py`, `peers.py` and `pipelines.py` write with --json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS, THEIRS, SLOWER = "#1f6fb4", "#9aa3ab", "#c8442f"
INK, FAINT = "#24292f", "#8b949e"


@dataclass(frozen=True)
class Bar:
    """A ratio to torch's loader with its range over repeats."""

    label: str
    value: float
    low: float
    high: float
    note: str = ""
    unworked: float | None = None
    """torch's loader without workers, as a ratio to the same."""
    ours: bool = True


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median over median; lowest and highest of repeat against repeat."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=False)]
    return statistics.median(ours) / statistics.median(theirs), min(pairs), max(pairs)


# ---- transport: minato against torch by case -------------------------------------------------------------------------


def transport_bars(document: dict[str, Any]) -> list[Bar]:
    """For each case with rates, minato's row against torch's with the same settings."""
    bars = []
    for case in document["cases"]:
        if case["unit"] != "samples/s":
            continue
        alone = case["runs"].get("torch 0 workers")
        for name, runs in case["runs"].items():
            other = case["runs"].get(name.replace("minato", "torch", 1))
            if name.startswith("minato") and other:
                epoch = f", {name.rpartition(', ')[2]}" if "epoch" in name else ""
                label = f"… persistent{epoch}" if "persistent" in name else f"{_title(case)}{epoch}"
                unworked = statistics.median(alone) / statistics.median(other) if alone and not epoch else None
                bars.append(Bar(label, *ratio(runs, other), f"{statistics.median(runs):,.0f} samples/s", unworked))
    return bars


def _title(case: dict[str, Any]) -> str:
    """What is loaded, after the name by which other titles speak of it."""
    title: str = case["title"].replace("x32", "×32").replace("x224", "×224")
    name: str = case["case"]
    return title if name in title or "-" in name or title.startswith("cheap") else f"{name}: {title}"


def draw_transport(document: dict[str, Any], out: Path) -> None:
    bars = transport_bars(document)
    machine = document["machine"]
    cores = machine.get("cores", "?")
    title = "Samples per second, minato ÷ torch's DataLoader in the same setting"
    spread = ", whiskers: lowest and highest repeat" if any(bar.low < bar.high for bar in bars) else ""
    words = f"ratio; medians of {document['repeats']}{spread}; 2 workers where not said otherwise, {cores} cores"
    _ratios(bars, out, title, words)


# ---- pipelines, peers ------------------------------------------------------------------------------------------------


def draw_pipelines(document: dict[str, Any], out: Path) -> None:
    bars = []
    for name, results in document["results"].items():
        rates = {loader: [each["rate"] for each in trained] for loader, trained in results.items()}
        bars.append(Bar(name, *ratio(rates["minato"], rates["torch"]), f"{statistics.median(rates['minato']):,.0f} /s"))
    _ratios(bars, out, "training on the CPU, samples per second, minato ÷ torch", "model and workers share the cores")


def draw_peers(document: dict[str, Any], out: Path) -> None:
    rates = {}
    for name, seen in document["results"].items():
        found = [rate for each in seen if isinstance(each, dict) for rate in each["rates"]]
        if found:
            rates[name] = found
    base = statistics.median(rates["torch"])
    bars = []
    for name, found in sorted(rates.items(), key=lambda item: -statistics.median(item[1])):
        middle = statistics.median(found)
        ours, note = name.startswith("minato"), f"{middle:,.0f} samples/s"
        bars.append(Bar(name, middle / base, min(found) / base, max(found) / base, note, ours=ours))
    words = f"{document['workers']} workers, batches of {document['batch_size']}; whiskers: slowest and fastest epoch"
    _ratios(bars, out, "JPEG files to 224×224 floats, samples per second ÷ torch's DataLoader", words)


def _ratios(bars: Sequence[Bar], out: Path, title: str, words: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    figure_of(bars, title, words).savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def figure_of(bars: Sequence[Bar], title: str, words: str) -> Any:
    """Horizontal bars around the line at 1."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": "minato", "font.family": "DejaVu Sans", "svg.fonttype": "path"})
    figure = Figure(figsize=(9.2, 0.42 * len(bars) + 1.5), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for row, bar in enumerate(bars):
        colour = THEIRS if not bar.ours else SLOWER if bar.value < 0.97 else OURS
        axes.barh(row, bar.value, height=0.62, color=colour)
        if bar.low < bar.high:
            axes.plot([bar.low, bar.high], [row, row], color=INK, linewidth=1.2, marker="|", markersize=7)
        if bar.unworked is not None:
            axes.plot(bar.unworked, row, color=INK, marker="D", markersize=6, markerfacecolor="white", zorder=3)
        end = max(bar.value, bar.high, bar.unworked or 0)
        axes.text(end, row, f"  {bar.value:.2f}", va="center", color=INK, fontsize=10, fontweight="bold")
        ahead = f" (◇ {bar.unworked:.1f})" if bar.unworked is not None and bar.unworked > bar.value else ""
        axes.text(end, row, f"             {bar.note}{ahead}", va="center", color=FAINT, fontsize=9)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.annotate(
        "torch",
        (1.0, 1.0),
        (0, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=INK,
        fontsize=9,
    )
    if any(bar.unworked is not None for bar in bars):
        (mark,) = axes.plot([], [], color=INK, marker="D", markersize=6, markerfacecolor="white", linestyle="")
        axes.legend([mark], ["torch without workers"], loc="lower right", frameon=False, fontsize=9)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=10)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.36 * max(max(bar.value, bar.high, bar.unworked or 0) for bar in bars))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    figure.supxlabel(words, x=0.01, ha="left", fontsize=9, color=FAINT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    return figure


DRAWN: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "transport": draw_transport,
    "pipelines": draw_pipelines,
    "peers": draw_peers,
}


def kind_of(document: dict[str, Any]) -> str | None:
    """Which benchmark wrote it."""
    if "cases" in document and "class" in document:
        return "transport"
    results = document.get("results")
    if isinstance(results, dict) and results:
        return "pipelines" if isinstance(next(iter(results.values())), dict) else "peers"
    return None


def main(argv: list[str] | None = None) -> int:
    """Draw; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a JSON file, or a directory of them")
    parser.add_argument("--out", type=Path, help="the picture (for one file; default: beside it, as SVG)")
    options = parser.parse_args(argv)
    files = sorted(options.source.glob("*.json")) if options.source.is_dir() else [options.source]
    drawn = 0
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        kind = kind_of(document) if isinstance(document, dict) else None
        if kind is not None:
            target = options.out or file.with_suffix(".svg")
            DRAWN[kind](document, target)
            print(f"{file} -> {target}")
            drawn += 1
    if not drawn:
        print(f"nothing in {options.source} is known here", file=sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
