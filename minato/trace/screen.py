"""Draws snapshots: in a terminal (or notebook) with rich, and a loader as HTML for a notebook.

rich is of the extra `minato[report]` and is imported when something is drawn.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .following import TraceSource
from .live import CounterSource, OpLine, Snapshot, Source, WorkerLine
from .reading import TraceError

BARS = " ▁▂▃▄▅▆▇█"
MOST_WORKERS, MOST_OPS = 16, 8


def need_rich() -> None:
    """`ImportError` that says what to install, if rich is missing."""
    try:
        import rich  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError("watching a loader needs rich: run `pip install 'minato[report]'`") from error


def source_of(loader: Any) -> Source:
    """The best source for a loader of this process: its trace if it has one, which knows operations and workers."""
    trace = getattr(loader, "trace", None)
    if trace is None:
        return CounterSource(loader)
    return TraceSource(Path(os.fspath(getattr(trace, "directory", trace))), pid=os.getpid())


def watch(loader: Any, refresh_s: float = 0.5) -> Watch:
    """A live view of a loader of this process: `with loader.watch(): ...`. See `DataLoader.watch`."""
    if not refresh_s >= 0.05:
        raise ValueError(f"refresh_s must be at least 0.05 seconds, got {refresh_s}")
    need_rich()
    return Watch(source_of(loader), refresh_s)


class Watch:
    """A live view: a context manager, or `start` and `stop`. Draws in a thread of its own while it is open."""

    def __init__(self, source: Source, refresh_s: float) -> None:
        from rich.live import Live

        self._source = source
        self._live = Live(get_renderable=self._draw, refresh_per_second=1 / refresh_s, transient=False)

    def start(self) -> Watch:
        """Begin to draw."""
        self._live.start()
        return self

    def stop(self) -> None:
        """Draw a last time, and stop. Idempotent."""
        self._live.stop()

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.stop()

    def _draw(self) -> Any:
        try:
            return draw(self._source.snapshot())
        except TraceError as error:  # nothing is recorded yet
            return str(error)


def draw(snapshot: Snapshot) -> Any:
    """A snapshot for rich."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    parts: list[Any] = [_headline(snapshot), _second_line(snapshot)]
    if snapshot.details:
        parts.append(Text("   ".join(f"{name}: {value}" for name, value in snapshot.details.items()), style="dim"))
    if snapshot.ops:
        parts += [Text(""), _ops_table(snapshot.ops)]
    if snapshot.workers:
        parts += [Text(""), _workers_table(snapshot.workers)]
    parts += [Text(f"· {news}", style="dim") for news in snapshot.news]
    title = f"[b]minato[/b] · {_plain(snapshot.title)} · {snapshot.seconds:,.0f} s"
    return Panel(Group(*parts), title=title, title_align="left", padding=(0, 1))


def _headline(snapshot: Snapshot) -> Any:
    from rich.text import Text

    text = Text()
    text.append(f"{snapshot.samples_per_s:,.0f} samples/s", style="bold")
    text.append(f"  {snapshot.batches_per_s:,.1f} batches/s  {snapshot.bytes_per_s / 1e6:,.1f} MB/s  ")
    text.append(sparkline(snapshot.history, 30), style="cyan")
    text.append(f"  {snapshot.samples:,} samples, {snapshot.batches:,} batches", style="dim")
    return text


def _second_line(snapshot: Snapshot) -> Any:
    from rich.text import Text

    text = Text()
    share = snapshot.wait_share
    text.append(f"consumer waits {share:.0%} ", style="green" if share < 0.05 else "yellow" if share < 0.3 else "red")
    text.append(bar(share, 12) + "  ")
    if snapshot.ready_share is not None:
        text.append(f"ready when asked for {snapshot.ready_share:.0%}  ")
    for name, length in snapshot.queues.items():
        text.append(f"{name} ", style="dim")
        text.append(f"{length}  ", style="bold")
    return text


def _ops_table(ops: tuple[OpLine, ...]) -> Any:
    table = _table(("operation", "mean", "P90", "share of the work"))
    for line in ops[:MOST_OPS]:
        cells = (f"{line.mean_ms:,.3g} ms", f"{line.p90_ms:,.3g} ms", f"{bar(line.share, 20)} {line.share:4.0%}")
        table.add_row(_plain(line.name), *cells)
    return table


def _workers_table(workers: tuple[WorkerLine, ...]) -> Any:
    table = _table(("worker", "samples/s", "per sample", "busy"))
    for line in workers[:MOST_WORKERS]:
        busy = f"{bar(line.busy_share, 20)} {line.busy_share:4.0%}" if not line.ended else f"[red]{line.ended}[/red]"
        table.add_row(_plain(line.name), f"{line.samples_per_s:,.1f}", f"{line.median_ms:,.3g} ms", busy)
    if len(workers) > MOST_WORKERS:
        table.add_row(f"… {len(workers) - MOST_WORKERS} more")
    return table


def _table(columns: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number in (0, len(columns) - 1) else "right", no_wrap=True)
    return table


def _plain(text: str) -> str:
    """Text that rich takes as it is."""
    return text.replace("[", r"\[")


def bar(share: float, width: int) -> str:
    """A share as a bar of `width` characters."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)


def sparkline(values: tuple[float, ...], width: int) -> str:
    """The last values as a little curve from zero."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(BARS[round((len(BARS) - 1) * value / top)] if top else BARS[0] for value in shown)


# ---- notebook ------------------------------------------------------------------------------------------------------


def loader_html(loader: Any) -> str:
    """A loader as a notebook shows it: what it was made with, how it stands."""
    snapshot = CounterSource(loader).snapshot()
    stats = loader.stats()
    made: dict[str, object] = {"dataset": _named(loader.dataset)}
    for name in ("batch_size", "num_workers", "in_order", "prefetch_factor", "persistent_workers", "pin_memory"):
        made[name] = getattr(loader, name, None)
    done = {
        "delivered": f"{stats.samples_delivered:,} samples in {stats.batches_delivered:,} batches",
        "consumer waited": f"{stats.wait_seconds:,.2f} s, {stats.waits:,} times",
        **{name: str(length) for name, length in snapshot.queues.items()},
        **snapshot.details,
    }
    state = "closed" if getattr(loader, "_closed", False) else "running" if stats.workers else "idle"
    return (
        '<div style="font:13px/1.5 system-ui,sans-serif"><b>minato.DataLoader</b> '
        f'<span style="opacity:.65">{state}</span>'
        '<div style="display:flex;flex-wrap:wrap;gap:4px 40px;align-items:flex-start;margin-top:4px">'
        f"{_html_table(made)}{_html_table(done)}</div></div>"
    )


def _named(dataset: Any) -> str:
    try:
        return f"{type(dataset).__name__}, {len(dataset):,} samples"
    except TypeError:
        return type(dataset).__name__


def _html_table(values: Mapping[str, object]) -> str:
    rows = "".join(
        f'<tr><td style="text-align:left;opacity:.65;padding:0 12px 0 0">{html.escape(name.replace("_", " "))}</td>'
        f'<td style="text-align:left;padding:0">{html.escape(str(value))}</td></tr>'
        for name, value in values.items()
    )
    return f'<table style="border-collapse:collapse;margin:0">{rows}</table>'
