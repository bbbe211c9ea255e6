"""A real server on this machine's loopback: started, stopped, killed, paused, and started again on its data.

A server lives as long as the process that started it: a keeper ends it, and removes its data when that was
temporary, however that process dies. A released server lives on without either.
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
from types import TracebackType
from typing import ClassVar, Self

from instep import errors
from instep.local import keeper_client, paths, ports, processes

ATTEMPTS_ON_FREE_PORTS = 5
LOG_TAIL_LINES = 15
FULL_DISK_BYTES = 1 << 20


class PortLost(errors.SettingsError):
    """Between being found free and being bound, the port went to another program."""


class Server(abc.ABC):
    """One server process (with what it starts) on one port, its data and its log below one folder."""

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
        """Without a port a free one is taken, and kept at later starts; without a root the data is temporary."""
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

    # --- what a kind of server says of itself ---------------------------------------------------------

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make the data on which the server can start, unless it is there already."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Whether the server does its work now; False or an OSError while it does not."""

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """What a client needs to find it."""

    @property
    def user(self) -> keeper_client.User | None:
        """Whom it runs as, when not as the one who starts it."""
        return None

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    def choose_ports(self) -> None:
        """Take a free port, unless one was given or clients know the server by the one it has."""
        if not self._port_is_fixed:
            self._port = ports.free()[0]

    # --- what one may ask of it -----------------------------------------------------------------------

    @property
    def port(self) -> int:
        if self._port is None:
            raise errors.InstepError(f"{self.name} has no port yet", "start it first")
        return self._port

    @property
    def root(self) -> Path:
        """The folder that holds data and log."""
        if self._root is None:
            raise errors.InstepError(f"{self.name} has no data yet", "start it first")
        return self._root

    @property
    def log(self) -> Path:
        return self.root / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """The process id of the server, or of the last one that ran."""
        if self._pid is None:
            raise errors.InstepError(f"{self.name} is not running", "start it first")
        return self._pid

    @property
    def alive(self) -> bool:
        return (
            self._keeper is not None
            and self._keeper.alive
            and self._pid is not None
            and self._keeper.poll() is None
        )

    def start(self) -> None:
        """Start on the same port and data as before, if there was a before, and return when the server answers."""
        if self.alive:
            return
        for _ in range(ATTEMPTS_ON_FREE_PORTS):
            self.launch()
            try:
                self.wait_ready()
            except PortLost:
                if self._port_is_fixed and ports.taken(self.port):
                    raise
            else:
                return
        raise ports.refusal(self.port, self.name)

    def launch(self) -> None:
        """Start the process without waiting for answers."""
        with paths.explained(self._root or Path(tempfile.gettempdir())):
            self._settle()
        self.choose_ports()
        if self._port_is_fixed and ports.taken(self.port):
            raise ports.refusal(self.port, self.name)
        with paths.explained(self.root):
            self.prepare()
            self._run()

    def wait_ready(self) -> None:
        """Return when the launched server answers; PortLost when another program was quicker."""
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if not self.alive:
                raise self._death()
            try:
                if self.answers():
                    self._has_answered = True
                    return
            except OSError:
                pass
            time.sleep(0.03)
        self.kill()
        raise self._failure(
            f"{self.name} gave no answer within {self.start_timeout_s:.0f} s of its start and was ended"
        )

    def stop(self) -> None:
        """End it as it likes to be ended; the data stays for the next start."""
        if self._keeper is None or not self.alive:
            return
        self._keeper.thaw()
        self._keeper.signal(self.stop_signal)
        deadline = time.monotonic() + self.stop_timeout_s
        while self._keeper.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._keeper.kill()

    def kill(self) -> None:
        """SIGKILL it with all its processes, and return when they are gone."""
        if self._keeper and self._keeper.alive:
            self._keeper.kill()

    def pause(self) -> None:
        """Freeze it, and return when it has stopped: connections stay open and nothing answers."""
        if self._keeper and self._keeper.alive and not self._keeper.freeze():
            self._keeper.thaw()
            raise not_paused(self.name)

    def resume(self) -> None:
        if self._keeper and self._keeper.alive:
            self._keeper.thaw()

    def close(self) -> None:
        """End it for good; temporary data goes with it."""
        if self._keeper:
            if not self._temporary and self._keeper.alive:
                self.stop()
            self._keeper.close()
            self._keeper = None
            if self._temporary:
                self._root = None

    def release(self) -> int:
        """Let it run on without this process, and return its pid."""
        if self._keeper:
            self._keeper.leave()
            self._keeper = None
        return self.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- how ------------------------------------------------------------------------------------------

    def run_step(self, argv: Sequence[str], *, given: Path = Path(os.devnull)) -> None:
        """Run a program to its end, such as the one that makes an empty data folder; its output is in the log."""
        if self._keeper is None:
            raise errors.InstepError(
                f"{self.name} cannot be prepared before it is started", "start it"
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
        """What was logged since the last launch."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode(errors="replace")

    @property
    def _port_is_fixed(self) -> bool:
        return self._port_was_given or self._has_answered

    def _settle(self) -> None:
        """A keeper and a folder to live in."""
        if self._root is None:
            base = Path(tempfile.gettempdir())
            base = paths.open_temporary(base) if self.user else base
            self._root = Path(tempfile.mkdtemp(prefix=f"instep-{self.name}-", dir=base))
        self._root.mkdir(parents=True, exist_ok=True)
        if self.user:
            if not paths.lets_through(self._root.parent):
                raise errors.SettingsError(
                    f"root starts {self.name} as {self.user.name}, who cannot enter {self._root.parent}",
                    "choose a folder that every user can enter, or start it as another user than root",
                )
            os.chown(self._root, self.user.uid, self.user.gid)
        if self._keeper is None or not self._keeper.alive:
            if self._keeper:
                self._keeper.close()
            self._keeper = keeper_client.KeeperClient(
                temporary=self._root if self._temporary else None,
                end_signal=self.end_signal if self._temporary else self.stop_signal,
                tied=self._tied,
            )

    def _run(self) -> None:
        if self._keeper is None:
            raise errors.InstepError(f"{self.name} has no keeper", "start it again")
        self._mark_log()
        self._pid = self._keeper.launch(
            self.command(), log=self.log, env=self.environment, cwd=self.root, user=self.user
        )

    def _death(self) -> Exception:
        """Why it ended while starting. Servers tell so in their logs alone."""
        if "Address already in use" in self.read_log():
            return PortLost(
                f"a port of {self.name} was taken by another program while it started",
                "try again, or choose another port",
            )
        return self._failure(
            f"{self.name} ended while starting (status {self._keeper.poll() if self._keeper else None})"
        )

    def _failure(self, what: str) -> errors.InstepError:
        # On a full disk the log may have had no room for saying so.
        if (
            paths.tells_full_disk(self.read_log())
            or shutil.disk_usage(self.root).free < FULL_DISK_BYTES
        ):
            return errors.InstepError(
                f"no space left for {self.name} below {self.root}",
                "free some space there, and start again",
            )
        lines = [line for line in self.read_log().splitlines() if line.strip()][-LOG_TAIL_LINES:]
        where = "" if self._temporary else f"the whole log: {self.log}"
        return errors.InstepError(
            "\n".join([f"{what}; its log's last lines:", *(f"  {line}" for line in lines)]), where
        )

    def _mark_log(self) -> None:
        self._log_from = self.log.stat().st_size if self.log.exists() else 0


def not_paused(name: str) -> errors.InstepError:
    """What is raised when a server did not stop on SIGSTOP in time; it is left running."""
    return errors.InstepError(
        f"{name} did not stop within {processes.STOP_TIMEOUT_S:.0f} s of SIGSTOP and was let go on",
        f"it may be waiting for the disk: pause it again, or kill it: instep up kill {name}",
    )


def end(pid: int, mark: str, number: int, timeout_s: float) -> None:
    """End a released server: by its signal, and by SIGKILL when it does not go in time."""
    if not processes.alive(pid, mark):
        return
    processes.thaw_tree(pid)
    processes.send(pid, number)
    if not processes.wait_gone(pid, mark, timeout_s):
        processes.kill_tree(pid)
