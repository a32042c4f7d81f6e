"""When failed samples are to be seen to again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minato._engine import mending
from minato._engine.mending import Mender
from minato._plan import Order


@pytest.fixture
def mender() -> Mender:
    worker = SimpleNamespace(order=Order.IN_ORDER, drop_last=False)
    plan: Any = SimpleNamespace(on_error="raise", sample_retries=2, worker=worker)
    nothing: Any = None
    return Mender(nothing, nothing, plan, nothing)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(mending, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_backoff_that_ends_between_looking_and_waiting_is_not_missed(
    mender: Mender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits then must not wait for ever: nobody else would come."""
    clock, treated = Clock(monkeypatch), []
    monkeypatch.setattr(Mender, "_treat", lambda self, feed, batch, case: bool(treated.append(batch)) or True)
    mender._cases[3] = mending._Case(due=10.0, whole=False)
    feed: Any = None
    clock.now = 9.999
    mender.apply(feed)
    clock.now = 10.001
    assert mender.due == 10.0
    mender.apply(feed)
    assert (treated, mender.due, mender.has_cases) == ([3], None, False)


def test_what_waits_for_others_is_not_looked_at_all_the_time(mender: Mender, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(Mender, "_treat", lambda self, feed, batch, case: False)
    mender._cases[3] = mending._Case(due=10.0, whole=False)
    feed: Any = None
    clock.now = 10.5
    mender.apply(feed)
    assert mender.has_cases
    assert mender.due is None
