"""The public API is typed: a strict type checker accepts proper uses of it and finds the improper ones."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
USES = Path(__file__).parent / "typing" / "uses.py"


def test_a_strict_type_checker_accepts_proper_uses_and_finds_the_others() -> None:
    marked = {
        number: set(found[1].replace(" ", "").split(","))
        for number, line in enumerate(USES.read_text(encoding="utf-8").splitlines(), 1)
        if (found := re.search(r"# error: (.+)$", line))
    }
    assert marked
    # The options of pyproject.toml, strict among them, and so the cache of `mypy`: without it torch is read anew.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", str(USES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    found: dict[int, set[str]] = {}
    for line in done.stdout.splitlines():
        if match := re.match(r".*?uses\.py:(\d+): error: .*\[([\w-]+)\]$", line):
            found.setdefault(int(match[1]), set()).add(match[2])
    assert found.keys() == marked.keys(), done.stdout + done.stderr
    for number, codes in found.items():
        assert codes <= marked[number], done.stdout
