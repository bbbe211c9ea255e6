"""When each range of offsets was begun, opened and committed, as recorded by the pipeline's tasks.

`note` is the probe that tasks call; the benchmark reads its files. It appends to one file per
process, so that a kill -9 loses no written line. Times are from the monotonic clock, which all
processes of the machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from instep.pipeline.apply.batch import ProbeEvent

PROBE = "instep_bench.commit_log:note"
FOLDER = "INSTEP_BENCH_NOTES"

BEGAN, OPENED, COMMITTED = 0, 1, 9

_file: tuple[int, int] | None = None  # process id and file descriptor


class CommitTimes(msgspec.Struct, frozen=True):
    """One transaction of a partition: when its task began, when it opened and when it committed."""

    partition: int
    first: int
    last: int
    began_ns: int
    opened_ns: int
    committed_ns: int


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables that turn on the recording of a pipeline."""
    return {"INSTEP_PROBE": PROBE, FOLDER: str(folder)}


def note(moment: ProbeEvent) -> None:
    """Write a line when a task begins, when a transaction opens and when it has committed."""
    if moment.step in (BEGAN, OPENED, COMMITTED):
        line = (
            f"{moment.step} {time.monotonic_ns()} {moment.partition} {moment.first} {moment.last}\n"
        )
        os.write(_descriptor(), line.encode())


def _descriptor() -> int:
    """Return the descriptor of this process's file; forked workers do not share their parent's."""
    global _file
    if _file is None or _file[0] != os.getpid():
        path = Path(os.environ[FOLDER]) / f"{os.getpid()}-{time.monotonic_ns()}.notes"
        _file = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return _file[1]


def read(folder: Path, since_ns: int = 0) -> list[CommitTimes]:
    """Return every commit recorded so far, in order of time.

    Only processes whose file was created at or after `since_ns` are included.
    """
    files = [
        path for path in folder.glob("*.notes") if int(path.stem.partition("-")[2]) >= since_ns
    ]
    found = [
        commit
        for path in files
        for commit in commits(path.read_text(encoding="ascii").splitlines())
    ]
    return sorted(found, key=lambda commit: commit.committed_ns)


def commits(lines: Iterable[str]) -> list[CommitTimes]:
    """Return the commits of one process.

    A retried transaction counts from its first attempt. Incomplete lines are ignored.
    """
    found: list[CommitTimes] = []
    began_ns = 0
    opened: dict[tuple[int, int, int], int] = {}
    for line in lines:
        fields = line.split()
        if len(fields) != 5:
            continue
        step, at_ns, partition, first, last = map(int, fields)
        if step == BEGAN:
            began_ns = at_ns
            # A task that failed may have left a transaction open; this one opens its own.
            opened.clear()
        elif step == OPENED:
            opened.setdefault((partition, first, last), at_ns)
        else:
            opened_ns = opened.pop((partition, first, last), at_ns)
            found.append(
                CommitTimes(partition, first, last, began_ns or opened_ns, opened_ns, at_ns)
            )
    return found
