"""`minato doctor`: what this machine offers a loader, and what to look after."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .errors import UserError

if TYPE_CHECKING:
    from .machine import Cores, Machine

MANY_WORKERS = 64  # a machine should be good for so many
_FILES_PER_WORKER = 4  # measured, in the main process
_FILES_BESIDES = 128  # the interpreter, torch, the dataset's own files
_SMALL_SHM_BYTES = 1 << 30
_SMALL_BUDGET_BYTES = 256 << 20
_PERF_NEEDS = 2  # kernel.perf_event_paranoid, at most


_EXAMPLES = """examples:
  minato doctor          cores, memory, limits, start methods, accelerator, extras; then what to look after
  minato doctor --json   the same for machines

exit status: 0, or 1 where loaders with workers cannot be used at all
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="what this machine offers: cores, memory, limits, accelerator, extras",
        description="Say what this machine offers a loader, and what to look after.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print what was found; 0: a loader can work here, 1: it cannot."""
    from .machine import look

    try:
        machine = look()
    except ValueError as error:  # a variable of the environment that says how many ranks there are
        raise UserError(str(error)) from error
    text = as_json(machine) if options.json else as_text(machine)
    sys.stdout.write(text + "\n")
    return 0 if can_work(machine) else 1


def can_work(machine: Machine) -> bool:
    """Whether loaders with workers can be used at all."""
    return machine.shared_memory.memfd


def as_json(machine: Machine) -> str:
    return json.dumps({**asdict(machine), "warnings": list(warnings_of(machine))}, indent=2)


def as_text(machine: Machine) -> str:
    rows = list(_rows(machine))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {text}" for name, text in rows]
    told = [f"! {warning}" for warning in warnings_of(machine)]
    return "\n".join([*lines, "", *(told or ["Nothing to look after."])])


def warnings_of(machine: Machine) -> Iterator[str]:
    """What may go wrong here or costs speed, each with what to do about it."""
    yield from _about_memory(machine)
    yield from _about_limits(machine)
    if machine.cores.allowed < 1.5:
        yield (
            f"Only {_count(machine.cores.allowed)} cores are allowed ({_why(machine.cores)}): more than one or two "
            "workers help only if samples wait for storage."
        )
    perf = machine.perf
    if perf.path is not None and (perf.paranoid is None or perf.paranoid > _PERF_NEEDS):
        yield (
            f"perf is installed, but the kernel does not let it look (kernel.perf_event_paranoid is {perf.paranoid}): "
            f"native tracing needs {_PERF_NEEDS} or less."
        )


def _about_memory(machine: Machine) -> Iterator[str]:
    shared, budget = machine.shared_memory, machine.memory.loader_budget_bytes
    if not shared.memfd:
        yield (
            "memfd_create does not work: batches of workers have no memory to live in. Use num_workers=0, or a kernel "
            "and a seccomp profile that allow it."
        )
    elif shared.shm_total_bytes is None or shared.shm_total_bytes < _SMALL_SHM_BYTES:
        size = "missing" if shared.shm_total_bytes is None else f"small ({_bytes(shared.shm_total_bytes)})"
        yield f"/dev/shm is {size}. That is fine here, since batches live in memfds; torch's own loader may fail."
    if budget < _SMALL_BUDGET_BYTES:
        yield (
            f"Little memory is left: batches in flight may take {_bytes(budget)}. Large batches are then fetched one "
            "after the other; raise the limit, or give memory_budget."
        )


def _about_limits(machine: Machine) -> Iterator[str]:
    files, hard = machine.limits.open_files, machine.limits.open_files_hard
    needed = _FILES_BESIDES + MANY_WORKERS * _FILES_PER_WORKER
    if files is not None and files < needed:
        room = max(0, files - _FILES_BESIDES) // _FILES_PER_WORKER
        advice = (
            f"`ulimit -n {needed}`" if hard is None or hard >= needed else f"the hard limit is {hard}: have it raised"
        )
        yield f"Only {files} open files are allowed: enough for about {room} workers. For more: {advice}."
    processes = machine.limits.processes
    if processes is not None and processes < 4 * MANY_WORKERS:
        yield f"Only {processes} processes of this user are allowed: starting many workers may fail (`ulimit -u`)."


# ---- words --------------------------------------------------------------------------------------------------------


def _rows(machine: Machine) -> Iterator[tuple[str, str]]:
    memory, shared, limits = machine.memory, machine.shared_memory, machine.limits
    yield "versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield "cores", f"{_count(machine.cores.allowed)} allowed ({_why(machine.cores)}), {machine.cores.present} present"
    yield "memory", f"{_bytes(memory.available_bytes)} available of {_bytes(memory.total_bytes)}"
    if memory.cgroup_limit_bytes is not None:
        yield "cgroup memory", f"{_bytes(memory.cgroup_used_bytes)} used of {_bytes(memory.cgroup_limit_bytes)}"
    else:
        yield "cgroup memory", "no limit"
    yield "memory_budget", f"{_bytes(memory.loader_budget_bytes)} by default, for batches in flight"
    yield "memfd", "works" if shared.memfd else "does not work"
    if shared.shm_total_bytes is None:
        yield "/dev/shm", "not there (not needed)"
    else:
        yield "/dev/shm", f"{_bytes(shared.shm_free_bytes)} free of {_bytes(shared.shm_total_bytes)} (not needed)"
    yield "open files", f"{_limit(limits.open_files)} allowed, can be raised to {_limit(limits.open_files_hard)}"
    yield "processes", f"{_limit(limits.processes)} allowed"
    yield "start methods", f"{', '.join(machine.start_methods)} (the first is the default)"
    accelerator = machine.accelerator
    yield "accelerator", "none" if accelerator.kind is None else ", ".join(accelerator.devices)
    yield "perf", machine.perf.path or "not installed"
    for extra in machine.extras:
        there = ", ".join(f"{name} {version}" for name, version in extra.installed.items())
        lacking = f"missing {', '.join(extra.missing)}: {extra.pip}" if extra.missing else ""
        yield f"[{extra.name}]", "; ".join(part for part in (there, lacking) if part)


def _why(cores: Cores) -> str:
    quota = "no cgroup quota" if cores.quota is None else f"cgroup quota {_count(cores.quota)}"
    shared = "" if cores.ranks == 1 else f", shared by {cores.ranks} ranks"
    return f"affinity {cores.affinity}, {quota}{shared}"


def _count(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _limit(number: int | None) -> str:
    return "any number" if number is None else str(number)


def _bytes(count: int | None) -> str:
    size = float(count or 0)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
