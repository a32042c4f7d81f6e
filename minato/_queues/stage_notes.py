"""What the stages of single samples took: noted by workers, read by the main process for the profile.

Each worker record has a piece of the control block for it:

    NAMES | NOTES | names of stages, each of 64 bytes … | ring of notes: number of the stage, nanoseconds …

A name is there before the word that counts it says so, and is never changed, so no lock is taken. Who takes over a
record finds the names that its predecessor left, and goes on with them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from .control import MOST_STAGES, STAGE_NAME_WORDS, STAGE_NOTES, ControlBlock

NAMES, NOTES, TEXTS = 0, 1, 2
_RING = TEXTS + MOST_STAGES * STAGE_NAME_WORDS
_NAME_BYTES = 8 * STAGE_NAME_WORDS


class StageNotes:
    """One worker's notes."""

    def __init__(self, control: ControlBlock, worker: int) -> None:
        self._words = control.words
        self._at = control.stage_notes(worker)
        self._numbers = {name: number for number, name in enumerate(_names(control, worker, 0))}

    def note(self, stages: Iterable[tuple[str, float]]) -> None:
        """A sample is done; its stages by name, with the seconds each took. Stages of too many names are left out."""
        words, at = self._words, self._at
        for name, seconds in stages:
            number = self._numbers.get(name)
            if number is None:
                number = self._numbers[name] = self._add(name)
            if number < MOST_STAGES:
                count = words[at + NOTES]
                entry = at + _RING + 2 * (count % STAGE_NOTES)
                words[entry] = number
                words[entry + 1] = int(seconds * 1e9)
                words[at + NOTES] = count + 1

    def _add(self, name: str) -> int:
        words, at = self._words, self._at
        number = words[at + NAMES]
        if number < MOST_STAGES:
            text = name.encode(errors="replace")[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
            first = at + TEXTS + number * STAGE_NAME_WORDS
            words[first : first + STAGE_NAME_WORDS] = array("q", text)
            words[at + NAMES] = number + 1
        return number


class StageReader:
    """Reads the notes of all workers here, each note once."""

    def __init__(self, control: ControlBlock) -> None:
        self._control = control
        self._read = [0] * control.records_here
        self._names: list[list[str]] = [[] for _ in self._read]

    def new_notes(self) -> list[tuple[str, float]]:
        """(name, seconds) of what was noted since the last time, as far as it is kept. A note that is overwritten
        meanwhile is read as the newer one, or as half of each: they are for statistics."""
        words, found = self._control.words, []
        before, self._read = self._read, self._control.stage_counts(NOTES, len(self._read))
        for worker, (since, now) in enumerate(zip(before, self._read, strict=True)):
            if now == since:
                continue
            at, names = self._control.stage_notes(worker), self._names[worker]
            names += _names(self._control, worker, len(names))
            for count in range(max(since, now - STAGE_NOTES), now):
                entry = at + _RING + 2 * (count % STAGE_NOTES)
                number = words[entry]
                if number < len(names):
                    found.append((names[number], words[entry + 1] / 1e9))
        return found


def _names(control: ControlBlock, worker: int, first: int) -> list[str]:
    """Names of a worker's stages, from number `first` on."""
    at, names = control.stage_notes(worker), []
    for number in range(first, control.words[at + NAMES]):
        place = at + TEXTS + number * STAGE_NAME_WORDS
        text = control.words[place : place + STAGE_NAME_WORDS].tobytes()
        names.append(text.rstrip(b"\0").decode(errors="replace"))
    return names
