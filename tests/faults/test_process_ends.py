"""Ways for a process with a live iterator to end: by itself, by Ctrl-C, by SIGTERM, by SIGKILL. Workers end with it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from minato import DataLoader

from .data import Rows, Signs, Sleepy
from .tools import Script, assert_gone, caught_warnings, run_script, running, until

SOON_S = 2.0


class InALongCall(Rows):
    """Every sample sits in a C function that holds the GIL: no Python code runs in this process any more."""

    def __init__(self, marks):
        super().__init__(8)
        self.marks = marks

    def __getitem__(self, index):
        self.marks.sign("inside")
        ctypes.PyDLL(None).sleep(20)
        return index


# ---------------------------------------------------------------------------------------------- a parent that is killed


@contextlib.contextmanager
def parent(target, *args):
    """A process that is to be killed; forked, which saves it the imports."""
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def iterate_for_ever(marks, context):
    loader = DataLoader(
        Sleepy(10_000_000, 0.001), 4, num_workers=2, worker_init_fn=Signs(marks), multiprocessing_context=context
    )
    for _ in loader:
        pass


def wait_for_ever(dataset, workers):
    next(iter(DataLoader(dataset, 1, num_workers=workers)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_are_gone_soon_after_their_parent_was_killed(number, marks):
    with parent(iterate_for_ever, marks, None) as process:
        marks.wait_for("started", 2)
        os.kill(process.pid, number)
        process.join()
        assert process.exitcode == -number
        assert_gone(marks.pids("started"), SOON_S)


def test_spawned_workers_are_gone_soon_after_their_parent_was_killed(marks):
    with parent(iterate_for_ever, marks, "spawn") as process:
        marks.wait_for("started", 2)
        os.kill(process.pid, signal.SIGKILL)
        assert_gone(marks.pids("started"), SOON_S)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_workers_in_a_long_call_are_gone_soon_after_their_parent_was_killed(workers, marks):
    """torch's workers would come to the end of their call first, and then notice."""
    with parent(wait_for_ever, InALongCall(marks), workers) as process:
        marks.wait_for("inside", workers)
        os.kill(process.pid, signal.SIGKILL)
        assert_gone(marks.pids("inside"), SOON_S)


def two_loaders(first, second):
    """The second's workers are forked while the first's are there, and the other way round."""
    loaders = [
        DataLoader(Sleepy(10_000_000, 0.001), 4, num_workers=2, worker_init_fn=Signs(marks))
        for marks in (first, second)
    ]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    os.kill(iterators[0].worker_pids[0], signal.SIGKILL)
    with caught_warnings():
        while not loaders[0].stats().worker_restarts:
            next(iterators[0])
    first.wait_for("started", 3)
    first.once("restarted")
    time.sleep(60)


def test_workers_of_two_loaders_do_not_keep_each_other_alive(marks, tmp_path):
    second = type(marks)(tmp_path)
    with parent(two_loaders, marks, second) as process:
        marks.wait_for("restarted")
        os.kill(process.pid, signal.SIGKILL)
        assert_gone(marks.pids("started") + second.pids("started"), SOON_S)


def loader_and_another_child(marks):
    iterator = iter(DataLoader(Sleepy(10_000_000, 0.001), 4, num_workers=2, worker_init_fn=Signs(marks)))
    next(iterator)
    multiprocessing.get_context("fork").Process(target=live_on, args=(marks,)).start()
    time.sleep(60)


def live_on(marks):
    marks.sign("other")
    time.sleep(10)


def test_another_child_of_the_parent_does_not_keep_the_workers_alive(marks):
    with parent(loader_and_another_child, marks) as process:
        marks.wait_for("other")
        os.kill(process.pid, signal.SIGKILL)
        try:
            assert_gone(marks.pids("started"), SOON_S)
        finally:
            for pid in running(marks.pids("other")):
                os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------ interpreters that end


PREAMBLE = """
import sys, time
from minato import DataLoader
from tests.faults.data import Rows, Signs, Sleepy
from tests.faults.tools import Marks, until
marks = Marks(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["global", "cycle", "persistent"])
def test_an_interpreter_with_a_live_iterator_ends_quietly(how, tmp_path, marks):
    """As with torch's loader."""
    ends = {
        "global": "iterator = iter(loader(Sleepy(10**6, .001), 4)); next(iterator)",
        "cycle": "it = iter(loader(Sleepy(10**6, .001), 4)); next(it); it.me = it; del it",
        "persistent": "kept = loader(Rows(40), 4, persistent_workers=True); list(kept)",
    }
    text = PREAMBLE + (
        "loader = lambda *a, **k: DataLoader(*a, num_workers=2, worker_init_fn=Signs(marks), **k)\n"
        f"{ends[how]}\n"
        "marks.wait_for('started', 2)\n"
    )
    assert run_script(tmp_path, text, marks.folder) == ""
    assert_gone(marks.pids("started"), 0.1)


def test_an_interpreter_with_an_iterating_daemon_thread_ends_quietly(tmp_path, marks):
    text = PREAMBLE + (
        "import threading\n"
        "def consume():\n"
        "    for _ in DataLoader(Sleepy(10**6, .001), 4, num_workers=2, worker_init_fn=Signs(marks)): pass\n"
        "threading.Thread(target=consume, daemon=True).start()\n"
        "marks.wait_for('started', 2)\n"
    )
    assert Script(tmp_path, text, marks.folder).result() == (0, "", "")
    assert_gone(marks.pids("started"), 0.1)


