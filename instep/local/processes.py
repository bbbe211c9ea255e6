"""Processes told apart for certain: a pid together with its start time, and the tree below a pid.

A pid alone may belong to a stranger by the time it is used. Standard library only, and quick to import:
the keeper uses it too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")
STOP_TIMEOUT_S = 10.0


def start_mark(pid: int) -> str | None:
    """What no later process with the same pid has: boot and start time; None when no such process lives."""
    if not PROC.joinpath("self/stat").exists():
        return _ps_start(pid)
    stat = _stat(pid)
    if stat is None or _is_over(stat):
        return None
    boot = PROC.joinpath("sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {stat[19]}"


def alive(pid: int, mark: str | None = None) -> bool:
    """Whether the process lives (a zombie does not), and is the one that carried the mark when one is given."""
    found = start_mark(pid)
    return found is not None and (mark is None or found == mark)


def paused(pid: int) -> bool:
    """Whether the process is stopped, as by SIGSTOP."""
    if not PROC.joinpath("self/stat").exists():
        return any(line.startswith("T") for line in _ps("-p", str(pid), "-o", "state="))
    stat = _stat(pid)
    return stat is not None and stat[0] in "Tt"


def descendants(pid: int) -> list[int]:
    """The living processes below a pid, nearest first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    level = children.get(pid, [])
    while level:
        found += level
        level = [below for child in level for below in children.get(child, [])]
    return found


def send(pid: int, number: int) -> bool:
    """Signal one process; False when it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def freeze_tree(pid: int) -> bool:
    """SIGSTOP a process and all below it; False when one of them still runs after STOP_TIMEOUT_S."""
    return freeze(lambda: [pid, *descendants(pid)])


def freeze(tree: Callable[[], list[int]]) -> bool:
    """SIGSTOP the processes that `tree` lists, until it lists no new one, and wait until they have stopped.

    The signal is only noted at first: a process stops when it next runs, or returns from the kernel.
    """
    frozen: list[int] = []
    while fresh := [one for one in tree() if one not in frozen]:
        for one in fresh:
            send(one, signal.SIGSTOP)
        frozen += fresh
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(alive(one) and not paused(one) for one in frozen):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def thaw_tree(pid: int) -> None:
    """SIGCONT a process and all below it; the first one last, so that it finds its children at work."""
    for one in (*reversed(descendants(pid)), pid):
        send(one, signal.SIGCONT)


def kill_tree(pid: int, timeout_s: float = 10.0) -> None:
    """SIGKILL a process and all below it, and wait until none of them lives."""
    deadline = time.monotonic() + timeout_s
    # PostgreSQL's children lead process groups of their own, so a group's id does not reach them. The root is
    # stopped first: it then starts no further child between the look and the blow.
    send(pid, signal.SIGSTOP)
    doomed = [pid, *descendants(pid)]
    while living := [one for one in doomed if alive(one)]:
        for one in living:
            send(one, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)


def wait_gone(pid: int, mark: str | None, timeout_s: float) -> bool:
    """Wait until the process is gone; False when it still lives after the time."""
    deadline = time.monotonic() + timeout_s
    while alive(pid, mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the command before it may hold blanks and brackets."""
    try:
        return (
            PROC.joinpath(str(pid), "stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(") ")[2]
            .split()
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def _is_over(stat: list[str]) -> bool:
    """A zombie is over when its last thread is: until then it holds its ports and files."""
    return stat[0] in "ZX" and int(stat[17]) <= 1


def _parents() -> list[tuple[int, int]]:
    """(pid, parent's pid) of every living process."""
    if PROC.joinpath("self/stat").exists():
        pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
        stats = [(pid, _stat(pid)) for pid in pids]
        return [
            (pid, int(stat[1])) for pid, stat in stats if stat is not None and not _is_over(stat)
        ]
    rows = [line.split() for line in _ps("-A", "-o", "pid=,ppid=,state=")]
    return [(int(row[0]), int(row[1])) for row in rows if not row[2].startswith("Z")]


def _ps_start(pid: int) -> str | None:
    rows = _ps("-p", str(pid), "-o", "state=,lstart=")
    return None if not rows or rows[0].startswith("Z") else rows[0].split(maxsplit=1)[1]


def _ps(*arguments: str) -> list[str]:
    run = subprocess.run(
        ["/bin/ps", *arguments], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
    )
    return [line.strip() for line in run.stdout.splitlines() if line.strip()]
