"""The handle of a client that runs in a process of its own: to be killed and waited for."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from instep import errors
from instep.local import keeper_client
from instep_lab.clients.consuming import Consuming
from instep_lab.clients.publishing import Publishing

CONNECTION = "INSTEP_LAB_CONNECTION"


class ClientProcess:
    """A client under a keeper: it is gone when this process is, also after kill -9."""

    def __init__(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any], file: Path
    ) -> None:
        self.plan, self.file = plan, file
        self._log = file.with_suffix(".log")
        self._plan_file = file.with_suffix(".plan.json")
        self._plan_file.write_bytes(msgspec.json.encode(plan))
        self.file.touch()
        self._keeper = keeper_client.KeeperClient(end_signal=signal.SIGKILL)
        argv = [sys.executable, "-m", "instep_lab.clients", str(self._plan_file), str(file)]
        # passwords belong into the environment: others can read an argument list, and files of a run are kept
        environment = {**os.environ, CONNECTION: msgspec.json.encode(dict(connection)).decode()}
        self.pid = self._keeper.launch(argv, log=self._log, env=environment, cwd=Path.cwd())

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._keeper.poll()

    def kill(self) -> None:
        self._keeper.kill()

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit status, once it has ended by itself."""
        deadline = time.monotonic() + timeout_s
        while (status := self.status) is None:
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"a client of the lab did not end within {timeout_s:.0f} s:\n{self.output()}"
                )
            time.sleep(0.01)
        return status

    def output(self) -> str:
        """What it wrote, such as a traceback: nothing when all is well."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        self._keeper.close()
