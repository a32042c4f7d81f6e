"""The public surface, name by name: a change here is a change for users and belongs in CHANGELOG.md."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import minato

ROOT = Path(__file__).parent.parent

PUBLIC = {
    "DataLoader",
    "LoaderStats",
    "PaperPolicy",
    "SampleRng",
    "StagedDataset",
    "__version__",
    "count_bytes",
    "echo",
    "errors",
    "get_sample_rng",
    "get_worker_info",
    "mark",
    "patch",
    "seeded_sample",
    "traced",
}
# Loaded on first use, so not in the namespace of a fresh import.
LATER = {
    "S3Dataset",
    "S3File",
    "cached_bytes",
    "deterministic",
    "diagnose",
    "optimize",
    "stochastic",
}
HEAVY = ["ray", "boto3", "scipy", "obstore", "rich", "matplotlib"]


def is_public(module_name: str) -> bool:
    parts = module_name.split(".")
    return parts[0] == "minato" and not any(part.startswith("_") for part in parts)


def test_all_lists_exactly_the_public_names() -> None:
    """Nothing is missing, nothing is there by accident, nothing twice."""
    assert sorted(minato.__all__) == sorted(PUBLIC | LATER)
    assert set(minato._LATER) == LATER


# get_worker_info is torch's; errors and diagnose are modules.
@pytest.mark.parametrize("name", sorted((PUBLIC | LATER) - {"__version__", "diagnose", "errors", "get_worker_info"}))
def test_objects_live_where_users_find_them(name: str) -> None:
    """Tracebacks and pickles name the public place of an object, and it can be found there."""
    thing = getattr(minato, name)
    assert is_public(thing.__module__), f"minato.{name}.__module__ is {thing.__module__!r}"
    assert getattr(sys.modules[thing.__module__], thing.__qualname__) is thing


def test_errors_live_in_the_errors_module() -> None:
    """As above, for each exception type."""
    assert isinstance(minato.errors, ModuleType)
    assert minato.errors.__name__ == "minato.errors"
    assert minato.errors.__all__
    for name in minato.errors.__all__:
        error = getattr(minato.errors, name)
        assert is_public(error.__module__), f"minato.errors.{name}.__module__ is {error.__module__!r}"
        assert getattr(sys.modules[error.__module__], error.__qualname__) is error


def test_stats_record_is_frozen() -> None:
    """What `loader.stats()` returns is a record of one moment."""
    assert dataclasses.is_dataclass(minato.LoaderStats)
    assert minato.LoaderStats.__dataclass_params__.frozen


# Imports of the named modules are seen whether or not they are installed, and also where their failure is caught.
# torch goes first: what it does on import is not ours.
FRESH_IMPORT = """
import json, multiprocessing, os, sys, threading
import torch.utils.data

heavy, attempts = set(sys.argv[1:]), []

class Witness:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            attempts.append(name)

def children():
    tasks = os.listdir("/proc/self/task")
    return sum((open(f"/proc/self/task/{task}/children").read().split() for task in tasks), [])

sys.meta_path.insert(0, Witness())
already = heavy & sys.modules.keys()
threads = threading.active_count(), len(os.listdir("/proc/self/task"))
import minato
print(json.dumps({
    "heavy": sorted(set(attempts) | (heavy & sys.modules.keys()) - already),
    "threads": [threading.active_count() - threads[0], len(os.listdir("/proc/self/task")) - threads[1]],
    "children": children(),
    "start method": multiprocessing.get_start_method(allow_none=True),
    "public": sorted(name for name in vars(minato) if not name.startswith("_") and name != "annotations"),
}))
"""


@pytest.fixture(scope="module")
def fresh_import() -> dict[str, Any]:
    """What `import minato` did in an interpreter of its own."""
    command = [sys.executable, "-c", FRESH_IMPORT, *HEAVY]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_import_needs_no_extra(fresh_import: dict[str, Any]) -> None:
    """The packages of the extras are not even looked for."""
    assert fresh_import["heavy"] == []


def test_import_starts_nothing(fresh_import: dict[str, Any]) -> None:
    """No thread, no process, and multiprocessing is left as it was."""
    assert fresh_import["threads"] == [0, 0]
    assert fresh_import["children"] == []
    assert fresh_import["start method"] is None


def test_namespace_has_no_stray_names(fresh_import: dict[str, Any]) -> None:
    """What completion offers after `minato.` is the public surface."""
    assert set(fresh_import["public"]) == {name for name in PUBLIC if not name.startswith("_")}
