"""A server on this machine's loopback: start, stop, kill, pause, and restart on the same data.

A server lives as long as the process that started it: a keeper ends it, and removes temporary
data, however that process ends. A released server runs on without either.
"""

from __future__ import annotations

import abc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from instep import errors
from instep.local import keeper_client, paths, ports, processes
from instep.local.lifetime import Lifetime
from instep.waiting import wait_until

ATTEMPTS_ON_FREE_PORTS = 5
LOG_TAIL_LINES = 15
FULL_DISK_BYTES = 1 << 20


class Server(Lifetime):
    """One server on one port, with its data and its log below one folder."""

    name: ClassVar[str]
    stop_signal: ClassVar[int] = signal.SIGTERM
    end_signal: ClassVar[int] = signal.SIGKILL

    def __init__(
        self,
        *,
        port: int | None = None,
        root: Path | None = None,
        start_timeout_s: float = 120.0,
        stop_timeout_s: float = 30.0,
        tied: bool = True,
    ) -> None:
        """Describe the server.

        Without a port it takes a free one, and keeps it at later starts. Without a root its data is
        temporary. With `tied`, the kernel kills it when its keeper dies.
        """
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self._port = port
        self._port_was_given = port is not None
        self._has_answered = False
        self._root = root
        self._temporary = root is None
        self._tied = tied
        self._keeper: keeper_client.KeeperClient | None = None
        self._pid: int | None = None
        self._log_from = 0

    # --- what each kind of server implements ------------------------------------------------------

    @abc.abstractmethod
    def prepare(self) -> None:
        """Create the data that the server starts on, unless it exists."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """Return the program and its arguments."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether the server is ready. It may also raise an OSError while it is not."""

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """Return the address for clients."""

    @property
    def user(self) -> keeper_client.User | None:
        """Return the user that it runs as, if not the current one."""
        return None

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment of the process."""
        return os.environ

    def choose_ports(self) -> None:
        """Choose a free port, unless one was given or clients already know the current one."""
        if not self._port_is_fixed:
            self._port = ports.free()[0]

    # --- for users of a server --------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Return the port."""
        if self._port is None:
            raise errors.InstepError(f"{self.name} has no port yet", "start it first")
        return self._port

    @property
    def root(self) -> Path:
        """Return the folder of data and log."""
        if self._root is None:
            raise errors.InstepError(f"{self.name} has no data yet", "start it first")
        return self._root

    @property
    def log(self) -> Path:
        """Return the log file."""
        return self.root / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Return the process id of the server, or of the last one that ran."""
        if self._pid is None:
            raise errors.InstepError(f"{self.name} is not running", "start it first")
        return self._pid

    @property
    def alive(self) -> bool:
        """Return whether the server's process runs."""
        return (
            self._keeper is not None
            and self._keeper.alive
            and self._pid is not None
            and self._keeper.poll() is None
        )

    def start(self) -> None:
        """Start, on the former port and data if it ran before, and wait until it is ready."""
        if self.alive:
            return
        for _ in range(ATTEMPTS_ON_FREE_PORTS):
            self.launch()
            try:
                self.wait_ready()
            except errors.PortLost:
                if self._port_is_fixed and ports.taken(self.port):
                    raise
            else:
                return
        raise ports.refusal(self.port, self.name)

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        with paths.explained(self._root or Path(tempfile.gettempdir())):
            self._prepare_keeper()
        self.choose_ports()
        if self._port_is_fixed and ports.taken(self.port):
            raise ports.refusal(self.port, self.name)
        with paths.explained(self.root):
            self.prepare()
            self._run()

    def wait_ready(self) -> None:
        """Wait until the launched server is ready. Raise PortLost if its port was taken."""

        def is_ready() -> bool:
            if not self.alive:
                raise self._start_failure()
            try:
                return self.answers()
            except OSError:
                return False

        if wait_until(is_ready, self.start_timeout_s, interval_s=0.03):
            self._has_answered = True
            return
        self.kill()
        raise self._failure(
            f"{self.name} was not ready within {self.start_timeout_s:.0f} s and was ended"
        )

    def stop(self) -> None:
        """Stop it with its own signal; the data stays for the next start."""
        keeper = self._keeper
        if keeper is None or not self.alive:
            return
        keeper.thaw()
        keeper.signal(self.stop_signal)
        wait_until(lambda: keeper.poll() is not None, self.stop_timeout_s)
        keeper.kill()

    def kill(self) -> None:
        """Kill it and all its processes with SIGKILL, and wait until they have ended."""
        if self._keeper and self._keeper.alive:
            self._keeper.kill()

    def pause(self) -> None:
        """Freeze it, and wait until it has stopped: connections stay open, and nothing answers."""
        if self._keeper and self._keeper.alive and not self._keeper.freeze():
            self._keeper.thaw()
            raise not_paused(self.name)

    def resume(self) -> None:
        """Continue a paused server."""
        if self._keeper and self._keeper.alive:
            self._keeper.thaw()

    def close(self) -> None:
        """End it for good and remove temporary data."""
        if self._keeper:
            if not self._temporary and self._keeper.alive:
                self.stop()
            self._keeper.close()
            self._keeper = None
            if self._temporary:
                self._root = None

    def release(self) -> int:
        """Let it run on without this process; return its pid."""
        if self._keeper:
            self._keeper.leave()
            self._keeper = None
        return self.pid

    # --- internals --------------------------------------------------------------------------------

    def run_step(self, argv: Sequence[str], *, given: Path = Path(os.devnull)) -> None:
        """Run a program to its end, such as one that creates the data; it writes to the log."""
        if self._keeper is None:
            raise errors.InstepError(
                f"{self.name} cannot be prepared before it is started", "start it first"
            )
        self._mark_log()
        self._keeper.launch(
            argv, log=self.log, env=self.environment, cwd=self.root, user=self.user, given=given
        )
        while (status := self._keeper.poll()) is None:
            time.sleep(0.01)
        if status != 0:
            raise self._failure(f"{Path(argv[0]).name} for {self.name} ended with status {status}")

    def read_log(self) -> str:
        """Return what was logged since the last launch."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")

    @property
    def _port_is_fixed(self) -> bool:
        return self._port_was_given or self._has_answered

    def _prepare_keeper(self) -> None:
        """Create the folder and the keeper."""
        if self._root is None:
            base = Path(tempfile.gettempdir())
            if self.user:
                base = paths.open_temporary(base)
            self._root = Path(tempfile.mkdtemp(prefix=f"instep-{self.name}-", dir=base))
        self._root.mkdir(parents=True, exist_ok=True)
        if self.user:
            if not paths.lets_through(self._root.parent):
                raise errors.SettingsError(
                    f"root starts {self.name} as {self.user.name}, who cannot enter"
                    f" {self._root.parent}",
                    "choose a folder that every user can enter, or start it as a user other than"
                    " root",
                )
            os.chown(self._root, self.user.uid, self.user.gid)
        if self._keeper is None or not self._keeper.alive:
            if self._keeper:
                self._keeper.close()
            # Data that is removed anyway needs no clean shutdown.
            temporary, end_signal = None, self.stop_signal
            if self._temporary:
                temporary, end_signal = self._root, self.end_signal
            self._keeper = keeper_client.KeeperClient(
                temporary=temporary, end_signal=end_signal, tied=self._tied
            )

    def _run(self) -> None:
        if self._keeper is None:
            raise errors.InstepError(f"{self.name} has no keeper", "start it again")
        self._mark_log()
        self._pid = self._keeper.launch(
            self.command(), log=self.log, env=self.environment, cwd=self.root, user=self.user
        )

    def _start_failure(self) -> Exception:
        """Return why it ended while starting. Only its log says so."""
        if "Address already in use" in self.read_log():
            return errors.PortLost(
                f"a port of {self.name} was taken by another program while it started",
                "try again, or choose another port",
            )
        status = self._keeper.poll() if self._keeper else None
        return self._failure(f"{self.name} ended while starting (status {status})")

    def _failure(self, what: str) -> errors.InstepError:
        # On a full disk, even the log may not say so.
        if (
            paths.tells_full_disk(self.read_log())
            or shutil.disk_usage(self.root).free < FULL_DISK_BYTES
        ):
            return errors.InstepError(
                f"no space left for {self.name} below {self.root}",
                "free some space there, and start again",
            )
        lines = [line for line in self.read_log().splitlines() if line.strip()][-LOG_TAIL_LINES:]
        where = ""
        if not self._temporary:
            where = f"the complete log: {self.log}"
        shown = [f"{what}; the last lines of its log:", *(f"  {line}" for line in lines)]
        return errors.InstepError("\n".join(shown), where)

    def _mark_log(self) -> None:
        self._log_from = 0
        if self.log.exists():
            self._log_from = self.log.stat().st_size


def not_paused(name: str) -> errors.InstepError:
    """Return the error for a server that did not stop in time and was continued."""
    return errors.InstepError(
        f"{name} did not stop within {processes.STOP_TIMEOUT_S:.0f} s of SIGSTOP and was continued",
        f"it may be waiting for the disk: pause it again, or kill it: instep up kill {name}",
    )


def end(pid: int, mark: str, number: int, timeout_s: float) -> None:
    """End a released server with its own signal, or with SIGKILL if that takes too long."""
    if not processes.alive(pid, mark):
        return
    processes.thaw_tree(pid)
    processes.send(pid, number)
    if not processes.wait_gone(pid, mark, timeout_s):
        processes.kill_tree(pid)
