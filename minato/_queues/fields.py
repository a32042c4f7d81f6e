"""The words of the control block, by name: what each record in it has where, and what its words may say.

Plain class attributes, not enums: they are read dozens of times per run of samples, and an enum member costs a tenth of
a microsecond each time.
"""

from __future__ import annotations


class Header:
    """Words at the start of the control block."""

    STOP = 0
    """1: workers leave as soon as they see it."""
    LIVE_EPOCH = 1
    """Tickets of earlier epochs are void: nobody waits for them."""
    PUBLISHED = 2
    """Number of the next batch the main process will publish."""
    PULL = 3
    """Number of the first batch that may have tickets nobody took."""
    CLAIM_EVEN = 4
    """Number of the batch that finished samples of an even epoch go to. Epochs overlap, so each parity has its own."""
    CLAIM_ODD = 5
    ORPHAN_HEAD = 6
    """Orphans ever taken; tail: ever put. An orphan is a run of tickets, or a collation, whose worker died."""
    ORPHAN_TAIL = 7
    SPARE_HEAD = 8
    """Spare rows ever taken; tail: ever put. A spare row was claimed by a worker that died before writing it."""
    SPARE_TAIL = 9
    LAYOUTS = 10
    """Sample layouts registered so far."""
    FREE_SLOTS = 12
    """Slots on the stack of free ones. As many as there are posted batches without a slot."""
    THRESHOLD_NS = 15
    """Nanoseconds from which on a sample counts as slow; 0: none does."""
    ACTIVE = 14
    """Lanes of the workers that are meant to run now: at most as many as there are worker records."""
    FETCHES = 25
    """Lanes of each worker that may take work now; a change wakes the workers."""
    BINDING = 13
    """The batch that is just getting its slot, plus one; not 0 outside the lock: its worker was killed meanwhile."""
    AWAY_HEAD = 16
    """Runs set aside for the remote side, ever taken; tail: ever put."""
    AWAY_TAIL = 17
    AWAY_SHARED = 18
    """1: workers here take what is set aside when they have nothing else to do."""
    UNSENT = 26
    """1: some sample could not be pickled. From then on a worker makes and collates whole batches."""
    EARLY = 30
    """Number of the first batch that may have early tickets nobody took; see `early`."""
    UPDATE = 11
    """Version of the dataset's attributes; workers apply the newest patch before their next sample."""
    POSTED_BEFORE = 24
    """Epochs before this one have no more tickets to post."""


class Batch:
    """Words of a batch record. `TICKETS` to `KEYS_BYTES` describe work to be done, the rest where results go."""

    NUMBER = 0
    EPOCH = 1
    SEED = 2
    TICKETS = 3
    PULLED = 4
    """Tickets given out so far in their order, those that are given out before their turn included; see `early`."""
    POSITION = 5
    """Position in the epoch of the batch's first ticket."""
    KEYS_BYTES = 6
    """0: keys are int64. Otherwise the length of a pickled list of keys."""
    ROWS = 7
    SLOT = 8
    """-1 until the first sample of the batch is there: so a fast consumer's batches go round in few, warm slots."""
    CLAIMED = 9
    """Rows promised to finished samples (samples may overtake only)."""
    LAYOUT = 10
    """0: not bound yet; n: layout n - 1; -1: no fixed rows, everything goes through the heap."""
    HEAP_TOP = 11
    """First free byte of the slot's heap; 0 until the layout is bound."""
    STATE = 12
    FLAGS = 13
    RESULT = 14
    """Offset of the collated result in the slot, if a worker collated."""
    WORKER = 15
    """Stream batches: the worker whose stream fills this batch. Otherwise -1."""
    FILLED = 16
    """Rows that hold samples when the batch is ready: all of them, but for the last batch of a stream."""
    SHIFT = 20
    """From a ticket's position to the one its seed is derived from: not 0 in what is left of an interrupted epoch."""
    STREAM_STATE = 21
    """Stream batches: offset in the slot of the stream's state after this batch; 0: it has none."""
    LEFT_OUT = 17
    """Failed rows among them that are not in the result: `Flag.SHORT`."""
    RUN = 18
    """Of a complete batch: position of its first sample, plus one, if a worker made all of it in one go, so that the
    others follow in order; 0: see the rows, which are in another core's cache."""


class State:
    """Life of a batch."""

    FREE = 0
    OPEN = 1
    COLLATING = 2
    READY = 3
    ENDED = 4
    """A stream had nothing left for this batch."""
    MENDING = 5
    """Complete, with failed samples in it: the main process is about to have them fetched again, or left out."""


class Flag:
    """What a batch needs or carries besides plain rows."""

    COLLATE = 1
    """A worker has to call the user's collate function when all rows are there."""
    ERROR = 2
    """At least one row, or the result, is a captured error."""
    RESULT = 4
    """The batch is the pickled result at `Batch.RESULT`, not its rows."""
    SHORT = 8
    """Rows that failed are left out: a worker has to collate the others."""


class Worker:
    """Words of a worker record: what the worker has in hand, announced before the act.

    A process that fetches many samples at once has several records, its *lanes*: a thread or a task works for each, and
    to the board each is a worker of its own. `RETIRE` is in the first one only.
    """

    PHASE = 0
    SINCE_NS = 1
    """Monotonic clock when the phase began."""
    BATCH = 2
    FIRST = 3
    COUNT = 4
    """Tickets in hand: COUNT of them, from place FIRST of BATCH on."""
    CLAIM_BATCH = 5
    CLAIM_ROW = 6
    CLAIM_COUNT = 7
    """Rows claimed and not yet committed."""
    COLLATE = 8
    """The batch being collated, plus one; 0: none."""
    SLOW = 14
    """1 while the worker is at a sample that is past the threshold, as far as it has noticed."""
    TIMES = 13
    """Runs whose time the worker has noted so far; see `ControlBlock.times`."""
    RETIRE = 12
    """1: the worker is to end as soon as it has nothing in hand."""
    PARKS = 15
    """Times the worker has put a sample aside."""
    CURRENT = 9
    """The ticket in hand whose sample is being made, counted from FIRST; or `Current`. Written without the lock."""
    THREAD = 10
    """Identity of the thread that works for this record, where a process has several; 0: the process has one."""


class Parked:
    """Words of an entry of a worker's temp queue: a ticket whose sample was begun and put aside."""

    BATCH = 0
    """Number of the ticket's batch, plus one; 0: no entry."""
    PLACE = 1


class Current:
    """What `Worker.CURRENT` says besides a ticket."""

    NOTHING = -1
    """No code of the user's runs, or it makes all samples at once."""
    COLLATION = -2
    """The samples in hand are being collated, or those of the batch `Worker.COLLATE` names."""


class Phase:
    """What a worker is doing."""

    ABSENT = 0
    STARTING = 1
    IDLE = 2
    ASLEEP = 3
    """Waits for its eventfd; whoever publishes work clears this and writes the eventfd."""
    FETCHING = 4
    COLLATING = 5
    FAILED = 6
    """Could not start, or met a bug of minato; its error is in its stretch."""
