"""The documentation builds: every page is in the navigation, no link is dead, the API page has every public name."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import minato

ROOT = Path(__file__).parent.parent
PUBLIC = ("", ".compat", ".diagnose", ".errors", ".integrations", ".offload", ".storage", ".testing", ".trace")


def public_names() -> Iterator[str]:
    """What the public namespaces name in their `__all__`, each object once and modules apart; the loader's own methods.
    What is torch's is described there."""
    seen: list[object] = []
    for namespace in PUBLIC:
        module = importlib.import_module(f"minato{namespace}")
        for name in module.__all__:
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("minato") and not inspect.ismodule(thing)
            if ours and not any(thing is other for other in seen):
                seen.append(thing)
                yield f"{module.__name__}.{name}"
    methods = {name: thing for name, thing in vars(minato.DataLoader).items() if inspect.isfunction(thing)}
    yield from (f"minato.DataLoader.{name}" for name in methods if not name.startswith("_"))


def test_the_site_builds_without_a_warning_and_describes_every_public_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    described = set(re.findall(r'id="([\w.]+)"', (tmp_path / "site" / "api" / "index.html").read_text()))
    assert [name for name in public_names() if name not in described] == []
