"""What the driver says to the tasks of a batch, and what two parts of a task say to each other.

A batch is one execution of a plan that is made once. Which records it is about travels as a local
property, which Spark hands to all tasks of a job.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark import SparkContext, TaskContext

from instep.document.decoding import Record

PROPERTY = "instep.batch"

Range = tuple[int, int, int]  # partition, first offset, next offset


class TaskBatch(msgspec.Struct, frozen=True):
    """The ranges of the log that each task reads; or records that were read already.

    A task stops reading when it has `bytes_max`, if that is not 0. That of a stream fails if what
    it publishes has more than `output_bytes_max`.
    """

    tasks: list[list[Range]] = []
    given: list[Record] | None = None
    headers: bool = False
    folder: str = ""
    bytes_max: int = 0
    output_bytes_max: int = 0

    def announce(self, context: SparkContext) -> None:
        """Let the next job of this thread be about this batch."""
        context.setLocalProperty(PROPERTY, msgspec.json.encode(self).decode())

    @property
    def ranges(self) -> list[Range]:
        """Return the ranges of this task."""
        number = _context().partitionId()
        return self.tasks[number] if number < len(self.tasks) else []

    @property
    def records(self) -> Sequence[Record]:
        """Return the given records, which one task takes."""
        return self.given or () if _context().partitionId() == 0 else ()


class ReadRange(msgspec.Struct, frozen=True):
    """What a task has read of a partition: the number of records, and the last of them."""

    records: int
    last: Record


class TaskRead(msgspec.Struct, frozen=True):
    """What a task has read of each partition, and whether it stopped before the ends."""

    ranges: dict[int, ReadRange]
    is_cut: bool = False


def current() -> TaskBatch:
    """Return the batch of this task."""
    return msgspec.json.decode(_context().getLocalProperty(PROPERTY) or "{}", type=TaskBatch)


def leave(read: TaskRead, batch: TaskBatch) -> None:
    """Leave a note for the end of this task: what its beginning has read.

    The two run in different processes of one machine, and only results pass between them.
    """
    _note(batch).write_bytes(msgspec.json.encode(read))


def take(batch: TaskBatch) -> TaskRead:
    """Return what the beginning of this task has read."""
    note = _note(batch)
    read = msgspec.json.decode(note.read_bytes(), type=TaskRead)
    note.unlink()
    return read


def divided(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """Return the ranges of each task: they get about the same number of records."""
    parts: list[list[Range]] = [[] for _ in range(tasks)]
    largest_first = sorted(ranges, key=lambda one: one[1] - one[2])
    for number, one in enumerate(largest_first):
        parts[number % tasks].append(one)
    return parts


def _note(batch: TaskBatch) -> Path:
    """Return the path of the note: in the run's folder, or on executors in their own."""
    folder = Path(batch.folder)
    if not batch.folder or not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    return folder / f"instep-task-{_application()}-{_context().taskAttemptId()}.json"


def _application() -> str:
    return _context().getLocalProperty("spark.app.id") or ""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
