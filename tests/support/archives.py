"""Archives for tests: records as a task reads them, and what a table contains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from instep.archive import table
from instep.archive.files import locate
from instep.archive.reader import ArchiveReader
from instep.archive.table import ArchivedTopic, ArchiveTable
from instep.archive.writer import ArchiveWriter
from instep.document.plain import Headers
from instep.document.records import Record

NOON_MS = 1_763_467_200_000  # 2025-11-18T12:00Z
DAY_MS = 86_400_000
IDENTITY = ArchivedTopic("print-status", "topic-id", "cluster-id")


def record(
    offset: int,
    timestamp_ms: int = NOON_MS,
    *,
    key: bytes | None = b"doc-1",
    value: bytes | None = b"{}",
    headers: Headers = (),
    timestamp_type: int = 1,
) -> Record:
    """Return a record as a task reads it."""
    return Record(offset, timestamp_ms, key, value, -1, headers, timestamp_type)


def created(folder: Path, partitions: int = 1) -> ArchiveTable:
    """Return a new table whose archive begins at offset 0."""
    made = table.create("a", locate(str(folder)), IDENTITY)
    made.take_epoch(dict.fromkeys(range(partitions), 0))
    return made


def opened(folder: Path) -> ArchiveTable:
    """Return the table, read again."""
    return table.require("a", locate(str(folder)))


def writer(folder: Path, partitions: Sequence[int] = (0,)) -> ArchiveWriter:
    """Return a writer of the newest epoch, at the table's positions."""
    found = opened(folder)
    made = ArchiveWriter(found, found.epoch())
    made.take(made.positions(partitions))
    return made


def archive(folder: Path, *records: Record, partition: int = 0) -> None:
    """Archive records in one commit."""
    made = writer(folder, [partition])
    made.add(partition, records)
    made.commit()


def archived(folder: Path, partition: int = 0) -> list[int]:
    """Return the offsets of a partition, in order, as the table has them."""
    reader = ArchiveReader(opened(folder))
    return [found.offset for found in reader.records({partition: (0, 2**40)})]
