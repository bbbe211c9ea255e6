"""Commands that take long run as processes of their own: progress as they print it, then JSON.

A reconciliation starts Spark. In a process of its own, it cannot harm the console, and its JVM ends
with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from instep import errors
from instep.local import paths

LINES_MAX = 200
KEPT_MAX = 50
RUNNING_MAX = 2
PATIENCE_S = 20.0


class CommandRun:
    """One command that was started from the console."""

    def __init__(
        self, name: str, pipeline: str, actor: str, command: str, arguments: Sequence[str]
    ) -> None:
        """Start it as this person: decisions that it keeps name them."""
        self.id, self.name, self.pipeline, self.actor = uuid.uuid4().hex, name, pipeline, actor
        self.command, self.started_at = command, datetime.now(UTC)
        self.ended_at: datetime | None = None
        self.status: int | None = None
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        self.changes = 0
        self._output = b""
        # The command asks the environment who runs it.
        environment = {**paths.python_environment(), "LOGNAME": actor, "USER": actor}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "instep", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def is_running(self) -> bool:
        return self.ended_at is None

    def result(self) -> Any:
        """Return the JSON that it printed; None if it printed none."""
        try:
            return msgspec.json.decode(self._output)
        except msgspec.DecodeError:
            return None

    def stop(self) -> None:
        """Interrupt it, as Ctrl-C does."""
        self._signal(signal.SIGINT)

    def end(self) -> None:
        """Interrupt it, wait a while, and then kill it."""
        self.stop()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the command and what it started, unless it has just ended."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            self._output = stream.read()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self.lines.append(line.decode("utf-8", "replace").rstrip())
                self.changes += 1
        self._reader.join()
        self.status = self._process.wait()
        self.ended_at = datetime.now(UTC)
        self.changes += 1


class CommandRuns:
    """The commands that were started from the console, newest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[CommandRun] = []

    def start(
        self, name: str, pipeline: str, actor: str, command: str, arguments: Sequence[str]
    ) -> CommandRun:
        """Start a command; raise if enough of them are running."""
        with self._lock:
            if sum(run.is_running for run in self._runs) >= RUNNING_MAX:
                raise errors.SettingsError(
                    f"{RUNNING_MAX} commands are running already, each with a Spark of its own",
                    "wait until one has ended, or stop it",
                )
            run = CommandRun(name, pipeline, actor, command, arguments)
            kept = [one for one in self._runs if one.is_running][:KEPT_MAX]
            ended = [one for one in self._runs if not one.is_running][: KEPT_MAX - len(kept)]
            self._runs = sorted([run, *kept, *ended], key=lambda one: one.started_at, reverse=True)
        return run

    def of(self, pipeline: str) -> list[CommandRun]:
        """Return the runs for a pipeline, newest first."""
        with self._lock:
            return [run for run in self._runs if run.pipeline == pipeline]

    def find(self, name: str) -> CommandRun:
        """Return a run by its id."""
        with self._lock:
            for run in self._runs:
                if run.id == name:
                    return run
        raise errors.SettingsError(
            "this run is not known: the console was started again since, or has forgotten it",
            "start it again",
        )

    def end(self) -> None:
        """Interrupt what still runs."""
        with self._lock:
            runs = [run for run in self._runs if run.is_running]
        for run in runs:
            run.end()
