"""The database that a consumer works for: a SQLite file with a row for each record and, if asked for, the offset beside it."""

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
    """One row for each piece of work; with a unique index, a second one of the same record is passed over."""

    def __init__(self, file: Path, *, unique: bool, with_offset: bool) -> None:
        self._unique, self._with_offset = unique, with_offset
        self._opened = sqlite3.connect(
            file, isolation_level=None, timeout=30, check_same_thread=False
        )
        index = ", UNIQUE (key, number)" if unique else ""
        self._opened.execute("PRAGMA journal_mode = WAL")
        self._opened.execute(
            f"CREATE TABLE IF NOT EXISTS work (seq INTEGER PRIMARY KEY, key TEXT, number INTEGER, at_ns INTEGER{index})"
        )
        self._opened.execute(
            "CREATE TABLE IF NOT EXISTS position (topic TEXT, part INTEGER, next INTEGER, PRIMARY KEY (topic, part))"
        )

    def write(self, topic: str, message: Message, *, before_commit: Callable[[], None]) -> None:
        key, number = workload.parse(message.value() or b"")
        passing_over = " ON CONFLICT DO NOTHING" if self._unique else ""
        with self._transaction():
            self._opened.execute(
                f"INSERT INTO work (key, number, at_ns) VALUES (?, ?, ?){passing_over}",  # noqa: S608 - one of two constants
                (key, number, time.monotonic_ns()),
            )
            if self._with_offset:
                self._opened.execute(
                    "INSERT INTO position VALUES (?, ?, ?) ON CONFLICT (topic, part) DO UPDATE SET next = excluded.next",
                    (topic, message.partition(), (message.offset() or 0) + 1),
                )
            before_commit()

    def offsets(self, topic: str) -> dict[int, int]:
        """The next offset of each partition that has one."""
        return dict(
            self._opened.execute("SELECT part, next FROM position WHERE topic = ?", (topic,))
        )

    def close(self) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._opened.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._opened.execute("ROLLBACK")
            raise
        self._opened.execute("COMMIT")


def work(file: Path, group: str = "") -> list[ClientOperation]:
    """The work that the table shows, in its order."""
    with contextlib.closing(sqlite3.connect(file)) as opened:
        found = opened.execute("SELECT key, number, at_ns FROM work ORDER BY seq").fetchall()
    return [
        ClientOperation(kind=OperationKind.WORK, group=group, key=key, number=number, at_ns=at)
        for key, number, at in found
    ]
