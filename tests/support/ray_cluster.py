"""A Ray cluster of several nodes on this machine, in processes that are not the test's own children.

The leak check looks at children of the test process; a cluster starts and ends processes as it likes. So a process of
its own has it, adopted by init, and is told what to do by lines of text. It ends with its standard input.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_ELSEWHERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for nodes on other machines. Without them it listens on 127.0.0.1: whoever reaches Ray runs code."""
HEAD = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}


class RayCluster:
    """The test's side."""

    def __init__(self, commands: Any, answers: Any) -> None:
        self._commands = commands
        self._answers = answers
        self.address = self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        assert line, "the cluster's process has ended"
        return json.loads(line)

    def _ask(self, *command: Any) -> Any:
        self._commands.write(json.dumps(command) + "\n")
        self._commands.flush()
        return self._answer()

    def add(self, cpus: int, **options: Any) -> int:
        """Start a node; returns its number."""
        return int(self._ask("add", cpus, options))

    def kill(self, node: int) -> None:
        """End a node's processes at once."""
        self._ask("kill", node)

    def kill_all(self) -> None:
        """End everything, head included."""
        self._ask("kill_all")


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster with a head that has no CPUs. A shell starts it in the background and ends, so init adopts it."""
    to_child, commands = os.pipe()
    answers, from_child = os.pipe()
    os.environ[_ELSEWHERE] = "0"  # of the agent as well, which looks for its node by address
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = f"exec 3<&0; '{sys.executable}' -m {__name__} <&3 2>/dev/null &"
    subprocess.run(["sh", "-c", script], stdin=to_child, stdout=from_child, env=environment, check=True)
    os.close(to_child)
    os.close(from_child)
    try:
        with open(commands, "w") as written, open(answers) as read:
            yield RayCluster(written, read)
    finally:
        del os.environ[_ELSEWHERE]


def main() -> None:
    """The cluster's process."""
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    nodes: list[Any] = []

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        answer(cluster.address)
        for line in sys.stdin:
            match json.loads(line):
                case ["add", cpus, options]:
                    nodes.append(cluster.add_node(num_cpus=cpus, **options))
                    answer(len(nodes) - 1)
                case ["kill", number]:
                    cluster.remove_node(nodes[number], allow_graceful=False)
                    answer(None)
                case ["kill_all"]:
                    cluster.shutdown()
                    answer(None)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
