"""The quickstart's Python runs as it is printed, from top to bottom; every example is listed in it."""

import re
import sys
from pathlib import Path

from .support.programs import ROOT, run

PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    (tmp_path / "quickstart.py").write_text("\n".join(blocks) + "\nprint(len(loader))\n")
    assert run([sys.executable, "quickstart.py"], tmp_path) == "10\n"


def test_every_example_is_listed() -> None:
    assert [path.name for path in sorted((ROOT / "examples").glob("*.py")) if f"`{path.name}`" not in PAGE] == []
