"""Which machine a mapping belongs to: functions differ between processors, kernels and builds of a library."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .elf import read_library


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor, a kernel, a Python and the libraries that were seen."""

    processor: str
    architecture: str
    kernel: str
    python: str
    libraries: Mapping[str, str] = field(default_factory=dict)
    """Path of a library to its build id, for those that have one."""

    @classmethod
    def here(cls, libraries: Iterable[str] = ()) -> Machine:
        """This machine, with the given libraries (paths)."""
        builds = {path: read_library(path).build_id for path in sorted(set(libraries))}
        return cls(
            processor=_processor(),
            architecture=platform.machine(),
            kernel=platform.release(),
            python=f"{platform.python_implementation()} {platform.python_version()}",
            libraries={path: build for path, build in builds.items() if build},
        )

    def differences(self) -> tuple[str, ...]:
        """How this record differs from the machine it is read on, in words; empty if it is the same."""
        here = Machine.here(self.libraries)
        found = [
            f"{name} was {mine}, here it is {other}"
            for name in ("processor", "architecture", "kernel", "python")
            if (mine := getattr(self, name)) != (other := getattr(here, name))
        ]
        for path, build in self.libraries.items():
            now = here.libraries.get(path)
            if now is None:
                found.append(f"{path} is not here")
            elif now != build:
                found.append(f"{path} had build id {build}, here it has {now}")
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("processor", "architecture", "kernel", "python")
        return {**{name: getattr(self, name) for name in names}, "libraries": dict(self.libraries)}


def _processor() -> str:
    """The model as the kernel names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for wanted in ("model name", "cpu model", "Hardware", "CPU part"):
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == wanted and value.strip():
                return value.strip()
    return platform.processor() or "unknown"
