"""What stages took: noted by workers, read once, by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minato._queues.control import MOST_STAGES, STAGE_NOTES, ControlBlock
from minato._queues.stage_notes import StageNotes, StageReader


@pytest.fixture
def control() -> Iterator[ControlBlock]:
    block = ControlBlock.create(4, 2)
    yield block
    block.close()


def test_notes_of_all_workers_are_read_once(control: ControlBlock) -> None:
    reader = StageReader(control)
    StageNotes(control, 0).note([("load", 0.5), ("flip", 0.25)])
    StageNotes(control, 1).note([("flip", 1.0)])
    assert reader.new_notes() == [("load", 0.5), ("flip", 0.25), ("flip", 1.0)]
    assert reader.new_notes() == []


def test_a_worker_that_takes_over_goes_on_with_its_predecessors_names(control: ControlBlock) -> None:
    reader = StageReader(control)
    StageNotes(control, 0).note([("load", 0.5), ("flip", 0.25)])
    reader.new_notes()
    StageNotes(control, 0).note([("crop", 2.0), ("flip", 1.0)])
    assert reader.new_notes() == [("crop", 2.0), ("flip", 1.0)]


def test_what_nobody_has_read_in_time_is_lost_and_the_newest_are_kept(control: ControlBlock) -> None:
    reader, notes = StageReader(control), StageNotes(control, 1)
    notes.note(("load", float(number)) for number in range(STAGE_NOTES + 3))
    assert [seconds for _, seconds in reader.new_notes()] == [float(n) for n in range(3, STAGE_NOTES + 3)]


def test_names_beyond_the_room_are_left_out_and_the_others_stay(control: ControlBlock) -> None:
    reader, notes = StageReader(control), StageNotes(control, 0)
    for number in range(MOST_STAGES + 5):
        notes.note([(f"stage {number}", 1.0)])
    notes.note([("stage 0", 2.0)])
    found = reader.new_notes()
    assert {name for name, _ in found} == {f"stage {number}" for number in range(MOST_STAGES)}
    assert found[-1] == ("stage 0", 2.0)


@pytest.mark.parametrize("name", ["Größe", "x" * 100, "\ud800"], ids=["not ascii", "long", "not text"])
def test_odd_names_do_no_harm(control: ControlBlock, name: str) -> None:
    reader = StageReader(control)
    StageNotes(control, 0).note([(name, 1.0), ("next", 2.0)])
    (first, seconds), after = reader.new_notes()
    assert (seconds, after) == (1.0, ("next", 2.0))
    assert name.startswith(first) or first == "?"
