"""After a worker's death: find what it had in hand and post it again.

What the dead worker wrote about itself may be half-written, so it is not used. Everything is derived from what is
certain: tickets that were given out and are neither done nor in the hands of a living worker are orphans; rows that
were claimed and are neither done nor in the hands of a living worker are spare. Running it twice does no harm.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._errors import InternalError
from .board import Board, complete
from .control import PARKED_PER_WORKER, ControlBlock
from .early import given_out
from .fields import Batch, Flag, Header, Parked, Phase, State, Worker
from .ledger import Ledger
from .rows import Column

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """What is not delivered of an epoch."""

    homes: Sequence[int]
    """Batches with tickets that are not delivered yet, oldest first."""
    slots: Sequence[int]
    """Batches whose rows are not delivered yet."""
    ledger: Ledger | None
    """Tells which positions were delivered, when samples may overtake. None: a ticket's place is its row."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """What is not posted again, but stays in the hand of a worker that is gone: the main process will hand something in
    for it, in that worker's name."""

    worker: int
    batch: int
    place: int | None
    """The ticket; None: all that the worker had in hand, which is known to be whole."""


def recover(
    board: Board,
    alive: Iterable[int],
    epochs: Sequence[OpenEpoch],
    void: Sequence[int],
    slots: Iterable[int],
    withheld: Withheld | None = None,
    suspects: Collection[tuple[int, int]] = (),
) -> None:
    """Post again what no living worker has in hand.

    Args:
        alive: worker processes that are running.
        epochs: that are under way.
        void: batches of abandoned epochs that were not taken back yet.
        slots: that were posted and not taken back.
        withheld: from the hand of one that is not running.
        suspects: (batch, place) of tickets that are to be fetched alone.
    """
    control, words = board.control, board.control.words
    with control.lock:
        running = {lane for process in alive for lane in control.lanes_of(process)}
        for worker in set(range(control.records)) - running:
            _clear_hand(control, worker, withheld if withheld and withheld.worker == worker else None)
        words[Header.ORPHAN_HEAD] = words[Header.ORPHAN_TAIL]
        words[Header.SPARE_HEAD] = words[Header.SPARE_TAIL]
        words[Header.AWAY_HEAD] = words[Header.AWAY_TAIL]  # was given out, and is in nobody's hand
        hands = _Hands(board)
        for epoch in epochs:
            _recover_epoch(board, epoch, hands, suspects)
        batches = [*void, *(batch for epoch in epochs for batch in epoch.slots)]
        bound = {words[control.batch(batch) + Batch.SLOT] for batch in batches}
        _rebuild_free_slots(control, [slot for slot in slots if slot not in bound])


def _recover_epoch(board: Board, epoch: OpenEpoch, hands: _Hands, suspects: Collection[tuple[int, int]]) -> None:
    control, words, ledger = board.control, board.control.words, epoch.ledger
    for batch in epoch.slots:
        _void_half_result(board, batch)
    owners = {batch: _owners(board, batch) for batch in epoch.slots}
    placed = [int(p) - 1 for column in owners.values() for p in column[column > 0]] if ledger else []
    for batch in epoch.homes:
        at = control.batch(batch)
        if words[at + Batch.WORKER] >= 0:
            continue  # a stream cannot be replayed: the engine reports the death
        tickets, position = words[at + Batch.TICKETS], words[at + Batch.POSITION]
        if ledger is None:
            finished = owners[batch][:tickets] > 0
        else:
            finished = ledger.is_delivered(position, tickets)
            finished = finished | np.isin(np.arange(position, position + tickets), placed)
        open_again = given_out(control, batch) & ~finished & hands.untaken(batch, tickets)
        alone = _mask(tickets, (place for home, place in suspects if home == batch))
        for first, count in _runs(open_again & ~alone):
            board.post_orphan(batch, first, count)
        for first, count in _runs(open_again & alone):
            board.post_orphan(batch, first, count, alone=True)
    for batch in epoch.slots:
        if ledger is not None:
            claimed = words[control.batch(batch) + Batch.CLAIMED]
            _post_spares(control, batch, (owners[batch][:claimed] == 0) & hands.unclaimed(batch, claimed))
        _post_collation(board, batch, hands)


def _void_half_result(board: Board, batch: int) -> None:
    """A worker that had all rows of a batch was killed handing in their result: they may go to other samples now."""
    words, at = board.control.words, board.control.batch(batch)
    if words[at + Batch.STATE] == State.OPEN and words[at + Batch.FLAGS] & Flag.RESULT:
        owners = _owners(board, batch)
        if not owners.all():
            owners[:] = 0
            words[at + Batch.FLAGS] &= ~(Flag.RESULT | Flag.ERROR)


