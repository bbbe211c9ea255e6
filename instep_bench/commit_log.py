"""When each range of offsets was begun, opened and committed: noted by the pipeline's own tasks, read by the benchmark.

`note` is the probe that tasks call. It appends to a file of its process, so that a kill -9 loses no line that was written. Times
are of the machine's monotonic clock, which all its processes share.
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

_file: tuple[int, int] | None = None  # whose process, and its descriptor


class CommitTimes(msgspec.Struct, frozen=True):
    """One transaction of a partition: when its task began, when it was opened and when its commit had returned."""

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
    """The probe: a line for a task that begins, a transaction that is opened and one that is committed."""
    if moment.step in (BEGAN, OPENED, COMMITTED):
        line = (
            f"{moment.step} {time.monotonic_ns()} {moment.partition} {moment.first} {moment.last}\n"
        )
        os.write(_descriptor(), line.encode())


def _descriptor() -> int:
    """Of this process's file: workers are forked, and would share their parent's."""
    global _file
    if _file is None or _file[0] != os.getpid():
        path = Path(os.environ[FOLDER]) / f"{os.getpid()}-{time.monotonic_ns()}.notes"
        _file = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return _file[1]


def read(folder: Path, since_ns: int = 0) -> list[CommitTimes]:
    """Every commit that was noted so far, in the order of time; only those of processes that noted their first since then."""
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
    """The commits of one process. A transaction that was tried again counts from its first try; an unfinished line is none."""
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
            opened.clear()
        elif step == OPENED:
            opened.setdefault((partition, first, last), at_ns)
        else:
            opened_ns = opened.pop((partition, first, last), at_ns)
            found.append(
                CommitTimes(partition, first, last, began_ns or opened_ns, opened_ns, at_ns)
            )
    return found
