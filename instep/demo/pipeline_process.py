"""A pipeline as its users run it: `instep run` in a process of its own, which can be ended, killed and looked at."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from instep import errors
from instep.local import keeper_client, processes

END_TIMEOUT_S = 10.0


class PipelineProcess:
    """`instep run` under a keeper: it is gone when this process is, also after kill -9."""

    def __init__(
        self, config: Path, *arguments: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._argv = [sys.executable, "-m", "instep", "--config", str(config), "run", *arguments]
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
        """The exit status, or None while it runs."""
        return self._keeper.poll() if self._keeper else None

    def signal(self, number: int) -> None:
        """Send the driver a signal."""
        if self._keeper:
            self._keeper.signal(number)

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers with SIGKILL."""
        if self._keeper:
            self._keeper.kill()
            self.close()

    def wait(self, timeout_s: float) -> int:
        """Wait until the process has ended; return its exit status."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise errors.InstepError(
                    f"the pipeline did not end within {timeout_s:.0f} s:\n{self.tail()}"
                )
            time.sleep(0.05)
        return code

    def stop(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """End it as SIGTERM does; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def children(self) -> list[int]:
        """What it has started and what of that still lives, also after it ended itself."""
        return (
            [pid for pid in processes.descendants(self._keeper.pid) if pid != self.pid]
            if self._keeper
            else []
        )

    def tail(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def close(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
