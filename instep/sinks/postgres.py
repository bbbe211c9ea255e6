"""PostgreSQL: binary COPY into the stage, then one upsert from it, or one INSERT and one UPDATE."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from msgspec import UNSET

from instep import errors
from instep.document import kinds
from instep.document.mapping import TargetColumn
from instep.sinks import credentials, target, timeouts, tls
from instep.sinks.connection import WRITING, Access, Connection, Rows, no_driver
from instep.sinks.journal import Journal
from instep.sinks.sink import Sink, open_together
from instep.sinks.target import Target
from instep.sinks.target_table import (
    STAGE_FIRST,
    ColumnGroup,
    StagedColumns,
    StagedRow,
    TargetTable,
)

try:
    import psycopg
    from psycopg.pq import TransactionStatus

    from instep.sinks.postgres_prepared import PreparedStatements, UnknownType
except ImportError:  # the extra is not installed
    raise no_driver("PostgreSQL", "postgres") from None

# What each SQLSTATE, or its class of two characters, means for a pipeline. Any other code refuses
# the row, because a trigger may raise any code.
CODES: dict[str, type[errors.InstepError]] = {
    "08": errors.DatabaseUnreachable,
    "26": errors.DatabaseUnreachable,  # unknown prepared statement: a pooler changed the session
    "57P01": errors.DatabaseUnreachable,  # shutting down
    "57P02": errors.DatabaseUnreachable,  # another server process crashed
    "57P03": errors.DatabaseUnreachable,  # starting up
    "57P04": errors.DatabaseUnreachable,  # the database was dropped
    "57P05": errors.DatabaseUnreachable,  # idle session timeout
    "53": errors.DatabaseUnreachable,  # out of memory or connections
    "53100": errors.DatabaseFull,
    "53400": errors.TooMuchAtOnce,  # temp_file_limit
    "58": errors.DatabaseUnreachable,  # I/O error of the server
    "HV00N": errors.DatabaseUnreachable,  # a foreign table's server does not answer
    "XX001": errors.DatabaseUnreachable,  # data corrupted
    "XX002": errors.DatabaseUnreachable,  # index corrupted
    "28": errors.NotAuthorised,
    "3D000": errors.DatabaseMissing,
    "3F000": errors.TargetChanged,  # no such schema
    "22": errors.RowRefused,
    "23": errors.RowRefused,
    "23503": errors.ParentMissing,
    "40": errors.Transient,  # deadlock, or serialization failure
    "25": errors.Transient,  # invalid transaction state
    "72000": errors.Transient,  # snapshot too old
    "55P03": errors.Transient,  # lock_timeout
    "55": errors.TargetChanged,
    "57014": errors.TooMuchAtOnce,  # statement_timeout, or cancelled
    "25P03": errors.TooMuchAtOnce,  # idle_in_transaction_session_timeout
    "25P04": errors.TooMuchAtOnce,  # transaction_timeout
    "25006": errors.TargetReadOnly,
    "42501": errors.PermissionLost,
    "42": errors.TargetChanged,  # a table, column or type has changed
    "0A": errors.TargetChanged,  # a cached plan no longer fits
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
# staged as text; PostgreSQL needs a cast to the column's type
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
    "token": "text",
    "number": "int4",
    "sink": "text",
    "run_id": "text",
    "batch_id": "int8",
    "data": "bytea",
    "kpi": "text",
    "latest_ms": "int8",
    "events": "text",
    "minute_ms": "int8",
    "kind": "text",
    "name": "text",
    "buckets": "text",
}

# Deferred constraints are checked row by row, not at the commit.
BEGIN = ("BEGIN", "SET CONSTRAINTS ALL IMMEDIATE")

ARRAY_ROWS_MAX = 50  # for more rows, COPY costs less than the conversion of arrays

SETTINGS = {"TimeZone": "UTC", "DateStyle": "ISO"}  # times as text in one form

EARLIEST, LATEST = -(2**63), 2**63 - 1  # order values of times that Python cannot represent
# key types that compare differently from text; staged ids, which are text, are cast to them
KEY_CASTS = {"character": "::bpchar", "citext": "::citext"}


class PostgresConnection(Connection):
    """A connection to PostgreSQL.

    Behind a connection pooler (PgBouncer, for example) each transaction may run in another server
    session. Nothing is kept in the session then: every transaction sets its own settings and
    creates its own temporary tables, no statement is prepared, and a read outside a transaction
    gets one of its own. A direct connection prepares its session once.
    """

    def connect(self) -> None:
        tls.check(self.url)
        _, arguments = self.dialect.create_connect_args(self.url)
        name = f"instep {self.target.pipeline}"[:63]
        arguments = {**timeouts.POSTGRES, "application_name": name, **arguments}
        # autocommit: the pipeline decides where transactions begin and end
        self.driver = psycopg.connect(**arguments, autocommit=True)
        # The driver would deallocate all prepared statements, ours too, after a ROLLBACK.
        self.driver.prepare_threshold = None
        self.is_pooled = self.driver.info.backend_pid != self._server_pid()
        self._cursor = self.driver.cursor(binary=True)
        self._begins = False  # whether the transaction begins with the next statement
        self._prepared = PreparedStatements(self.driver)
        stages = [
            f"CREATE TEMPORARY TABLE {name} ({columns})" for name, columns in self._stages.items()
        ]
        settings = _settings(self.access)
        if self.is_pooled:
            self._local_settings = [
                f"SET LOCAL {name} = '{value}'" for name, value in settings.items()
            ]
            if self.access.read_only:
                self._local_settings.append("SET TRANSACTION READ ONLY")
            # an older version may have left a stage in a session that the pooler still keeps
            self._local_stage = [
                *(f"DROP TABLE IF EXISTS pg_temp.{name}" for name in self._stages),
                *(f"{stage} ON COMMIT DROP" for stage in stages),
            ]
            with self.transaction(keep=False):  # raises if the pooler is in statement mode
                pass
        else:
            self._local_settings = self._local_stage = []
            self._run_all(*(f"SET {name} = '{value}'" for name, value in settings.items()))
            if self.access.read_only:
                self._run_all("SET default_transaction_read_only = on")
            self._run_all(*(f"{stage} ON COMMIT DELETE ROWS" for stage in stages))

    def close(self) -> None:
        self.driver.close()

    def translate(self, error: Exception) -> errors.InstepError | None:
        return translate(error, self.url)

    @property
    def cursor(self) -> psycopg.Cursor[Any]:
        """Return the cursor, in the transaction if one has begun."""
        self._begin_now()
        return self._cursor

    def begin(self) -> None:
        """Begin a transaction; on a direct connection, together with its first statements."""
        self._used_stages.clear()
        self._begins = True
        if self.is_pooled:
            self._begin_now()

    def _begin_now(self) -> None:
        if self._begins:
            self._begins = False
            self._run_all(*BEGIN[:1], *self._local_settings, *BEGIN[1:], *self._local_stage)

    def commit(self) -> None:
        self._begin_now()
        self._prepared.run(b"COMMIT")

    def rollback(self) -> None:
        self._begins = False
        self._prepared.run(b"ROLLBACK")

    def begin_snapshot(self) -> None:
        self._run_all("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *self._local_settings)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        self._run(statement, parameters)
        return self._cursor.rowcount

    def select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._lacks_settings:
            with self.snapshot():
                return self._run(statement, parameters).fetchall()
        return self._run(statement, parameters).fetchall()

    def select_together(
        self, queries: Sequence[tuple[str, Sequence[Any]]]
    ) -> list[list[tuple[Any, ...]]]:
        if self.is_pooled or not self._begins:
            return super().select_together(queries)
        with suppress(UnknownType):
            found = self._prepared.begin_and_select([text.encode() for text in BEGIN], queries)
            self._begins = False
            return found
        return super().select_together(queries)

    def execute_often(self, statement: str, parameters: Sequence[Any]) -> int:
        self._begin_now()
        if not self.is_pooled:
            with suppress(UnknownType):
                return self._prepared.execute(statement, parameters)
        return self.execute(statement, parameters)

    def execute_together(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        if self.is_pooled or len(statements) < 2:
            return super().execute_together(statements)
        self._begin_now()
        with suppress(UnknownType):
            return self._prepared.execute_together(statements)
        return super().execute_together(statements)

    def select_often(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        self._begin_now()
        if not self.is_pooled:
            with suppress(UnknownType):
                return self._prepared.select(statement, parameters)
        return self.select(statement, parameters)

    def select_many(
        self, statement: str, parameters: Sequence[Any], values: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        # an array is one parameter, however many values there are
        if not values:
            return iter(())
        return self.select_arrays(
            statement.replace("IN {documents}", "= ANY(%s)"), (*parameters, list(values))
        )

    def select_arrays(self, statement: str, parameters: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Run a query with arrays among its parameters."""
        if self._lacks_settings:
            return iter(self.select(statement, parameters))
        # Never prepared: the plan for any array compares each row with each value of the array.
        return iter(self.cursor.execute(statement, parameters, prepare=False))

    def append(
        self, table: str, columns: tuple[str, ...], rows: Rows, *, skip_existing: bool
    ) -> None:
        types = [APPEND_TYPES[column] for column in columns]
        if not skip_existing:
            remaining = iter(rows)
            first = list(itertools.islice(remaining, ARRAY_ROWS_MAX + 1))
            if len(first) > ARRAY_ROWS_MAX:
                self.copy_rows(table, columns, types, itertools.chain(first, remaining))
            elif first:
                self._insert_arrays(table, columns, types, first)
            return
        new = f"{table}_new"
        at_commit = "DROP" if self.is_pooled else "DELETE ROWS"
        self.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {new} (LIKE {table}) ON COMMIT {at_commit}"
        )
        self.copy_rows(new, columns, types, rows)
        self.execute(f"INSERT INTO {table} SELECT * FROM {new} ON CONFLICT DO NOTHING")
        self.execute(f"DELETE FROM {new}")

    def _insert_arrays(
        self,
        table: str,
        columns: Sequence[str],
        types: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
        """Insert a few rows in one round trip, where COPY takes three."""
        names = ", ".join(map(self.quoted, columns))
        arrays = ", ".join(f"%s::{kind}[]" for kind in types)
        self.execute_often(
            f"INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays})",
            [list(values) for values in zip(*rows, strict=True)],
        )

    def copy_rows(
        self, table: str, columns: Sequence[str], types: Sequence[str], rows: Rows
    ) -> None:
        """Load rows with binary COPY. The server stores the first ones while others are made."""
        with self.cursor.copy(self._copy_statement(table, columns)) as copy:
            copy.set_types(types)
            write = copy.write_row
            for row in rows:
                write(row)

    def copy_csv(self, table: str, columns: Sequence[str], pieces: Iterable[bytes]) -> None:
        """Load rows that are CSV already, which the driver passes on as they are."""
        names = ", ".join(map(self.plain_name, columns))
        statement = f"COPY {table} ({names}) FROM STDIN (FORMAT CSV)"
        with self.cursor.copy(statement) as copy:
            for piece in pieces:
                copy.write(piece)

    def plain_name(self, name: str) -> str:
        """Return a quoted name for a statement without parameters."""
        return self.quoted(name).replace("%%", "%")

    def _copy_statement(self, table: str, columns: Sequence[str]) -> str:
        names = ", ".join(map(self.plain_name, columns))
        return f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)"

    def _run(self, statement: str, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        if parameters:
            return self.cursor.execute(statement, parameters)
        # without parameters the driver does not turn doubled percent signs into single ones
        return self.cursor.execute(statement.replace("%%", "%"))

    def _run_all(self, *statements: str) -> None:
        """Run statements without parameters in one round trip."""
        self._prepared.run("; ".join(statements).encode(self.driver.info.encoding))

    def _server_pid(self) -> int:
        """Return the process id of the server session.

        A pooler reports another number to its clients when they connect.
        """
        row = self.driver.execute("SELECT pg_backend_pid()").fetchone()
        return int(row[0]) if row else 0

    @property
    def _lacks_settings(self) -> bool:
        """Return whether a statement would run without our settings.

        That is so behind a pooler, outside a transaction.
        """
        return self.is_pooled and self.driver.info.transaction_status is TransactionStatus.IDLE


class PostgresTargetTable(TargetTable):
    """The target table in a PostgreSQL database."""

    connection: PostgresConnection

    def __init__(self, connection: PostgresConnection) -> None:
        super().__init__(connection)
        columns = (*self.mapping.keys, *self.mapping.columns)
        self._stage_names = [column.name for column in columns]
        self._stage_types = [STAGE_TYPES[type(column.kind)] for column in columns]
        self._first_type = "int8" if self.guard_kind is None else STAGE_TYPES[type(self.guard_kind)]
        arrays = ", ".join(f"%s::{kind}[]" for kind in (*self._stage_types, self._first_type))
        names = ", ".join(map(self.quoted, (*self._stage_names, STAGE_FIRST)))
        self._upsert_arrays = self._upsert_statement(f"unnest({arrays}) AS s ({names})")
        self._upsert_stage = self._upsert_statement(f"{connection.stage} AS s")

    def stage_columns(self) -> str:
        definitions = [
            ("stage_group", "int2"),
            *zip(self._stage_names, self._stage_types, strict=True),
            (STAGE_FIRST, self._first_type),
        ]
        return ", ".join(f"{self.connection.plain_name(name)} {kind}" for name, kind in definitions)

    def key_expressions(self, table: str = "") -> str:
        # CHAR(n) is padded with spaces; a cast to text removes them
        pairs = zip(self.mapping.keys, self.keys, strict=True)
        return ", ".join(
            f"CAST({table}{name} AS text)" if key in self.text_keys else f"{table}{name}"
            for key, name in pairs
        )

    def key_equals(self, key: TargetColumn, left: str, right: str) -> str:
        return f"{left} = {right}{_key_cast(key)}"

    def exact_match(self, _key: TargetColumn, left: str, right: str) -> str:
        return f'CAST({left} AS text) COLLATE "C" = CAST({right} AS text) COLLATE "C"'

    def guard_expression(self, table: str = "") -> str:
        # as text: the driver has no value for infinity, nor for years beyond Python's
        if isinstance(self.guard_kind, kinds.Timestamp):
            return f"{table}{self.guard}::text"
        return super().guard_expression(table)

    def order_value(self, value: Any) -> int | None:
        if not isinstance(self.guard_kind, kinds.Timestamp) or value is None:
            return super().order_value(value)
        if value == "-infinity" or value.endswith("BC"):
            return EARLIEST
        try:
            return super().order_value(datetime.fromisoformat(value))
        except ValueError:
            return LATEST  # infinity, or a year of five digits

    def column_expression(self, column: TargetColumn) -> str:
        # as text: a year beyond Python's, or a type that the driver does not know, is an error
        return f"{self.quoted(column.name)}::text"

    def select_keys(
        self,
        query: str,
        parameters: Sequence[Any],
        values: Sequence[Any],
        keys: Sequence[TargetColumn],
    ) -> Iterator[tuple[Any, ...]]:
        if not values:
            return iter(())
        arrays: list[Sequence[Any]]
        names = ", ".join(self.quoted(key.name) for key in keys)
        if len(keys) > 1:
            arrays = list(map(list, zip(*values, strict=True)))
            casts = ", ".join(
                f"%s{_key_cast(key) or '::' + STAGE_TYPES[type(key.kind)]}[]" for key in keys
            )
            condition = f"({names}) IN (SELECT * FROM unnest({casts}))"
        else:
            arrays = [values]
            cast = _key_cast(keys[0])
            condition = f"{names} = ANY(%s{cast and f'{cast}[]'})"
        return self.connection.select_arrays(
            query.replace("{key_list}", condition), (*parameters, *arrays)
        )

    def write_groups(self, groups: list[ColumnGroup]) -> None:
        if not groups:
            return
        self.connection.claim_stage()
        names = ["stage_group", *self._stage_names]
        self.connection.copy_rows(
            self.connection.stage,
            names,
            ["int2", *self._stage_types],
            self._group_rows(groups),
        )
        for group in groups:
            written = self._insert(group) if group.is_insert else self._update(group)
            self.check_written(written, len(group.rows))

    def _group_rows(self, groups: list[ColumnGroup]) -> Iterator[tuple[Any, ...]]:
        for group in groups:
            for document, values in group.rows:
                staged = (None if value is UNSET else value for value in values)
                yield (group.number, *self.identity.columns(document), *staged)

    def fill_stage(self, rows: Sequence[StagedRow]) -> None:
        self.connection.claim_stage()
        names = [*self._stage_names, STAGE_FIRST]
        types = [*self._stage_types, self._first_type]
        self.connection.copy_rows(self.connection.stage, names, types, self.flat(rows))

    def upsert(self, rows: Sequence[StagedRow]) -> int:
        # A few rows as arrays take one round trip, where COPY and the stage take three.
        if len(rows) > ARRAY_ROWS_MAX:
            self.fill_stage(rows)
            return self.upsert_stage()
        arrays = list(map(list, zip(*self.flat(rows), strict=True)))
        return self.connection.execute_often(self._upsert_arrays, arrays)

    def upsert_columns(self, staged: StagedColumns) -> int | None:
        if len(staged) <= ARRAY_ROWS_MAX or not self._takes_csv(staged):
            return self.upsert(staged.rows())
        self._fill_stage_csv(staged, with_order=False)
        return self.upsert_stage()

    def fill_stage_columns(self, staged: StagedColumns) -> None:
        if self._takes_csv(staged):
            self._fill_stage_csv(staged, with_order=True)
        else:
            self.fill_stage(staged.rows())

    def _takes_csv(self, staged: StagedColumns) -> bool:
        return self.connection.driver.info.encoding == "utf-8" and staged.is_csv

    def _fill_stage_csv(self, staged: StagedColumns, *, with_order: bool) -> None:
        self.connection.claim_stage()
        names = [*self._stage_names, *([STAGE_FIRST] if with_order else [])]
        self.connection.copy_csv(self.connection.stage, names, staged.csv(with_order=with_order))

    def prepared_upsert(self, rows: Sequence[StagedRow]) -> Callable[[], int]:
        self.fill_stage(rows)
        return self.upsert_stage

    def upsert_stage(self) -> int:
        return self.connection.execute(self._upsert_stage)

    def _upsert_statement(self, source: str) -> str:
        """Return the upsert from rows named `s`."""
        # No ORDER BY: arrays and a temporary table are read in the order of their rows, by id.
        names = ", ".join(map(self.quoted, (*self.key_names, *self.columns)))
        values = ", ".join([*(f"s.{key}" for key in self.keys), *map(self._cast, self.columns)])
        changes = ", ".join(
            f"{self.quoted(column)} = EXCLUDED.{self.quoted(column)}" for column in self.columns
        )
        return (
            f"INSERT INTO {self.name} AS t ({names}) SELECT {values} FROM {source}"
            f" ON CONFLICT ({self.key}) DO UPDATE SET {changes}"
            f" WHERE TRUE{self.guard_condition('EXCLUDED.{}')}"
        )

    def _insert(self, group: ColumnGroup) -> int:
        names = ", ".join(map(self.quoted, (*self.key_names, *group.columns)))
        values = ", ".join([*self.keys, *(self._cast(column) for column in group.columns)])
        order = ", ".join(f"s.{key}" for key in self.keys)
        return self.connection.execute(
            f"INSERT INTO {self.name} ({names}) SELECT {values} FROM {self.connection.stage} AS s"
            f" WHERE stage_group = %s ORDER BY {order} ON CONFLICT ({self.key}) DO NOTHING",
            (group.number,),
        )

    def _update(self, group: ColumnGroup) -> int:
        values = ", ".join(
            f"{self.quoted(column)} = {self._cast(column)}" for column in group.columns
        )
        condition = self.matches_key() + self.guard_condition(columns=group.columns)
        return self.connection.execute(
            f"UPDATE {self.name} AS t SET {values} FROM {self.connection.stage} AS s"
            f" WHERE s.stage_group = %s AND {condition}",
            (group.number,),
        )

    def _cast(self, name: str) -> str:
        column = next(column for column in self.mapping.columns if column.name == name)
        if not isinstance(column.kind, CAST_KINDS):
            return f"s.{self.quoted(name)}"
        declared = column.declared.replace("%", "%%")
        return f"s.{self.quoted(name)}::{declared}"


def open_sinks(targets: Sequence[Target], access: Access = WRITING) -> list[Sink]:
    """Open one session for targets in PostgreSQL."""
    return open_together(targets, access, PostgresConnection, PostgresTargetTable, Journal)


def _settings(access: Access) -> dict[str, str]:
    """Return what every transaction of a session relies on."""
    settings = {**SETTINGS, "lock_timeout": _milliseconds(access.lock_s)}
    if access.statement_s is not None:
        settings["statement_timeout"] = _milliseconds(access.statement_s)
    return settings


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _key_cast(key: TargetColumn) -> str:
    """Return the cast that makes a text compare like this key column; empty for most types."""
    return KEY_CASTS.get(key.declared.partition("(")[0].rpartition(".")[2], "")


def translate(error: Exception, url: sa.URL) -> errors.InstepError | None:
    """Return psycopg's error as one of ours, by its SQLSTATE.

    An error without a state is a connection that failed or broke.
    """
    if not isinstance(error, psycopg.Error):
        return None
    where = target.shown(url)
    state = error.sqlstate or ""
    text = " ".join(str(error).split())
    if not state:
        if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return errors.RowRefused(f"{where}: {text}")
        fault = tls.postgres_fault(url) or credentials.refusal(error, url, text)
        return fault or errors.DatabaseUnreachable(f"no connection to {where}: {text}")
    # PgBouncer uses this code for all of its own errors
    if state == PROTOCOL_VIOLATION and "statement pooling" in text:
        return errors.SettingsError(
            f"{where} is behind a connection pooler in statement mode,"
            " which does not allow transactions",
            "set pool_mode = transaction (or session) in PgBouncer for this database,"
            " or connect `target` to the server directly",
        )
    ours = CODES.get(state) or CODES.get(state[:2], errors.RowRefused)
    return ours(f"{where}: {text} (SQLSTATE {state})")
