"""A Spark cluster on this machine, from the installed pyspark: a master and one-core workers."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from instep import errors, extras
from instep.local import class_archives, keeper_client, paths, ports, processes
from instep.local.lifetime import Lifetime
from instep.waiting import wait_until

START_TIMEOUT_S = 90.0
WORKER_MEMORY = "1g"
# What a job needs there: this machine's loopback, and executors that fit into the workers.
CONF = {
    "spark.driver.host": ports.HOST,
    "spark.driver.bindAddress": ports.HOST,
    "spark.executor.memory": "768m",
}


class SparkCluster(Lifetime):
    """A master and workers under keepers: they end with the block, and with this process."""

    def __init__(self, folder: Path, workers: int = 2, *, own_hosts: bool = False) -> None:
        """Take the number of workers; with `own_hosts`, each of them has an address of its own.

        Spark repeats a slow task only on another host. Linux has all addresses of the loopback.
        """
        self._folder, self._count, self._own_hosts = folder, workers, own_hosts
        self._stack = contextlib.ExitStack()
        self._pids: list[int] = []
        self.url = ""

    def start(self) -> None:
        """Start master and workers, and wait until the workers are registered."""
        port, *pages = ports.free(2 + self._count)
        self.url = f"spark://{ports.HOST}:{port}"
        master = ["--port", str(port), "--webui-port", str(pages.pop())]
        self._launch("master", "org.apache.spark.deploy.master.Master", *master)
        self._wait(lambda: _listens(port), "master")
        for number in range(1, self._count + 1):
            folder = str(self._folder / f"work-{number}")
            arguments = ["-c", "1", "-m", WORKER_MEMORY, "--work-dir", folder]
            if self._own_hosts:
                arguments += ["--host", f"127.0.0.{number + 1}"]
            arguments += ["--webui-port", str(pages.pop()), self.url]
            self._launch(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments)
        for number in range(1, self._count + 1):
            self._wait_for_worker(f"worker-{number}")

    def _wait_for_worker(self, name: str) -> None:
        self._wait(lambda: "Successfully registered" in self.log(name), name)

    def log(self, name: str) -> str:
        """Return the log of the master or of a worker."""
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def pids(self) -> Iterable[int]:
        """Return the processes of master and workers, and what they have started."""
        found: list[int] = []
        for pid in self._pids:
            found += [pid, *processes.descendants(pid)]
        return found

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def _launch(self, name: str, program: str, *arguments: str) -> None:
        found = find_spec("pyspark")
        if found is None or found.origin is None:
            raise extras.missing("pyspark", "spark")
        home = Path(found.origin).parent
        environment = {
            **paths.python_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            # The user's own options come last: the JVM takes the last one of a kind.
            "SPARK_DAEMON_JAVA_OPTS": " ".join(
                [
                    shlex.join(class_archives.SPARK.jvm_flags()),
                    os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
                ]
            ).strip(),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": ports.HOST,
        }
        keeper = keeper_client.KeeperClient()
        self._stack.callback(keeper.close)
        argv = [str(home / "bin" / "spark-class"), program, "--host", ports.HOST, *arguments]
        self._pids.append(keeper.launch(argv, log=self._folder / f"{name}.log", env=environment))

    def _wait(self, reached: Callable[[], bool], name: str) -> None:
        if not wait_until(reached, START_TIMEOUT_S, interval_s=0.05):
            tail = "\n".join(self.log(name).splitlines()[-10:])
            raise errors.InstepError(
                f"Spark's {name} did not start within {START_TIMEOUT_S:.0f} s;"
                f" the end of its log:\n{tail}"
            )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((ports.HOST, port)) == 0
