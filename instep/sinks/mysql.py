"""MariaDB and MySQL: multi-row inserts; updates from a temporary table that was filled the same way.

Both speak the same protocol and, for what is used here, the same SQL; they differ in collations (`inspection.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from instep import errors
from instep.document import kinds
from instep.document.mapping import Column
from instep.sinks import sink, target, tls

try:
    import pymysql
    from pymysql.constants import CLIENT
except ImportError:  # the extra is not installed
    raise sink.no_driver("MariaDB and MySQL", "mysql") from None

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 120
DUPLICATE_KEY = 1062
NO_TLS_THERE = 2026
STATEMENT_BYTES = 16 * 1024  # what a statement has beside one record

# server error numbers: what each means for a pipeline
CODES: dict[int, type[errors.InstepError]] = {
    1205: errors.Transient,  # lock wait time-out: undoes one statement only
    1213: errors.Transient,  # deadlock
    3572: errors.Transient,  # a lock not to be had at once
    1020: errors.Transient,  # record has changed since last read
    1062: errors.RowRefused,  # the key is there already
    1048: errors.RowRefused,  # null
    1264: errors.RowRefused,  # out of range
    1265: errors.RowRefused,  # truncated
    1292: errors.RowRefused,  # wrong value
    1364: errors.RowRefused,  # no default
    1366: errors.RowRefused,  # not in the character set
    1406: errors.RowRefused,  # too long
    1451: errors.RowRefused,  # a foreign key points here
    1452: errors.RowRefused,  # a foreign key points nowhere
    1118: errors.RowRefused,  # row too large
    1526: errors.RowRefused,  # no partition for the value
    1644: errors.RowRefused,  # signalled by a trigger
    1690: errors.RowRefused,  # out of range in an expression
    3140: errors.RowRefused,  # not JSON
    3157: errors.RowRefused,  # JSON nested too deep
    3819: errors.RowRefused,  # check constraint, MySQL
    4025: errors.RowRefused,  # check constraint, MariaDB
    1040: errors.DatabaseUnreachable,  # too many connections
    1053: errors.DatabaseUnreachable,  # shutting down
    1129: errors.DatabaseUnreachable,  # host blocked
    1317: errors.DatabaseUnreachable,  # interrupted
    1927: errors.DatabaseUnreachable,  # connection killed
    2002: errors.DatabaseUnreachable,
    2003: errors.DatabaseUnreachable,
    2006: errors.DatabaseUnreachable,
    2013: errors.DatabaseUnreachable,
    2014: errors.DatabaseUnreachable,
    4031: errors.DatabaseUnreachable,  # idle too long
    1021: errors.DatabaseFull,
    1114: errors.DatabaseFull,
    1044: errors.NotAuthorised,
    1045: errors.NotAuthorised,
    1698: errors.NotAuthorised,
    3159: errors.NotAuthorised,  # only TLS is let in
    1049: errors.SettingsError,  # no such database
    1142: errors.PermissionLost,
    1143: errors.PermissionLost,
    1227: errors.PermissionLost,
    1290: errors.TargetReadOnly,
    1792: errors.TargetReadOnly,
    1836: errors.TargetReadOnly,
    1054: errors.TargetChanged,
    1136: errors.TargetChanged,
    1146: errors.TargetChanged,
}


class MysqlSink(sink.Sink):
    """The target in a MariaDB or MySQL database."""

    def connect(self) -> None:
        _, arguments = self.dialect.create_connect_args(tls.without_mysql(self.url))
        arguments.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        arguments["client_flag"] = arguments.get("client_flag", 0) | CLIENT.FOUND_ROWS  # an update counts what it matched
        self._connection = pymysql.connect(
            **{
                **arguments,
                **tls.mysql_arguments(self.url),
                "charset": "utf8mb4",
                "autocommit": True,
                "read_timeout": READ_TIMEOUT_S,
                "write_timeout": READ_TIMEOUT_S,
            }
        )
        self._cursor = self._connection.cursor()
        self._cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'")
        self._cursor.execute("SET SESSION innodb_lock_wait_timeout = 30")
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._cursor.execute("SELECT @@max_allowed_packet")
        # a byte may become two in a statement
        self.record_bytes_max = int(self._cursor.fetchone()[0]) // 2 - STATEMENT_BYTES
        columns = ", ".join(f"{self.quoted(c.name)} {c.declared} NULL".replace("%%", "%") for c in self.to.mapping.columns)
        self._cursor.execute(
            f"CREATE TEMPORARY TABLE instep_stage ({self.key.replace('%%', '%')} {self.to.mapping.key.declared} NOT NULL,"
            f" {columns}, PRIMARY KEY ({self.key.replace('%%', '%')})) ENGINE = InnoDB"
        )

    def begin_snapshot(self) -> None:
        self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def scanned(self, column: Column) -> str:
        # a four-byte number is shown with six digits only, unless it is computed with
        name = self.quoted(column.name)
        return f"{name} + 0E0" if isinstance(column.kind, kinds.Real) else name

    def close(self) -> None:
        if self._connection.open:
            try:
                self._connection.close()
            except pymysql.Error:
                self._connection._force_close()

    def translate(self, error: Exception) -> errors.InstepError | None:
        return translate(error, self.url)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return int(self._cursor.execute(statement, parameters))

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._cursor.execute(statement, parameters)
        return list(self._cursor.fetchall())

    def select_many(self, statement: str, parameters: Sequence[Any], documents: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        for chunk in sink.chunks(documents, 2_000):
            marks = f"({self._marks(len(chunk))})"
            yield from self.select(statement.replace("{documents}", marks), (*parameters, *chunk))

    def append(self, table: str, columns: tuple[str, ...], rows: sink.Rows, *, skip_known: bool) -> None:
        names = ", ".join(map(self.quoted, columns))
        # not INSERT IGNORE, which would also take values that do not fit
        known = f" ON DUPLICATE KEY UPDATE {self.quoted(columns[0])} = {self.quoted(columns[0])}" if skip_known else ""
        self._cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({self._marks(len(columns))}){known}", rows)

    def write_groups(self, groups: list[sink.Group]) -> None:
        for group in groups:
            columns = (self.to.mapping.key.name, *group.columns)
            rows = [(self.bind(document), *(self.bind(values[c]) for c in group.columns)) for document, values in group.rows]
            self._expect(self._insert(columns, rows) if group.fresh else self._update(group, columns, rows), group)

    def bind(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).replace(tzinfo=None)
        return str(value) if isinstance(value, UUID) else value

    def _insert(self, columns: tuple[str, ...], rows: sink.Rows) -> int:
        # not from the stage: MariaDB refuses an INSERT … SELECT of several rows into a table that has a BEFORE trigger
        names = ", ".join(map(self.quoted, columns))
        try:
            self._cursor.executemany(f"INSERT INTO {self.table} ({names}) VALUES ({self._marks(len(columns))})", rows)
        except pymysql.err.IntegrityError as error:
            if error.args[0] != DUPLICATE_KEY:
                raise
            # a second unique key was refused beforehand, so this is the document itself
            raise errors.Outrun(f"documents of {self.to.table} were inserted by another writer just now") from error
        return int(self._cursor.rowcount)

    def _update(self, group: sink.Group, columns: tuple[str, ...], rows: sink.Rows) -> int:
        self.append("instep_stage", columns, rows, skip_known=False)
        values = ", ".join(f"t.{self.quoted(column)} = s.{self.quoted(column)}" for column in group.columns)
        join = f"{self.table} AS t JOIN instep_stage AS s ON t.{self.key} = s.{self.key}"
        changed = self.execute(f"UPDATE {join} SET {values} WHERE TRUE{self._guarded}")
        self.execute("DELETE FROM instep_stage")
        return changed

    def _bound_time(self, at: datetime | None) -> Any:
        return self.bind(at)


def translate(error: Exception, url: sa.URL) -> errors.InstepError | None:
    """PyMySQL's error as one of ours, by its number; one without a number is a connection that broke."""
    if not isinstance(error, pymysql.Error):
        return None
    where = target.shown(url)
    if fault := tls.explain(url, getattr(error, "original_exception", None)):
        return fault
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = " ".join(str(error.args[1] if len(error.args) > 1 else error).split())
    if code == 0 and isinstance(error, (pymysql.err.InterfaceError, pymysql.err.OperationalError)):
        return errors.DatabaseUnreachable(f"no connection to {where} any more")
    if code == NO_TLS_THERE:
        return tls.no_tls_there(url)
    ours = CODES.get(code)
    if ours is None:
        ours = (
            errors.RowRefused if isinstance(error, (pymysql.err.IntegrityError, pymysql.err.DataError)) else errors.TargetChanged
        )
    if ours is errors.DatabaseUnreachable:
        return ours(f"no connection to {where}: {text} (error {code})")
    return ours(f"{where}: {text} (error {code})")
