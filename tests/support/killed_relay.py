"""`instep relay run --once` in a process of its own that is killed with SIGKILL at a step.

A step is the beginning or the end of a call, and the number of that call: `before commit 2`.
"""

from __future__ import annotations

import os
import runpy
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from instep.kafka.record_writer import RecordWriter
from instep.sources.id_reader import IdReader
from instep.sources.snapshot_reader import SnapshotReader
from tests.support import commands

ROOT = Path(__file__).parents[2]
READERS = (IdReader, SnapshotReader)
OWNERS: dict[str, tuple[type[Any], ...]] = {
    "add": (RecordWriter,),
    "settle": (RecordWriter,),
    "commit": (RecordWriter,),
    "next": READERS,
    "done": READERS,
}
PROGRAM = "from tests.support import killed_relay; killed_relay.run({!r})"


def run_killed(folder: Path, step: str) -> int:
    """Run the relay of a folder until it is killed at the step; return its exit status."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    arguments = ("relay", "run", "--once")
    environment = {**os.environ, "PYTHONPATH": path}
    return commands.run(
        arguments, cwd=folder, env=environment, program=PROGRAM.format(step)
    ).returncode


def run(step: str) -> None:
    """Run the command of this process; be killed at the step."""
    place, method, number = step.split()
    for owner in OWNERS[method]:
        setattr(owner, method, _killing(getattr(owner, method), place, int(number)))
    runpy.run_module("instep", run_name="__main__", alter_sys=True)


def _killing(call: Callable[..., Any], place: str, number: int) -> Callable[..., Any]:
    left = number

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if place == "before" and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*arguments, **options)
        if place == "after" and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return counted
