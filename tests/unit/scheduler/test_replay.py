"""Recorded events through the scheduler again, and histories in bounded memory. No process, no clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato._scheduler.climbing import ClimbingPolicy
from minato._scheduler.history import ThinnedHistory
from minato._scheduler.policy import Decision, Observation, PaperPolicy, WorkerLimits
from minato._scheduler.profile import WINDOW
from minato._scheduler.replay import Recorder, Recording, replay
from minato._scheduler.threshold import ThresholdRule

LIMITS = WorkerLimits(least=1, most=32, cores=4)


def made_up_run(seconds: int = 60) -> tuple[Recorder, list[Decision]]:
    """A loader with work that sleeps, on a fake clock: each worker gives ten samples per second."""
    recorder, controller = Recorder(ThresholdRule()), ClimbingPolicy().begin(LIMITS)
    workers, decisions, time = 4, [], 0.0
    while time < seconds:
        time += ClimbingPolicy().period_s
        observation = Observation(time, workers, 0.0, workers * 0.02, 0.5, 10.0 * workers)
        recorder.observed(observation, LIMITS)
        decisions.append(controller.decide(observation))
        workers = decisions[-1].target
    return recorder, decisions


def test_the_same_observations_lead_to_the_same_decisions() -> None:
    recorder, decisions = made_up_run()
    assert max(decision.target for decision in decisions) == LIMITS.most
    assert list(replay(recorder.recording).decisions) == decisions


def test_a_recording_survives_json() -> None:
    recorder, decisions = made_up_run(5)
    recorder.cost(0.5, 3, False)
    again = Recording.from_json(recorder.recording.to_json())
    assert again == recorder.recording
    assert list(replay(again).decisions) == decisions


def test_another_policy_can_be_asked_what_it_would_have_done() -> None:
    recorder, _ = made_up_run(10)
    first = replay(recorder.recording, PaperPolicy()).decisions[0]
    assert first.target == 4 + 2, "an empty queue adds the largest step"


def test_a_planted_drift_is_followed_within_a_window() -> None:
    """Costs triple in the middle: the threshold triples before one window of new samples is over, and samples that
    were slow before, and are not now, stop being flagged."""
    draw = random.Random(5)
    before = [draw.choice([0.01] * 9 + [0.1]) for _ in range(2 * WINDOW)]
    after = [3 * draw.choice([0.01] * 9 + [0.1]) for _ in range(2 * WINDOW)]
    recorder = Recorder(ThresholdRule(), most=4 * WINDOW)
    for seconds in (*before, *after):
        recorder.cost(seconds, 1, False)
    replayed = replay(recorder.recording)
    old, new = replayed.thresholds[2 * WINDOW - 1], replayed.thresholds[3 * WINDOW]
    assert old is not None and new is not None
    assert 0.02 <= old < 0.1
    assert 0.06 <= new < 0.3
    in_force = replayed.thresholds[3 * WINDOW - 1 : -1]
    flagged = sum(cost > (limit or cost) for cost, limit in zip(after[WINDOW:], in_force, strict=True))
    assert flagged == sum(cost > 0.2 for cost in after[WINDOW:])
    assert replayed.slow < 0.2 * 4 * WINDOW, "also on the way there, few are flagged that are not slow"


def test_cached_samples_are_replayed_into_their_own_profile() -> None:
    recorder = Recorder(ThresholdRule())
    for number in range(400):
        is_cached = number % 2 == 1
        recorder.cost(0.001 if is_cached else 1.0, 1, is_cached)
    assert replay(recorder.recording).thresholds[-1] is None, "made samples all cost the same"


def test_a_pool_with_other_limits_begins_a_new_recording() -> None:
    recorder, _ = made_up_run(2)
    observation = recorder.recording.observations[0]
    recorder.observed(observation, replace(LIMITS, most=8))
    assert recorder.recording.observations == (observation,)


def test_a_fixed_number_of_workers_has_no_decisions() -> None:
    assert replay(Recorder(ThresholdRule()).recording).decisions == ()


@pytest.mark.parametrize("text", ["{}", '{"format": 2}', '{"format": 1}', "[]", "no"])
def test_what_is_no_recording_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Recording.from_json(text)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=400), st.integers(2, 20))
def test_a_history_is_bounded_and_spans_the_whole_life(gaps: list[float], most: int) -> None:
    history: ThinnedHistory[float] = ThinnedHistory(most, interval_s=1.0)
    now, seen = 0.0, []
    for gap in gaps:
        now += gap
        if history.is_due(now):
            seen.append(now)
            history.add(now, now)
            assert len(history.moments) <= most
    kept = history.moments
    assert len(kept) <= most
    assert kept[0] == seen[0]
    assert list(kept) == sorted(kept)
