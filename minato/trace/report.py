"""`write_html`: the report of a run as one HTML file, with its pictures; it loads nothing from anywhere.

Words and tables are written here, and can be read without scripts. Pictures are drawn in the browser by
assets/report.js from thinned data (pictures.py) that is part of the file.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from .._instrument import Kind
from .pictures import pictures
from .reading import RunTrace
from .samples import SlowSample
from .summary import Summary, summarize, what_is_missing
from .tables import OpRow
from .workers import WorkerRow

MOST_ROWS = 40
"""Of a table that may be long; the text and CSV reports have all of them."""

_COLOURS = {"accelerator-bound": "good", "unknown": "plain"}


def write_html(run: Path | str | RunTrace | Summary, out: Path | str, sections: Sequence[str] = ()) -> None:
    """Write the report of a run (its directory, or what was read or summarised of it) to the file `out`. `sections`:
    further ones as HTML, such as a diagnosis."""
    summary = run if isinstance(run, Summary) else summarize(run)
    Path(out).write_text(render(summary, sections), encoding="utf-8")


def render(summary: Summary, sections: Sequence[str] = ()) -> str:
    """The report as the text of an HTML page."""
    data = json.dumps(pictures(summary.run, summary.batches), separators=(",", ":")).replace("<", "\\u003c")
    script = _asset("report.js")
    title = f"minato · {summary.run.path.name or summary.run.path}"
    body = "\n".join((*_head(summary), *_figures(), *sections, *_tables(summary), *_foot(summary)))
    scripts = f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>'
    return page(title, f"{body}\n{scripts}")


def page(title: str, body: str) -> str:
    """A page in the style of the report, with nothing to load."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>{_asset('report.css')}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


# ---- head ----------------------------------------------------------------------------------------------------------


def _head(summary: Summary) -> Iterable[str]:
    run, verdict = summary.run, summary.verdict
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.start_ns / 1e9))
    ranks = f", {len(run.ranks)} ranks" if len(run.ranks) > 1 else ""
    yield f'<header><h1>{_text(run.path)}</h1><p class="muted">{began}, {_time(_wall_s(summary))}{ranks}</p></header>'
    culprit = f" <span>{_text(verdict.culprit)}</span>" if verdict.culprit else ""
    yield f'<section class="verdict {_COLOURS.get(verdict.bound, "bad")}"><h2>{_text(verdict.bound)}{culprit}</h2>'
    yield f"<p>{_text(verdict.text)}</p><p><b>What to do.</b> {_text(verdict.advice)}</p></section>"
    yield '<section class="tiles">'
    for value, label, hint in _tiles(summary):
        yield f'<div title="{_text(hint)}"><b>{_text(value)}</b><span>{_text(label)}</span></div>'
    yield "</section>"


def _tiles(summary: Summary) -> Iterable[tuple[str, str, str]]:
    numbers, wall_s = summary.verdict.numbers, _wall_s(summary)
    work_s = numbers.get("work_s", 0.0)
    on_cpu = numbers.get("work_cpu_s", 0.0) / work_s if work_s else 0.0
    yield _number(summary.samples / wall_s), "samples/s", "samples made, over the whole run"
    yield f"{len(summary.batches):,}", "batches", f"{summary.samples:,} samples"
    yield f"{numbers.get('wait_share', 0.0):.0%}", "consumer waiting", "of its time, first batches left out"
    yield f"{summary.waits.ready:.0%}", "batches ready when asked for", "the others had to be waited for"
    yield _time(summary.delays.spread.median), "median delay", "from a batch being done to its use"
    yield _time(summary.step_s), "median step", "from taking a batch to asking for the next"
    yield f"{numbers.get('busy_share', 0.0):.0%}", "workers busy", "of the time they were alive"
    yield f"{on_cpu:.0%}", "of work on the CPU", "the rest is waiting: for data, locks or a free core"
    if summary.cache.hits or summary.cache.misses:
        hint = f"{summary.cache.hits:,} samples found in the cache, {summary.cache.misses:,} made"
        yield f"{summary.cache.hit_share:.0%}", "from the cache", hint
    if summary.samples_offloaded:
        yield f"{summary.samples_offloaded:,}", "samples offloaded", "made by other machines"
    if summary.out_of_order:
        share = len(summary.out_of_order) / len(summary.batches)
        yield f"{share:.0%}", "batches out of order", "done before one with a lower number"


# ---- pictures ------------------------------------------------------------------------------------------------------


def _figures() -> Iterable[str]:
    yield _figure(
        "timeline",
        "Timeline",
        "What each process was at. Scroll with Ctrl, or use the buttons, to zoom; drag to move; double-click for all. "
        "The strip under a worker shows its operations. Many spans in little room are drawn as one, as high as the "
        "share of the time that they take.",
        wide=True,
    )
    yield '<div class="columns">'
    yield _figure("activity", "Samples in the making", "How many at once, and what was being done to them.")
    yield _figure("throughput", "Throughput", "Samples a second that the consumer got.")
    yield _figure("queues", "Queues", "Batches ready for the consumer, and given out to workers; samples parked.")
    yield _figure("workers", "Number of workers", "Alive at each moment.")
    yield _figure("waits", "Waits", "What each batch was waited for. Blue ones were ready when asked for.")
    yield _figure("delays", "Delays", "How long each batch lay ready before it was used.")
    yield _figure("quantiles", "By percentile", "Sorted: time to preprocess a batch, waits and delays.")
    yield _figure("boxes", "Operations", "Box: P25, median, P75. Whiskers: P1 and P99. Dot: the longest.")
    yield "</div>"


