"""The keeper: a small process that starts one server and outlives the process that asked for it.

It reads commands, one JSON object per line, from a pipe whose other end only its owner has. When
the owner ends, however that happens, the pipe closes. The keeper then ends the server, removes its
temporary data and exits. If the keeper itself is killed, the kernel kills the server (Linux). Both
run in their own sessions, so Ctrl-C in the owner's terminal does not reach them.

    launch  start the process; its output is appended to a log
    poll    return its exit status, or null while it runs
    signal  send it a signal
    freeze  stop it and all below it with SIGSTOP; return whether all have stopped
    thaw    continue them
    kill    kill it and all below it with SIGKILL, and wait until they have ended
    leave   exit and let the process run on

This module uses the standard library only, because the keeper must start within a few hundredths of
a second. It therefore reads the process table itself, where `processes.py` uses psutil.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from instep.waiting import wait_until

PROC = Path("/proc")
KILL_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Keeper:
    """One kept process, the signal that ends it, and the temporary folder to remove then."""

    def __init__(self, end_signal: int, end_timeout_s: float, temporary: Path | None) -> None:
        self.end_signal = end_signal
        self.end_timeout_s = end_timeout_s
        self.temporary = temporary
        self.child: subprocess.Popen[bytes] | None = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Execute one command and return its answer."""
        match command["do"]:
            case "launch":
                return self.launch(command)
            case "poll":
                return {"returncode": self.child.poll() if self.child else None}
            case "signal":
                if self.child:
                    self.child.send_signal(command["signal"])
            case "freeze":
                return {"stopped": self.freeze()}
            case "thaw":
                for pid in reversed(self.tree()):
                    _send(pid, signal.SIGCONT)
            case "kill":
                self.kill()
        return {}

    def launch(self, command: dict[str, Any]) -> dict[str, Any]:
        """Start the process; return its pid, or the error."""
        keeper_pid = os.getpid()

        def tie() -> None:
            """Have the kernel kill the process when the keeper dies."""
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
        """Return the server's processes, its first one in front.

        As a subreaper (Linux) the keeper is the new parent of orphans, so it finds them too.
        """
        root = os.getpid()
        if self.child and not LIBC:
            root = self.child.pid
        first = []
        if self.child and self.child.poll() is None:
            first = [self.child.pid]
        return first + [pid for pid in _descendants(root) if pid not in first]

    def freeze(self) -> bool:
        """Stop all processes with SIGSTOP; return False if one has not stopped in time."""
        frozen: list[int] = []
        while new := [pid for pid in self.tree() if pid not in frozen]:
            for pid in new:
                _send(pid, signal.SIGSTOP)
            frozen += new
        return wait_until(
            lambda: all(_has_stopped(pid) for pid in frozen), STOP_TIMEOUT_S, interval_s=0.005
        )

    def kill(self) -> None:
        """Kill all processes with SIGKILL, and wait until they have ended."""

        def all_killed() -> bool:
            tree = self.tree()
            for pid in tree:
                _send(pid, signal.SIGKILL)
            self.reap()
            return not tree

        wait_until(all_killed, KILL_TIMEOUT_S, interval_s=0.005)

    def reap(self) -> None:
        """Reap processes that have ended.

        The server is reaped by its own `poll`, so that its exit status stays known.
        """
        if self.child:
            self.child.poll()
        if not LIBC:
            return
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if self.child and ended.si_pid == self.child.pid:
                    self.child.poll()
                else:
                    os.waitpid(ended.si_pid, os.WNOHANG)

    def end(self) -> None:
        """End the server, first with its own signal, and clean up."""
        if self.child and self.end_signal != signal.SIGKILL and self.child.poll() is None:
            for pid in self.tree():
                _send(pid, signal.SIGCONT)
            self.child.send_signal(self.end_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(self.end_timeout_s)
        self.kill()
        if self.temporary:
            shutil.rmtree(self.temporary, ignore_errors=True)


def serve(keeper: Keeper, commands: int, answers: int) -> None:
    """Answer commands until the pipe closes, SIGTERM arrives or the command is `leave`."""
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
    """Run the keeper.

    Arguments: the signal that ends the server, how many seconds it has for that, and the temporary
    folder or an empty string.
    """
    if LIBC:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    end_signal, end_timeout_s, temporary = arguments
    folder = Path(temporary) if temporary else None
    serve(Keeper(int(end_signal), float(end_timeout_s), folder), 0, 1)


# --- the process table ----------------------------------------------------------------------------


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Return the living processes below a pid, nearest first."""
    children: dict[int, list[int]] = {}
    for child, parent, state in _processes():
        if state not in "ZX":
            children.setdefault(parent, []).append(child)
    found: list[int] = []
    level = children.get(pid, [])
    while level:
        found += level
        level = [below for child in level for below in children.get(child, [])]
    return found


def _has_stopped(pid: int) -> bool:
    """Return whether a process is stopped or has ended."""
    states = [state for found, _, state in _processes() if found == pid]
    return not states or states[0] in "TtZX"


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield pid, parent's pid and state of every process."""
    if not PROC.joinpath("self/stat").exists():  # macOS
        command = ["/bin/ps", "-A", "-o", "pid=,ppid=,state="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in listed.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state[0]
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            # The command, in brackets, may itself contain blanks and brackets.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                fields = text.rpartition(") ")[2].split()
                state = fields[0]
                # A zombie has ended when its last thread has: until then it holds its ports.
                if state == "Z" and int(fields[17]) > 1:
                    state = "R"
                yield int(entry.name), int(fields[1]), state
