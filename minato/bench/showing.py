"""The results as a table in the terminal, as a page with plots, as plain data."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .measuring import ArmResult
from .running import Machine
from .verdict import Comparison, checked_in_words, faster_otherwise, in_words, is_default

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

COLUMNS = (
    "loader",
    "samples/s",
    "range",
    "x torch",
    "of bound",
    "busy",
    "MB/s",
    "first batch ms",
    "epoch gap ms",
    "cores",
    "memory MB",
)


def cells(result: ArmResult, comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """One line of the table, in the order of COLUMNS."""
    ratio = next((c for c in comparisons if (c.workload, c.arm) == (result.workload, result.arm)), None)
    return (
        result.arm,
        f"{result.samples_per_s:,.0f}",
        f"{result.spread[0]:,.0f}–{result.spread[1]:,.0f}",
        "" if ratio is None else f"{ratio.ratio:.2f}",
        f"{result.samples_per_s / result.bound_samples_per_s:.2f}",
        "" if result.utilisation is None else f"{100 * result.utilisation:.0f} %",
        f"{result.bytes_per_s / 1e6:,.1f}",
        f"{1e3 * result.first_batch_s:,.0f}",
        "" if result.epoch_gap_s is None else f"{1e3 * result.epoch_gap_s:,.0f}",
        f"{result.cpu_cores:.2f}",
        f"{result.memory_bytes / 1e6:,.0f}",
    )


def tables(results: Sequence[ArmResult], comparisons: Sequence[Comparison], titles: dict[str, str]) -> list[Table]:
    """One table per workload, for a terminal."""
    from rich import box
    from rich.table import Table

    made = []
    for name, title in titles.items():
        table = Table(title=f"{name}: {title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for column in COLUMNS:
            whole = column in ("loader", "range")
            table.add_column(column, justify="left" if column == "loader" else "right", no_wrap=whole)
        for result in (each for each in results if each.workload == name):
            style = "cyan" if result.arm.startswith("minato") else ""
            table.add_row(*cells(result, comparisons), style=style)
        made.append(table)
    return made


SUMMARY = (
    "workload",
    "torch samples/s",
    "minato samples/s",
    "x torch",
    "of bound",
    "busy %",
    "first batch ms",
    "verdict",
)


LESS = ("of bound", "busy %", "first batch ms")
"""Columns of SUMMARY that a narrow terminal goes without."""


def summary_cells(name: str, results: Sequence[ArmResult], comparisons: Sequence[Comparison]) -> tuple[str, ...] | None:
    """One workload in one line: both loaders in their default settings with workers."""
    found = next((c for c in comparisons if c.workload == name and is_default(c.arm)), None)
    if found is None:
        return None
    ours, theirs = (
        next(each for each in results if (each.workload, each.arm) == (name, arm)) for arm in (found.arm, found.against)
    )
    busy = [each.utilisation for each in (theirs, ours) if each.utilisation is not None]
    slower = sum(c.workload == name and c.word == "slower" for c in comparisons)
    return (
        name,
        f"{theirs.samples_per_s:,.0f}",
        f"{ours.samples_per_s:,.0f}",
        f"{found.ratio:.2f}",
        f"{ours.samples_per_s / ours.bound_samples_per_s:.2f}",
        " → ".join(f"{100 * share:.0f}" for share in busy),
        f"{1e3 * theirs.first_batch_s:,.0f} → {1e3 * ours.first_batch_s:,.0f}",
        found.word if not slower or found.word == "slower" else f"{found.word}, slower in {slower}",
    )


def summary(
    results: Sequence[ArmResult], comparisons: Sequence[Comparison], titles: dict[str, str], width: int = 80
) -> Table:
    """One line per workload, for a terminal of 80 columns; in a narrower one, only what matters most."""
    from rich import box
    from rich.table import Table

    title = "torch → minato, same number of workers, default settings"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    widths = {"torch samples/s": 9, "minato samples/s": 9, "x torch": 7, "of bound": 5, "busy %": 7}
    shown = [number for number, column in enumerate(SUMMARY) if width >= 78 or column not in LESS]
    for column in (SUMMARY[number] for number in shown):
        left = column in ("workload", "verdict")
        table.add_column(column, justify="left" if left else "right", width=widths.get(column), no_wrap=left)
    for name in titles:
        cells_of = summary_cells(name, results, comparisons)
        if cells_of is not None:
            table.add_row(*(cells_of[number] for number in shown), style="red" if "slower" in cells_of[-1] else "")
    return table


def legend(titles: dict[str, str]) -> str:
    """What the names in the table of `summary` mean."""
    workloads = "; ".join(f"{name}: {title}" for name, title in titles.items())
    return (
        f"{workloads}.\n"
        "of bound: share of what the workers or the simulated accelerator can do at most. busy: share of the time in "
        "which that accelerator worked. Epochs are short here and workers start in each: both shares grow with longer "
        "epochs. --details shows every loader, MB/s, epoch gap, CPU and memory."
    )


def as_plain(machine: Machine, results: Sequence[ArmResult], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Everything as plain data, seconds and bytes."""
    return {
        "machine": asdict(machine),
        "results": [asdict(result) for result in results],
        "comparisons": [asdict(comparison) for comparison in comparisons],
        "slower": sum(comparison.word == "slower" for comparison in comparisons),
        "faster_otherwise": faster_otherwise(results),
        "exactly_once": True,  # had a sample been lost or come twice, there would be no figures
    }


