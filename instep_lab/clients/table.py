"""The SQLite table of a consumer, with a row for each record and optionally the offset."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Message

from instep_lab import workload
from instep_lab.history import ClientOperation, OperationKind


class SqliteTable:
    """A table with one row per processed record; a unique index on some columns ignores repeats.

    With `checked`, a row is written only if the stored offset is that of the record.
    """

    def __init__(self, file: Path, *, unique: str, with_offset: bool, checked: bool) -> None:
        self._unique, self._with_offset, self._checked = unique, with_offset, checked
        # The threads of a pool write too.
        self._connection = sqlite3.connect(
            file, isolation_level=None, timeout=30, check_same_thread=False
        )
        index = f", UNIQUE ({unique})" if unique else ""
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS work"
            " (seq INTEGER PRIMARY KEY, key TEXT, number INTEGER, part INTEGER, place INTEGER,"
            f" at_ns INTEGER{index})"
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS position"
            " (topic TEXT, part INTEGER, next INTEGER, PRIMARY KEY (topic, part))"
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS total (id INTEGER PRIMARY KEY, worked INTEGER)"
        )

    def write(self, topic: str, message: Message, *, before_commit: Callable[[], None]) -> bool:
        """Write the row; return False, and write nothing, if the stored offset is another one."""
        key, number = workload.parse(message.value() or b"")
        part, place = message.partition() or 0, message.offset() or 0
        insert = "INSERT INTO work (key, number, part, place, at_ns) VALUES (?, ?, ?, ?, ?)"
        if self._unique:
            insert += " ON CONFLICT DO NOTHING"
        with self._transaction():
            if self._with_offset and not self._move(topic, part, place):
                return False
            self._connection.execute(insert, (key, number, part, place, time.monotonic_ns()))
            # An effect beside the row, which no index protects.
            self._connection.execute(
                "INSERT INTO total VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET worked = worked + 1"
            )
            before_commit()
        return True

    def _move(self, topic: str, part: int, place: int) -> bool:
        """Store the next offset; return False if the check does not allow it."""
        moved = self._connection.execute(
            "INSERT INTO position VALUES (?, ?, ?)"
            " ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next"
            " WHERE position.next = ? OR NOT ?",
            (topic, part, place + 1, place, self._checked),
        )
        return moved.rowcount == 1

    def offsets(self, topic: str) -> dict[int, int]:
        """Return the next offset of each partition that has one."""
        return dict(
            self._connection.execute("SELECT part, next FROM position WHERE topic = ?", (topic,))
        )

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def work(file: Path, group: str = "") -> list[ClientOperation]:
    """Return the rows of the table as operations, in order."""
    with contextlib.closing(sqlite3.connect(file)) as opened:
        found = opened.execute("SELECT key, number, at_ns FROM work ORDER BY seq").fetchall()
    return [
        ClientOperation(kind=OperationKind.WORK, group=group, key=key, number=number, at_ns=at)
        for key, number, at in found
    ]


def faults(file: Path, unique: str) -> list[str]:
    """Return what the table lacks of what was planned for it."""
    with contextlib.closing(sqlite3.connect(file)) as opened:
        indexes = [row[1] for row in opened.execute("PRAGMA index_list(work)") if row[2]]
        found = {
            ", ".join(column[2] for column in opened.execute(f'PRAGMA index_info("{name}")'))
            for name in indexes
        }
    planned = {unique} if unique else set()
    if found == planned:
        return []
    return [
        f"{file.name} has unique indexes on {found or 'nothing'}, not on {planned or 'nothing'}"
    ]


def stored(file: Path) -> dict[int, int]:
    """Return the next offset of each partition, as the table has it."""
    with contextlib.closing(sqlite3.connect(file)) as opened:
        return dict(opened.execute("SELECT part, next FROM position"))


def total(file: Path) -> int:
    """Return how often a record was counted beside its row."""
    with contextlib.closing(sqlite3.connect(file)) as opened:
        return int(opened.execute("SELECT coalesce(sum(worked), 0) FROM total").fetchone()[0])
