"""SQLite: one file, one writer at a time.

`BEGIN IMMEDIATE` takes the only write lock, so no other writer can interfere.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode
from uuid import UUID

import sqlalchemy as sa
from msgspec import UNSET

from instep import errors
from instep.document import kinds
from instep.document.mapping import TargetColumn
from instep.document.reasons import Unfit
from instep.sinks import target
from instep.sinks.connection import WRITING, Access, Connection, Rows
from instep.sinks.journal import Journal
from instep.sinks.sink import Sink, open_together
from instep.sinks.stored_values import chunks, timestamp_text
from instep.sinks.target import Target
from instep.sinks.target_table import STAGE_FIRST, ColumnGroup, StagedRow, TargetTable

INSTRUCTIONS = 10_000  # of SQLite's machine, after which the time of a statement is checked
NATIVE_TYPES = {str, int, float, bytes, type(None)}  # of the driver
PARAMETERS_MAX = 10_000  # of one statement

# What each result code, extended or primary, means for a pipeline. Any other refuses the row.
CODES: dict[int, type[errors.InstepError]] = {
    sqlite3.SQLITE_BUSY: errors.Transient,
    sqlite3.SQLITE_LOCKED: errors.Transient,
    sqlite3.SQLITE_PROTOCOL: errors.Transient,
    sqlite3.SQLITE_INTERRUPT: errors.TooMuchAtOnce,  # the time of a statement
    sqlite3.SQLITE_CONSTRAINT: errors.RowRefused,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: errors.ParentMissing,
    sqlite3.SQLITE_MISMATCH: errors.RowRefused,
    sqlite3.SQLITE_TOOBIG: errors.RowRefused,
    sqlite3.SQLITE_FULL: errors.DatabaseFull,
    sqlite3.SQLITE_IOERR: errors.DatabaseUnreachable,
    sqlite3.SQLITE_NOMEM: errors.DatabaseUnreachable,
    sqlite3.SQLITE_CANTOPEN: errors.DatabaseUnreachable,
    sqlite3.SQLITE_READONLY: errors.TargetReadOnly,
    sqlite3.SQLITE_PERM: errors.PermissionLost,
    sqlite3.SQLITE_AUTH: errors.PermissionLost,
    sqlite3.SQLITE_ERROR: errors.TargetChanged,
    sqlite3.SQLITE_SCHEMA: errors.TargetChanged,
    sqlite3.SQLITE_CORRUPT: errors.DatabaseUnreachable,  # until the file is restored
    sqlite3.SQLITE_NOTADB: errors.SettingsError,
}


class SqliteConnection(Connection):
    """A connection to a SQLite file."""

    placeholder: ClassVar[str] = "?"
    rows_begin: ClassVar[str] = "VALUES "
    for_update: ClassVar[str] = ""

    def connect(self) -> None:
        self._path = Path(str(self.url.database))
        # mode=rw: a missing file is an error; a new, empty one would hide the loss
        mode = reading_mode(self._path) if self.access.read_only else {"mode": "rw"}
        self.driver = sqlite3.connect(
            f"file:{quote(str(self._path))}?{urlencode(mode)}",
            uri=True,
            timeout=self.access.lock_s,
            isolation_level=None,
            check_same_thread=False,
        )
        # Another user may start to write a file that this one cannot write.
        self._inode = None if "immutable" in mode else self._path.stat().st_ino
        self._deadline_s = math.inf
        if self.access.statement_s is not None:
            self.driver.set_progress_handler(self._is_late, INSTRUCTIONS)
        if not self.access.read_only:
            self.driver.execute("PRAGMA journal_mode = WAL")
            self.driver.execute("PRAGMA synchronous = NORMAL")
            self.driver.execute("PRAGMA foreign_keys = ON")
        self.driver.execute("PRAGMA temp_store = MEMORY")
        for name, columns in self._stages.items():
            self.driver.execute(f"CREATE TEMPORARY TABLE {name} ({columns})")

    def close(self) -> None:
        self.driver.close()

    def translate(self, error: Exception) -> errors.InstepError | None:
        return translate(error, self.url)

    def begin(self) -> None:
        self._follow_file()
        self.execute("BEGIN IMMEDIATE")
        for stage in self._used_stages:
            self.execute(f"DELETE FROM {stage}")
        self._used_stages.clear()

    def begin_snapshot(self) -> None:
        self._follow_file()
        self.execute("BEGIN")

    def rollback(self) -> None:
        if self.driver.in_transaction:  # SQLite rolls back by itself when the disk is full
            self.execute("ROLLBACK")
        self._used_stages.update(self._stages)  # rows that this transaction deleted are back

    def back_to_savepoint(self) -> None:
        if not self.driver.in_transaction:
            raise errors.TransactionUndone(
                f"a trigger of table {self.target.table} refuses a row with RAISE(ROLLBACK, …)"
            )
        super().back_to_savepoint()

    def refresh(self) -> None:
        if not self.driver.in_transaction:
            self._follow_file()

    def _follow_file(self) -> None:
        """Connect again if the file was replaced.

        An open connection would keep reading and writing the removed file.
        """
        try:
            is_same = self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            raise errors.DatabaseUnreachable(
                f"the database file {self._path} is missing", "restore it, or run instep init"
            ) from None
        if not is_same:
            self.driver.close()
            self.connect()
            for other in self._others:
                other.driver, other._inode = self.driver, self._inode

    def _begin_statement(self) -> None:
        if self.access.statement_s is not None:
            self._deadline_s = time.monotonic() + self.access.statement_s

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline_s

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        self._begin_statement()
        return self.driver.execute(statement, parameters).rowcount

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._begin_statement()
        return self.driver.execute(statement, parameters).fetchall()

    def select_many(
        self, statement: str, parameters: Sequence[Any], values: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        width = len(values[0]) if values and isinstance(values[0], tuple) else 1
        for chunk in chunks(values, PARAMETERS_MAX // width):
            listed, listed_values = self.in_list(chunk)
            self._begin_statement()
            yield from self.driver.execute(
                statement.replace("{documents}", listed), (*parameters, *listed_values)
            )

    def append(
        self, table: str, columns: tuple[str, ...], rows: Rows, *, skip_existing: bool
    ) -> None:
        names = ", ".join(map(self.quoted, columns))
        verb = "INSERT OR IGNORE" if skip_existing else "INSERT"
        marks = self.placeholders(len(columns))
        self.driver.executemany(f"{verb} INTO {table} ({names}) VALUES ({marks})", rows)

    def bind(self, value: Any) -> Any:
        if isinstance(value, (str, int)):  # most are
            return value
        if isinstance(value, datetime):
            return timestamp_text(value)
        if isinstance(value, Decimal):
            return kinds.sqlite_number(value)
        if isinstance(value, UUID):
            return str(value)
        return value.isoformat() if isinstance(value, date) else value

    def bind_time(self, at: datetime | None) -> Any:
        return self.bind(at)


class SqliteTargetTable(TargetTable):
    """The target table in a SQLite file."""

    connection: SqliteConnection

    def stage_columns(self) -> str:
        return ", ".join(map(self.quoted, (*self.key_names, *self.columns, STAGE_FIRST)))

    def exact_match(self, _key: TargetColumn, left: str, right: str) -> str:
        return f"{left} = {right} COLLATE BINARY"

    def order_value(self, value: Any) -> int | None:
        if value is None:
            return None
        try:
            if isinstance(self.guard_kind, kinds.Integer):
                return int(value)
            return kinds.micros(kinds.instant(value))
        except (Unfit, ValueError):
            return None  # SQLite stores anything in any column; this is not an order value

    def write_groups(self, groups: list[ColumnGroup]) -> None:
        bind, key_values = self.connection.bind, self.identity.columns
        for group in groups:
            rows = (
                [bind(value) for value in (*values, *key_values(document)) if value is not UNSET]
                for document, values in group.rows
            )
            statement = self._insert(group) if group.is_insert else self._update(group)
            written = self.connection.driver.executemany(statement, rows).rowcount
            self.check_written(written, len(group.rows))

    def fill_stage(self, rows: Sequence[StagedRow]) -> None:
        self.connection.claim_stage()
        columns = zip(*self.flat(rows), strict=True)
        bound = zip(*map(self._bind_column, columns), strict=True)
        marks = self.connection.placeholders(len(self.keys) + len(self.columns) + 1)
        self.connection.driver.executemany(
            f"INSERT INTO {self.connection.stage} VALUES ({marks})", bound
        )

    def upsert_stage(self) -> int:
        names = ", ".join(map(self.quoted, (*self.key_names, *self.columns)))
        changes = ", ".join(
            f"{self.quoted(column)} = excluded.{self.quoted(column)}" for column in self.columns
        )
        return self.connection.execute(
            f"INSERT INTO {self.name} AS t ({names})"
            f" SELECT {names} FROM {self.connection.stage} WHERE TRUE"
            f" ON CONFLICT ({self.key}) DO UPDATE SET {changes}"
            f" WHERE TRUE{self.guard_condition('excluded.{}')}"
        )

    def _insert(self, group: ColumnGroup) -> str:
        names = (*group.columns, *self.key_names)
        marks = self.connection.placeholders(len(names))
        return f"INSERT INTO {self.name} ({', '.join(map(self.quoted, names))}) VALUES ({marks})"

    def _update(self, group: ColumnGroup) -> str:
        # the write lock is held since BEGIN, so the guard need not be repeated here
        values = ", ".join(
            f"{self.quoted(column)} = ?{number}"
            for number, column in enumerate(group.columns, start=1)
        )
        conditions = []
        keys = zip(self.mapping.keys, self.keys, strict=True)
        for number, (key, name) in enumerate(keys, start=len(group.columns) + 1):
            conditions.append(f"{name} = ?{number}")
            if key in self.text_keys:
                conditions.append(self.exact_match(key, name, f"?{number}"))
        return f"UPDATE {self.name} SET {values} WHERE {' AND '.join(conditions)}"

    def _bind_column(self, values: Sequence[Any]) -> Iterable[Any]:
        """Bind the values of one column, which mostly have one type that the driver takes."""
        if set(map(type, values)) <= NATIVE_TYPES:
            return values
        return map(self.connection.bind, values)


def open_sinks(targets: Sequence[Target], access: Access = WRITING) -> list[Sink]:
    """Open one session for targets in SQLite."""
    return open_together(targets, access, SqliteConnection, SqliteTargetTable, Journal)


def reading_mode(file: Path) -> dict[str, str]:
    """Return the options that open a file for reading.

    A database in WAL mode needs files beside it, which even a reader creates, but not in a
    read-only folder. If these files are missing, nobody has the database open, so it can be read
    as it is.
    """
    unused = not Path(f"{file}-wal").exists() and not os.access(file.parent, os.W_OK)
    if unused and file.exists():
        return {"mode": "ro", "immutable": "1"}
    return {"mode": "ro"}


def translate(error: Exception, url: sa.URL) -> errors.InstepError | None:
    """Return SQLite's error as one of ours, by its result code."""
    if not isinstance(error, sqlite3.Error):
        return None
    where = target.shown(url)
    # raised by the Python module itself: the connection is closed
    if isinstance(error, sqlite3.ProgrammingError):
        return errors.DatabaseUnreachable(f"no connection to {where} any more: {error}")
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    ours = CODES.get(extended) or CODES.get(code, errors.RowRefused)
    if code == sqlite3.SQLITE_CANTOPEN:
        if _is_read_only(Path(str(url.database).removeprefix("file:"))):
            return errors.TargetReadOnly(
                f"{where}: the file or its folder is read-only for this user: {error}"
            )
        if ours is errors.DatabaseUnreachable:
            return ours(
                f"{where} cannot be opened: {error}",
                "if the file was never created, run: instep init",
            )
    return ours(f"{where}: {error}")


def _is_read_only(file: Path) -> bool:
    """Return whether a file that exists, or its folder, is read-only.

    SQLite first writes a file beside the database, and only reports that it could not be opened.
    """
    return file.is_file() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))