class _Hands:
    """What living workers have in hand."""

    def __init__(self, board: Board) -> None:
        control, words = board.control, board.control.words
        self.runs: list[tuple[int, ...]] = []
        self.claims: list[tuple[int, ...]] = []
        self.collating: set[int] = set()
        for me in map(control.worker, range(control.records)):
            self.runs.append(tuple(words[me + Worker.BATCH : me + Worker.COUNT + 1]))
            self.claims.append(tuple(words[me + Worker.CLAIM_BATCH : me + Worker.CLAIM_COUNT + 1]))
            self.collating.add(words[me + Worker.COLLATE] - 1)
        for worker in range(control.records):
            self.runs += [(batch, place, 1) for batch, place in board.parked(worker)]

    def untaken(self, batch: int, tickets: int) -> Mask:
        return _without(self.runs, batch, np.ones(tickets, np.bool_))

    def unclaimed(self, batch: int, claimed: int) -> Mask:
        return _without(self.claims, batch, np.ones(claimed, np.bool_))


def _without(runs: list[tuple[int, ...]], batch: int, mask: Mask) -> Mask:
    for number, first, count in runs:
        if number == batch:
            mask[first : first + count] = False
    return mask


def _owners(board: Board, batch: int) -> npt.NDArray[np.int64]:
    at = board.control.batch(batch)
    words = board.control.words
    if words[at + Batch.SLOT] < 0:
        return np.zeros(words[at + Batch.ROWS], np.int64)
    return board.row_table(words[at + Batch.SLOT], words[at + Batch.ROWS])[:, Column.OWNER]


def _rebuild_free_slots(control: ControlBlock, free: list[int]) -> None:
    """A worker killed while binding a slot has taken it off the stack and not said for which batch."""
    words = control.words
    words[control.free_base : control.free_base + len(free)] = array("q", free)
    words[Header.FREE_SLOTS] = len(free)
    words[Header.BINDING] = 0


def _clear_hand(control: ControlBlock, worker: int, withheld: Withheld | None) -> None:
    words, me = control.words, control.worker(worker)
    words[me + Worker.PHASE] = Phase.ABSENT
    words[me + Worker.SLOW] = 0
    for entry in range(PARKED_PER_WORKER):
        words[control.parked(worker, entry) + Parked.BATCH] = 0
    if withheld is not None and withheld.place is None:
        return
    for field in (Worker.COUNT, Worker.CLAIM_COUNT, Worker.COLLATE):
        words[me + field] = 0
    if withheld is not None and withheld.place is not None:
        words[me + Worker.BATCH], words[me + Worker.FIRST], words[me + Worker.COUNT] = withheld.batch, withheld.place, 1


def _post_spares(control: ControlBlock, batch: int, mask: Mask) -> None:
    words = control.words
    for row, count in _runs(mask):
        if words[Header.SPARE_TAIL] - words[Header.SPARE_HEAD] >= control.orphans:
            raise InternalError(f"more than {control.orphans} stretches of rows without a writer")
        at = control.spare(words[Header.SPARE_TAIL])
        words[at], words[at + 1], words[at + 2] = batch, row, row + count
        words[Header.SPARE_TAIL] += 1


def _post_collation(board: Board, batch: int, hands: _Hands) -> None:
    """A complete batch that nobody is collating: ready, or a task for whoever comes first."""
    control = board.control
    words, at = control.words, control.batch(batch)
    if words[at + Batch.STATE] not in (State.OPEN, State.COLLATING) or batch in hands.collating:
        return
    if words[at + Batch.TICKETS] == 0 and not words[at + Batch.FLAGS] & Flag.RESULT:
        board.post_orphan(batch, 0, 0)  # an empty batch has nothing but its collation
    if words[at + Batch.SLOT] < 0 or words[at + Batch.TICKETS] == 0:
        return
    table = board.row_table(words[at + Batch.SLOT], words[at + Batch.ROWS])
    words[at + Batch.RUN] = 0  # it may be of an earlier completion
    if table[:, Column.OWNER].all() and complete(words, at, table):
        board.post_orphan(batch, 0, 0)


def _mask(count: int, places: Iterable[int]) -> Mask:
    mask = np.zeros(count, np.bool_)
    mask[[place for place in places if place < count]] = True
    return mask


def _runs(mask: Mask) -> list[tuple[int, int]]:
    """(first, count) of each stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]
