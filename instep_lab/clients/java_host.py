"""A JVM that runs Java clients in threads, so that not each of them needs a JVM of its own.

A client that is to be killed, or that ends without a flush, needs its own process: see
`process.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from instep import errors
from instep.local import keeper_client
from instep.waiting import wait_until
from instep_lab.clients import java_client
from instep_lab.clients.consuming import Consuming
from instep_lab.clients.publishing import Publishing

MEMORY = "-Xmx512m"  # for all clients of a host


def can_host(plan: Publishing | Consuming) -> bool:
    """Return whether a client may share its process: not if it kills or stops it."""
    if isinstance(plan, Publishing):
        return plan.flush and plan.dies_after is None
    return plan.dies_at is None and not plan.stops_on


class JavaHost:
    """A JVM under a keeper, which ends it when this process ends, even by kill -9."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="instep-lab-java-"))
        )
        self._log = folder / "java.log"
        # A pipe and no argument list or file: the connection may contain a password.
        pipe = folder / "commands"
        os.mkfifo(pipe, 0o600)
        # For reading too: otherwise this would wait for the JVM to open it.
        self._commands = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        self._stack.callback(os.close, self._commands)
        self._keeper = keeper_client.KeeperClient(end_signal=signal.SIGKILL)
        self._stack.callback(self._keeper.close)
        self._closed = threading.Event()
        self.pid = self._keeper.launch(java_client.command(MEMORY), log=self._log, given=pipe)

    @property
    def status(self) -> int | None:
        """The exit status of the JVM; None while it runs."""
        try:
            return self._keeper.poll()
        except (errors.InstepError, ValueError):
            if self._closed.is_set():
                return -signal.SIGKILL
            raise

    def start(
        self, plan: Publishing | Consuming, connection: Mapping[str, Any], file: Path
    ) -> HostedClient:
        """Start a client that appends to the history in this file."""
        client = HostedClient(self, file)
        client.plan_file.write_bytes(msgspec.json.encode(plan))
        file.touch()
        self.send(
            history=str(file),
            plan=str(client.plan_file),
            log=str(client.log_file),
            status=str(client.status_file),
            connection=dict(connection),
        )
        return client

    def send(self, **command: object) -> None:
        line = msgspec.json.encode(command) + b"\n"
        with self._lock:
            while line and not self._closed.is_set():
                line = line[os.write(self._commands, line) :]

    def output(self) -> str:
        """Return what the JVM itself printed."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        """End the JVM and all its clients."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._stack.close()


class HostedClient:
    """A client in a thread of a host; it has what `ClientProcess` has, except `kill`."""

    def __init__(self, host: JavaHost, file: Path) -> None:
        self.file, self._host = file, host
        self.plan_file, self.log_file = file.with_suffix(".plan.json"), file.with_suffix(".log")
        self.status_file = file.with_suffix(".status")

    @property
    def pid(self) -> int:
        """The process id of the host."""
        return self._host.pid

    @property
    def status(self) -> int | None:
        """The exit status as that of a process, or that of its host if it ended; None if it runs.

        A client that failed has 1.
        """
        for _ in range(2):
            if self.status_file.exists():
                return int(self.status_file.read_text(encoding="utf-8"))
            ended = self._host.status
            if ended is None:
                return None
        return ended or 1  # it ended without its client

    def terminate(self) -> None:
        """Let the client end in an orderly way."""
        self._host.send(history=str(self.file))

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until the client has ended; return its exit status."""
        wait_until(lambda: self.status is not None, timeout_s, interval_s=0.01)
        status = self.status
        if status is None:
            raise errors.InstepError(
                f"a lab client did not end within {timeout_s:.0f} s:\n{self.output()}"
            )
        return status

    def output(self) -> str:
        """Return what the client printed, such as a stack trace; normally nothing."""
        if self.log_file.exists():
            return self.log_file.read_text(encoding="utf-8", errors="replace")
        return self._host.output()

    def close(self) -> None:
        """End the client: with its host, if it still runs, since a thread cannot be killed."""
        if self.status is None:
            self._host.close()
