"""CPU time and memory of this process and all its descendants, seen through /proc."""

from __future__ import annotations

import threading

import psutil


def private_bytes(pid: int) -> int:
    """Proportional set size without shared memory: each page divided by the number of processes that map it."""
    found = {"Pss": 0, "Pss_Shmem": 0}
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in found:
                    found[name] = int(rest.split()[0]) * 1024
    except OSError:
        return 0  # it ended meanwhile
    return found["Pss"] - found["Pss_Shmem"]


def shared_memory_bytes() -> int:
    """All shared memory of the machine, whether or not somebody maps it.

    Batches that torch's loader has in its queue are in shared memory that no process maps, so a sum of PSS misses them.
    """
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Shmem:"))


def cpu_seconds() -> float:
    """CPU time of this process and of its descendants, those that ended and were waited for included."""
    me = psutil.Process()
    times = me.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in me.children(recursive=True):
        try:
            spent = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return float(total)


class PeakMemory:
    """The most memory that this process's tree used while the block ran, beyond what it used before it."""

    def __init__(self, period_s: float = 0.2) -> None:
        self._period_s = period_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="minato-bench-memory", daemon=True)
        self._before = 0
        self.peak_bytes = 0

    def __enter__(self) -> PeakMemory:
        self._before = self._tree_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._period_s):
            self.peak_bytes = max(self.peak_bytes, self._tree_bytes() - self._before)

    @staticmethod
    def _tree_bytes() -> int:
        me = psutil.Process()
        pids = [me.pid, *(child.pid for child in me.children(recursive=True))]
        return sum(map(private_bytes, pids)) + shared_memory_bytes()
