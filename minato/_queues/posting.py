"""The main process's side of the board."""

from __future__ import annotations

import platform
from array import array
from collections.abc import Callable, Sequence

from .._records import EarlyStart, Hand
from . import codec, messages
from .arena import Stretch
from .board import NO_LAYOUT, Board, samples_in
from .control import BATCH_WORDS, TIMES_PER_WORKER
from .early import offer, stepped_over
from .fields import Batch, Current, Flag, Header, Phase, State, Worker
from .keys import Keys, bare, read_keys, unpickled, write_keys
from .rows import Column, table_bytes

_READS_IN_ORDER = platform.machine() in ("x86_64", "AMD64")
"""Whether this processor never moves a read ahead of an earlier one, nor a store: who sees a word sees all that was
stored before it."""


class PostingBoard(Board):
    """Publishes batches and sees what became of them. Used by the consuming thread."""

    set_aside: Callable[[int], int] | None = None
    """How many of a new batch's tickets are for the remote side, given how many there are. None: there is none."""
    is_warm: Callable[[int], bool] = staticmethod(lambda _slot: True)
    """Whether a slot has memory: such are used first, since pages take longer to be made than to be filled."""

    def publish(
        self,
        *,
        epoch: int,
        seed: int,
        position: int,
        keys: Keys,
        rows: int,
        slot: int,
        flags: int,
        first: bool,
        worker: int = -1,
        shift: int = 0,
        early: EarlyStart | None = None,
    ) -> int:
        """Post a batch: its tickets, and a free slot for the rows of this or another batch. `first`: it opens its
        epoch. `worker`: only that worker's stream may fill it. `shift`: from positions to those that seeds are derived
        from. `early`: tickets to be taken before their turn. Returns the batch's number."""
        words = self._words
        number = words[Header.PUBLISHED]
        at = self.control.batch(number)
        keys_bytes = write_keys(self.arena, number % self.control.batches, keys)
        record = array("q", bytes(8 * BATCH_WORDS))
        record[Batch.NUMBER] = number
        record[Batch.EPOCH] = epoch
        record[Batch.SEED] = seed
        record[Batch.TICKETS] = len(keys)
        record[Batch.POSITION] = position
        record[Batch.KEYS_BYTES] = keys_bytes
        away = 0 if self.set_aside is None else self.set_aside(len(keys))
        record[Batch.ROWS] = record[Batch.FILLED] = rows
        record[Batch.SLOT] = -1
        record[Batch.LAYOUT] = NO_LAYOUT if flags & Flag.COLLATE else 0
        record[Batch.HEAP_TOP] = table_bytes(rows)
        record[Batch.STATE] = State.OPEN
        record[Batch.FLAGS] = flags
        record[Batch.WORKER] = worker
        record[Batch.SHIFT] = shift
        with self._lock:
            self._finish_binding()  # needs the record that is about to be replaced
            words[at : at + BATCH_WORDS] = record
            places, lead = (early.places, early.lead) if early is not None else ((), 0)
            offer(self.control, number, [place for place in places if place >= away], lead)
            words[at + Batch.PULLED] = stepped_over(self.control, number, away)
            self._offer_slot(slot)
            if first:
                words[Header.CLAIM_EVEN + (epoch & 1)] = number
            words[Header.PUBLISHED] = number + 1
            if away:
                entry = self.control.away(words[Header.AWAY_TAIL])
                words[entry], words[entry + 1], words[entry + 2] = number, 0, away
                words[Header.AWAY_TAIL] += 1
            if len(keys) == 0:
                self.post_orphan(number, 0, 0)
        return number

    def _offer_slot(self, slot: int) -> None:
        """Put a slot on the stack of free ones, under all others if it has no memory. Under the lock."""
        words, base, count = self._words, self.control.free_base, self._words[Header.FREE_SLOTS]
        if self.is_warm(slot):
            words[base + count] = slot
        else:
            words[base : base + count + 1] = array("q", [slot, *words[base : base + count]])
        words[Header.FREE_SLOTS] = count + 1

    def wake_sleepers(self, most: int) -> list[int]:
        """Worker processes to be woken, for at most `most` sleeping lanes besides those of workers that are to end:
        these may take nothing. The lanes count as awake from now on."""
        # Whoever went to sleep before the last batch was published is seen without the lock; who tries to later, sees
        # that batch.
        here, lanes = self.control.records_here, self.control.lanes
        if Phase.ASLEEP not in self.control.phases(here):
            return []
        woken: list[int] = []
        with self._lock:
            # The first lanes of all processes, then the second ones: work is spread over processes.
            for worker in (w for lane in range(lanes) for w in range(lane, here, lanes)):
                at = self.control.worker(worker) + Worker.PHASE
                if most > 0 and self._words[at] == Phase.ASLEEP:
                    self._words[at] = Phase.IDLE
                    woken.append(worker)
                    most -= not self._words[self.control.worker(worker - worker % lanes) + Worker.RETIRE]
        return sorted({worker // lanes for worker in woken})

    def state(self, batch: int) -> int:
        """The state of a batch, as far as this process has seen."""
        return self._words[self.control.batch(batch) + Batch.STATE]

    def is_sound(self, batch: int) -> bool:
        """Whether a batch is complete and carries no error."""
        return self.state(batch) == State.READY and not self.field(batch, Batch.FLAGS) & Flag.ERROR

    def first_ready(self, batches: Sequence[int]) -> int | None:
        """The first of `batches` that is complete; all its memory is visible to this process."""
        for batch, state in zip(batches, self.control.states(batches), strict=True):
            if state in (State.READY, State.ENDED):
                if not _READS_IN_ORDER:
                    with self._lock:  # what was stored before that state was: the lock orders memory, a look does not
                        pass
                return batch
        return None

    def count_ready(self, batches: Sequence[int]) -> int:
        """How many of `batches` are complete; for statistics, from any thread: takes no lock."""
        return self.control.states(list(batches)).count(State.READY)

    @property
    def lacks_warm_slots(self) -> bool:
        """Whether some worker would fill a slot without memory, if all began a batch now. Takes no lock."""
        words, base, count = self._words, self.control.free_base, self._words[Header.FREE_SLOTS]
        next_ones = words[base + max(0, count - self.active) : base + count]
        return not all(map(self.is_warm, next_ones))

    def exchange_free_slot(self, warm: int) -> int:
        """Offer a slot that has memory in place of a free one that has none yet. Returns the one to take back."""
        words, base = self._words, self.control.free_base
        with self._lock:
            self._finish_binding()
            count = words[Header.FREE_SLOTS]
            if count == 0 or self.is_warm(words[base]):  # those that have no memory are at the bottom
                return warm
            cold, words[base : base + count] = words[base], array("q", [*words[base + 1 : base + count], warm])
        return cold

    @property
    def takers_of_newest(self) -> int:
        """Most workers that may find something to do in the newest batch: one for each ticket, one to collate an empty
        batch. A stream's batch is for one worker, who may be any of them."""
        number = self.next_number - 1
        if self.field(number, Batch.WORKER) >= 0:
            return self.control.workers
        return max(1, self.field(number, Batch.TICKETS))

    @property
    def next_number(self) -> int:
        """The number the next published batch will have."""
        return self._words[Header.PUBLISHED]

    def take_slot(self, batch: int) -> int:
        """The slot of a batch that no worker writes to any more; if it never had one, one of the free ones."""
        return self.bind_slot(batch)

    def filled(self, batch: int) -> int:
        """Samples in a ready batch."""
        return samples_in(self.fields(batch))

    def phase(self, worker: int) -> int:
        """What a worker said it was doing."""
        return self._words[self.control.worker(worker) + Worker.PHASE]

    def hand(self, worker: int) -> Hand:
        """The tickets a worker had in hand, for messages: after a kill it may be a little off."""
        with self._lock:
            me = self.control.worker(worker)
            batch, first, count = self._words[me + Worker.BATCH : me + Worker.COUNT + 1]
            record, nbytes = batch % self.control.batches, self.field(batch, Batch.KEYS_BYTES)
            keys = read_keys(self.arena, record, nbytes, first, count) if count else []
            making, collating = self._words[me + Worker.CURRENT], self._words[me + Worker.COLLATE] - 1
            claim, claimed = self._words[me + Worker.CLAIM_BATCH], self._words[me + Worker.CLAIM_COUNT]
            position = self.field(batch, Batch.POSITION) + first
        names = bare(unpickled(keys))
        current = first + making if 0 <= making < count else None
        if making != Current.COLLATION:
            return Hand(batch, first, count, names, current)
        if collating >= 0:
            return Hand(batch, first, count, names, None, collating)
        in_hand = range(position, position + (claimed or count))
        return Hand(batch, first, count, names, None, claim if claimed else batch, in_hand)

    def hands(self, process: int) -> dict[int, Hand]:
        """What a worker process had in hand, by record; see `hand`."""
        hands = {lane: self.hand(lane) for lane in self.control.lanes_of(process)}
        return {lane: hand for lane, hand in hands.items() if hand.count or hand.collating is not None}

    def thread_of(self, worker: int) -> int:
        """Identity of the thread that works for a record; 0: the process's only one."""
        return self._words[self.control.worker(worker) + Worker.THREAD]

    def since_ns(self, worker: int) -> int:
        """When a worker began what it is doing, on the monotonic clock."""
        return self._words[self.control.worker(worker) + Worker.SINCE_NS]

    def abandon_epochs_before(self, epoch: int) -> None:
        """Nobody waits for earlier epochs any more: their open tickets vanish, what is in hand ends on its own."""
        with self._lock:
            words = self._words
            words[Header.LIVE_EPOCH] = epoch
            words[Header.PULL] = words[Header.EARLY] = words[Header.PUBLISHED]
            words[Header.ORPHAN_HEAD] = words[Header.ORPHAN_TAIL]
            words[Header.SPARE_HEAD] = words[Header.SPARE_TAIL]
            words[Header.AWAY_HEAD] = words[Header.AWAY_TAIL]

    def share_away(self, shared: bool) -> None:
        """Whether workers here may take what is set aside when they have nothing else to do. They have to be woken."""
        self._words[Header.AWAY_SHARED] = shared

    def read_times(self, since: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
        """(samples, nanoseconds) of the workers' runs from the numbers in `since` on, as far as they are kept, and the
        numbers to go on from; samples that came from a cache are counted below zero. Takes no lock: a run that is
        overwritten meanwhile is read as the newer one."""
        words, now, runs = self._words, self.control.of_workers(Worker.TIMES, len(since)), []
        for worker, (before, count) in enumerate(zip(since, now, strict=True)):
            if count != before:
                first = max(before, count - TIMES_PER_WORKER) if before < count else 0  # a new worker counts anew
                places = (self.control.times(worker, number) for number in range(first, count))
                runs += [(words[at], words[at + 1]) for at in places]
        return runs, now

    def count_parks(self) -> list[int]:
        """Times each worker here has put a sample aside since it was started."""
        return self.control.of_workers(Worker.PARKS, self.control.records_here)

    def count_waiting(self, batches: Sequence[int]) -> tuple[int, int]:
        """Finished samples in those of `batches` that are not complete: made within the threshold, and later. For
        statistics: takes no lock."""
        fast = late = 0
        for at in map(self.control.batch, list(batches)):
            slot = self._words[at + Batch.SLOT]
            if slot >= 0 and self._words[at + Batch.STATE] == State.OPEN:
                table = self.row_table(slot, self._words[at + Batch.ROWS])
                done = table[:, Column.OWNER] > 0
                slow = int((done & (table[:, Column.LATE] > 0)).sum())
                fast, late = fast + int(done.sum()) - slow, late + slow
        return fast, late

    def note_all_posted(self, epoch: int) -> None:
        """That epoch, and those before it, have no more tickets to post."""
        self._words[Header.POSTED_BEFORE] = epoch + 1

    def set_threshold(self, seconds: float | None) -> None:
        """From when on a sample counts as slow."""
        self._words[Header.THRESHOLD_NS] = 0 if seconds is None else max(1, int(seconds * 1e9))

    def engage(self, process: int) -> None:
        """A worker process is about to be started."""
        for me in map(self.control.worker, self.control.lanes_of(process)):
            for field in (Worker.RETIRE, Worker.TIMES, Worker.PARKS):
                self._words[me + field] = 0

    def dismiss(self, process: int) -> None:
        """Ask a worker process to end as soon as it has nothing in hand. It has to be woken."""
        self._words[self.control.worker(process * self.control.lanes) + Worker.RETIRE] = 1

    def note_left(self, process: int) -> None:
        """A worker process that was dismissed has ended, with nothing in hand."""
        for lane in self.control.lanes_of(process):
            self._words[self.control.worker(lane) + Worker.PHASE] = Phase.ABSENT

    @property
    def active(self) -> int:
        """Worker processes that are meant to run now."""
        return self._words[Header.ACTIVE] // self.control.lanes

    def set_active(self, processes: int) -> None:
        """How many worker processes share a batch's tickets from now on."""
        self._words[Header.ACTIVE] = processes * self.control.lanes

    @property
    def fetches(self) -> int:
        """Samples that each worker may fetch at once now."""
        return self._words[Header.FETCHES]

    def set_fetches(self, count: int) -> None:
        """Let each worker fetch so many samples at once from now on, within what was planned. All have to be woken;
        what is under way ends on its own."""
        self._words[Header.FETCHES] = min(self.control.lanes, max(1, count))

    def held(self) -> set[int]:
        """Batches that some worker is still reading from or writing to."""
        with self._lock:
            held = {batch for worker in range(self.control.records) for batch, _ in self.parked(worker)}
            for me in map(self.control.worker, range(self.control.records)):
                if self._words[me + Worker.COUNT]:
                    held.add(self._words[me + Worker.BATCH])
                if self._words[me + Worker.CLAIM_COUNT]:
                    held.add(self._words[me + Worker.CLAIM_BATCH])
                if self._words[me + Worker.COLLATE]:
                    held.add(self._words[me + Worker.COLLATE] - 1)
        return held

    def send_update(self, patch: object) -> None:
        """Publish attribute changes of the dataset; workers apply them before their next sample."""
        packed = codec.pack(patch)
        with self._lock:
            messages.put(self.arena, Stretch.UPDATE, 0, packed)
            self._words[Header.UPDATE] += 1
