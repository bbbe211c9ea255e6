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
    """A table with one row per processed record; a unique index ignores repeats."""

    def __init__(self, file: Path, *, unique: bool, with_offset: bool) -> None:
        self._unique, self._with_offset = unique, with_offset
        # The threads of a pool write too.
        self._connection = sqlite3.connect(
            file, isolation_level=None, timeout=30, check_same_thread=False
        )
        index = ", UNIQUE (key, number)" if unique else ""
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS work"
            f" (seq INTEGER PRIMARY KEY, key TEXT, number INTEGER, at_ns INTEGER{index})"
        )
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS position"
            " (topic TEXT, part INTEGER, next INTEGER, PRIMARY KEY (topic, part))"
        )

    def write(self, topic: str, message: Message, *, before_commit: Callable[[], None]) -> None:
        key, number = workload.parse(message.value() or b"")
        insert = "INSERT INTO work (key, number, at_ns) VALUES (?, ?, ?)"
        if self._unique:
            insert += " ON CONFLICT DO NOTHING"
        with self._transaction():
            self._connection.execute(insert, (key, number, time.monotonic_ns()))
            if self._with_offset:
                self._connection.execute(
                    "INSERT INTO position VALUES (?, ?, ?)"
                    " ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next",
                    (topic, message.partition(), (message.offset() or 0) + 1),
                )
            before_commit()

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
