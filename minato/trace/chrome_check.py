"""Whether viewers can open a trace in Chrome's format: what they would leave out, or show wrongly.

As strict as Perfetto is: it drops a span that crosses the end of another of its track by a nanosecond.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
_TrackKey = tuple[Any, Any]
_Drawn = tuple[int, int, str]
"""Start and minus the end in nanoseconds, and name: sorted, a span comes before those inside it."""


def check(trace: Json | Iterable[Json]) -> list[str]:
    """What is wrong with a trace by the rules of the format, as strictly as viewers take them. Empty: it can be opened.

    Events have their fields; spans of a track nest, to the nanosecond; an arrow has a beginning and an end, and each of
    ours lies on spans and leads forward in time.
    """
    found = trace["traceEvents"] if isinstance(trace, dict) else list(trace)
    wrong: list[str] = []
    arrows: dict[Any, list[Json]] = {}
    tracks: dict[_TrackKey, list[_Drawn]] = {}
    for event in found:
        problem = _problem(event)
        if problem:
            wrong.append(f"{event} {problem}")
        elif event["ph"] == "X":
            start = _ns(event["ts"])
            tracks.setdefault(_track_of(event), []).append((start, -start - _ns(event["dur"]), event["name"]))
        elif event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
    for spans in tracks.values():
        spans.sort()
    for number, ends in arrows.items():
        wrong += [f"arrow {number} {what}" for what in _arrow_problems(ends, tracks)]
    for track, spans in tracks.items():
        wrong += [f"on track {track}: {what}" for what in _crossings(spans)]
    return wrong


def _problem(event: Json) -> str:
    """What an event lacks for itself."""
    phase = event.get("ph")
    missing = {"ph", "name", "pid"} - event.keys()
    missing |= set() if phase == "M" else {"ts"} - event.keys()
    missing |= {"tid", "dur"} - event.keys() if phase == "X" else set()
    missing |= {"id"} - event.keys() if phase in ("s", "f") else set()
    if missing:
        return f"lacks {sorted(missing)}"
    if phase == "X" and event["dur"] < 0:
        return "has a negative duration"
    if phase == "C" and not all(isinstance(value, (int, float)) for value in event.get("args", {"": ""}).values()):
        return "counts what is no number"
    return ""


def _arrow_problems(ends: list[Json], tracks: dict[_TrackKey, list[_Drawn]]) -> Iterator[str]:
    phases = sorted(event["ph"] for event in ends)
    if phases != ["f", "s"]:
        yield f"is {phases}"
        return
    if ends[0]["id"] >= 0:
        return  # the profiler's, between spans of devices
    begin, end = sorted(ends, key=lambda event: event["ph"] == "f")
    if begin["ts"] > end["ts"]:
        yield f"leads {begin['ts'] - end['ts']} µs back in time"
    for event in ends:
        at, spans = _ns(event["ts"]), tracks.get(_track_of(event), [])
        begun = spans[: bisect.bisect_right(spans, at, key=lambda span: span[0])]
        if not any(-minus_end >= at for _, minus_end, _ in begun):
            yield f"has its {event['ph']} on no span"


def _track_of(event: Json) -> _TrackKey:
    return event["pid"], event.get("tid")


def _ns(us: float) -> int:
    return round(us * 1000)


def _crossings(spans: list[_Drawn]) -> Iterator[str]:
    """Spans that neither contain each other nor are apart."""
    open_until: list[tuple[int, str]] = []
    for start, minus_end, name in spans:
        while open_until and open_until[-1][0] <= start:
            open_until.pop()
        if open_until and -minus_end > open_until[-1][0]:
            yield f"{name} at {start / 1000} crosses the end of {open_until[-1][1]}"
        open_until.append((-minus_end, name))
