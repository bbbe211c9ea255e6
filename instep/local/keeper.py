"""The keeper: a small process that starts one server and outlives whoever asked for it.

It reads commands, one JSON object per line, from a pipe whose other end only its owner has. When the owner
is gone, by whatever death, the pipe ends; the keeper then ends the server, removes its temporary data and
exits. When the keeper itself is killed, the kernel kills the server (Linux). Both run in sessions of their own,
so Ctrl-C in the owner's terminal does not reach them.

    launch  start the process; its output is added to a log
    poll    its exit status, or null while it runs
    signal  send it a signal
    freeze  stop it and all below it, as SIGSTOP does; says whether all have stopped
    thaw    let them go on
    kill    SIGKILL it and all below it, and wait until they are gone
    leave   exit and let it run on

Standard library only: it must be there in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from instep.local import processes

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Keeper:
    """One kept process, its end, and the folder that goes with it."""

    def __init__(self, end_signal: int, end_timeout_s: float, temporary: Path | None) -> None:
        self.end_signal = end_signal
        self.end_timeout_s = end_timeout_s
        self.temporary = temporary
        self.child: subprocess.Popen[bytes] | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do one command."""
        match command["do"]:
            case "launch":
                return self.launch(command)
            case "poll":
                return {"returncode": self.child.poll() if self.child else None}
            case "signal":
                if self.child:
                    self.child.send_signal(command["signal"])
            case "freeze":
                return {"stopped": processes.freeze(self.tree)}
            case "thaw":
                for pid in reversed(self.tree()):
                    processes.send(pid, signal.SIGCONT)
            case "kill":
                self.kill()
        return {}

    def launch(self, command: dict[str, Any]) -> dict[str, Any]:
        keeper_pid = os.getpid()

        def tie() -> None:
            if LIBC:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != keeper_pid:
                    os._exit(1)

        try:
            with Path(command["log"]).open("ab") as log, Path(command["input"]).open("rb") as given:
                self.child = subprocess.Popen(
                    command["argv"],
                    stdin=given,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=command["cwd"],
                    env=command["env"],
                    start_new_session=True,
                    user=command["uid"],
                    group=command["gid"],
                    extra_groups=None if command["uid"] is None else [],
                    preexec_fn=tie if command["tied"] else None,
                )
        except OSError as error:
            return {"errno": error.errno, "strerror": f"{error.strerror}: {error.filename}"}
        return {"pid": self.child.pid}

    def tree(self) -> list[int]:
        """The server's processes, its first one in front. As subreaper the keeper also finds orphans below itself."""
        below = processes.descendants(
            os.getpid() if LIBC else self.child.pid if self.child else os.getpid()
        )
        first = [self.child.pid] if self.child and self.child.poll() is None else []
        return first + [pid for pid in below if pid not in first]

    def kill(self) -> None:
        deadline = time.monotonic() + 10
        while (tree := self.tree()) and time.monotonic() < deadline:
            for pid in tree:
                processes.send(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.005)

    def reap(self) -> None:
        """Take in the dead: the server by its own wait, so that its exit status stays known, and orphans by theirs."""
        if self.child:
            self.child.poll()
        if not LIBC:
            return
        with contextlib.suppress(ChildProcessError):
            while (
                found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if self.child and found.si_pid == self.child.pid:
                    self.child.poll()
                else:
                    os.waitpid(found.si_pid, os.WNOHANG)

    def end(self) -> None:
        """The owner is gone, or has finished: end the server, first as it likes to be ended, and clean up."""
        if self.child and self.end_signal != signal.SIGKILL and self.child.poll() is None:
            for pid in self.tree():
                processes.send(pid, signal.SIGCONT)
            self.child.send_signal(self.end_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(self.end_timeout_s)
        self.kill()
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)


def serve(keeper: Keeper, commands: int, answers: int) -> None:
    """Answer commands until the pipe ends, SIGTERM comes or the keeper is told to leave."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    buffered = b""
    while True:
        ready, _, _ = select.select([commands, wake], [], [])
        if wake in ready and signal.SIGTERM in os.read(wake, 4096):
            break
        keeper.reap()
        if commands not in ready:
            continue
        read = os.read(commands, 65536)
        if not read:
            break
        buffered += read
        while b"\n" in buffered:
            line, _, buffered = buffered.partition(b"\n")
            command = json.loads(line)
            answer = keeper.answer(command)
            with contextlib.suppress(BrokenPipeError):
                os.write(answers, json.dumps(answer).encode() + b"\n")
            if command["do"] == "leave":
                return
    keeper.end()


def main(arguments: list[str]) -> None:
    """Arguments: the signal that ends the server, the seconds it has for it, and the temporary folder or ''."""
    if LIBC:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    end_signal, end_timeout_s, temporary = arguments
    serve(
        Keeper(int(end_signal), float(end_timeout_s), Path(temporary) if temporary else None), 0, 1
    )
