"""The quickstart's Python runs as it is printed, from top to bottom; every example is listed in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    (tmp_path / "quickstart.py").write_text("\n".join(blocks) + "\nprint(len(loader))\n")
    done = subprocess.run(
        [sys.executable, "quickstart.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr


def test_every_example_is_listed() -> None:
    assert [path.name for path in sorted((ROOT / "examples").glob("*.py")) if f"`{path.name}`" not in PAGE] == []
