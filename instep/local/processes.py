"""Identify, list, freeze and end processes.

A pid alone may belong to another process by the time it is used. A start mark, which no later
process with the same pid has, makes sure that it is the same one.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from instep.waiting import wait_until

# psutil knows the time of the boot, which moves with the clock, but not this id.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STOP_TIMEOUT_S = 10.0


def start_mark(pid: int) -> str | None:
    """Return boot and start time of a process, or None if no such process is alive."""
    process = _living(pid)
    if process is None:
        return None
    try:
        # Counted from the boot: a change of the machine's clock would move the absolute time.
        boot_time = psutil.boot_time()
        since_boot_s = process.create_time() - boot_time
    except psutil.NoSuchProcess:
        return None
    boot = BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else f"{boot_time:.0f}"
    return f"{boot} {round(since_boot_s * os.sysconf('SC_CLK_TCK'))}"


def alive(pid: int, mark: str | None = None) -> bool:
    """Return whether a process is alive (a zombie is not) and, with a mark, the same one."""
    if mark is None:
        return _living(pid) is not None
    return start_mark(pid) == mark


def paused(pid: int) -> bool:
    """Return whether the process is stopped, as by SIGSTOP."""
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def descendants(pid: int) -> list[int]:
    """Return the living processes below a pid, parents before their children."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child.pid for child in children if not _is_over(child)]


def send(pid: int, number: int) -> bool:
    """Send a signal to one process; return False if it no longer exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def freeze_tree(pid: int) -> bool:
    """Stop a process and all below it with SIGSTOP; return False if one has not stopped in time.

    A signal only requests the stop: a process stops when it next runs, or returns from the kernel.
    """
    frozen: list[int] = []
    while new := [found for found in (pid, *descendants(pid)) if found not in frozen]:
        for found in new:
            send(found, signal.SIGSTOP)
        frozen += new
    return wait_until(
        lambda: all(paused(found) or not alive(found) for found in frozen),
        STOP_TIMEOUT_S,
        interval_s=0.005,
    )


def thaw_tree(pid: int) -> None:
    """Continue a process and all below it with SIGCONT, children before their parents."""
    for found in (*reversed(descendants(pid)), pid):
        send(found, signal.SIGCONT)


def kill_tree(pid: int, timeout_s: float = 10.0) -> None:
    """Kill a process and all below it with SIGKILL, and wait until none of them is alive."""
    # PostgreSQL's children lead their own process groups, so the group's id does not reach
    # them. Stop the root first, so that it starts no further child meanwhile.
    send(pid, signal.SIGSTOP)
    tree = [pid, *descendants(pid)]

    def all_killed() -> bool:
        living = [found for found in tree if alive(found)]
        for found in living:
            send(found, signal.SIGKILL)
        return not living

    wait_until(all_killed, timeout_s, interval_s=0.01)


def wait_gone(pid: int, mark: str | None, timeout_s: float) -> bool:
    """Wait until the process has ended; return False if it is still alive after the time."""
    return wait_until(lambda: not alive(pid, mark), timeout_s)


def _living(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return None if _is_over(process) else process


def _is_over(process: psutil.Process) -> bool:
    """Return whether a process has ended.

    A zombie has ended when its last thread has: until then it holds its ports and files.
    """
    try:
        if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        return process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True