def test_an_interpreter_that_ends_while_workers_are_spawned_ends_quietly(tmp_path, marks):
    text = PREAMBLE + (
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Rows(40), 4, num_workers=2, multiprocessing_context='spawn')\n"
        "    iterator = iter(loader)\n"
    )
    assert run_script(tmp_path, text, marks.folder) == ""


def test_an_error_in_the_training_loop_is_the_only_thing_said(tmp_path, marks):
    text = PREAMBLE + (
        "for batch in DataLoader(Sleepy(10**6, .001), 4, num_workers=2, worker_init_fn=Signs(marks)):\n"
        "    marks.wait_for('started', 2)\n"
        "    raise ZeroDivisionError('mine')\n"
    )
    code, out, err = Script(tmp_path, text, marks.folder).result()
    assert (code, out, err.count("Traceback")) == (1, "", 1)
    assert err.endswith("ZeroDivisionError: mine\n")
    assert_gone(marks.pids("started"), 0.1)


# -------------------------------------------------------------------------------------------------------------- signals


def assert_interrupted(script, workers):
    """One traceback, that of the main process, and the exit that shells expect."""
    code, out, err = script.result()
    assert code == -signal.SIGINT, f"exit code {code}\n{out}\n{err}"
    assert err.count("Traceback") == 1, err
    assert err.endswith("KeyboardInterrupt\n"), err
    assert_gone(workers, SOON_S)


@pytest.mark.parametrize("seconds", [0.001, 30], ids=["busy", "waiting"])
def test_ctrl_c_gives_one_traceback(seconds, tmp_path, marks):
    text = PREAMBLE + (
        f"for batch in DataLoader(Sleepy(10**6, {seconds}), 4, num_workers=2, worker_init_fn=Signs(marks)):\n    pass\n"
    )
    script = Script(tmp_path, text, marks.folder)
    marks.wait_for("started", 2)
    time.sleep(0.2)
    script.signal_group(signal.SIGINT)
    assert_interrupted(script, marks.pids("started"))


def test_ctrl_c_while_workers_are_spawned_gives_one_traceback(tmp_path, marks):
    """torch's loader prints a traceback for each worker here."""
    text = PREAMBLE + (
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Rows(40), 4, num_workers=2, multiprocessing_context='spawn')\n"
        "    iterator = iter(loader)\n"
        "    until(lambda: len(iterator.worker_pids) == 2, 'two processes')\n"
        "    for pid in iterator.worker_pids.values():\n"
        "        marks.once(f'started-{pid}')\n"
        "    time.sleep(60)\n"
    )
    script = Script(tmp_path, text, marks.folder)
    marks.wait_for("started", 2)
    maps = [Path(f"/proc/{pid}/maps") for pid in marks.pids("started")]
    until(lambda: any("numpy" in file.read_text() for file in maps), "their imports")
    script.signal_group(signal.SIGINT)
    assert_interrupted(script, marks.pids("started"))


def test_one_may_go_on_after_ctrl_c(tmp_path, marks):
    """In a notebook, say: the cell that iterates is interrupted, and run again."""
    text = PREAMBLE + (
        "import signal\n"
        "loader = DataLoader(Rows(400), 4, num_workers=2, persistent_workers=True, shuffle=True, timeout=10)\n"
        "list(loader)\n"
        "interrupts = 0\n"
        "while interrupts < 60:\n"
        "    try:\n"
        "        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.003 + 0.0007 * interrupts, 1)  # again, if a finalizer ate it\n"
        "        while True:\n"
        "            for _ in loader: pass\n"
        "    except KeyboardInterrupt:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "        interrupts += 1\n"
        "assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(400))\n"
        "print(len(loader.__dict__['_iterator'].worker_pids))\n"
    )
    code, out, err = Script(tmp_path, text, marks.folder).result()  # at-fork hooks may complain of an interrupt
    assert (code, out) == (0, "2\n"), err


def test_sigterm_ends_the_process_and_its_workers_without_a_word(tmp_path, marks):
    text = PREAMBLE + (
        "for batch in DataLoader(Sleepy(10**6, .001), 4, num_workers=2, worker_init_fn=Signs(marks)):\n    pass\n"
    )
    script = Script(tmp_path, text, marks.folder)
    marks.wait_for("started", 2)
    os.kill(script.pid, signal.SIGTERM)
    assert script.result() == (-signal.SIGTERM, "", "")
    assert_gone(marks.pids("started"), SOON_S)


def test_sigterm_to_one_worker_is_a_death_like_any_other():
    """What a resource manager may do. torch's loader raises."""
    loader = DataLoader(Sleepy(40, 0.005), 4, num_workers=2)
    iterator = iter(loader)
    seen = next(iterator)[:, 0].tolist()
    os.kill(iterator.worker_pids[0], signal.SIGTERM)
    until(lambda: len(running(iterator.worker_pids.values())) < 2, "it to die")
    with pytest.warns(RuntimeWarning, match="is killed by signal: Terminated"):
        seen += [sample[0].item() for batch in iterator for sample in batch]
    assert seen == list(range(40))
