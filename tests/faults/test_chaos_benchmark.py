"""The chaos benchmark runs, and would notice what it looks for. Its long runs are for people."""

from __future__ import annotations

import pytest

from benchmarks import chaos
from benchmarks.chaos import ARMS, LENGTH, Arm, Epoch, Report, account, run_arm

pytestmark = pytest.mark.filterwarnings("ignore:DataLoader worker .* its samples go to other workers:RuntimeWarning")


def test_a_short_run_kills_workers_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(chaos, "PAUSE_S", (0.02, 0.08))
    report = run_arm(ARMS[1], workers=2, seconds=1.0, seed=3)
    assert report.is_clean, report
    assert report.kills > 0
    assert report.samples == LENGTH * report.epochs


@pytest.mark.parametrize(
    ("indices", "fault"),
    [
        ([*range(LENGTH - 1)], "lost"),
        ([*range(LENGTH), 5], "doubled"),
        ([1, 0, *range(2, LENGTH)], "misplaced"),
    ],
)
def test_what_is_wrong_is_counted(indices, fault):
    epoch, report = Epoch(), Report("arm", "fork", 1.0, 1.0)
    epoch.indices = indices
    account(epoch, Arm("arm", in_order=True), report)
    assert getattr(report, fault)
    assert not report.is_clean
