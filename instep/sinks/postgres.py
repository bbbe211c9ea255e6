"""PostgreSQL: binary COPY into a temporary table, then one upsert from it, or one INSERT and one UPDATE."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import UNSET

from instep import errors
from instep.document import kinds
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.document.mapping import TargetColumn
from instep.sinks import credentials, sink, target, tls

try:
    import psycopg
    from psycopg.pq import TransactionStatus
except ImportError:  # the extra is not installed
    raise sink.no_driver("PostgreSQL", "postgres") from None

# a server that vanishes without a word is noticed within a minute
CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}

# SQLSTATE, or its class of two characters: what each means for a pipeline. Any other refuses the row, as a trigger may
# raise whatever code its author liked.
CODES: dict[str, type[errors.InstepError]] = {
    "08": errors.DatabaseUnreachable,
    "26": errors.DatabaseUnreachable,  # a prepared statement that the session does not know: a pooler has swapped sessions
    "57P01": errors.DatabaseUnreachable,  # the server shuts down
    "57P02": errors.DatabaseUnreachable,  # a crash elsewhere in the server
    "57P03": errors.DatabaseUnreachable,  # the server starts
    "57P04": errors.DatabaseUnreachable,  # the database was dropped
    "57P05": errors.DatabaseUnreachable,  # idle too long
    "53": errors.DatabaseUnreachable,  # out of memory or connections
    "53100": errors.DatabaseFull,
    "53400": errors.TooMuchAtOnce,  # temp_file_limit
    "58": errors.DatabaseUnreachable,  # the server's own I/O
    "HV00N": errors.DatabaseUnreachable,  # a foreign table's server does not answer
    "XX001": errors.DatabaseUnreachable,  # data corrupted
    "XX002": errors.DatabaseUnreachable,  # index corrupted
    "28": errors.NotAuthorised,
    "3D000": errors.DatabaseMissing,
    "3F000": errors.TargetChanged,  # no such schema
    "22": errors.RowRefused,
    "23": errors.RowRefused,
    "23503": errors.ParentMissing,
    "40": errors.Transient,  # deadlock, serialization
    "25": errors.Transient,  # the transaction is not in the state that it should be in
    "72000": errors.Transient,  # snapshot too old
    "55P03": errors.Transient,  # lock_timeout
    "55": errors.TargetChanged,
    "57014": errors.TooMuchAtOnce,  # statement_timeout, or cancelled
    "25P03": errors.TooMuchAtOnce,  # idle_in_transaction_session_timeout
    "25P04": errors.TooMuchAtOnce,  # transaction_timeout
    "25006": errors.TargetReadOnly,
    "42501": errors.PermissionLost,
    "42": errors.TargetChanged,  # a table, column or type that is not as it was
    "0A": errors.TargetChanged,  # a cached plan that no longer fits
}

PROTOCOL_VIOLATION = "08P01"

STAGE_TYPES: dict[type[kinds.ColumnKind], str] = {
    kinds.Text: "text",
    kinds.Enumeration: "text",
    kinds.Json: "text",
    kinds.Integer: "int8",
    kinds.Float: "float8",
    kinds.Numeric: "numeric",
    kinds.Boolean: "bool",
    kinds.Timestamp: "timestamptz",
    kinds.Date: "date",
    kinds.Uuid: "uuid",
}
# columns whose value travels as text and which PostgreSQL does not turn into its type by itself
CAST_KINDS = (kinds.Enumeration, kinds.Json)

APPEND_TYPES = {
    "pipeline": "text",
    "topic": "text",
    "partition": "int4",
    "offset": "int8",
    "document": "text",
    "status": "text",
    "ledger_offset": "int8",
    "order_value": "int8",
    "event_time": "timestamptz",
    "verdict": "text",
    "committed_at": "timestamptz",
    "key": "bytea",
    "value": "bytea",
    "headers": "bytea",
    "reason": "text",
    "detail": "text",
    "at": "timestamptz",
    "timestamp_ms": "int8",
    "action": "text",
    "outcome": "text",
    "actor": "text",
}

# what every transaction relies on: times as text in one form, and no wait for a lock without an end
SETTINGS = {"TimeZone": "UTC", "DateStyle": "ISO", "lock_timeout": "30s"}

# binary COPY: a head, rows of a count and then each field with its length before it, an end
COPY_HEAD, COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
TIME_ZERO_US = 946_684_800_000_000  # times are counted from the year 2000
EARLIEST, LATEST = -(2**63), 2**63 - 1  # order values of times that Python cannot hold
# key types whose equality is not that of text; staged ids, which are text, are compared as these
KEY_CASTS = {"character": "::bpchar", "citext": "::citext"}
PACKED_COLUMNS = (
    "pipeline",
    "topic",
    "partition",
    "committed_at",
    "verdict",
    "offset",
    "document",
    "status",
    "order_value",
    "event_time",
)
_length, _number, _two_numbers = (
    struct.Struct(">i").pack,
    struct.Struct(">iq").pack,
    struct.Struct(">iqiq").pack,
)
_number_and_length = struct.Struct(">iqi").pack


class PostgresSink(sink.Sink):
    """The target in a PostgreSQL database.

    Behind a connection pooler (PgBouncer, for example) each transaction may run in another server session. The sink then keeps
    nothing in the session: every transaction makes its own settings and temporary tables, no statement is prepared, and a
    read outside a transaction gets one of its own. A direct connection prepares its session once instead.
    """

    def connect(self) -> None:
        tls.check(self.url)
        _, arguments = self.dialect.create_connect_args(self.url)
        arguments = {
            **CONNECTION,
            "application_name": f"instep {self.target.pipeline}"[:63],
            **arguments,
        }
        # autocommit: transactions begin and end where the pipeline says
        self._connection = psycopg.connect(**arguments, autocommit=True)
        self.is_pooled = self._connection.info.backend_pid != self._server_pid()
        types = [
            ("stage_group", "int2"),
            *((column.name, STAGE_TYPES[type(column.kind)]) for column in self._stage_columns),
        ]
        first = (
            sink.STAGE_FIRST,
            "int8" if self.guard_kind is None else STAGE_TYPES[type(self.guard_kind)],
        )
        columns = ", ".join(f"{self._name(name)} {kind}" for name, kind in (*types, first))
        self._group_types = [kind for _, kind in types]
        self._stage_types = [*self._group_types[1:], first[1]]
        self._cursor = self._connection.cursor(binary=True)
        self._plain_cursor = self._connection.cursor()
        if self.is_pooled:
            self._connection.prepare_threshold = None
            self._local_settings = [
                f"SET LOCAL {name} = '{value}'" for name, value in SETTINGS.items()
            ]
            # an older version may have left a stage in a session that the pooler still keeps
            self._own_stage = [
                "DROP TABLE IF EXISTS pg_temp.instep_stage",
                f"CREATE TEMPORARY TABLE instep_stage ({columns}) ON COMMIT DROP",
            ]
            with self.transaction(keep=False):  # a pooler in statement mode is refused here
                pass
        else:
            self._local_settings = self._own_stage = []
            self._run_all(*(f"SET {name} = '{value}'" for name, value in SETTINGS.items()))
            self._run_all(f"CREATE TEMPORARY TABLE instep_stage ({columns}) ON COMMIT DELETE ROWS")

    def begin(self) -> None:
        self.stage_is_used = False
        # what a deferred constraint refuses is refused row by row, not at the end; all in one round trip
        self._run_all(
            "BEGIN", *self._local_settings, "SET CONSTRAINTS ALL IMMEDIATE", *self._own_stage
        )

    def begin_snapshot(self) -> None:
        self._run_all("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *self._local_settings)

    def key_read(self, table: str = "") -> str:
        # CHAR(n) is padded with spaces, and a cast to text takes them away
        pairs = zip(self.target.mapping.keys, self.keys, strict=True)
        return ", ".join(
            f"CAST({table}{name} AS text)" if key in self._text_keys else f"{table}{name}"
            for key, name in pairs
        )

    def key_equals(self, key: TargetColumn, left: str, right: str) -> str:
        return f"{left} = {right}{_key_cast(key)}"

    def exactly(self, key: TargetColumn, left: str, right: str) -> str:  # noqa: ARG002 - all columns alike
        return f'CAST({left} AS text) COLLATE "C" = CAST({right} AS text) COLLATE "C"'

    def guard_read(self, table: str = "") -> str:
        # as text: the driver has no value for infinity, nor for years beyond those of Python
        return (
            f"{table}{self.guard}::text"
            if isinstance(self.guard_kind, kinds.Timestamp)
            else super().guard_read(table)
        )

    def order_of(self, value: Any) -> int | None:
        if not isinstance(self.guard_kind, kinds.Timestamp) or value is None:
            return super().order_of(value)
        if value == "-infinity" or value.endswith("BC"):
            return EARLIEST
        try:
            return super().order_of(datetime.fromisoformat(value))
        except ValueError:
            return LATEST  # infinity, or a year of five digits

    def scanned(self, column: TargetColumn) -> str:
        # as text: a time beyond Python's years, or a type that the driver does not know, would be an error
        return f"{self.quoted(column.name)}::text"

    def close(self) -> None:
        self._connection.close()

    def translate(self, error: Exception) -> errors.InstepError | None:
        return translate(error, self.url)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        self._run(statement, parameters)
        return self._cursor.rowcount

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._lacks_settings:
            with self.snapshot():
                return self._run(statement, parameters).fetchall()
        return self._run(statement, parameters).fetchall()

    def _run(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        # without values the driver looks for no marks, and leaves doubled percent signs as they are
        return (
            self._cursor.execute(statement, parameters)
            if parameters
            else self._cursor.execute(statement.replace("%%", "%"))
        )

    def select_many(
        self, statement: str, parameters: Sequence[Any], documents: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        # an array is one parameter however many documents there are
        arrays: list[Sequence[Any]] = [list(documents)]
        if self.identity.is_composite and self.key_asked in statement:
            arrays = list(map(list, zip(*documents, strict=True)))
            casts = (
                f"%s{_key_cast(key) or '::' + STAGE_TYPES[type(key.kind)]}[]"
                for key in self.target.mapping.keys
            )
            asked = statement.replace("{documents}", f"(SELECT * FROM unnest({', '.join(casts)}))")
        else:
            cast = _key_cast(self.target.mapping.keys[0]) if f"{self.key} IN " in statement else ""
            asked = statement.replace("IN {documents}", f"= ANY(%s{cast and f'{cast}[]'})")
        if not documents:
            return
        if self._lacks_settings:
            yield from self.select(asked, (*parameters, *arrays))
            return
        # never prepared: a plan for any array compares each row with each of its values
        yield from self._cursor.execute(asked, (*parameters, *arrays), prepare=False)

    def append(
        self, table: str, columns: tuple[str, ...], rows: sink.Rows, *, skip_known: bool
    ) -> None:
        names = ", ".join(map(self._name, columns))
        into = table
        if skip_known:
            into = f"{table}_new"
            at_the_end = "DROP" if self.is_pooled else "DELETE ROWS"
            self.execute(
                f"CREATE TEMPORARY TABLE IF NOT EXISTS {into} (LIKE {table}) ON COMMIT {at_the_end}"
            )
        with self._cursor.copy(f"COPY {into} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types([APPEND_TYPES[column] for column in columns])
            for row in rows:
                copy.write_row(row)
        if skip_known:
            self.execute(f"INSERT INTO {table} SELECT * FROM {into} ON CONFLICT DO NOTHING")
            self.execute(f"DELETE FROM {into}")

    def append_history(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> None:
        names = ", ".join(map(self._name, PACKED_COLUMNS))
        with self._cursor.copy(f"COPY instep_history ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(
                b"".join([COPY_HEAD, *self._packed(partition, events, verdicts, at), COPY_END])
            )

    def write_groups(self, groups: list[sink.ColumnGroup]) -> None:
        if not groups:
            return
        self.use_stage()
        names = ", ".join(
            ["stage_group", *(self._name(column.name) for column in self._stage_columns)]
        )
        with self._cursor.copy(f"COPY instep_stage ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(self._group_types)
            for group in groups:
                for document, values in group.rows:
                    written = (None if value is UNSET else value for value in values)
                    copy.write_row((group.number, *self.identity.columns(document), *written))
        for group in groups:
            self.expect(
                self._insert(group) if group.fresh else self._update(group), len(group.rows)
            )

    def fill_stage(self, rows: Sequence[sink.Row]) -> None:
        self.use_stage()
        names = ", ".join(
            [*(self._name(column.name) for column in self._stage_columns), sink.STAGE_FIRST]
        )
        with self._cursor.copy(f"COPY instep_stage ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(self._stage_types)
            write = copy.write_row
            for row in self.flat(rows):
                write(row)

    def clear_stage(self) -> None:
        self.execute("DELETE FROM instep_stage")

    def upsert_stage(self) -> int:
        # no ORDER BY: a temporary table is read in the order in which it was filled, which is that of the ids
        names = ", ".join(map(self.quoted, (*self.key_names, *self.columns)))
        values = ", ".join([*(f"s.{key}" for key in self.keys), *map(self._cast, self.columns)])
        changes = ", ".join(
            f"{self.quoted(column)} = EXCLUDED.{self.quoted(column)}" for column in self.columns
        )
        return self.execute(
            f"INSERT INTO {self.table} AS t ({names}) SELECT {values} FROM instep_stage AS s"
            f" ON CONFLICT ({self.key}) DO UPDATE SET {changes} WHERE TRUE{self._guarded('EXCLUDED.{}')}"
        )

    def _packed(
        self, partition: int, events: Sequence[Event], verdicts: Sequence[Verdict], at: datetime
    ) -> Iterator[bytes]:
        """Rows of the history. The driver's own way, value by value, takes as long as the server takes for the row."""
        ours = (
            _packed_text(self.target.pipeline)
            + _packed_text(self.target.topic)
            + struct.pack(">ii", 4, partition)
        )
        ours = (
            struct.pack(">h", len(PACKED_COLUMNS))
            + ours
            + _number(8, kinds.micros(at) - TIME_ZERO_US)
        )
        begun = {verdict: ours + _packed_text(verdict.value) for verdict in set(verdicts)}
        statuses = {status: _packed_text(status) for status in {event.status for event in events}}
        for event, verdict in zip(events, verdicts, strict=True):
            document, order, at_us = str(event.document).encode(), event.order, event.at_us
            if order is None or at_us is None:
                times = NULL if at_us is None else _number(8, at_us - TIME_ZERO_US)
                end = (NULL if order is None else _number(8, order)) + times
            else:
                end = _two_numbers(8, order, 8, at_us - TIME_ZERO_US)
            place = _number_and_length(8, event.offset, len(document))
            yield begun[verdict] + place + document + statuses[event.status] + end

    def _insert(self, group: sink.ColumnGroup) -> int:
        names = ", ".join(map(self.quoted, (*self.key_names, *group.columns)))
        values = ", ".join([*self.keys, *(self._cast(column) for column in group.columns)])
        return self.execute(
            f"INSERT INTO {self.table} ({names}) SELECT {values} FROM instep_stage AS s WHERE stage_group = %s"
            f" ORDER BY {', '.join(f's.{key}' for key in self.keys)} ON CONFLICT ({self.key}) DO NOTHING",
            (group.number,),
        )

    def _update(self, group: sink.ColumnGroup) -> int:
        values = ", ".join(
            f"{self.quoted(column)} = {self._cast(column)}" for column in group.columns
        )
        return self.execute(
            f"UPDATE {self.table} AS t SET {values} FROM instep_stage AS s"
            f" WHERE s.stage_group = %s AND {self.matches_key()}{self._guarded(columns=group.columns)}",
            (group.number,),
        )

    def _cast(self, name: str) -> str:
        column = next(column for column in self.target.mapping.columns if column.name == name)
        cast = (
            f"::{column.declared}".replace("%", "%%") if isinstance(column.kind, CAST_KINDS) else ""
        )
        return f"s.{self.quoted(name)}{cast}"

    def _server_pid(self) -> int:
        """The process of the server session. A pooler tells its clients a number of its own when they connect."""
        row = self._connection.execute("SELECT pg_backend_pid()").fetchone()
        return int(row[0]) if row else 0

    @property
    def _lacks_settings(self) -> bool:
        """Whether a statement would run under settings that are not ours: behind a pooler, outside a transaction."""
        return self.is_pooled and self._connection.info.transaction_status is TransactionStatus.IDLE

    def _run_all(self, *statements: str) -> None:
        """Run statements without parameters in one round trip."""
        self._plain_cursor.execute("; ".join(statements))

    @property
    def _stage_columns(self) -> tuple[Any, ...]:
        return (*self.target.mapping.keys, *self.target.mapping.columns)

    def _name(self, name: str) -> str:
        """A quoted name for statements that take no parameters."""
        return self.quoted(name).replace("%%", "%")


