"""Every example is short, runs as it stands, and prints something."""

import sys
from pathlib import Path

import pytest

from .support.programs import ROOT, run

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 60


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < MOST_LINES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    """In an interpreter and a directory of its own."""
    run([sys.executable, str(example)], tmp_path)


def test_the_example_of_several_ranks_runs_under_torchrun(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    told = run([*launch, str(ROOT / "examples" / "11_torchrun.py")], tmp_path)
    assert told.splitlines()[-2:] == [f"epoch {n}: [501, 501] by rank, 1001 distinct" for n in (1, 2)]
