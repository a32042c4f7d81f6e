"""What the README tells people to type is what CI runs."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def shell_commands(markdown: str) -> list[str]:
    """The lines of all ```sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_ci_runs_the_readme_test_command() -> None:
    """Each step of the README's test command is a whole line of .ci/run, in the same order."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = [c for c in shell_commands(readme) if c.split("&&")[-1].split()[:1] == ["pytest"]]
    steps = [step.strip() for step in command.split("&&")]
    assert len(steps) == 2, f"expected an install step and a test step, got {command!r}"

    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in script if line in steps] == steps


def test_ci_script_is_executable() -> None:
    """A clean checkout can run it as it is."""
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
