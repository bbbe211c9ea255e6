"""MariaDB and MySQL: multi-row inserts and upserts, updates from the stage, LOAD DATA for history.

Both use the same protocol and, for what is needed here, the same SQL. Their collations differ
(`table_reader.py`).
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import sqlalchemy as sa
from msgspec import UNSET

from instep import errors
from instep.document import kinds
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.document.mapping import TargetColumn
from instep.sinks import tables, target, timeouts, tls
from instep.sinks.connection import WRITING, Access, Connection, Rows, no_driver
from instep.sinks.journal import Journal
from instep.sinks.sink import Sink, open_together
from instep.sinks.stored_values import chunks, timestamp_text
from instep.sinks.target import Target
from instep.sinks.target_table import STAGE_FIRST, ColumnGroup, StagedRow, TargetTable

try:
    import pymysql
    from pymysql import connections, converters
    from pymysql.constants import CLIENT, COMMAND
except ImportError:  # the extra is not installed
    raise no_driver("MariaDB and MySQL", "mysql") from None

ANSWER_S = 5  # after the time of a statement, for the server to say that it was ended
NO_TLS_THERE = 2026
# parts of the server's message about a statement with many rows
DUPLICATES = re.compile(rb"Duplicates: (\d+)")
LOADED = re.compile(rb"Records: (\d+) +Deleted: 0 +Skipped: 0 +Warnings: 0")
# variables that allow LOAD DATA: it is on, and no Galera cluster commits in the middle of it
LOADING = ({"local_infile": "ON"}, {"local_infile": "ON", "wsrep_on": "OFF"})
LOAD_REFUSED = (1148, 1235, 3948, 4166)  # by the server or a proxy
LOADED_LEAST = 100  # rows for which two more round trips pay off
STATEMENT_BYTES_MAX = 1_000_000  # of one statement with many rows
LITERAL_ROWS = 1_000
INDEX_BYTES_MAX = 3_072  # of InnoDB
ROW_ALIAS_SINCE = (8, 0, 19)  # of MySQL: INSERT … VALUES … AS s
SPECIAL = re.compile(r"['\"\\\x00\n\r\x1a]")  # must be escaped in a literal
UNLOADABLE = re.compile(r"[\\\t\n\x00]")  # must be escaped in a field of a loaded row
STATEMENT_BYTES = 16 * 1024  # of a statement without its rows

LOAD_HISTORY = (
    "LOAD DATA LOCAL INFILE '' INTO TABLE instep_history CHARACTER SET utf8mb4"
    " ({offset}, document, status, order_value, @at_us, verdict)"
    " SET pipeline = ?, topic = ?, {partition} = ?, committed_at = ?,"
    " event_time = TIMESTAMPADD(MICROSECOND, @at_us, TIMESTAMP'1970-01-01 00:00:00')"
)

# What each error number of the server means for a pipeline. Any other number refuses the row,
# because a trigger may signal any number.
CODES: dict[int, type[errors.InstepError]] = {
    1015: errors.Transient,  # a file that cannot be locked
    1020: errors.Transient,  # record has changed since last read
    1180: errors.Transient,  # error during COMMIT; the ledger shows whether it happened
    1205: errors.Transient,  # lock wait timeout: undoes one statement only
    1213: errors.Transient,  # deadlock
    1296: errors.Transient,  # an error of a cluster's engine
    1297: errors.Transient,  # a temporary error of a cluster's engine
    1412: errors.Transient,  # the table was altered during the transaction
    1614: errors.Transient,  # deadlock
    1615: errors.Transient,  # a statement that must be prepared again
    1637: errors.Transient,  # too many transactions at once
    3101: errors.Transient,  # group replication has rolled back
    3572: errors.Transient,  # NOWAIT, and the row is locked
    1197: errors.TooMuchAtOnce,  # max_binlog_cache_size
    1216: errors.ParentMissing,  # a foreign key, for users without rights on the parent table
    1452: errors.ParentMissing,  # a foreign key
    1206: errors.TooMuchAtOnce,  # more locks than the lock table holds
    1969: errors.TooMuchAtOnce,  # max_statement_time
    3024: errors.TooMuchAtOnce,  # max_execution_time
    4031: errors.DatabaseUnreachable,  # idle timeout
    1030: errors.DatabaseUnreachable,  # storage engine error
    1037: errors.DatabaseUnreachable,  # out of memory
    1038: errors.DatabaseUnreachable,  # out of memory for sorting
    1040: errors.DatabaseUnreachable,  # too many connections
    1041: errors.DatabaseUnreachable,  # out of memory
    1047: errors.DatabaseUnreachable,  # a Galera node that is not ready
    1053: errors.DatabaseUnreachable,  # shutting down
    1079: errors.DatabaseUnreachable,  # shut down
    1080: errors.DatabaseUnreachable,  # forcing the thread to end
    1129: errors.DatabaseUnreachable,  # host blocked
    1135: errors.DatabaseUnreachable,  # no thread available
    1152: errors.DatabaseUnreachable,  # aborted connection
    1158: errors.DatabaseUnreachable,  # reading packets
    1159: errors.DatabaseUnreachable,  # timeout reading packets
    1160: errors.DatabaseUnreachable,  # writing packets
    1161: errors.DatabaseUnreachable,  # timeout writing packets
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
    3159: errors.NotAuthorised,  # the account requires TLS
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
    1356: errors.TargetChanged,  # a view of something that no longer exists
}
CLIENT_CODES = range(2000, 3000)  # errors of the driver itself: the connection


def _read_timeout_s(access: Access) -> float:
    if access.statement_s is None:
        return timeouts.READ_S
    return min(timeouts.READ_S, access.statement_s + ANSWER_S)


def statement_limit(seconds: float, version: str) -> str:
    """Return the statement that limits the time of statements; in MySQL, of queries only."""
    if "MariaDB" in version:
        return f"SET SESSION max_statement_time = {seconds}"
    return f"SET SESSION max_execution_time = {round(seconds * 1000)}"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _is_utf8(key: TargetColumn) -> bool:
    return (key.collation or "utf8mb4_").startswith("utf8mb4_")


def _text(value: str) -> str:
    return f"'{converters.escape_string(value)}'"


def _time(value: datetime) -> str:
    return f"'{timestamp_text(value)}'"


# PyMySQL's own conversion takes longer than the server takes for the row; rare types use it.
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


@functools.cache
def _unverified_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class DriverConnection(connections.Connection):  # type: ignore[misc]
    """A connection of PyMySQL that opens faster, and notices a server that has vanished.

    Unless the URL says otherwise, PyMySQL encrypts without a check of the server. It still loads
    all authorities that the machine trusts for each connection, which takes 20 ms of CPU time.
    PyMySQL's own time-out for connecting ends before the server has said a word.
    """

    _read_timeout: float | None

    def connect(self, sock: Any = None) -> None:
        answer_s, self._read_timeout = self._read_timeout, self.connect_timeout
        try:
            super().connect(sock)
        finally:
            self._read_timeout = answer_s
        timeouts.watch(self._sock)

    def _create_ssl_ctx(self, options: Any) -> Any:
        if options == {}:
            return _unverified_tls()
        return super()._create_ssl_ctx(options)


class LoadingConnection(DriverConnection):
    """A connection that answers LOAD DATA LOCAL with given bytes.

    Never with a file: a server may request any file of the client, even if no statement loads one.
    """

    def load(self, statement: str, rows: bytes, size: int) -> bytes:
        """Send the rows in packets of a size, and return the server's message."""
        self._execute_command(COMMAND.COM_QUERY, statement)
        request = self._read_packet()
        result = connections.MySQLResult(self)
        if not request.is_load_local_packet():
            raise pymysql.err.InternalError("the server did not ask for the rows")
        for start in range(0, len(rows), size):
            self.write_packet(rows[start : start + size])
        self.write_packet(b"")
        result._read_ok_packet(self._read_packet())
        return bytes(result.message or b"")