def _key_cast(key: TargetColumn) -> str:
    """The cast that compares a text with this key column as the column compares; empty for most types."""
    return KEY_CASTS.get(key.declared.partition("(")[0].rpartition(".")[2], "")


def _packed_text(text: str | None) -> bytes:
    if text is None:
        return NULL
    packed = text.encode()
    return _length(len(packed)) + packed


def translate(error: Exception, url: sa.URL) -> errors.InstepError | None:
    """psycopg's error as one of ours, by its SQLSTATE; one without a state is a connection that failed or broke."""
    if not isinstance(error, psycopg.Error):
        return None
    where = target.shown(url)
    state = error.sqlstate or ""
    text = " ".join(str(error).split())
    if not state:
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        if lost and (fault := tls.postgres_fault(url) or credentials.refusal(error, url, text)):
            return fault
        return (
            errors.DatabaseUnreachable(f"no connection to {where}: {text}")
            if lost
            else errors.RowRefused(f"{where}: {text}")
        )
    if (
        state == PROTOCOL_VIOLATION and "statement pooling" in text
    ):  # PgBouncer has this one code for all of its own errors
        return errors.SettingsError(
            f"{where} is behind a connection pooler in statement mode, which allows no transactions",
            "set pool_mode = transaction (or session) in PgBouncer for this database, or connect `target` to the server directly",
        )
    ours = CODES.get(state) or CODES.get(state[:2], errors.RowRefused)
    return ours(f"{where}: {text} (SQLSTATE {state})")
