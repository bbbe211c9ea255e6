"""MariaDB and MySQL: multi-row inserts and upserts; updates from a temporary table; the history as a file that is none.

Both speak the same protocol and, for what is used here, the same SQL; they differ in collations (`inspection.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import sqlalchemy as sa
from msgspec import UNSET

from instep import errors
from instep.document import guard, kinds
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.document.mapping import TargetColumn
from instep.sinks import sink, tables, target, tls

try:
    import pymysql
    from pymysql import connections, converters
    from pymysql.constants import CLIENT, COMMAND
except ImportError:  # the extra is not installed
    raise sink.no_driver("MariaDB and MySQL", "mysql") from None

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 120
NO_TLS_THERE = 2026
DUPLICATES = re.compile(
    rb"Duplicates: (\d+)"
)  # in what the server says of a statement of many rows
LOADED = re.compile(rb"Records: (\d+) +Deleted: 0 +Skipped: 0 +Warnings: 0")
# loading is allowed, and no cluster may commit in the middle of it
LOADING = ({"local_infile": "ON"}, {"local_infile": "ON", "wsrep_on": "OFF"})
LOAD_REFUSED = (
    1148,
    1235,
    3948,
    4166,
)  # by the server or something before it that does not know or allow it
LOADED_LEAST = 100  # rows for which the two more questions are worth it
STATEMENT_BYTES_MAX = 1_000_000  # of one statement of many rows
LITERAL_ROWS = 1_000
INDEX_BYTES_MAX = 3_072  # of InnoDB
ROW_ALIAS_SINCE = (8, 0, 19)  # of MySQL: rows that are to be inserted have a name
SPECIAL = re.compile(r"['\"\\\x00\n\r\x1a]")  # what a literal text must not have as it is
UNLOADABLE = re.compile(r"[\\\t\n\x00]")  # what a field of a loaded row must not have as it is
STATEMENT_BYTES = 16 * 1024  # what a statement has beside its rows

LOAD_HISTORY = (
    "LOAD DATA LOCAL INFILE '' INTO TABLE instep_history CHARACTER SET utf8mb4"
    " ({offset}, document, status, order_value, @at_us, verdict) SET pipeline = ?, topic = ?, {partition} = ?,"
    " committed_at = ?, event_time = TIMESTAMPADD(MICROSECOND, @at_us, TIMESTAMP'1970-01-01 00:00:00')"
)

# server error numbers: what each means for a pipeline. Any other refuses the row, as a trigger may signal whatever number
# its author liked.
CODES: dict[int, type[errors.InstepError]] = {
    1015: errors.Transient,  # a file that cannot be locked
    1020: errors.Transient,  # record has changed since last read
    1180: errors.Transient,  # error during COMMIT; the ledger tells whether it was done
    1205: errors.Transient,  # lock wait time-out: undoes one statement only
    1213: errors.Transient,  # deadlock
    1296: errors.Transient,  # a cluster's engine
    1297: errors.Transient,  # a cluster's engine, for the moment
    1412: errors.Transient,  # the table was altered in the middle of the transaction
    1614: errors.Transient,  # deadlock
    1615: errors.Transient,  # a statement that must be prepared again
    1637: errors.Transient,  # too many transactions at once
    3101: errors.Transient,  # group replication has rolled back
    3572: errors.Transient,  # NOWAIT, and there is a lock
    1197: errors.TooMuchAtOnce,  # max_binlog_cache_size
    1216: errors.ParentMissing,  # a foreign key, for users without rights on the parent table
    1452: errors.ParentMissing,  # a foreign key
    1206: errors.TooMuchAtOnce,  # more locks than the lock table holds
    1969: errors.TooMuchAtOnce,  # max_statement_time
    3024: errors.TooMuchAtOnce,  # max_execution_time
    4031: errors.DatabaseUnreachable,  # idle too long
    1030: errors.DatabaseUnreachable,  # the storage engine
    1037: errors.DatabaseUnreachable,  # out of memory
    1038: errors.DatabaseUnreachable,  # out of memory for sorting
    1040: errors.DatabaseUnreachable,  # too many connections
    1041: errors.DatabaseUnreachable,  # out of memory
    1047: errors.DatabaseUnreachable,  # a Galera node that is not ready
    1053: errors.DatabaseUnreachable,  # shutting down
    1079: errors.DatabaseUnreachable,  # shut down
    1080: errors.DatabaseUnreachable,  # forcing the thread to end
    1129: errors.DatabaseUnreachable,  # host blocked
    1135: errors.DatabaseUnreachable,  # no thread to be had
    1152: errors.DatabaseUnreachable,  # aborted connection
    1158: errors.DatabaseUnreachable,  # reading packets
    1159: errors.DatabaseUnreachable,  # time-out reading packets
    1160: errors.DatabaseUnreachable,  # writing packets
    1161: errors.DatabaseUnreachable,  # time-out writing packets
    1184: errors.DatabaseUnreachable,  # aborted connection
    1194: errors.DatabaseUnreachable,  # table marked as crashed
    1195: errors.DatabaseUnreachable,  # table crashed, and the repair failed
    1203: errors.DatabaseUnreachable,  # max_user_connections
    1226: errors.DatabaseUnreachable,  # a limit of the account, per hour or on connections
    1317: errors.DatabaseUnreachable,  # interrupted
    1927: errors.DatabaseUnreachable,  # connection killed
    1021: errors.DatabaseFull,
    1026: errors.DatabaseFull,  # a file cannot be written
    1114: errors.DatabaseFull,
    1878: errors.DatabaseFull,  # a temporary file cannot be written
    1044: errors.NotAuthorised,
    1045: errors.NotAuthorised,
    1698: errors.NotAuthorised,
    3118: errors.NotAuthorised,  # account locked
    3159: errors.NotAuthorised,  # only TLS is let in
    4151: errors.NotAuthorised,  # account locked, MariaDB
    1049: errors.DatabaseMissing,
    1142: errors.PermissionLost,
    1143: errors.PermissionLost,
    1227: errors.PermissionLost,
    1370: errors.PermissionLost,  # on a routine
    1036: errors.TargetReadOnly,  # one table, or all of InnoDB
    1290: errors.TargetReadOnly,
    1792: errors.TargetReadOnly,
    1836: errors.TargetReadOnly,
    1054: errors.TargetChanged,  # no such column
    1109: errors.TargetChanged,  # no such table in a statement
    1136: errors.TargetChanged,  # another number of columns
    1146: errors.TargetChanged,  # no such table
    1356: errors.TargetChanged,  # a view that refers to what is gone
}
CLIENT_CODES = range(2000, 3000)  # of the driver itself: the connection


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _is_utf8(key: TargetColumn) -> bool:
    return (key.collation or "utf8mb4_").startswith("utf8mb4_")


def _text(value: str) -> str:
    return f"'{converters.escape_string(value)}'"


def _time(value: datetime) -> str:
    return f"'{sink.clock_text(value)}'"


# PyMySQL's own way to a literal takes longer than the server takes for the row; it is left what is rare
LITERALS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: str,
    type(None): lambda _: "NULL",
    datetime: _time,
    bool: lambda value: "TRUE" if value else "FALSE",
    Decimal: "{:f}".format,  # with an exponent it would be read as a double
    UUID: lambda value: f"'{value}'",
    date: lambda value: f"'{value.isoformat()}'",
}


class Connection(connections.Connection):  # type: ignore[misc]
    """A connection that answers LOAD DATA LOCAL with bytes it was given.

    Never with a file: a server may ask for any file of ours, also when it was not told to load one.
    """

    def load(self, statement: str, rows: bytes, size: int) -> bytes:
        """Send the rows in packets of a size; what the server says of it."""
        self._execute_command(COMMAND.COM_QUERY, statement)
        asked = self._read_packet()
        result = connections.MySQLResult(self)
        if not asked.is_load_local_packet():
            raise pymysql.err.InternalError("the server did not ask for the rows")
        for start in range(0, len(rows), size):
            self.write_packet(rows[start : start + size])
        self.write_packet(b"")
        result._read_ok_packet(self._read_packet())
        return bytes(result.message or b"")


class MysqlSink(sink.Sink):
    """The target in a MariaDB or MySQL database."""

    text_type: ClassVar[str] = "CHAR"

    def connect(self) -> None:
        _, arguments = self.dialect.create_connect_args(tls.without_mysql(self.url))
        arguments.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        flags = CLIENT.FOUND_ROWS | CLIENT.LOCAL_FILES  # an update counts what it matched
        arguments["client_flag"] = arguments.get("client_flag", 0) | flags
        self._connection = Connection(
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
        self._cursor.execute(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"
        )
        self._cursor.execute("SET SESSION innodb_lock_wait_timeout = 30")
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._cursor.execute("SELECT @@max_allowed_packet, VERSION()")
        packet, version = self._cursor.fetchone()
        self._cursor.execute(
            "SHOW SESSION VARIABLES WHERE Variable_name IN ('local_infile', 'wsrep_on')"
        )
        self._may_load = dict(self._cursor.fetchall()) in LOADING
        # a byte may become two in a statement
        self.record_bytes_max = int(packet) // 2 - STATEMENT_BYTES
        self._packet = int(packet)
        self._rows_bytes_max = min(STATEMENT_BYTES_MAX, self._packet // 2)
        self._has_row_alias = "MariaDB" not in version and _release(version) >= ROW_ALIAS_SINCE
        self._there, self._untold = (
            0,
            False,
        )  # how many of the rows that were last inserted were there already
        ordering = next(
            (
                c.declared
                for c in self.target.mapping.columns
                if c.name == self.target.mapping.guard
            ),
            "BIGINT",
        )
        staged = [
            (self.quoted(key.name), f"{self._staged_type(key)} NOT NULL")
            for key in self.target.mapping.keys
        ]
        staged += [
            (self.quoted(column.name), f"{column.declared} NULL")
            for column in self.target.mapping.columns
        ]
        staged.append((sink.STAGE_FIRST, f"{ordering} NULL"))
        if self._key_fits_index():
            staged.append(("PRIMARY KEY", f"({self.key.replace('%%', '%')})"))
        columns = ", ".join(f"{name.replace('%%', '%')} {kind}" for name, kind in staged)
        self._cursor.execute(f"CREATE TEMPORARY TABLE instep_stage ({columns}) ENGINE = InnoDB")

    def begin_snapshot(self) -> None:
        self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def _staged_type(self, key: TargetColumn) -> str:
        """The stage holds ids that the table itself may take for one."""
        return (
            tables.name_type(255).compile(self.dialect) if key in self._text_keys else key.declared
        )

    def _key_fits_index(self) -> bool:
        """Whether the stage's primary key can hold the texts of a composite key, each as long as an id may be."""
        return len(self._text_keys) * 255 * 4 + len(self.keys) * 16 <= INDEX_BYTES_MAX

    def beyond(self, last: tuple[Any, ...]) -> tuple[str, Sequence[Any]]:
        """Column by column: a comparison of rows does not use the index."""
        if len(last) == 1:
            return super().beyond(last)
        marks = [f"{name} {{}} {self.placeholder}" for name in self.keys]
        ways = [
            " AND ".join([*(one.format("=") for one in marks[:place]), marks[place].format(">")])
            for place in range(len(last))
        ]
        values = [value for place in range(len(last)) for value in last[: place + 1]]
        return f"({' OR '.join(f'({way})' for way in ways)})", values

    def key_equals(self, key: TargetColumn, left: str, right: str) -> str:
        """A staged id is compared as the table's key compares, so that the key's index finds it."""
        if key.collation is None:
            return f"{left} = {right}"
        staged = (
            right if _is_utf8(key) else f"CONVERT({right} USING {key.collation.partition('_')[0]})"
        )
        return f"{left} = {staged} COLLATE {key.collation}"

    def exactly(self, key: TargetColumn, left: str, right: str) -> str:
        sides = (
            (left, right)
            if _is_utf8(key)
            else (f"CONVERT({side} USING utf8mb4)" for side in (left, right))
        )
        return " = ".join(f"CAST({side} AS BINARY)" for side in sides)

    def scanned(self, column: TargetColumn) -> str:
        # a four-byte number is shown with six digits only, unless it is computed with
        name = self.quoted(column.name)
        return f"{name} + 0E0" if isinstance(column.kind, kinds.Float) else name

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

    def select_many(
        self, statement: str, parameters: Sequence[Any], documents: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        # an id of 255 characters may take 2 KB
        for chunk in sink.chunks(documents, min(2_000, self._rows_bytes_max // 2_048)):
            listed, values = self.in_list(chunk)
            yield from self.select(statement.replace("{documents}", listed), (*parameters, *values))

    def append(
        self, table: str, columns: tuple[str, ...], rows: sink.Rows, *, skip_known: bool
    ) -> None:
        names = ", ".join(map(self.quoted, columns))
        # not INSERT IGNORE, which would also take values that do not fit
        known = (
            f" ON DUPLICATE KEY UPDATE {self.quoted(columns[0])} = {self.quoted(columns[0])}"
            if skip_known
            else ""
        )
        self._insert_rows(f"INSERT INTO {table} ({names})", rows, known)

    def append_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> None:
        """A loaded row costs the server half of one in a statement, where loading is allowed."""
        if not (
            self._may_load
            and len(events) >= LOADED_LEAST
            and self._load_history(partition, events, verdicts, at)
        ):
            super().append_history(partition, events, verdicts, at)

    def write_groups(self, groups: list[sink.ColumnGroup]) -> None:
        for group in groups:
            columns, ids = (*self.key_names, *group.columns), self.identity.columns
            rows = [
                (*ids(document), *(value for value in values if value is not UNSET))
                for document, values in group.rows
            ]
            if group.fresh:
                changed = self._insert(columns, rows)
            else:
                self.use_stage()
                self.append("instep_stage", columns, rows, skip_known=False)
                changed = self._update(group.columns)
            self.expect(changed, len(rows))

    def begin(self) -> None:
        if self.stage_is_used:
            self.execute("TRUNCATE TABLE instep_stage")  # ends a transaction, so not within one
        super().begin()

    def fill_stage(self, rows: Sequence[sink.Row]) -> None:
        self.use_stage()
        columns = (*self.key_names, *self.columns, sink.STAGE_FIRST)
        self.append("instep_stage", columns, list(self.flat(rows)), skip_known=False)
        self._staged = len(rows)

    def clear_stage(self) -> None:
        self.execute("DELETE FROM instep_stage")

    def late(self) -> sink.Rows:
        """With a lock on every row that is there, so that nothing can come between this look and the upsert."""
        later = (
            f"t.{self.guard} {'>' if self.target.rules.order_is_time else '>='} s.{sink.STAGE_FIRST}"
            if self.guard
            else "FALSE"
        )
        join = f"FROM instep_stage AS s JOIN {self.table} AS t ON {self.same_document()}"
        self._there, late = self.select(f"SELECT COUNT(*), SUM({later}) {join} FOR UPDATE")[0]
        return (
            self.select(f"SELECT {self.key_read('t.')}, t.{self.guard} {join} WHERE {later}")
            if late
            else []
        )

    def trusts(self, reduced: guard.Reduced) -> bool:
        # the server does not tell whether a single row was there; one of the same time, or without an order, may change nothing
        return (
            super().trusts(reduced)
            and len(reduced.latest) > 1
            and self.guard is not None
            and not self.target.rules.order_is_time
        )

    def upsert(self, rows: Sequence[sink.Row]) -> int | None:
        """One statement of many rows costs less than the stage. A row that is new or stays as it is counts once, a changed one
        twice, and the server tells how many were there."""
        names = ", ".join(map(self.quoted, (*self.key_names, *self.columns)))
        written = (
            "s.{}" if self._has_row_alias else "VALUES({})"
        )  # which newer MySQLs tell to be on its way out
        ordered = sorted(self.columns, key=lambda column: column == self.target.mapping.guard)
        changes = ", ".join(self._taken(column, written) for column in ordered)
        after = f"{' AS s' if self._has_row_alias else ''} ON DUPLICATE KEY UPDATE {changes}"
        insert = f"INSERT INTO {self.table} ({names})"
        self._there, self._untold = 0, False
        changed = self._insert_rows(insert, [row[:-1] for row in self.flat(rows)], after)
        return None if self._untold else changed - self._there

    def upsert_stage(self) -> int | None:
        columns = (*self.key_names, *self.columns)
        names = ", ".join(map(self.quoted, columns))
        staged = ", ".join(f"s.{self.quoted(column)}" for column in columns)
        # what is there first: a row that was just inserted would be counted as an update too
        changed = self._update(self.columns) if self._there else 0
        if self._there < self._staged:
            lacking = (
                f" LEFT JOIN {self.table} AS t ON {self.same_document()} WHERE t.{self.keys[0]} IS NULL"
                if self._there
                else ""
            )
            insert = f"INSERT INTO {self.table} ({names}) SELECT {staged} FROM instep_stage AS s{lacking}"
            changed += self.execute(insert)
        return changed

    def _taken(self, column: str, written: str) -> str:
        """The assignment of a value that is to be written, where the guard lets it through."""
        there = f"{self.table}.{self.quoted(column)}"
        return f"{there} = IF(TRUE{self._guarded(written, self.table)}, {written.format(self.quoted(column))}, {there})"

    def bind(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).replace(tzinfo=None)
        return str(value) if isinstance(value, UUID) else value

    def _insert(self, columns: tuple[str, ...], rows: sink.Rows) -> int:
        # not from the stage: MariaDB refuses an INSERT … SELECT of several rows into a table that has a BEFORE trigger
        names = ", ".join(map(self.quoted, columns))
        return self._insert_rows(f"INSERT INTO {self.table} ({names})", rows)

    def _insert_rows(self, insert: str, rows: sink.Rows, after: str = "") -> int:
        """Many rows in few statements; the number of rows changed. Each value becomes a literal by PyMySQL's own rules."""
        insert, after = insert.replace("%%", "%") + " VALUES ", after.replace("%%", "%")
        literals: list[str] = []
        changed, size = 0, 0
        for literal in self._literals(rows):
            needed = (
                len(literal)
                if literal.isascii()
                else len(literal.encode("utf-8", "surrogateescape"))
            )
            if needed > self._packet - STATEMENT_BYTES:
                raise errors.RowRefused(
                    f"a row of {needed:,} bytes is larger than the server's max_allowed_packet of {self._packet:,} lets through"
                )
            if literals and size + needed > self._rows_bytes_max:
                changed += self._inserted(insert + ",".join(literals) + after)
                literals, size = [], 0
            literals.append(literal)
            size += needed + 1
        if literals:
            changed += self._inserted(insert + ",".join(literals) + after)
        return changed

    def _literals(self, rows: sink.Rows) -> Iterator[str]:
        """Each row as text; column by column, as the values of one are mostly of one type."""
        for some in sink.chunks(rows, LITERAL_ROWS):
            columns = [self._column(values) for values in zip(*some, strict=True)]
            yield from (f"({','.join(row)})" for row in zip(*columns, strict=True))

    def _column(self, values: Sequence[Any]) -> Iterable[str]:
        types = set(map(type, values))
        if types == {int}:
            return map(str, values)
        if types == {str} and not SPECIAL.search("".join(values)):
            return map("'{}'".format, values)
        rare: Callable[[Any], str] = self._connection.escape
        return [LITERALS.get(type(value), rare)(value) for value in values]

    def _load_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> bool:
        """Whether every row is there as it was given: loading passes over what does not fit, and then none is."""
        columns: list[Sequence[Any]] = [
            [event.offset for event in events],
            [str(event.document) for event in events],
            [event.status for event in events],
            [event.order for event in events],
            [event.at_us for event in events],
            [verdict.value for verdict in verdicts],
        ]
        rows = "\n".join(map("\t".join, zip(*map(_fields, columns), strict=True)))
        ours = (self.target.pipeline, self.target.topic, partition, sink.clock_text(at))
        statement = self.sql(LOAD_HISTORY) % tuple(map(self._connection.escape, ours))
        self.execute("SAVEPOINT instep_load")
        try:
            told = LOADED.search(
                self._connection.load(statement, rows.encode(), self._rows_bytes_max)
            )
        except pymysql.Error as error:
            if error.args[0] not in LOAD_REFUSED:
                raise
            self._may_load = False
            return False
        if told and int(told[1]) == len(events):
            return True
        self.execute("ROLLBACK TO SAVEPOINT instep_load")
        return False

    def _inserted(self, statement: str) -> int:
        changed = int(self._cursor.execute(statement))
        told = DUPLICATES.search(self._cursor._result.message or b"")
        self._there += int(told[1]) if told else 0
        self._untold = self._untold or told is None
        return changed

    def _update(self, columns: Sequence[str]) -> int:
        """Write these columns of the staged rows whose documents are there; how many rows the guard let through."""
        values = ", ".join(
            f"t.{self.quoted(column)} = s.{self.quoted(column)}" for column in columns
        )
        join = f"{self.table} AS t JOIN instep_stage AS s ON {self.matches_key()}"
        return self.execute(
            f"UPDATE {join} SET {values} WHERE TRUE{self._guarded(columns=columns)}"
        )

    def _bound_time(self, at: datetime | None) -> Any:
        return at if at is None else sink.clock_text(at)


def _fields(values: Sequence[Any]) -> Iterable[str]:
    """The values of one column as fields of rows to load."""
    types = set(map(type, values))
    if types == {str} and not UNLOADABLE.search("".join(values)):
        return values
    if types == {int}:
        return list(map(str, values))
    return ["\\N" if value is None else UNLOADABLE.sub(_escaped, str(value)) for value in values]


def _escaped(found: re.Match[str]) -> str:
    return {"\t": "\\t", "\n": "\\n", "\0": "\\0", "\\": "\\\\"}[found[0]]


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
    ours = CODES.get(
        code, errors.DatabaseUnreachable if code in CLIENT_CODES else errors.RowRefused
    )
    if ours is errors.DatabaseUnreachable:
        return ours(f"no connection to {where}: {text} (error {code})")
    return ours(f"{where}: {text} (error {code})")
