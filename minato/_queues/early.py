"""Tickets that may be taken before their turn: samples known to be slow, begun early so that nobody waits for them.

Each batch record has a list of such tickets beside it, slowest first. They may be taken as soon as the tickets of a
certain earlier batch are being taken; the cursor that hands out the others in their order steps over them. Rows are not
concerned: in order, a ticket's place is its row all the same.

    COUNT | TAKEN | FROM | places …

Everything here runs under the pool's lock, but for `note_cost` and `read_costs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .control import COSTS_PER_WORKER, MOST_EARLY, ControlBlock
from .fields import Batch, Header

COUNT, TAKEN, FROM, PLACES = 0, 1, 2, 3


def offer(control: ControlBlock, number: int, places: Sequence[int], lead: int) -> None:
    """Offer tickets of a batch that is about to be published, from `lead` batches before its turn on. The cursor has to
    begin behind those that it would step over."""
    words, at = control.words, control.early(number)
    places = places[:MOST_EARLY]
    words[at + TAKEN] = 0
    words[at + COUNT] = len(places)
    words[at + FROM] = number - lead
    for entry, place in enumerate(places, at + PLACES):
        words[entry] = place


def take(control: ControlBlock, words: memoryview) -> tuple[int, int] | None:
    """The batch and place of a ticket whose time has come, which now counts as taken; None: there is none. `words`:
    those of the control block."""
    published = words[Header.PUBLISHED]
    number = words[Header.EARLY]
    while number < published:
        at = control.early(number)
        taken = words[at + TAKEN]
        if taken < words[at + COUNT]:
            if words[Header.PULL] < words[at + FROM]:
                return None
            words[at + TAKEN] = taken + 1
            return number, words[at + PLACES + taken]
        number += 1
        words[Header.EARLY] = number
    return None


def places_of(control: ControlBlock, number: int) -> list[int]:
    """Places of the tickets that the cursor leaves out."""
    at = control.early(number)
    count = control.words[at + COUNT]
    return control.words[at + PLACES : at + PLACES + count].tolist() if count else []


def stepped_over(control: ControlBlock, number: int, place: int) -> int:
    """The first place from `place` on that the cursor may hand out; the number of tickets if there is none."""
    early = places_of(control, number)
    while place in early:
        place += 1
    return place


def given_out(control: ControlBlock, number: int) -> npt.NDArray[np.bool_]:
    """For each ticket of a batch, whether it was given out."""
    words, at, early = control.words, control.batch(number), control.early(number)
    mask = np.arange(words[at + Batch.TICKETS]) < words[at + Batch.PULLED]
    for order, place in enumerate(places_of(control, number)):
        mask[place] = order < words[early + TAKEN]
    return mask


# ---- what single samples cost -------------------------------------------------------------------------------------


def note_cost(control: ControlBlock, worker: int, key: int, seconds: float) -> None:
    """Leave word of what the sample of a key took. That worker alone writes there."""
    words, at = control.words, control.costs(worker)
    count = words[at]
    entry = at + 1 + 2 * (count % COSTS_PER_WORKER)
    words[entry] = key
    words[entry + 1] = int(seconds * 1e9)
    words[at] = count + 1


def read_costs(control: ControlBlock, since: Sequence[int]) -> tuple[list[tuple[int, float]], list[int]]:
    """(key, seconds) of the workers' notes from the numbers in `since` on, as far as they are kept, and the numbers to
    go on from. A note that is overwritten meanwhile is read as the newer one, or as half of each: it is a hint."""
    words, now, notes = control.words, control.cost_counts(len(since)), []
    for worker, (before, count) in enumerate(zip(since, now, strict=True)):
        if count != before:
            at = control.costs(worker) + 1
            entries = (at + 2 * (n % COSTS_PER_WORKER) for n in range(max(before, count - COSTS_PER_WORKER), count))
            notes += [(words[entry], words[entry + 1] * 1e-9) for entry in entries]
    return notes, now
