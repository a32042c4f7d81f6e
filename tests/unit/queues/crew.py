"""A pool in one process: a posting board, and several workers that take one step at a time.

Nothing here waits or runs by itself; whoever drives a crew decides who takes the next step, and who dies. A sample is
its key: `KEY_BASE + position`, written where a worker would write a row. So what was delivered can be read back, and
compared with what the row table claims.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from minato._engine.memory import reuse_warm_slot
from minato._queues import codec
from minato._queues.arena import Arena, Stretch
from minato._queues.control import ControlBlock
from minato._queues.fields import Batch, Flag, Header, State
from minato._queues.leases import Slots
from minato._queues.ledger import Ledger
from minato._queues.posting import PostingBoard
from minato._queues.recovery import OpenEpoch, recover
from minato._queues.rows import Column, Kind
from minato._queues.taking import TakingBoard
from minato._records import CollateTask, EarlyStart, Place, Run

from .fuses import FusedBoard, Killed

KEY_BASE = 1000
COLUMN = 4096  # bytes; where the samples begin in a slot, beyond the little that tests put into its heap


class Hand:
    """One worker, step by step: pull, (park, unpark), (claim), write, commit, (collate, finish). A lane of the remote
    side pulls what is set aside, and gives some of it back."""

    def __init__(self, crew: Crew, worker: int) -> None:
        self.crew = crew
        self.worker = worker
        self.board = FusedBoard(crew.control, Arena(os.dup(crew.arena.fd), is_worker=True), worker)
        self.is_lane = crew.away and worker == crew.control.workers - 1
        self.dead = False
        self.run: Run | None = None
        self.done = 0
        self.place: Place | None = None
        self.written = False
        self.collating: int | None = None
        self.result: tuple[int, int, range] | None = None
        self.parked: list[tuple[Run, int]] = []
        self.resumed = False

    @property
    def next_call(self) -> str:
        """What the next step does."""
        if self.result is not None:
            return "finish"
        if self.collating is not None:
            return "collate"
        if self.run is None:
            resumes = self.parked and (len(self.parked) > 1 or self.board.first_open[0] is None)
            return "unpark" if resumes else "pull"
        if self.place is None and self._would_park(self.run):
            return "park"
        if self.is_lane and self.place is None and self.done == 0 and self.run.position % 3 == 0:
            return "give back"
        return "claim" if self.place is None else "commit" if self.written else "bind"

    def _would_park(self, run: Run) -> bool:
        return self.crew.parks and not self.resumed and len(run.keys) == 1 and run.position % 2 == 0

    def step(self, want: int = 2) -> bool:
        """The next call of this worker on the board. False: there was nothing to do."""
        try:
            return self._step(want)
        except Killed:
            self.dead = True
            return True

    def _step(self, want: int) -> bool:
        match self.next_call:
            case "pull":
                return self._pull(want)
            case "park":
                entry = self.board.park(most=100)
                assert entry is not None and self.run is not None
                self.parked.append((self.run, entry))
                self.run = None
            case "unpark":
                run, entry = self.parked.pop(0)
                self.run, self.done, self.resumed = (run, 0, True) if self.board.unpark(entry) else (None, 0, False)
            case "give back":
                self.board.give_back()
                self.run = None
            case "claim":
                self._find_place(self.run)
            case "bind":
                self._write(self.run, self.place)
            case "commit":
                self._commit(self.run, self.place)
            case "collate":
                self._collate_rows(self.collating)
            case "finish":
                self._finish(*self.result)
        return True

    def _pull(self, want: int) -> bool:
        if self.is_lane:
            taken: Run | CollateTask | None = self.board.pull_away(want, whole=False, beyond=want == 1)
        else:
            taken = self._pull_here(want)
        if isinstance(taken, CollateTask):
            self.collating = taken.batch
        elif taken is not None:
            assert taken.keys == [KEY_BASE + taken.position + i for i in range(len(taken.keys))]
            self.run, self.done, self.resumed = taken, 0, False
            self.place, self.written = taken.place, False
            assert taken.place is None or taken.place.count == len(taken.keys)
        return taken is not None

    def _pull_here(self, want: int) -> Run | CollateTask | None:
        return self.board.pull(want, self.crew.whole_from, with_rows=self.crew.late and not self.crew.collates)

    def _find_place(self, run: Run) -> None:
        left = len(run.keys) - self.done
        place = self.board.claim(run.epoch, left) if self.crew.late else Place(run.batch, run.first, left)
        if place is None:
            self.board.drop()
            self.run = None
            return
        assert place.count > 0, "a claim without rows"
        self.place, self.written = place, False

    def _positions(self, run: Run, place: Place) -> range:
        return range(run.position + self.done, run.position + self.done + place.count)

    def _write(self, run: Run, place: Place) -> None:
        slot, rows = self.board.bind_slot(place.batch), self.board.field(place.batch, Batch.ROWS)
        if self.crew.collates and place.count == rows:
            positions = self._positions(run, place)
            self.result = (place.batch, self._store(place.batch, [KEY_BASE + p for p in positions]), positions)
            return
        self.crew.column(slot, rows)[place.row : place.row + place.count] = [
            KEY_BASE + p for p in self._positions(run, place)
        ]
        table = TakingBoard.row_table(self.board, slot, rows)
        table[place.row : place.row + place.count, Column.KIND :] = (Kind.FIXED, 0, 0)
        self.written = True

    def _commit(self, run: Run, place: Place) -> None:
        if self.board.commit(place, self._positions(run, place)):
            self.collating = place.batch
        self._put_down(run, place.count)

    def _put_down(self, run: Run, count: int) -> None:
        self.done, self.place = self.done + count, None
        if self.done == len(run.keys):
            self.run = None

    def _collate_rows(self, batch: int) -> None:
        slot, rows = self.board.field(batch, Batch.SLOT), self.board.field(batch, Batch.ROWS)
        self.result = (batch, self._store(batch, self.crew.column(slot, rows).tolist()), range(0))

    def _store(self, batch: int, value: object) -> int:
        packed = codec.pack(value)
        offset = self.board.allocate(batch, packed.nbytes)
        slot = self.board.field(batch, Batch.SLOT)
        codec.write(packed, self.crew.arena.view(Stretch.SLOT, slot, offset + packed.nbytes), offset)
        return offset

    def _finish(self, batch: int, offset: int, positions: range) -> None:
        self.board.finish(batch, offset, Flag.RESULT, positions)
        self.result = self.collating = None
        if positions and self.run is not None:
            self._put_down(self.run, len(positions))


class Crew:
    """The main process: posts, delivers, recovers, abandons."""

    def __init__(
        self,
        late: bool,
        collates: bool,
        parks: bool = False,
        workers: int = 3,
        window: int = 3,
        rows: int = 4,
        away: bool = False,
    ) -> None:
        self.late = late
        self.parks = parks
        self.away = away
        """Whether the last worker is a lane of the remote side."""
        self.collates = collates
        self.whole_from = 4 if collates else 0
        self.rows = rows
        self.window = window
        self.control = ControlBlock.create(window + 4 * window + 1, workers)
        self.arena = Arena.create()
        self.board = PostingBoard(self.control, self.arena)
        if away:
            self.board.set_aside = lambda tickets: min(tickets, self.board.next_number % 5)
            self.board.share_away(True)
        self.slots = Slots(self.arena, most_lent=2)
        self.board.is_warm = self.slots.is_warm
        self.hands = [Hand(self, worker) for worker in range(workers)]
        self.epoch = 0
        self.lent: list[tuple[Any, bytes]] = []
        """Memory that the user holds, and what it held when it was delivered."""
        self.void: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self.ledger = Ledger()
        self.out: list[int] = []
        self.delivered: list[int] = []
        self._opened = False

    def column(self, slot: int, rows: int) -> Any:
        """Where the samples of a slot lie."""
        end = COLUMN + 8 * rows
        return self.arena.view(Stretch.SLOT, slot, end)[COLUMN:end].view(np.int64)

    # ---- posting and delivering -----------------------------------------------------------------------------------

    def may_post(self) -> bool:
        oldest = [n for n in (self.ledger.oldest, *self.out[:1], *self.void[:1]) if n is not None]
        room = not oldest or self.board.next_number - min(oldest) < self.control.batches
        return room and len(self.out) < self.window

    def post(self, rows: int | None = None, early: EarlyStart | None = None) -> None:
        rows = self.rows if rows is None else rows
        slot = self.slots.take()
        first = self.ledger.issued
        number = self.board.publish(
            epoch=self.epoch,
            seed=7,
            position=first,
            keys=[KEY_BASE + p for p in range(first, first + rows)],
            rows=rows,
            slot=slot,
            flags=Flag.COLLATE if self.collates else 0,
            first=not self._opened,
            early=early,
        )
        self._opened = True
        self.out.append(number)
        self.ledger.issue(number, rows)

    def deliver(self, keep: bool = False) -> bool:
        """Deliver a batch if one is ready, and check it. `keep`: the user holds on to its memory."""
        batch = self.board.first_ready(self.out if self.late else self.out[:1])
        if batch is None:
            reuse_warm_slot(self.slots, self.board)  # as a consumer does that is about to wait
            return False
        self.out.remove(batch)
        assert self.board.state(batch) == State.READY
        slot, rows = self.board.field(batch, Batch.SLOT), self.board.field(batch, Batch.ROWS)
        owners = self.board.row_table(slot, rows)[:, Column.OWNER] - 1
        if run := self.board.field(batch, Batch.RUN):
            assert owners.tolist() == list(range(run - 1, run - 1 + rows)), "rows hold others than the record says"
        if self.collates:
            memory = self.arena.view(Stretch.SLOT, slot, self.board.field(batch, Batch.HEAP_TOP))
            samples = codec.read(memory, self.board.field(batch, Batch.RESULT), codec.copy_all)
        else:
            samples = self.column(slot, rows).tolist()
        assert samples == [KEY_BASE + p for p in owners.tolist()], "rows hold other samples than their owners say"
        self._record(batch, owners)
        if self.slots.may_lend():
            memory = self.slots.lend(slot, COLUMN + 8 * rows)[: COLUMN + 8 * rows]
            if keep:
                self.lent.append((memory, memory.tobytes()))
        else:
            self.slots.put_back(slot)
        return True

    def _record(self, batch: int, owners: Any) -> None:
        if self.late:
            self.ledger.deliver(owners.tolist())
        else:
            first = self.ledger.delivered
            assert owners.tolist() == list(range(first, first + len(owners)))
            self.ledger.deliver_batch(batch)
        self.delivered += owners.tolist()

    def abandon(self) -> None:
        """The user begins another epoch."""
        self.void += self.out
        self.board.abandon_epochs_before(self.epoch + 1)
        self.epoch += 1
        self._begin()
        self.reclaim()

    def reclaim(self) -> None:
        """Take slots of abandoned batches back that no worker has to do with."""
        held = self.board.held()
        for batch in [b for b in self.void if b not in held]:
            self.void.remove(batch)
            self.slots.put_back(self.board.take_slot(batch))

    # ---- deaths ---------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Post again what the dead had in hand, and put new workers in their places."""
        alive = [hand.worker for hand in self.hands if not hand.dead]
        ledger = self.ledger if self.late else None
        epochs = [OpenEpoch(self.ledger.open_batches, self.out, ledger)]
        recover(self.board, alive, epochs, self.void, self.slots.out)
        for worker in set(range(len(self.hands))) - set(alive):
            self.hands[worker].board.arena.close()
            self.hands[worker] = Hand(self, worker)

    # ---- what must always hold ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Invariants between any two steps."""
        for memory, content in self.lent:
            assert memory.tobytes() == content, "a batch that the user holds has changed"
        assert len(set(self.delivered)) == len(self.delivered)
        bound = [b for b in (*self.out, *self.void) if self.board.field(b, Batch.SLOT) >= 0]
        slots = [self.board.field(b, Batch.SLOT) for b in bound]
        assert len(set(slots)) == len(slots), "two batches in one slot"
        assert set(slots) <= self.slots.out
        if not self.control.words[Header.BINDING]:  # else a worker was killed while it took one
            first, count = self.control.free_base, self.control.words[Header.FREE_SLOTS]
            free = self.control.words[first : first + count].tolist()
            assert len({*free, *slots}) == len(free) + len(slots), "a free slot is in use, or free twice"
            assert {*free, *slots} == self.slots.out, "a slot is lost"

    def held_by_hands(self) -> set[int]:
        """What `held` should say, from what the workers know themselves."""
        held = set()
        for hand in (h for h in self.hands if not h.dead):
            held |= {run.batch for run, _ in hand.parked}
            held |= {hand.run.batch} if hand.run is not None else set()
            held |= {hand.place.batch} if hand.place is not None else set()
            held |= {hand.collating} if hand.collating is not None else set()
        return held

    def finish(self) -> None:
        """Revive the dead, and work until everything posted is delivered."""
        if any(hand.dead for hand in self.hands):
            self.recover()
        for _ in self._rounds():
            if self.ledger.delivered == self.ledger.issued:
                break
        assert sorted(self.delivered) == list(range(self.ledger.issued))
        self.check()

    def _rounds(self) -> Iterator[int]:
        for n in range(200):
            progress = [hand.step() for hand in self.hands]
            progress.append(self.deliver())
            self.check()
            assert any(progress) or self.ledger.delivered == self.ledger.issued, "nobody has anything to do"
            yield n
        raise AssertionError("work without end")

    def close(self) -> None:
        self.lent.clear()
        for hand in self.hands:
            hand.board.arena.close()
        self.control.close()
        self.arena.close()