def _figure(name: str, title: str, caption: str, wide: bool = False) -> str:
    kind = ' class="wide"' if wide else ""
    return (
        f'<figure id="{name}"{kind}><h3>{title}</h3><figcaption>{caption}</figcaption>'
        '<div class="plot"><noscript>The picture needs JavaScript.</noscript></div></figure>'
    )


# ---- tables --------------------------------------------------------------------------------------------------------


def _tables(summary: Summary) -> Iterable[str]:
    if summary.ops:
        yield "<h2>Operations</h2>"
        yield _table(
            ("operation", "calls", "mean", "P90", "< 10 ms", "< 100 µs", "total", "CPU", "share of the work"),
            [_op_cells(row) for row in summary.ops],
        )
    if summary.workers:
        yield "<h2>Workers</h2>"
        head = ("worker", "pid", "samples", "median sample", "busy", "CPU", "ended", "busy share")
        yield _table(head, [_worker_cells(row, summary) for row in summary.workers[:MOST_ROWS]])
        yield _more(len(summary.workers))
    if summary.slowest:
        yield "<h2>Slowest samples</h2>"
        yield _table(
            ("sample", "took", "CPU", "size", "worker", "batch", "most of it in"),
            [_slow_cells(row, summary) for row in summary.slowest],
        )
    decisions = [
        (note.start_ns + process.header.wall_offset_ns, note)
        for process in summary.run.mains
        for note in process.notes
        if note.kind is Kind.DECISION
    ]
    if decisions:
        yield "<h2>Decisions</h2>"
        rows = [
            (
                _time((at - summary.run.start_ns) * 1e-9),
                "offload"
                if n.fields.get("of") == "offload"
                else f"{n.fields.get('before')} → {n.fields.get('target')}",
                _text(n.fields.get("reason", "")),
            )
            for at, n in decisions[-MOST_ROWS:]
        ]
        yield _table(("at", "workers", "why"), rows)
        yield _more(len(decisions))


def _op_cells(row: OpRow) -> Sequence[str]:
    name = _text(row.name) + (" <small>inside another</small>" if row.kind == "traced" else "")
    return (
        name,
        f"{row.calls:,}",
        _time(row.mean_ms * 1e-3),
        _time(row.p90_ms * 1e-3),
        f"{row.under_10ms:.0%}",
        f"{row.under_100us:.0%}",
        _time(row.total_s),
        _time(row.cpu_s),
        "" if row.kind == "traced" else _bar(row.share),
    )


def _worker_cells(row: WorkerRow, summary: Summary) -> Sequence[str]:
    name = "main process" if row.worker < 0 else f"worker {row.worker}"
    if row.pool:
        name += f" <small>pool {row.pool}</small>"
    if len(summary.run.ranks) > 1:
        name = f"rank {row.rank}, {name}"
    ended = f"<em>{row.ended}</em>" if row.ended == "died" else row.ended
    times = (_time(row.sample_median_ms * 1e-3), _time(row.busy_s), _time(row.cpu_s))
    return (name, str(row.pid), f"{row.samples:,}", *times, ended, _bar(row.busy_share))


def _slow_cells(row: SlowSample, summary: Summary) -> Sequence[str]:
    often = f" <small>{row.seen} times among the slowest</small>" if row.seen > 1 else ""
    worker = "main" if row.worker < 0 else str(row.worker)
    if len(summary.run.ranks) > 1:
        worker = f"rank {row.rank}, {worker}"
    times = (_time(row.ms * 1e-3), _time(row.cpu_ms * 1e-3))
    op = f"{_text(row.slowest_op)} <small>{_time(row.slowest_op_ms * 1e-3)}</small>" if row.slowest_op else ""
    return (f"index {row.index:,}{often}", *times, _size(row.nbytes), worker, str(row.batch), op)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{name}</th>" for name in head)
    lines = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{cells}</tr></thead><tbody>\n{lines}\n</tbody></table></div>'


def _bar(share: float) -> str:
    return f'<div class="bar"><i style="width:{min(1.0, share):.1%}"></i><span>{share:.0%}</span></div>'


def _more(rows: int) -> str:
    return f'<p class="muted">… {rows - MOST_ROWS:,} more</p>' if rows > MOST_ROWS else ""


# ---- foot ----------------------------------------------------------------------------------------------------------


def _foot(summary: Summary) -> Iterable[str]:
    notes = [f"{summary.events:,} events"]
    if summary.samples:
        notes.append(f"{summary.trace_bytes / summary.samples:,.0f} bytes per sample")
    notes += what_is_missing(summary.run)
    yield f'<footer class="muted">{"<br>".join(_text(note) for note in notes)}</footer>'


def _wall_s(summary: Summary) -> float:
    return max(1e-9, (summary.run.end_ns - summary.run.start_ns) * 1e-9)


def _text(value: object) -> str:
    return html.escape(str(value))


def _size(nbytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.3g} {unit}"
    return f"{nbytes} B" if nbytes else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:,.3g} {unit}" if seconds < 1000 else f"{seconds:,.0f} s"
    return "0"
