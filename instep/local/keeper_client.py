"""The owner's side of a keeper: start it, send commands to it, close it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import instep
from instep import errors

_OWNED: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


@dataclass(frozen=True)
class User:
    """The user that a server runs as, if it must not run as root."""

    name: str
    uid: int
    gid: int


class KeeperClient:
    """One keeper process. It ends its server when this object is closed or this process ends."""

    def __init__(
        self,
        *,
        temporary: Path | None = None,
        end_signal: int = signal.SIGKILL,
        end_timeout_s: float = 5.0,
        tied: bool = True,
    ) -> None:
        self._tied = tied
        self._lock = threading.Lock()  # one command and its answer at a time
        package_root = str(Path(instep.__file__).parent.parent)
        code = (
            f"import sys; sys.path.insert(0, {package_root!r});"
            " from instep.local import keeper; keeper.main(sys.argv[1:])"
        )
        arguments = [str(int(end_signal)), str(end_timeout_s), str(temporary or "")]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        _OWNED.add(self._process)
        self._finalizer = weakref.finalize(self, _close, self._process)

    @property
    def pid(self) -> int:
        """Return the process id of the keeper."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the keeper runs."""
        return self._process.poll() is None

    def launch(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: User | None = None,
        given: Path = Path(os.devnull),
    ) -> int:
        """Start a process that reads a file and appends to the log; return its pid."""
        answer = self._request(
            do="launch",
            argv=list(argv),
            log=str(log),
            input=str(given),
            env=dict(os.environ if env is None else env),
            cwd=str(cwd or log.parent),
            uid=user.uid if user else None,
            gid=user.gid if user else None,
            tied=self._tied,
        )
        if "pid" not in answer:
            raise OSError(answer["errno"], answer["strerror"])
        return int(answer["pid"])

    def poll(self) -> int | None:
        """Return the exit status of the process, negative for a signal; None while it runs."""
        returncode = self._request(do="poll")["returncode"]
        return None if returncode is None else int(returncode)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._request(do="signal", signal=int(number))

    def freeze(self) -> bool:
        """Stop the process and all below it; return False if one has not stopped in time."""
        return bool(self._request(do="freeze")["stopped"])

    def thaw(self) -> None:
        """Continue the process and all below it."""
        self._request(do="thaw")

    def kill(self) -> None:
        """Kill the process and all below it, and wait until they have ended."""
        self._request(do="kill")

    def leave(self) -> None:
        """Let the process run on without a keeper."""
        self._request(do="leave")
        self.close()

    def close(self) -> None:
        """End the process, remove the temporary folder, and wait until that is done."""
        self._finalizer()

    def _request(self, **command: object) -> dict[str, Any]:
        with self._lock:
            process = self._process
            if process.stdin is None or process.stdout is None or process.stdin.closed:
                raise errors.InstepError(
                    "the keeper of a local server is already closed", "start the server again"
                )
            message = json.dumps(command).encode() + b"\n"
            try:
                while message:
                    message = message[process.stdin.write(message) :]
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
        if not line:
            raise errors.InstepError(
                f"the keeper of a local server (pid {process.pid}) has ended",
                "start the server again",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def _close(process: subprocess.Popen[bytes]) -> None:
    _close_pipes(process)
    process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def _disown_in_fork() -> None:
    """Close the pipes in a forked process: otherwise keepers would not see their owner end."""
    for process in list(_OWNED):
        _close_pipes(process)
        process.returncode = 0


os.register_at_fork(after_in_child=_disown_in_fork)