class MysqlConnection(Connection):
    """A connection to MariaDB or MySQL."""

    text_type: ClassVar[str] = "CHAR"

    def connect(self) -> None:
        _, arguments = self.dialect.create_connect_args(tls.without_mysql(self.url))
        arguments.setdefault("connect_timeout", timeouts.CONNECT_S)
        flags = CLIENT.FOUND_ROWS | CLIENT.LOCAL_FILES  # FOUND_ROWS: an update counts matched rows
        arguments["client_flag"] = arguments.get("client_flag", 0) | flags
        self.driver = LoadingConnection(
            **{
                **arguments,
                **tls.mysql_arguments(self.url),
                "charset": "utf8mb4",
                "autocommit": True,
                "read_timeout": _read_timeout_s(self.access),
                "write_timeout": timeouts.READ_S,
            }
        )
        self.cursor = self.driver.cursor()
        self.cursor.execute(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',"
            " time_zone = '+00:00'"
        )
        lock_s = max(1, round(self.access.lock_s))
        self.cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {lock_s}")
        self.cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self.cursor.execute("SELECT @@max_allowed_packet, VERSION()")
        packet, version = self.cursor.fetchone()
        if self.access.read_only:
            self.cursor.execute("SET SESSION TRANSACTION READ ONLY")
        if self.access.statement_s is not None:
            self.cursor.execute(statement_limit(self.access.statement_s, version))
        self.cursor.execute(
            "SHOW SESSION VARIABLES WHERE Variable_name IN ('local_infile', 'wsrep_on')"
        )
        self.may_load = dict(self.cursor.fetchall()) in LOADING
        self._packet_bytes = int(packet)
        # escaping may turn one byte into two
        self.record_bytes_max = self._packet_bytes // 2 - STATEMENT_BYTES
        self.rows_bytes_max = min(STATEMENT_BYTES_MAX, self._packet_bytes // 2)
        self.has_row_alias = "MariaDB" not in version and _release(version) >= ROW_ALIAS_SINCE
        self.duplicates: int | None = None  # existing rows that the last `insert_rows` met
        for name, columns in self._stages.items():
            self.cursor.execute(f"CREATE TEMPORARY TABLE {name} ({columns}) ENGINE = InnoDB")

    def close(self) -> None:
        if self.driver.open:
            try:
                self.driver.close()
            except pymysql.Error:
                self.driver._force_close()

    def translate(self, error: Exception) -> errors.InstepError | None:
        return translate(error, self.url)

    def begin(self) -> None:
        for stage in self._used_stages:
            # TRUNCATE is faster than DELETE, but commits: only between transactions
            self.execute(f"TRUNCATE TABLE {stage}")
        super().begin()

    def begin_snapshot(self) -> None:
        self.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return int(self.cursor.execute(statement, parameters))

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.cursor.execute(statement, parameters)
        return list(self.cursor.fetchall())

    def select_many(
        self, statement: str, parameters: Sequence[Any], values: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        # an id of 255 characters may take 2 KB
        for chunk in chunks(values, min(2_000, self.rows_bytes_max // 2_048)):
            listed, listed_values = self.in_list(chunk)
            yield from self.select(
                statement.replace("{documents}", listed), (*parameters, *listed_values)
            )

    def append(
        self, table: str, columns: tuple[str, ...], rows: Rows, *, skip_existing: bool
    ) -> None:
        names = ", ".join(map(self.quoted, columns))
        after = ""
        if skip_existing:
            # not INSERT IGNORE, which would also accept values that do not fit
            first = self.quoted(columns[0])
            after = f" ON DUPLICATE KEY UPDATE {first} = {first}"
        self.insert_rows(f"INSERT INTO {table} ({names})", rows, after)

    def bind(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC).replace(tzinfo=None)
        return str(value) if isinstance(value, UUID) else value

    def bind_time(self, at: datetime | None) -> Any:
        return at if at is None else timestamp_text(at)

    def insert_rows(self, insert: str, rows: Rows, after: str = "") -> int:
        """Insert many rows in few statements, and return the number of changed rows.

        Afterwards `duplicates` is the number of rows that existed; None if the server did not
        report it for every statement.
        """
        insert, after = insert.replace("%%", "%") + " VALUES ", after.replace("%%", "%")
        literals: list[str] = []
        changed, size = 0, 0
        self.duplicates = 0
        for literal in self._literals(rows):
            needed = len(literal)
            if not literal.isascii():
                needed = len(literal.encode("utf-8", "surrogateescape"))
            if needed > self._packet_bytes - STATEMENT_BYTES:
                raise errors.RowRefused(
                    f"a row of {needed:,} bytes is larger than the server's max_allowed_packet"
                    f" of {self._packet_bytes:,} allows"
                )
            if literals and size + needed > self.rows_bytes_max:
                changed += self._insert(insert + ",".join(literals) + after)
                literals, size = [], 0
            literals.append(literal)
            size += needed + 1
        if literals:
            changed += self._insert(insert + ",".join(literals) + after)
        return changed

    def _insert(self, statement: str) -> int:
        changed = int(self.cursor.execute(statement))
        reported = DUPLICATES.search(self.cursor._result.message or b"")
        if reported is None or self.duplicates is None:
            self.duplicates = None
        else:
            self.duplicates += int(reported[1])
        return changed

    def _literals(self, rows: Rows) -> Iterator[str]:
        """Return each row as text; column by column, as a column mostly has values of one type."""
        for chunk in chunks(list(rows), LITERAL_ROWS):
            columns = [self._column_literals(values) for values in zip(*chunk, strict=True)]
            yield from (f"({','.join(row)})" for row in zip(*columns, strict=True))

    def _column_literals(self, values: Sequence[Any]) -> Iterable[str]:
        types = set(map(type, values))
        if types == {int}:
            return map(str, values)
        if types == {str} and not SPECIAL.search("".join(values)):
            return map("'{}'".format, values)
        rare: Callable[[Any], str] = self.driver.escape
        return [LITERALS.get(type(value), rare)(value) for value in values]


class MysqlJournal(Journal):
    """The journal in a MariaDB or MySQL database."""

    connection: MysqlConnection

    def append_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> None:
        # a loaded row costs the server half of an inserted one
        loads = self.connection.may_load and self.connection.target.slots == 1
        may_load = loads and len(events) >= LOADED_LEAST
        if not (may_load and self._load_history(partition, events, verdicts, at)):
            super().append_history(partition, events, verdicts, at)

    def _load_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> bool:
        """Load the rows with LOAD DATA, and return whether every row is stored as given.

        LOAD DATA skips or changes what does not fit; then everything is rolled back.
        """
        opened = self.connection
        columns: list[Sequence[Any]] = [
            [event.offset for event in events],
            [str(event.document) for event in events],
            [event.status for event in events],
            [event.order for event in events],
            [event.at_us for event in events],
            [verdict.value for verdict in verdicts],
        ]
        rows = "\n".join(map("\t".join, zip(*map(_fields, columns), strict=True)))
        common = (self.pipeline, self.topic, partition, timestamp_text(at))
        statement = opened.sql(LOAD_HISTORY) % tuple(map(opened.driver.escape, common))
        opened.execute("SAVEPOINT instep_load")
        try:
            message = opened.driver.load(statement, rows.encode(), opened.rows_bytes_max)
        except pymysql.Error as error:
            if error.args[0] not in LOAD_REFUSED:
                raise
            opened.may_load = False
            return False
        loaded = LOADED.search(message)
        if loaded and int(loaded[1]) == len(events):
            return True
        opened.execute("ROLLBACK TO SAVEPOINT instep_load")
        return False


class MysqlTargetTable(TargetTable):
    """The target table in a MariaDB or MySQL database."""

    connection: MysqlConnection

    def __init__(self, connection: MysqlConnection) -> None:
        super().__init__(connection)
        self._staged = 0  # rows in the stage
        self._existing = 0  # of the staged rows, those that the table had; set by `late_rows`

    def stage_columns(self) -> str:
        first_type = next(
            (c.declared for c in self.mapping.columns if c.name == self.mapping.guard), "BIGINT"
        )
        definitions = [
            *(
                f"{self.quoted(key.name)} {self._staged_type(key)} NOT NULL"
                for key in self.mapping.keys
            ),
            *(
                f"{self.quoted(column.name)} {column.declared} NULL"
                for column in self.mapping.columns
            ),
            f"{STAGE_FIRST} {first_type} NULL",
        ]
        if self._key_fits_index():
            definitions.append(f"PRIMARY KEY ({self.key})")
        return ", ".join(definitions).replace("%%", "%")

    def _staged_type(self, key: TargetColumn) -> str:
        """Return a type that distinguishes ids which the table's own collation may not."""
        if key in self.text_keys:
            return tables.name_type(255).compile(self.connection.dialect)
        return key.declared

    def _key_fits_index(self) -> bool:
        """Return whether the texts of a composite key, of any length, fit into a primary key."""
        return len(self.text_keys) * 255 * 4 + len(self.keys) * 16 <= INDEX_BYTES_MAX

    def after_key(self, last: tuple[Any, ...]) -> tuple[str, Sequence[Any]]:
        """Compare column by column: a comparison of rows does not use the index."""
        if len(last) == 1:
            return super().after_key(last)
        alternatives: list[str] = []
        values: list[Any] = []
        mark = self.connection.placeholder
        for number, name in enumerate(self.keys):
            equal = [f"{before} = {mark}" for before in self.keys[:number]]
            alternatives.append(" AND ".join([*equal, f"{name} > {mark}"]))
            values += last[: number + 1]
        return f"({' OR '.join(f'({one})' for one in alternatives)})", values

    def key_equals(self, key: TargetColumn, left: str, right: str) -> str:
        # a staged id is compared as the table's key compares, so that its index is used
        if key.collation is None:
            return f"{left} = {right}"
        if not _is_utf8(key):
            right = f"CONVERT({right} USING {key.collation.partition('_')[0]})"
        return f"{left} = {right} COLLATE {key.collation}"

    def exact_match(self, key: TargetColumn, left: str, right: str) -> str:
        if not _is_utf8(key):
            left, right = f"CONVERT({left} USING utf8mb4)", f"CONVERT({right} USING utf8mb4)"
        return f"CAST({left} AS BINARY) = CAST({right} AS BINARY)"

    def column_expression(self, column: TargetColumn) -> str:
        # the server shows a FLOAT with six digits only, unless it is part of a calculation
        name = self.quoted(column.name)
        return f"{name} + 0E0" if isinstance(column.kind, kinds.Float) else name

    def write_groups(self, groups: list[ColumnGroup]) -> None:
        key_values = self.identity.columns
        for group in groups:
            columns = (*self.key_names, *group.columns)
            rows = [
                (*key_values(document), *(value for value in values if value is not UNSET))
                for document, values in group.rows
            ]
            if group.is_insert:
                # Not from the stage: MariaDB refuses an INSERT … SELECT of several rows into a
                # table that has a BEFORE trigger.
                written = self.connection.insert_rows(self._insert(columns), rows)
            else:
                self.connection.claim_stage()
                self.connection.append(self.connection.stage, columns, rows, skip_existing=False)
                written = self._update(group.columns)
            self.check_written(written, len(rows))

    def fill_stage(self, rows: Sequence[StagedRow]) -> None:
        self.connection.claim_stage()
        columns = (*self.key_names, *self.columns, STAGE_FIRST)
        staged = list(self.flat(rows))
        self.connection.append(self.connection.stage, columns, staged, skip_existing=False)
        self._staged = len(rows)

    def late_rows(self) -> Rows:
        """Return the late rows, and lock all rows that exist.

        So nothing can change between this query and the upsert.
        """
        later = "FALSE"
        if self.guard:
            operator = ">" if self.target.rules.order_is_time else ">="
            later = f"t.{self.guard} {operator} s.{STAGE_FIRST}"
        join = f"FROM {self.connection.stage} AS s JOIN {self.name} AS t ON {self.same_document()}"
        counts = self.connection.select(f"SELECT COUNT(*), SUM({later}) {join} FOR UPDATE")
        self._existing, late = counts[0]
        if not late:
            return []
        columns = f"{self.key_expressions('t.')}, t.{self.guard}"
        return self.connection.select(f"SELECT {columns} {join} WHERE {later}")

    def is_optimistic(self, documents: int) -> bool:
        # The server does not report whether a single row existed. A row with the same time, or
        # one without an order, may stay as it is.
        return (
            super().is_optimistic(documents)
            and documents > 1
            and self.guard is not None
            and not self.target.rules.order_is_time
        )

    def upsert(self, rows: Sequence[StagedRow]) -> int | None:
        """Upsert in one statement of many rows, which costs less than the stage.

        The server counts a new or unchanged row once and a changed one twice, and reports how
        many rows existed; the difference is the number of written rows.
        """
        opened = self.connection
        # VALUES() is deprecated in MySQL since it has a name for the new rows
        written = "s.{}" if opened.has_row_alias else "VALUES({})"
        alias = " AS s" if opened.has_row_alias else ""
        # the guard's column last: assignments see the values of those before them
        ordered = sorted(self.columns, key=lambda column: column == self.mapping.guard)
        changes = ", ".join(self._guarded_assignment(column, written) for column in ordered)
        changed = opened.insert_rows(
            self._insert((*self.key_names, *self.columns)),
            [row[:-1] for row in self.flat(rows)],
            f"{alias} ON DUPLICATE KEY UPDATE {changes}",
        )
        return None if opened.duplicates is None else changed - opened.duplicates

    def upsert_stage(self) -> int | None:
        columns = (*self.key_names, *self.columns)
        staged = ", ".join(f"s.{self.quoted(column)}" for column in columns)
        # updates first: a row that was just inserted would be counted as an update too
        changed = self._update(self.columns) if self._existing else 0
        if self._existing < self._staged:
            absent = ""
            if self._existing:
                absent = (
                    f" LEFT JOIN {self.name} AS t ON {self.same_document()}"
                    f" WHERE t.{self.keys[0]} IS NULL"
                )
            changed += self.connection.execute(
                f"{self._insert(columns)} SELECT {staged} FROM {self.connection.stage} AS s{absent}"
            )
        return changed

    def _insert(self, columns: Sequence[str]) -> str:
        return f"INSERT INTO {self.name} ({', '.join(map(self.quoted, columns))})"

    def _guarded_assignment(self, column: str, written: str) -> str:
        """Return the assignment of a new value under the guard."""
        stored = f"{self.name}.{self.quoted(column)}"
        condition = f"TRUE{self.guard_condition(written, self.name)}"
        return f"{stored} = IF({condition}, {written.format(self.quoted(column))}, {stored})"

    def _update(self, columns: Sequence[str]) -> int:
        """Update these columns from the stage under the guard; return the number of rows."""
        values = ", ".join(
            f"t.{self.quoted(column)} = s.{self.quoted(column)}" for column in columns
        )
        return self.connection.execute(
            f"UPDATE {self.name} AS t JOIN {self.connection.stage} AS s ON {self.matches_key()}"
            f" SET {values} WHERE TRUE{self.guard_condition(columns=columns)}"
        )


def open_sinks(targets: Sequence[Target], access: Access = WRITING) -> list[Sink]:
    """Open one session for targets in MariaDB or MySQL."""
    return open_together(targets, access, MysqlConnection, MysqlTargetTable, MysqlJournal)


def _fields(values: Sequence[Any]) -> Iterable[str]:
    """Return the values of one column as fields of rows for LOAD DATA."""
    types = set(map(type, values))
    if types == {str} and not UNLOADABLE.search("".join(values)):
        return values
    if types == {int}:
        return list(map(str, values))
    return ["\\N" if value is None else UNLOADABLE.sub(_escaped, str(value)) for value in values]


def _escaped(character: re.Match[str]) -> str:
    return {"\t": "\\t", "\n": "\\n", "\0": "\\0", "\\": "\\\\"}[character[0]]


def translate(error: Exception, url: sa.URL) -> errors.InstepError | None:
    """Return PyMySQL's error as one of ours, by its number.

    An error without a number is a connection that broke.
    """
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
