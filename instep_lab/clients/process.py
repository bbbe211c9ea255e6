"""A client in its own process, which can be killed and waited for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from instep import errors
from instep.local import keeper_client, processes
from instep.waiting import wait_until
from instep_lab.clients import java_client
from instep_lab.clients.consuming import Consuming
from instep_lab.clients.java_client import CONNECTION
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Measuring, Publishing

MODULE = "instep_lab.clients"  # what `python -m` runs; tests of the lab put a broken client here


class ClientProcess:
    """A client under a keeper, which ends it when this process ends, even by kill -9."""

    def __init__(
        self, plan: Publishing | Consuming | Measuring, connection: Mapping[str, Any], file: Path
    ) -> None:
        self.plan, self.file, self._closed = plan, file, False
        self._log = file.with_suffix(".log")
        self._plan_file = file.with_suffix(".plan.json")
        self._plan_file.write_bytes(msgspec.json.encode(plan))
        self.file.touch()
        self._keeper = keeper_client.KeeperClient(end_signal=signal.SIGKILL)
        program = [sys.executable, "-m", MODULE]
        if plan.library is Library.JAVA:
            program = java_client.command(optimised=isinstance(plan, Measuring))
        argv = [*program, str(self._plan_file), str(file)]
        # Passwords go into the environment: other users can read argument lists, and the files of
        # a run are kept.
        environment = {**os.environ, CONNECTION: msgspec.json.encode(dict(connection)).decode()}
        self.pid = self._keeper.launch(argv, log=self._log, env=environment, cwd=Path.cwd())

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        try:
            return self._keeper.poll()
        except (errors.InstepError, ValueError):
            if self._closed:  # by another thread, which ends the process
                return -signal.SIGKILL
            raise

    def kill(self) -> None:
        self._keeper.kill()

    def terminate(self) -> None:
        """Let the client end in an orderly way."""
        processes.send(self.pid, signal.SIGTERM)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until the process has ended; return its exit status."""
        wait_until(lambda: self.status is not None, timeout_s, interval_s=0.01)
        status = self.status
        if status is None:
            raise errors.InstepError(
                f"a lab client did not end within {timeout_s:.0f} s:\n{self.output()}"
            )
        return status

    def output(self) -> str:
        """Return what the process printed, such as a traceback; normally nothing."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        self._closed = True
        self._keeper.close()
