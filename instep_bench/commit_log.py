"""When each range of offsets was begun, opened and committed, as recorded by the tasks of a run.

`note` is the probe that tasks call; the benchmark reads its files. It appends to one file per
process, so that a kill -9 loses no written line. A resident task works on several pipelines at
once, so their lines are mixed, and each names its pipeline. Times are from the monotonic clock,
which all processes of the machine share.
"""

from __future__ import annotations

import os
import threading
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
NUMBERS = 5  # in a line, before the name of the pipeline

_opening = threading.Lock()  # the pipelines of a task note from threads of their own
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
    """Return the environment variables that turn on the recording of a run."""
    return {"INSTEP_PROBE": PROBE, FOLDER: str(folder)}


def note(moment: ProbeEvent) -> None:
    """Write a line when a task begins, when a transaction opens and when it has committed."""
    if moment.step in (BEGAN, OPENED, COMMITTED):
        numbers = (
            f"{moment.step} {time.monotonic_ns()} {moment.partition} {moment.first} {moment.last}"
        )
        os.write(_descriptor(), f"{numbers} {moment.pipeline}\n".encode())


def _descriptor() -> int:
    """Return the descriptor of this process's file; forked workers do not share their parent's."""
    global _file
    with _opening:
        if _file is None or _file[0] != os.getpid():
            path = Path(os.environ[FOLDER]) / f"{os.getpid()}-{time.monotonic_ns()}.notes"
            _file = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return _file[1]


def read(folder: Path, pipeline: str, since_ns: int = 0) -> list[CommitTimes]:
    """Return every commit of a pipeline recorded so far, in order of time.

    Only processes whose file was created at or after `since_ns` are included.
    """
    files = [
        path for path in folder.glob("*.notes") if int(path.stem.partition("-")[2]) >= since_ns
    ]
    found = [
        commit
        for path in files
        for commit in commits(path.read_text(encoding="utf-8").splitlines(), pipeline)
    ]
    return sorted(found, key=lambda commit: commit.committed_ns)


def commits(lines: Iterable[str], pipeline: str) -> list[CommitTimes]:
    """Return the commits of a pipeline in one process.

    A retried transaction counts from its first attempt. Incomplete lines are ignored.
    """
    found: list[CommitTimes] = []
    began_ns = 0
    opened: dict[tuple[int, int, int], int] = {}
    for line in lines:
        fields = line.split(maxsplit=NUMBERS)
        if len(fields) != NUMBERS + 1 or fields[NUMBERS] != pipeline:
            continue
        step, at_ns, partition, first, last = map(int, fields[:NUMBERS])
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
