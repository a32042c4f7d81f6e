"""The main process's side of its workers: start, wake, watch, stop.

Under fork, workers are started in the caller's thread: a fork from another thread could copy a lock that the caller's
thread holds. Under spawn and forkserver a thread starts them, so that `iter()` returns at once. Either way workers come
up in parallel and take work as soon as they are there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from .._errors import WorkerDied
from .._plan import WorkerPlan
from .._queues.arena import Arena
from .._queues.fields import Header
from .._queues.posting import PostingBoard
from . import program as programs
from .generators import all_generators
from .guard import close_lifeline, open_lifeline
from .main import Handle, WorkerSpec, worker_main
from .processes import interrupts_blocked, own, reap, start_helpers
from .program import Program
from .stacks import ask_stack

STOP_GRACE_S = 0.6  # seconds for workers to finish the sample in hand; an abandoned iterator ends within a second
KILL_GRACE_S = 5.0  # seconds for the system to end a worker that was killed; a page of its memory may be on a slow disk
TERM_GRACE_S = 0.2  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Burial:
    """What is known of a worker that ended."""

    pid: int
    code: int | None
    """Exit code; negative: the signal that killed it; None: not known."""
    peak_bytes: int | None
    """The most memory it ever had resident, what it shared with others included; None: not known."""


class WorkerPool:
    """The worker processes of one engine. Methods are called by the consuming thread, except `_start_all`."""

    def __init__(
        self, board: PostingBoard, plan: WorkerPlan, program: Program, context: BaseContext, base_seed: int
    ) -> None:
        self._board = board
        self._plan = plan
        self._context = context
        self._base_seed = base_seed
        self._forks = context.get_start_method() == "fork"
        with contextlib.ExitStack() as opened:  # closes them if one of them cannot be had
            self.ready = _closed_by(opened, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            processes = range(board.control.workers)
            self._wake = [_closed_by(opened, os.eventfd(0, os.EFD_CLOEXEC)) for _ in processes]
            self._stack = -1
            if plan.tells_stack:
                self._stack = _closed_by(opened, os.memfd_create("minato-stack", os.MFD_CLOEXEC))
            self._parent_read, parent_write = open_lifeline()
            opened.callback(close_lifeline, self._parent_read, parent_write)
            self._descriptors = opened.pop_all()
        self._processes: dict[int, BaseProcess] = {}
        self._pidfds: dict[int, int] = {}
        self._leaving: set[int] = set()
        """Workers that were dismissed and have not ended yet."""
        self._poll = select.poll()
        self._poll.register(self.ready, select.POLLIN)
        self._starter: threading.Thread | None = None
        self._start_error: BaseException | None = None
        self._closed = False
        self._program: Program | None = program
        self._guest: int | None = None
        self._is_at_start = True
        self._after_start: Callable[[], None] | None = None
        # Over _processes, _pidfds and _poll while workers are being started. The collector may end this pool, or one
        # that was abandoned, in the middle of any of its methods, in the same thread.
        self._lock = threading.RLock()

    # ---- start ----------------------------------------------------------------------------------------------------

    def start(self, arena: Arena, after_first: Callable[[], object]) -> None:
        """Start all workers. Raises if the user's objects cannot be pickled; then nothing was started. `after_first` is
        called once the first is forked: each fork takes a while, and the others come after it."""
        workers = range(self._plan.num_workers)
        self._board.set_active(len(workers))
        all_generators()  # found here once, not by every forked worker
        if self._forks:
            for worker in workers:
                self._start_one(worker)
                if worker == 0:
                    after_first()
            return
        assert self._program is not None
        if programs.store(self._program, arena):
            self._program = None
        self._starter = threading.Thread(target=self._start_all, args=(workers,), name="minato-start", daemon=True)
        self._starter.start()

    def restart(self, worker: int) -> None:
        """Start a worker in the place of one that died; one that was to end anyway needs no other."""
        if worker in self._leaving:
            self._leaving.discard(worker)
            self._board.note_left(worker)
        else:
            self._start_one(worker)

    def _start_all(self, workers: Iterable[int]) -> None:
        try:
            start_helpers(self._context.get_start_method())
            for worker in workers:
                if not self._closed:
                    self._start_one(worker)
        except BaseException as error:  # raised in the consuming thread by check_started
            self._start_error = error
        if self._after_start is None:
            os.eventfd_write(self.ready, 1)
        self._is_at_start = False  # who ends the pool from here on does so at once: there is nobody left to do it later
        if self._after_start is not None:
            self._after_start()

    def puts_off(self, end: Callable[[], None]) -> bool:
        """Whether the caller is the thread that starts workers, where the collector has found nobody holding this pool:
        it cannot be ended in the middle of that. `end` is called as soon as it can."""
        is_here = threading.current_thread() is self._starter
        if not is_here or not self._is_at_start or self._after_start is not None:
            return False
        self._closed = True
        self._after_start = end
        return True

    def check_started(self) -> None:
        """Raise what went wrong while a thread started the workers."""
        if self._start_error is not None:
            error, self._start_error = self._start_error, None
            raise error

    def _start_one(self, worker: int) -> None:
        self._board.engage(worker)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=worker_main, args=(self._spec(worker),), name=f"minato-worker-{worker}", daemon=False
        )
        with interrupts_blocked():  # a worker inherits this until it ignores them by itself
            process.start()
        own(process)
        with self._lock:
            self._processes[worker] = process
            self._pidfds[worker] = os.pidfd_open(process.pid)
            self._poll.register(self._pidfds[worker], select.POLLIN)
        os.eventfd_write(self.ready, 1)  # a consumer that waits must wait for this process too

    def _spec(self, worker: int) -> WorkerSpec:
        return WorkerSpec(
            worker=worker,
            plan=self._plan,
            base_seed=self._base_seed,
            control=Handle(self._board.control.fd),
            batches=self._board.control.batches,
            workers=self._board.control.workers,
            lanes=self._board.control.lanes,
            remote=self._board.control.remote,
            arena=Handle(self._board.arena.fd),
            wake=Handle(self._wake[worker]),
            ready=Handle(self.ready),
            parent=Handle(self._parent_read),
            program=self._program,
            stack=Handle(self._stack) if self._stack >= 0 else None,
        )

    # ---- more and fewer -------------------------------------------------------------------------------------------

    @property
    def is_starting(self) -> bool:
        """Whether a thread is still starting the first workers."""
        return self._starter is not None and self._starter.is_alive()

    @property
    def active(self) -> int:
        """Workers that run or are being started, but for those that are leaving."""
        return len(self._pidfds) - len(self._leaving)

    @property
    def has_place(self) -> bool:
        """Whether another worker can be started: one that is leaving has its place until it has ended."""
        return len(self._pidfds) < len(self._wake)

    def resize(self, workers: int) -> None:
        """Start workers, or let some go once they have finished what is in their hands, until `workers` are active.
        Under spawn and forkserver the caller waits until their processes exist, not until they are up. Not to be called
        while the first workers are being started."""
        with self._lock:
            staying = [worker for worker in self._pidfds if worker not in self._leaving]
            absent = [worker for worker in range(len(self._wake)) if worker not in self._pidfds]
        for worker in absent[: max(0, workers - len(staying))]:
            self._start_one(worker)
        dismissed = sorted(staying)[workers:]
        for worker in dismissed:
            self._leaving.add(worker)
            self._board.dismiss(worker)
            self.wake([worker])
        if dismissed:  # some may have been woken a moment ago for tickets that they will not take
            self.wake(self._board.wake_sleepers(self._board.control.records))
        self._board.set_active(self.active)

    def set_fetches(self, count: int) -> None:
        """Let each worker fetch so many samples at once from now on: between one and the plan's number. For policies
        that want more from workers that wait for I/O, before they want more workers."""
        self._board.set_fetches(count)
        self.wake(self.alive)

    def _see_off(self, ended: list[int]) -> list[int]:
        """Bury workers that ended because they were dismissed; returns the others."""
        left = [w for w in ended if w in self._leaving and self._exit_code(w) == 0]
        for worker in left:
            self.bury(worker)
            self._leaving.discard(worker)
            self._board.note_left(worker)
        return [worker for worker in ended if worker not in left]

    def _exit_code(self, worker: int) -> int | None:
        """How a worker ended that has ended. A fork server tells a little later than the process itself."""
        self._processes[worker].join()
        return self._processes[worker].exitcode

    # ---- wake, wait, watch ----------------------------------------------------------------------------------------

    def wake(self, workers: Iterable[int]) -> None:
        """Wake sleeping workers."""
        for worker in workers:
            os.eventfd_write(self._wake[worker], 1)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Wait until a batch may be ready, a worker has died, or the time is up. Returns the workers that died."""
        if not self._pidfds and (self._starter is None or not self._starter.is_alive()):
            self.check_started()
            raise WorkerDied("no DataLoader worker is left")
        events = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)
        fds = {fd for fd, _ in events}
        if self.ready in fds:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.ready)
        with self._lock:
            ended = [worker for worker, pidfd in self._pidfds.items() if pidfd in fds]
        return self._see_off(ended) if self._leaving else ended

    def interrupt(self) -> None:
        """Make a thread that is in `wait` return."""
        os.eventfd_write(self.ready, 1)

    def watch(self, pidfd: int | None) -> None:
        """Return from `wait` also when this process ends, which has the lanes; None: none has."""
        if self._guest is not None:
            self._poll.unregister(self._guest)
        self._guest = pidfd
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)

    @property
    def holders(self) -> list[int]:
        """All who may have work in hand: workers that run, and the remote side, if a process works for it."""
        return [*self.alive, *(() if self._guest is None else (self._board.control.workers,))]

    @property
    def alive(self) -> list[int]:
        """Workers that run, or ran when last looked at."""
        with self._lock:
            return list(self._pidfds)

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of running workers."""
        with self._lock:
            return {worker: self._processes[worker].pid or 0 for worker in self._pidfds}

    @property
    def processes(self) -> list[BaseProcess]:
        """Running workers, in order of their numbers."""
        with self._lock:
            return [self._processes[worker] for worker in sorted(self._pidfds)]

    def stack_of(self, worker: int, thread: int = 0) -> str:
        """The Python stack of a worker's first thread, or of another, innermost call first; empty: it did not answer.
        For plans that tell it."""
        return ask_stack(self._pidfds[worker], self._stack, thread)

    def kill(self, worker: int) -> None:
        """End a worker at once."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfds[worker], signal.SIGKILL)

    def is_dead(self, worker: int, within_s: float = KILL_GRACE_S) -> bool:
        """Whether a worker has ended, or does so within some seconds."""
        poll = select.poll()
        poll.register(self._pidfds[worker], select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def bury(self, worker: int) -> Burial:
        """Collect a dead worker."""
        with self._lock:
            process = self._processes.pop(worker)
            self._forget(worker)
        peak_bytes = reap(process)
        process.join()
        # Not closed: as with torch's loader, whoever keeps the process object may ask it how it ended.
        return Burial(process.pid or 0, process.exitcode, peak_bytes)

    def _forget(self, worker: int) -> None:
        pidfd = self._pidfds.pop(worker)
        self._poll.unregister(pidfd)
        os.close(pidfd)

    # ---- stop -----------------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Ask all workers to end, and start no more: nothing is left to do. `stop` sees to it that they are gone."""
        self._closed = True
        self._board.control.words[Header.STOP] = 1
        self.wake(range(len(self._wake)))

    def stop(self) -> None:
        """End all workers: ask, then SIGTERM, then SIGKILL, within a second. Leaves nothing behind."""
        try:
            self.let_go()
            if self._starter is not None and self._starter is not threading.current_thread():
                self._starter.join()
            for grace_s, number in ((STOP_GRACE_S, signal.SIGTERM), (TERM_GRACE_S, signal.SIGKILL)):
                self._join_all(grace_s)
                self._signal_all(number)
            self._join_all(None)
        except BaseException:  # some signal's handler has raised: nobody may be left who writes to what others get
            self._signal_all(signal.SIGKILL)
            self._join_all(KILL_GRACE_S)
            raise
        finally:
            self._descriptors.close()

    def _join_all(self, grace_s: float | None) -> None:
        deadline = None if grace_s is None else time.monotonic() + grace_s
        while self._pidfds:
            poll = select.poll()
            for pidfd in self._pidfds.values():
                poll.register(pidfd, select.POLLIN)
            left = None if deadline is None else deadline - time.monotonic()
            ended = {fd for fd, _ in poll.poll(None if left is None else max(0.0, left) * 1000)}
            if not ended:
                return
            for worker in [w for w, pidfd in self._pidfds.items() if pidfd in ended]:
                self.bury(worker)

    def _signal_all(self, number: int) -> None:
        for pidfd in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)


def _closed_by(stack: contextlib.ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd
