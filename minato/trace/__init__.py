"""Traces of a loader: what `trace="run1/"` wrote, read and shown.

reading.py    files to typed events, per process and rank
batches.py    the life of each batch: preprocessed, waited for, consumed
tables.py     per operation, waits and delays, out of order
workers.py    per worker
samples.py    what samples took, and the slowest of them
summary.py    all tables of a run; as text, CSV, JSON and rows
verdict.py    what bounds the run, in words with numbers
lotus.py      Lotus-compatible CSV
chrome.py     Chrome/Perfetto JSON, alone or merged into a `torch.profiler` trace; chrome_check.py: what viewers reject
report.py     the report with pictures (pictures.py, thinned by thinning.py; assets/ is what draws them)
live.py       a loader at a moment; from its counters, or its trace (following.py); drawn by screen.py
native/       from operations to the native functions they run in

Recording is in `_instrument.py` and `_recording.py`. Nothing here is imported by the loader.
"""

from .._instrument import Flag as Flag
from .._instrument import Kind as Kind
from .._instrument import TraceOptions as TraceOptions
from .reading import Event as Event
from .reading import Note as Note
from .reading import ProcessTrace as ProcessTrace
from .reading import RunTrace as RunTrace
from .reading import TraceError as TraceError
from .reading import read_run as read_run
from .reading import sessions as sessions

__all__ = [
    "Event",
    "Flag",
    "Kind",
    "Note",
    "ProcessTrace",
    "RunTrace",
    "TraceError",
    "TraceOptions",
    "read_run",
    "sessions",
]

for _public in (Event, Flag, Kind, Note, ProcessTrace, RunTrace, TraceError, TraceOptions):
    _public.__module__ = "minato.trace"
del _public
