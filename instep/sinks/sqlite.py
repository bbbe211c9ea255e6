"""SQLite: one file, one writer at a time. `BEGIN IMMEDIATE` takes the only write lock, so nothing can come between."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import UUID

import sqlalchemy as sa
from msgspec import UNSET

from instep import errors
from instep.document import kinds
from instep.document.mapping import TargetColumn
from instep.document.reasons import Unfit
from instep.sinks import sink, target
from instep.sinks.target import Position

BUSY_TIMEOUT_S = 30.0
TAKEN_AS_THEY_ARE = {str, int, float, bytes, type(None)}

# result codes of SQLite, extended or primary: what each means for a pipeline. Any other refuses the row.
CODES: dict[int, type[errors.InstepError]] = {
    sqlite3.SQLITE_BUSY: errors.Transient,
    sqlite3.SQLITE_LOCKED: errors.Transient,
    sqlite3.SQLITE_PROTOCOL: errors.Transient,
    sqlite3.SQLITE_INTERRUPT: errors.Transient,
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
    sqlite3.SQLITE_CORRUPT: errors.DatabaseUnreachable,  # until the file is put back
    sqlite3.SQLITE_NOTADB: errors.SettingsError,
}


class SqliteSink(sink.Sink):
    """The target in a SQLite file."""

    placeholder: ClassVar[str] = "?"
    rows_begin: ClassVar[str] = "VALUES "

    def connect(self) -> None:
        self._path = Path(str(self.url.database))
        # mode=rw: a missing file is an error here, as an empty one in its place would hide the loss
        address = f"file:{quote(str(self._path))}?mode=rw"
        self._connection = sqlite3.connect(
            address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._inode = self._path.stat().st_ino
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        names = ", ".join(map(self.quoted, (*self.key_names, *self.columns, sink.STAGE_FIRST)))
        self._connection.execute(f"CREATE TEMPORARY TABLE instep_stage ({names})")

    def close(self) -> None:
        self._connection.close()

    def exactly(self, key: TargetColumn, left: str, right: str) -> str:  # noqa: ARG002 - all columns alike
        return f"{left} = {right} COLLATE BINARY"

    def begin(self) -> None:
        self._follow_file()
        self.execute("BEGIN IMMEDIATE")
        if self.stage_is_used:
            self.clear_stage()
            self.stage_is_used = False

    def begin_snapshot(self) -> None:
        self._follow_file()
        self.execute("BEGIN")

    def positions(self, lock: bool = False, *, wait: bool = True) -> dict[int, Position]:
        if not self._connection.in_transaction:
            self._follow_file()
        return super().positions(lock, wait=wait)

    def _follow_file(self) -> None:
        """An open connection outlives its file, and would read and write what nobody sees any more."""
        try:
            same = self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            raise errors.DatabaseUnreachable(
                f"the database file {self._path} is gone", "put it back, or run instep init"
            ) from None
        if not same:
            self._connection.close()
            self.connect()

    def rollback(self) -> None:
        if self._connection.in_transaction:  # a full disk has rolled back already
            self.execute("ROLLBACK")

    def back_to_savepoint(self) -> None:
        if not self._connection.in_transaction:
            raise errors.TransactionUndone(
                f"a trigger of table {self.target.table} refuses a row by RAISE(ROLLBACK, …)"
            )
        super().back_to_savepoint()

    def translate(self, error: Exception) -> errors.InstepError | None:
        return translate(error, self.url)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, parameters).rowcount

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, parameters).fetchall()

    def select_many(
        self, statement: str, parameters: Sequence[Any], documents: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        for chunk in sink.chunks(documents, 10_000 // len(self.keys)):
            listed, values = self.in_list(chunk)
            yield from self._connection.execute(
                statement.replace("{documents}", listed), (*parameters, *values)
            )

    def append(
        self, table: str, columns: tuple[str, ...], rows: sink.Rows, *, skip_known: bool
    ) -> None:
        names = ", ".join(map(self.quoted, columns))
        verb = "INSERT OR IGNORE" if skip_known else "INSERT"
        self._connection.executemany(
            f"{verb} INTO {table} ({names}) VALUES ({self._marks(len(columns))})", rows
        )

    def write_groups(self, groups: list[sink.ColumnGroup]) -> None:
        for group in groups:
            columns = group.columns
            ids = self.identity.columns
            bound = (
                [self.bind(value) for value in (*values, *ids(document)) if value is not UNSET]
                for document, values in group.rows
            )
            if group.fresh:
                names = ", ".join(map(self.quoted, (*columns, *self.key_names)))
                statement = f"INSERT INTO {self.table} ({names}) VALUES ({self._marks(len(columns) + len(self.keys))})"
            else:
                values = ", ".join(
                    f"{self.quoted(column)} = ?{number}"
                    for number, column in enumerate(columns, start=1)
                )
                same = []
                for number, (key, name) in enumerate(
                    zip(self.target.mapping.keys, self.keys, strict=True), start=len(columns) + 1
                ):
                    same.append(f"{name} = ?{number}")
                    if key in self._text_keys:
                        same.append(self.exactly(key, name, f"?{number}"))
                statement = f"UPDATE {self.table} SET {values} WHERE {' AND '.join(same)}"
            self.expect(self._connection.executemany(statement, bound).rowcount, len(group.rows))

    def fill_stage(self, rows: Sequence[sink.Row]) -> None:
        self.use_stage()
        columns = zip(*self.flat(rows), strict=True)
        bound = zip(*map(self._bound, columns), strict=True)
        marks = self._marks(len(self.keys) + len(self.columns) + 1)
        self._connection.executemany(f"INSERT INTO instep_stage VALUES ({marks})", bound)

    def clear_stage(self) -> None:
        self.execute("DELETE FROM instep_stage")

    def upsert_stage(self) -> int:
        names = ", ".join(map(self.quoted, (*self.key_names, *self.columns)))
        changes = ", ".join(
            f"{self.quoted(column)} = excluded.{self.quoted(column)}" for column in self.columns
        )
        return self.execute(
            f"INSERT INTO {self.table} AS t ({names}) SELECT {names} FROM instep_stage WHERE TRUE"
            f" ON CONFLICT ({self.key}) DO UPDATE SET {changes} WHERE TRUE{self._guarded('excluded.{}')}"
        )

    def bind(self, value: Any) -> Any:
        if isinstance(value, (str, int)):  # most are
            return value
        if isinstance(value, datetime):
            return sink.clock_text(value)
        if isinstance(value, Decimal):
            return kinds.sqlite_number(value)
        if isinstance(value, UUID):
            return str(value)
        return value.isoformat() if isinstance(value, date) else value

    def _bound(self, values: Sequence[Any]) -> Iterable[Any]:
        """The values of one column, which are mostly of one type that the driver takes as it is."""
        return values if set(map(type, values)) <= TAKEN_AS_THEY_ARE else map(self.bind, values)

    @property
    def for_update(self) -> str:
        return ""

    def _bound_time(self, at: datetime | None) -> Any:
        return self.bind(at)

    def order_of(self, value: Any) -> int | None:
        if value is None:
            return None
        try:
            return (
                int(value)
                if isinstance(self.guard_kind, kinds.Integer)
                else kinds.micros(kinds.instant(value))
            )
        except (Unfit, ValueError):
            return (
                None  # SQLite keeps anything in any column; what is no order value guards nothing
            )


def translate(error: Exception, url: sa.URL) -> errors.InstepError | None:
    """SQLite's error as one of ours, by its result code."""
    if not isinstance(error, sqlite3.Error):
        return None
    where = target.shown(url)
    if isinstance(
        error, sqlite3.ProgrammingError
    ):  # raised by the module itself: the connection is closed
        return errors.DatabaseUnreachable(f"no connection to {where} any more: {error}")
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    ours = CODES.get(extended) or CODES.get(code, errors.RowRefused)
    if code == sqlite3.SQLITE_CANTOPEN and _is_read_only(
        Path(str(url.database).removeprefix("file:"))
    ):
        return errors.TargetReadOnly(
            f"{where}: the file or its folder is read-only for this user: {error}"
        )
    if ours is errors.DatabaseUnreachable and code == sqlite3.SQLITE_CANTOPEN:
        return ours(
            f"{where} cannot be opened: {error}", "if the file was never made, run: instep init"
        )
    return ours(f"{where}: {error}")


def _is_read_only(file: Path) -> bool:
    """SQLite writes a file beside the database first, and says no more than that it could not be opened."""
    return file.is_file() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))
