"""A pipeline as users run it: `instep run` in its own process, which can be stopped or killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from instep import errors
from instep.local import keeper_client, processes
from instep.local.lifetime import Lifetime
from instep.waiting import wait_until

END_TIMEOUT_S = 10.0


class PipelineProcess(Lifetime):
    """`instep run` under a keeper: it ends when this process ends, even after kill -9."""

    def __init__(
        self,
        config: Path,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = ("run",),
    ) -> None:
        """Take the settings file; `command` may be another one that runs until it is stopped."""
        program = [sys.executable, "-m", "instep", "--config", str(config)]
        self._argv = [*program, *command, *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self.log = log
        self._keeper: keeper_client.KeeperClient | None = None
        self.pid = 0

    def start(self) -> None:
        self._keeper = keeper_client.KeeperClient(
            end_signal=signal.SIGTERM, end_timeout_s=END_TIMEOUT_S
        )
        self.pid = self._keeper.launch(self._argv, log=self.log, env=self._environment)

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._keeper.poll() if self._keeper else None

    def signal(self, number: int) -> None:
        """Send a signal to the driver."""
        if self._keeper:
            self._keeper.signal(number)

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers with SIGKILL."""
        if self._keeper:
            self._keeper.kill()
            self.close()

    def wait(self, timeout_s: float) -> int:
        """Wait until the process has ended; return its exit status."""
        wait_until(lambda: self.poll() is not None, timeout_s, interval_s=0.05)
        status = self.poll()
        if status is None:
            raise errors.InstepError(
                f"the pipeline did not end within {timeout_s:.0f} s:\n{self.tail()}"
            )
        return status

    def stop(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Stop the process with SIGTERM and return its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def children(self) -> list[int]:
        """Return the live descendants of the process, even if the process itself has ended."""
        if self._keeper is None:
            return []
        return [pid for pid in processes.descendants(self._keeper.pid) if pid != self.pid]

    def tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def close(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None