def page(
    machine: Machine, results: Sequence[ArmResult], comparisons: Sequence[Comparison], titles: dict[str, str]
) -> str:
    """A self-contained HTML page: the verdict, two plots, all figures."""
    plots = "".join(f"<figure>{_svg(figure)}</figure>" for figure in _plots(results, comparisons, titles))
    sections = "".join(_section(name, title, results, comparisons) for name, title in titles.items())
    words = html.escape("\n".join([in_words(comparisons), *faster_otherwise(results)])).replace("\n", "<br>")
    checked = html.escape(checked_in_words(results))
    about = html.escape(
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB; Python {machine.python}, "
        f"torch {machine.torch}, minato {machine.minato}"
    )
    short = _summary_section(results, comparisons, titles)
    return _PAGE.format(words=words, checked=checked, about=about, plots=plots, summary=short, sections=sections)


def _summary_section(results: Sequence[ArmResult], comparisons: Sequence[Comparison], titles: dict[str, str]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in SUMMARY)
    lines = [found for name in titles if (found := summary_cells(name, results, comparisons))]
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _section(name: str, title: str, results: Sequence[ArmResult], comparisons: Sequence[Comparison]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
    rows = ""
    for result in (each for each in results if each.workload == name):
        kind = "ours" if result.arm.startswith("minato") else "theirs"
        rows += (
            f'<tr class="{kind}">' + "".join(f"<td>{html.escape(c)}</td>" for c in cells(result, comparisons)) + "</tr>"
        )
    bound = next(each.bound_samples_per_s for each in results if each.workload == name)
    return (
        f"<h2>{html.escape(name)} <small>{html.escape(title)}; bound {bound:,.0f} samples/s</small></h2>"
        f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    )


def _plots(results: Sequence[ArmResult], comparisons: Sequence[Comparison], titles: dict[str, str]) -> list[Figure]:
    """Ratios to torch's loader at equal workers; and how busy the simulated accelerator was."""
    from matplotlib.figure import Figure

    names = list(titles)
    figures = [Figure(figsize=(11, 0.4 * len(names) + 0.9), layout="constrained")]
    axes = figures[0].subplots()
    plain = {c.workload: c.ratio for c in comparisons if is_default(c.arm)}
    axes.barh(names, [plain[name] for name in names], color=["#1f77b4" if plain[n] >= 1 else "#d62728" for n in names])
    axes.axvline(1.0, color="#888", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("samples per second, minato ÷ torch, same number of workers, default settings")
    _plain_frame(axes)
    for row, name in enumerate(names):
        axes.text(plain[name], row, f" {plain[name]:.2f}", va="center")
    busy = [result for result in results if result.utilisation is not None]
    if busy:
        figures.append(_busy_plot(busy))
    return figures


def _plain_frame(axes: Any) -> None:
    """Without the lines that say nothing."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


def _busy_plot(results: Sequence[ArmResult]) -> Figure:
    """Bars of utilisation, grouped by workload."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(result.workload for result in results))
    figure = Figure(figsize=(11, 0.75 * len(names) + 1.3), layout="constrained")
    axes = figure.subplots()
    kinds = (("torch", "#999999", -0.27), ("minato, in order", "#6baed6", 0.0), ("minato", "#1f77b4", 0.27))
    for label, colour, shift in kinds:
        values = [_utilisation(results, name, label) for name in names]
        axes.barh([row + shift for row in range(len(names))], values, height=0.25, color=colour, label=label)
    axes.axvline(1.0, color="#888", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("share of the time in which the simulated accelerator worked")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, borderaxespad=0.2)
    _plain_frame(axes)
    return figure


def _utilisation(results: Sequence[ArmResult], workload: str, label: str) -> float:
    """That of the arm with workers in default settings; `label` names the loader and its order."""
    loader, _, order = label.partition(", ")
    for result in results:
        fits = result.arm.endswith(order) if order else result.arm.endswith(("worker", "workers"))
        if result.workload == workload and result.arm.startswith(loader) and fits and "no worker" not in result.arm:
            return result.utilisation or 0.0
    return 0.0


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return file.getvalue().partition("<svg")[1] + file.getvalue().partition("<svg")[2]


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>minato bench</title>
<style>
 body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1rem; color: #222; }}
 h1 {{ margin-bottom: 0; }} small {{ color: #777; font-weight: normal; font-size: .7em; }}
 figure {{ margin: 1.5rem 0; }} figure svg {{ max-width: 100%; height: auto; }}
 .scroll {{ overflow-x: auto; }}
 table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9em; }}
 th, td {{ padding: .25rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }}
 th:first-child, td:first-child {{ text-align: left; }} tr.ours {{ background: #eef5fb; }}
</style>
<h1>minato bench</h1><p><small>{about}</small></p>
<p><strong>{words}</strong></p>
<p>torch → minato, same number of workers, default settings:</p>
{summary}
{plots}
<h2>All loaders</h2>
<p>Each row is one way to make a loader. The rows of a workload were measured in turn; figures are medians over epochs,
the range is that of epochs. {checked} Had one not, there would be no page.
<b>x torch</b>: samples per second against torch's loader in the same setting. <b>of bound</b>: share of what the
workers or the simulated accelerator can do at most, which is estimated from a few samples: a little above 1 occurs.
Epochs are short here, and but for persistent ones workers start in each, so that it is lower than in a long epoch.
<b>busy</b>: share of the time in which the simulated accelerator worked, where there is one. <b>first
batch</b>: from asking for the first epoch to its first batch. <b>epoch gap</b>: from the last step of an epoch to the
first batch of the next. <b>cores</b>: CPU seconds per second of all processes. <b>memory</b>: the most that all
processes used beyond what was there before.</p>
{sections}
</html>
"""
