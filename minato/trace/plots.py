"""`write_png`: the plots of Lotus as one picture, for papers and for places that show no HTML. Needs matplotlib.

Batch times of several runs beside each other (batch sizes, numbers of ranks), waits by batch, delays by percentile, and
what operations take. No display is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .batches import BatchLife
from .summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG_DELAY_S = 0.5  # the line that Lotus draws
MOST_OPS = 12
_BLUE, _RED, _GREY = "#1f77b4", "#d62728", "#888888"


def write_png(summary: Summary, out: Path | str, beside: Sequence[Summary] = ()) -> None:
    """Draw a run into the file `out`, its batch times beside those of other runs. The name's ending says which kind of
    file: .png, .pdf, .svg. Raises ImportError without matplotlib."""
    draw(summary, beside).savefig(out, dpi=150)


def draw(summary: Summary, beside: Sequence[Summary] = ()) -> Figure:
    """The picture as a figure of matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: run `pip install 'minato[report]'`") from error
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    (times, waited), (lain, ops) = figure.subplots(2, 2)
    _draw_times(times, [summary, *beside])
    _draw_waits(waited, summary)
    _draw_delays(lain, summary)
    _draw_ops(ops, summary)
    culprit = f" ({summary.verdict.culprit})" if summary.verdict.culprit else ""
    figure.suptitle(f"{summary.run.path.name}: {summary.verdict.bound}{culprit}", x=0.01, ha="left", weight="bold")
    return figure


def label(summary: Summary) -> str:
    """A run by its name, the size of its batches and its ranks."""
    sizes = [life.samples for life in summary.batches if life.samples]
    size = f"batch {int(np.median(sizes))}" if sizes else "no batch"
    ranks = len(summary.run.ranks)
    return f"{summary.run.path.name}\n{size} × {ranks} rank{'s' if ranks != 1 else ''}"


def _draw_times(axes: Any, summaries: Sequence[Summary]) -> None:
    """A box for each run."""
    each = [[life.preprocess_ns * 1e-6 for life in one.batches if life.preprocess_ns is not None] for one in summaries]
    axes.boxplot(each, widths=0.5, flierprops={"markersize": 3}, medianprops={"color": _BLUE})
    axes.set_xticks(range(1, len(each) + 1), [label(one) for one in summaries])
    _name(axes, "Time to preprocess a batch", "", "ms")


def _draw_waits(axes: Any, summary: Summary) -> None:
    """A dot for each batch."""
    found = [life for life in summary.batches if life.wait_ns is not None]
    for ready, colour, name in ((True, _BLUE, "ready when asked for"), (False, _RED, "had to be waited for")):
        chosen = [life for life in found if life.was_ready is ready]
        if chosen:
            waited = [_ms(life.wait_ns) for life in chosen]
            axes.scatter([life.id for life in chosen], waited, s=9, color=colour, label=name)
    if any(_ms(life.wait_ns) > 0 for life in found):
        _log_scale(axes, "log")
    if found:
        axes.legend(frameon=False, fontsize="small")
    _name(axes, "Waits", "batch", "ms")


def _draw_delays(axes: Any, summary: Summary) -> None:
    """Sorted, over percentiles, with a line at half a second and at the step."""
    lain = sorted(_delay_ms(summary.batches))
    if lain:
        axes.plot(np.linspace(0, 100, len(lain)), lain, color=_BLUE, marker="." if len(lain) < 100 else "")
    axes.axhline(LONG_DELAY_S * 1e3, color=_GREY, linestyle="--", linewidth=1)
    axes.annotate("500 ms", (0, LONG_DELAY_S * 1e3), va="top", color=_GREY, fontsize="small")
    if summary.step_s > 0:
        axes.axhline(summary.step_s * 1e3, color=_RED, linestyle=":", linewidth=1)
        axes.annotate("median step", (100, summary.step_s * 1e3), ha="right", va="bottom", color=_RED, fontsize="small")
    if lain and lain[-1] > 0:
        _log_scale(axes, "symlog", linthresh=0.1)
        axes.set_ylim(bottom=0.0, top=2 * max(lain[-1], LONG_DELAY_S * 1e3))
    _name(axes, "Delays", "percentile", "ms")


def _draw_ops(axes: Any, summary: Summary) -> None:
    """CPU time and the rest of it, of each operation."""
    rows = [row for row in summary.ops if row.kind != "traced"][:MOST_OPS]
    names = [row.name for row in rows]
    used = [min(row.cpu_s, row.total_s) for row in rows]
    axes.barh(names, used, color=_BLUE, label="on the CPU")
    axes.barh(names, [row.total_s - cpu for row, cpu in zip(rows, used, strict=True)], left=used, color="#c6dbef")
    axes.invert_yaxis()
    _name(axes, "Operations: on the CPU (dark) and waiting (light)", "seconds over all workers", "")


def _log_scale(axes: Any, kind: str, **options: float) -> None:
    """Marked with plain numbers, and with more of them where it spans little."""
    axes.set_yscale(kind, **options)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    low, high = axes.get_ylim()
    if kind == "log" and high < 10 * low:
        axes.yaxis.set_minor_formatter("{x:g}")


def _name(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _ms(nanoseconds: int | None) -> float:
    return (nanoseconds or 0) * 1e-6


def _delay_ms(lives: Sequence[BatchLife]) -> list[float]:
    return [delay * 1e-6 for life in lives if (delay := life.delay_ns) is not None]
