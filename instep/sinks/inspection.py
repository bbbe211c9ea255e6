"""Reading a target table, and judging whether it can hold what the mapping says.

A table that cannot is refused before anything runs, with the exact column and the statement that would mend it.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import sqlalchemy as sa
from msgspec import UNSET
from sqlalchemy import types
from sqlalchemy.dialects import mysql, postgresql

from instep import errors, extras, settings
from instep.document import guard, identity, kinds, mapping, transitions
from instep.sinks import declared_columns, schemas, sqlite, tables, target, tls
from instep.sinks.target import TableName, Target

INTEGER_BITS = {
    "TINYINT": 8,
    "SMALLINT": 16,
    "MEDIUMINT": 24,
    "INTEGER": 32,
    "INT": 32,
    "BIGINT": 64,
}
TEXT_BYTES = {
    "TINYTEXT": 2**8 - 1,
    "TEXT": 2**16 - 1,
    "MEDIUMTEXT": 2**24 - 1,
    "LONGTEXT": 2**32 - 1,
}
JSON_DOUBLES: dict[str, Literal["all", "whole"]] = {
    "mysql": "all",
    "sqlite": "whole",
}  # others keep every digit of a number
JSON_DEPTH = {
    "mysql": 100,
    "mariadb": 31,
}  # what their parsers take; PostgreSQL takes more than an event may have
DECIMAL_ID_DIGITS = 18  # of a decimal number that is a key: what 64 bits hold
UUID_BYTES = 16
TIME_DIGITS = 6  # of a second, in a key
JSON_CHECK = re.compile(r"json_valid\(.*\)")  # MariaDB's own, which every value that we write keeps
# pairs of ids that a collation may confuse: case, trailing space, one letter in two Unicode forms
CONFUSABLE = {
    "a and A": ("a", "A"),
    "a and a with a space behind it": ("a", "a "),
    "é as one and as two characters": ("\u00e9", "e\u0301"),
    "e and é": ("e", "\u00e9"),
}


@contextmanager
def connection(
    url: sa.URL, *, create: bool = False, read_only: bool = False
) -> Iterator[sa.Connection]:
    """A connection for looking and for making tables; errors come out as ours. `create` makes a missing SQLite file.

    `read_only` asks for no more than the right to read, of a SQLite file and its folder too.
    """
    asked, since = url, time.monotonic()
    if url.get_backend_name() == "sqlite" and not create:
        mode = _reading_mode(Path(str(url.database))) if read_only else {"mode": "rw"}
        url = url.set(
            database=f"file:{quote(str(url.database))}", query={**url.query, **mode, "uri": "true"}
        )
    try:
        engine = sa.create_engine(
            tls.without_mysql(url), poolclass=sa.pool.NullPool, connect_args=_arguments(url)
        )
    except ModuleNotFoundError:
        name = url.get_backend_name()
        raise extras.missing(f"the driver for {name}", target.EXTRAS[name]) from None
    try:
        with engine.connect() as opened:
            _refuse_raw_bytes(opened, asked)
            yield opened
    except sa.exc.DBAPIError as error:
        ours = translate(asked, error.orig) if isinstance(error.orig, Exception) else None
        if ours is None:
            raise
        if isinstance(ours, errors.RowRefused):  # no row was written here
            ours = errors.TargetUnfit(
                ours.what,
                "have an administrator run the statements that `instep init --sql` prints",
            )
        if isinstance(ours, errors.Unreachable):
            ours = type(ours)(
                f"{ours.what} (tried for {time.monotonic() - since:.0f} s)", ours.remedy
            )
        raise ours from error
    finally:
        engine.dispose()


def _reading_mode(file: Path) -> dict[str, str]:
    """How to open a SQLite file for reading.

    A database in WAL mode that nobody has open lacks the files beside it, which even a reader makes, and cannot in a folder that
    is read-only. As nobody writes it either, it may be read as it stands.
    """
    unused = not Path(f"{file}-wal").exists() and not os.access(file.parent, os.W_OK)
    return {"mode": "ro", "immutable": "1"} if unused and file.exists() else {"mode": "ro"}


def _refuse_raw_bytes(opened: sa.Connection, url: sa.URL) -> None:
    """PostgreSQL's SQL_ASCII keeps bytes of any encoding: what is read back may not be text at all."""
    driver: Any = opened.connection.driver_connection
    if (
        opened.dialect.name != "postgresql"
        or driver.info.parameter_status("server_encoding") != "SQL_ASCII"
    ):
        return
    raise errors.TargetUnfit(
        f"{target.shown(url)} has the encoding SQL_ASCII, which keeps bytes of any encoding instead of text",
        "move the tables to a database made with: CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
    )


def _arguments(url: sa.URL) -> dict[str, Any]:
    """What the driver takes beside the URL."""
    match url.get_backend_name():
        case "sqlite":
            return {}
        case "postgresql":
            tls.check(url)
            # a pooler may give each statement another session
            return {"connect_timeout": 5, "prepare_threshold": None, "client_encoding": "utf8"}
        case _:
            # the server's own mode may give quotes another meaning
            return {
                "connect_timeout": 5,
                "sql_mode": "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION",
                **tls.mysql_arguments(url),
            }


def translate(url: sa.URL, error: Exception) -> errors.InstepError | None:
    """A driver's error as ours, by the table of its own module."""
    match url.get_backend_name():
        case "sqlite":
            return sqlite.translate(error, url)
        case "postgresql":
            from instep.sinks import postgres

            return postgres.translate(error, url)
        case _:
            from instep.sinks import mysql as mysql_sink

            return mysql_sink.translate(error, url)


def inspect(name: str, pipeline: settings.Pipeline) -> Target:
    """The pipeline's target, when its table fits the mapping and instep's own tables are there."""
    url = target.database_url(pipeline.target)
    table = target.table_name(pipeline.table)
    with connection(url) as opened:
        view = sa.inspect(opened)
        judge_own(opened, url, own_tables(view))
        if not view.has_table(table.name, schema=table.schema):
            schemas.refuse_missing(view, table, url)
            raise errors.TargetUnfit(
                f"{target.shown(url)} has no table {table}", "run: instep init"
            )
        reader = TableReader(opened, table)
        compiled = reader.judge(pipeline)
        refuses = reader.refuses(pipeline)
        upserts = not refuses and reader.upserts(compiled)
        unique = tuple(
            sorted(key for key in reader.unique_keys() if set(key) != set(pipeline.keys))
        )
        loose_key = any(
            isinstance(one.kind, kinds.Text) and reader.confused_ids(one.name) is not None
            for one in compiled.keys
        )
    return Target(
        pipeline=name,
        topic=pipeline.topic,
        url=url.render_as_string(hide_password=False),
        table=table,
        mapping=compiled,
        rules=guard.Rules(
            ordered=pipeline.event.order is not None,
            order_is_time=compiled.order_is_time,
            missing=pipeline.missing,
            transitions=transitions.declare(pipeline.transitions),
            deletes=pipeline.on_delete,
            cleared=_cleared(table, pipeline, compiled) if pipeline.on_delete == "clear" else (),
            cleared_status=pipeline.cleared_status,
        ),
        guarantee=pipeline.guarantee,
        history=pipeline.history,
        upserts=upserts,
        refuses=refuses,
        unique=unique,
        loose_key=loose_key,
    )


def _cleared(
    table: TableName, pipeline: settings.Pipeline, compiled: mapping.Mapping
) -> guard.Values:
    """What a delete writes to each mapped column: null, or the status for it. The guard's value and constants stay."""
    values: list[Any] = []
    for field in compiled.fields:
        column = field.column
        if column.name == compiled.guard or field.constant is not None:
            values.append(UNSET)
        elif column == compiled.status_column and pipeline.cleared_status is not None:
            values.append(kinds.converter(column.kind)(pipeline.cleared_status))
        elif column.nullable:
            values.append(None)
        else:
            raise errors.TargetUnfit(
                f'table {table}: column {column.name!r} takes no null, so deletes = "clear" cannot empty it',
                "let the column be null, give the status column a cleared_status, or choose another value of `deletes`",
            )
    return tuple(values)


def refuse_restrained(known: Target, pipeline: settings.Pipeline) -> None:
    """Raise when the table is no longer what a running pipeline was started on.

    TargetChanged ends the pipeline. TableConstrained starts it again: a constraint, a trigger, a unique key or another collation
    of the key changes how rows have to be written.
    """
    found = refuse_changed(known, pipeline)
    if (found.refuses, found.upserts, found.unique, found.loose_key) != (
        known.refuses,
        known.upserts,
        known.unique,
        known.loose_key,
    ):
        raise errors.TableConstrained(
            f"the constraints, triggers or keys of table {found.table} were changed"
        )


def refuse_changed(known: Target, pipeline: settings.Pipeline) -> Target:
    """The target as it is now; TargetChanged when its table is no longer the one that a running pipeline was started on."""
    again = f"put it back as it was, or keep it so; then: instep run {shlex.quote(known.pipeline)}"
    try:
        found = inspect(known.pipeline, pipeline)
    except errors.TargetUnfit as unfit:
        raise errors.TargetChanged(
            unfit.what, f"{unfit.remedy}; then: instep run {shlex.quote(known.pipeline)}"
        ) from unfit
    for before, after in zip(
        (*known.mapping.keys, *known.mapping.columns),
        (*found.mapping.keys, *found.mapping.columns),
        strict=True,
    ):
        if before != after:
            raise errors.TargetChanged(
                f"table {known.table}: column {before.name!r} was {_worded(before)} and is {_worded(after)} now",
                again,
            )
    return found


def _worded(column: mapping.TargetColumn) -> str:
    collation = (
        f" COLLATE {column.collation}"
        if column.collation and "COLLATE" not in column.declared
        else ""
    )
    return f"{column.declared}{collation}{'' if column.nullable else ' NOT NULL'}"


def own_tables(view: sa.Inspector) -> dict[str, set[str]]:
    """Those of instep's own tables that are there, with their columns."""
    found = view.get_multi_columns(filter_names=list(tables.metadata.tables))
    return {
        name: {column["name"] for column in columns}
        for (_, name), columns in found.items()
        if columns
    }


def judge_own(opened: sa.Connection, url: sa.URL, own: dict[str, set[str]]) -> None:
    """Raise TargetUnfit when one of instep's own tables, or a column of it, is missing."""
    for name, table in sorted(tables.metadata.tables.items()):
        if name not in own:
            sa.inspect(opened).has_table(
                name
            )  # MariaDB and MySQL hide a table without rights, and refuse when asked by name
            raise errors.TargetUnfit(f"{target.shown(url)} has no table {name}", "run: instep init")
        for column in tables.lacking(table, own[name]):
            raise errors.TargetUnfit(
                f"{target.shown(url)}: table {name} has no column {column.name}", "run: instep init"
            )


class TableReader:
    """One table as the database describes it."""

    def __init__(self, opened: sa.Connection, table: TableName) -> None:
        self.connection = opened
        self.dialect = opened.dialect
        self.table = table
        self.view = sa.inspect(opened)
        self.columns: dict[str, Any] = {
            c["name"]: c for c in self.view.get_columns(table.name, schema=table.schema)
        }
        self.quoted = ".".join(self.quote(part) for part in (table.schema, table.name) if part)

    @property
    def is_mysql(self) -> bool:
        return self.dialect.name in ("mysql", "mariadb")

    def quote(self, name: str) -> str:
        return tables.undoubled(
            self.dialect.identifier_preparer.quote_identifier(name), self.dialect
        )

    def judge(self, pipeline: settings.Pipeline) -> mapping.Mapping:
        """The compiled mapping; raises TargetUnfit with the first thing that does not fit."""
        self.judge_table(pipeline)
        columns = {name: self._column(name) for name in pipeline.columns} | self._key_columns(
            pipeline
        )
        if pipeline.missing == "insert":
            self._judge_unmapped(pipeline)
        compiled = mapping.compile_mapping(pipeline, columns)
        if compiled.guard:
            self._judge_guard(columns[compiled.guard], compiled.order_is_time)
        for fault in declared_columns.faults(str(self.table), pipeline, columns):
            raise fault
        return compiled

    def faults(
        self, pipeline: settings.Pipeline, *, may_lack: bool = False
    ) -> list[errors.TargetUnfit]:
        """Everything that does not fit, not only the first; columns that may be lacking are passed over."""
        found: list[errors.TargetUnfit] = []

        def attempt(judge: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return judge(*arguments)
            except errors.TargetUnfit as unfit:
                found.append(unfit)

        attempt(self.judge_table, pipeline)
        asked = [name for name in pipeline.columns if name in self.columns or not may_lack]
        columns = {
            name: column for name in asked if (column := attempt(self._column, name)) is not None
        }
        if pipeline.missing == "insert":
            for name in self.columns:
                attempt(self._judge_unmapped, pipeline, name)
        if (
            self.columns.keys() >= set(pipeline.keys)
            and not found
            and not (pipeline.columns.keys() - columns.keys())
        ):
            columns |= self._key_columns(pipeline)
            compiled = mapping.compile_mapping(pipeline, columns)
            if compiled.guard:
                attempt(self._judge_guard, columns[compiled.guard], compiled.order_is_time)
        return [*found, *declared_columns.faults(str(self.table), pipeline, columns)]

    def judge_table(self, pipeline: settings.Pipeline) -> None:
        """What must be right before the table is changed or written: its engine, and the key."""
        self._refuse_view()
        self._judge_database()
        written = pipeline.missing == "insert"
        for name in pipeline.keys:
            if name not in self.columns:
                near = settings.nearest(name, self.columns)
                raise errors.TargetUnfit(
                    f"table {self.table} has no column {name!r}{near}",
                    "correct `key` in the settings",
                )
            self._judge_key_column(name, self._key_column(name, written=written), pipeline)
            if written and (self.columns[name].get("identity") or {}).get("always"):
                raise self._unfit(
                    name,
                    "is GENERATED ALWAYS by the database, so a document cannot be inserted under its own id",
                    f"ALTER TABLE {self.quoted} ALTER COLUMN {self.quote(name)} SET GENERATED BY DEFAULT",
                )
        self._judge_key(pipeline.keys)

    def refuses(self, pipeline: settings.Pipeline) -> bool:
        """Whether the table has constraints on the columns that are written, or triggers: it may refuse what fits its types."""
        where: dict[str, Any] = {"table_name": self.table.name, "schema": self.table.schema}
        written = set(pipeline.columns)
        checks = [check["sqltext"] for check in self.view.get_check_constraints(**where)]
        pointing = [set(key["constrained_columns"]) for key in self.view.get_foreign_keys(**where)]
        unique = [set(key) for key in self.unique_keys()]
        unique += [
            written
            for index in self.view.get_indexes(**where)
            if index["unique"] and None in index["column_names"]
        ]
        return (
            any(
                name in check
                for name in written
                for check in checks
                if not JSON_CHECK.fullmatch(check)
            )
            or any(written & columns for columns in (*pointing, *unique))
            or any(isinstance(self.columns[name]["type"], postgresql.DOMAIN) for name in written)
            or bool(self.triggers())
        )

    def upserts(self, compiled: mapping.Mapping) -> bool:
        """Whether a row that turns out to be there leaves no trace of the attempt to insert it, and the guard holds in SQL."""
        key = {column.name for column in compiled.keys}
        others = [column for name, column in self.columns.items() if name not in key]
        counts_up = any(
            column.get("autoincrement") is True
            or column.get("identity")
            or "nextval" in str(column.get("default"))
            for column in others
        )
        filters = (
            self.dialect.name == "postgresql"
            and self.connection.execute(
                sa.text("SELECT relrowsecurity FROM pg_class WHERE oid = CAST(:table AS regclass)"),
                {"table": self.quoted},
            ).scalar()
        )
        # SQLite keeps times as text, in whatever shape they were written
        comparable = (
            self.dialect.name != "sqlite"
            or not compiled.guard
            or isinstance(self._column(compiled.guard).kind, kinds.Integer)
        )
        # an upsert of MariaDB and MySQL goes by whichever unique key it meets first
        by_key = not self.is_mysql or all(set(unique) == key for unique in self.unique_keys())
        return not counts_up and not filters and comparable and by_key

    def triggers(self) -> list[str]:
        match self.dialect.name:
            case "sqlite":
                query = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table COLLATE NOCASE"
                found = self.connection.execute(sa.text(query), {"table": self.table.name})
            case "postgresql":
                query = "SELECT tgname FROM pg_trigger WHERE tgrelid = CAST(:table AS regclass) AND NOT tgisinternal"
                found = self.connection.execute(sa.text(query), {"table": self.quoted})
            case _:
                query = (
                    "SELECT trigger_name FROM information_schema.triggers WHERE event_object_table = :table"
                    " AND event_object_schema = COALESCE(:schema, DATABASE())"
                )
                found = self.connection.execute(
                    sa.text(query), {"table": self.table.name, "schema": self.table.schema}
                )
        return sorted(str(row[0]) for row in found)

    # --- the key ---------------------------------------------------------------------------------------

    def _refuse_view(self) -> None:
        """A view has no key of its own, and cannot be counted on to write what it is given."""
        views = {*self.view.get_view_names(self.table.schema)}
        if self.dialect.name == "postgresql":
            views |= {*self.view.get_materialized_view_names(self.table.schema)}
        if self.table.name in views:
            raise errors.TargetUnfit(
                f"{self.table} is a view", "name the table behind it as `table` in the settings"
            )

    def _key_columns(self, pipeline: settings.Pipeline) -> dict[str, mapping.TargetColumn]:
        """The key's columns; where instep makes no rows, the database may compute them."""
        return {
            name: self._key_column(name, written=pipeline.missing == "insert")
            for name in pipeline.keys
        }

    def _key_column(self, name: str, *, written: bool) -> mapping.TargetColumn:
        """A column as part of the key: a decimal number without digits after the point is an integer there."""
        if self.columns[name].get("computed") and written:
            raise self._unfit(
                name,
                "is the key and computed by the database, so a document cannot be inserted under its own id",
                'set missing = "park" or "ignore", or choose another unique column as `key`',
            )
        column = self._column(name, written=written)
        match column.kind:
            case kinds.Numeric(digits=int(digits), scale=0 | None) if digits <= DECIMAL_ID_DIGITS:
                limit = 10**digits - 1
                return msgspec.structs.replace(column, kind=kinds.Integer(-limit, limit))
        return column

    def _judge_key_column(
        self, name: str, column: mapping.TargetColumn, pipeline: settings.Pipeline
    ) -> None:
        if len(pipeline.keys) == 1 and not isinstance(column.kind, identity.KINDS):
            raise self._unfit(
                name, f"is {column.declared}, and a document's id is text, an integer or a UUID"
            )
        if not isinstance(column.kind, identity.PART_KINDS):
            raise self._unfit(
                name,
                f"is {column.declared}, and a part of a composite key is text, an integer, a UUID, a date or a time",
            )
        if len(pipeline.keys) > 1 and pipeline.key_separator in identity.RESERVED.get(
            type(column.kind), ""
        ):
            raise self._unfit(
                name,
                f"is {column.declared}, whose values contain the key_separator {pipeline.key_separator!r}",
                'choose another key_separator: "/", for example',
            )
        if isinstance(column.kind, kinds.Timestamp) and (
            column.kind.precision < TIME_DIGITS or self.dialect.name == "sqlite"
        ):
            raise self._unfit(
                name,
                f"is {column.declared}, which does not keep every microsecond of a time in one form, and it is part of the key",
                "use a key without it, or a column that keeps microseconds: timestamptz, DATETIME(6)",
            )
        if column.nullable and name not in self._primary_key():
            raise self._unfit(name, "is the key and may be null", self._set_not_null(name, column))

    def _judge_key(self, names: tuple[str, ...]) -> None:
        """The key's columns must be unique, together and checked at once."""
        if not any(set(unique) == set(names) for unique in self.unique_keys()):
            raise self._not_unique(names)
        if self.dialect.name == "postgresql":
            self._refuse_deferrable(names)

    def _not_unique(self, names: tuple[str, ...]) -> errors.TargetUnfit:
        """What to do depends on the table's own key: a column that is unique with others only does not name a document."""
        primary, columns = self._primary_key(), ", ".join(map(self.quote, names))
        add = f"ALTER TABLE {self.quoted} ADD UNIQUE ({columns})"
        wider = (
            primary
            if set(primary) > set(names)
            else next((key for key in self.unique_keys() if set(key) > set(names)), ())
        )
        if wider:
            listed = ", ".join(f'"{name}"' for name in wider)
            return errors.TargetUnfit(
                f"table {self.table}: {_columns(names)} the key and not unique: the table's key is ({', '.join(wider)})",
                f"set key = [{listed}], and `document` to a field for each of them or to one field that holds all of them",
            )
        return errors.TargetUnfit(
            f"table {self.table}: {_columns(names)} the key and not unique", add
        )

    def _refuse_deferrable(self, names: tuple[str, ...]) -> None:
        """An upsert cannot rely on a unique key that is checked at the end of the transaction only."""
        query = (
            "SELECT c.conname FROM pg_constraint AS c WHERE c.conrelid = CAST(:table AS regclass) AND c.contype IN ('p', 'u')"
            " AND c.condeferrable AND ARRAY(SELECT unnest(c.conkey) ORDER BY 1) = ARRAY(SELECT attnum FROM pg_attribute"
            " WHERE attrelid = c.conrelid AND attname = ANY(:names) ORDER BY 1)"
        )
        found = (
            self.connection.execute(sa.text(query), {"table": self.quoted, "names": list(names)})
            .scalars()
            .all()
        )
        if found:
            constraint = self.quote(str(found[0]))
            kind = "PRIMARY KEY" if set(names) == set(self._primary_key()) else "UNIQUE"
            raise errors.TargetUnfit(
                f"table {self.table}: {_columns(names)} the key, and its constraint {found[0]} is DEFERRABLE, which rules out"
                " upserts",
                f"ALTER TABLE {self.quoted} DROP CONSTRAINT {constraint},"
                f" ADD CONSTRAINT {constraint} {kind} ({', '.join(map(self.quote, names))})",
            )

    def confused_ids(self, name: str) -> str | None:
        """Which ids the key's collation takes for equal although they differ, in words; None when there are no such."""
        return next(
            (
                words
                for words, (one, other) in CONFUSABLE.items()
                if self._confuses(name, one, other)
            ),
            None,
        )

    def _confuses(self, name: str, one: str, other: str) -> bool:
        """Whether two ids would be one in this column, asked of the database itself."""
        if self.dialect.name == "sqlite":
            return {
                "NOCASE": one.lower() == other.lower(),
                "RTRIM": one.rstrip() == other.rstrip(),
            }.get(self._sqlite_collation(name), False)
        if self.is_mysql:
            collation = self.columns[name]["type"].collation
            charset = self.columns[name]["type"].charset
            if not kinds.is_in_charset(f"{one}{other}", charset):
                return False
            statement = f"SELECT CONVERT(:one USING {charset}) COLLATE {collation} = CONVERT(:other USING {charset}) COLLATE {collation}"
            return bool(
                self.connection.execute(sa.text(statement), {"one": one, "other": other}).scalar()
            )
        kind = self._postgres_types()[name]
        collate = self.columns[name]["type"].collation
        suffix = f" COLLATE {self.quote(collate)}" if collate else ""
        statement = f"SELECT CAST(:one AS {kind}){suffix} = CAST(:other AS {kind}){suffix}"
        return bool(
            self.connection.execute(sa.text(statement), {"one": one, "other": other}).scalar()
        )

    def _sqlite_collation(self, name: str) -> str:
        for index in self.connection.exec_driver_sql(f"PRAGMA index_list({self.quoted})").all():
            parts = (
                self.connection.exec_driver_sql(f"PRAGMA index_xinfo({self.quote(index[1])})")
                if index[2]
                else ()
            )
            for row in parts:
                if row[5] and row[2] == name and str(row[4]).upper() != "BINARY":
                    return str(row[4]).upper()
        return "BINARY"

    def _primary_key(self) -> tuple[str, ...]:
        return tuple(
            self.view.get_pk_constraint(self.table.name, schema=self.table.schema)[
                "constrained_columns"
            ]
        )

    def unique_keys(self) -> set[tuple[str, ...]]:
        """Columns that are unique together; an index over part of the rows or over expressions does not count."""
        where: dict[str, Any] = {"table_name": self.table.name, "schema": self.table.schema}
        keys = {
            tuple(unique["column_names"]) for unique in self.view.get_unique_constraints(**where)
        }
        for index in self.view.get_indexes(**where):
            names = index["column_names"]
            options = index.get("dialect_options", {})
            partial = any(
                key.endswith("_where") and value is not None for key, value in options.items()
            )
            if index["unique"] and not partial and None not in names:
                keys.add(tuple(str(name) for name in names))
        return keys | ({self._primary_key()} if self._primary_key() else set())

    # --- the other columns -----------------------------------------------------------------------------

    def _judge_unmapped(self, pipeline: settings.Pipeline, only: str | None = None) -> None:
        for name, column in self.columns.items():
            if name in pipeline.keys or name in pipeline.columns or only not in (None, name):
                continue
            filled = (
                column["nullable"]
                or column.get("default") is not None
                or column.get("computed")
                or column.get("identity")
            )
            if not filled and column.get("autoincrement") is not True:
                raise self._unfit(
                    name,
                    'takes no null, has no default and is not in the mapping, so missing = "insert" cannot make a document',
                    'give it a default, map it, or set missing = "park" or "ignore"',
                )

    def _judge_guard(self, column: mapping.TargetColumn, is_time: bool) -> None:
        if isinstance(column.kind, kinds.Integer):
            return
        if not isinstance(column.kind, kinds.Timestamp):
            raise self._unfit(
                column.name,
                f"is {column.declared}, and the guard compares integers and times",
                f"change its type to {'a timestamp' if is_time else 'BIGINT'}",
            )
        if column.kind.precision < 6:
            raise self._unfit(
                column.name,
                f"keeps {column.kind.precision} digits of a second, too few for the guard to tell events apart",
                f"ALTER TABLE {self.quoted} MODIFY {self.quote(column.name)} DATETIME(6)"
                if self.is_mysql
                else f"ALTER TABLE {self.quoted} ALTER COLUMN {self.quote(column.name)} TYPE timestamptz",
            )

    def _judge_database(self) -> None:
        if self.is_mysql:
            engine = self._schema_value("SELECT engine FROM information_schema.tables")
            if engine and engine.lower() != "innodb":
                raise errors.TargetUnfit(
                    f"table {self.table} is kept by {engine}, which has no transactions",
                    f"ALTER TABLE {self.quoted} ENGINE = InnoDB",
                )
        elif self.dialect.name == "postgresql":
            encoding = self.connection.execute(sa.text("SHOW server_encoding")).scalar()
            if encoding != "UTF8":
                raise errors.TargetUnfit(
                    f"the database keeps text as {encoding}, which cannot hold every id",
                    "use a UTF8 database",
                )

    def _column(self, name: str, *, written: bool = True) -> mapping.TargetColumn:
        found = self.columns.get(name)
        if found is None:
            raise errors.TargetUnfit(
                f"table {self.table} has no column {name!r}{settings.nearest(name, self.columns)}",
                "correct the name in the settings; or, to add the column: instep init --add-columns",
            )
        if found.get("computed") and written:
            raise self._unfit(
                name, "is computed by the database and cannot be written", "map another column"
            )
        kind = self._kind(name, found["type"])
        if kind is None:
            raise self._unfit(
                name,
                f"is {self._declared(name)}, which an event's field cannot be put into",
                self._instead_of(name, found["type"]),
            )
        return mapping.TargetColumn(
            name=name,
            kind=kind,
            nullable=bool(found["nullable"]),
            declared=self._declared(name),
            collation=getattr(found["type"], "collation", None)
            if isinstance(kind, kinds.Text)
            else None,
        )

    def _instead_of(self, name: str, kind: Any) -> str:
        """What to do about a column of a type that events do not have."""
        if (
            self.dialect.name == "mysql"
            and isinstance(kind, types.BINARY)
            and kind.length == UUID_BYTES
        ):
            text = self.quote(f"{name}_text")
            return (
                f'if it holds UUIDs, use a generated column as the key, with missing = "park" or "ignore": ALTER TABLE'
                f" {self.quoted} ADD {text} CHAR(36) AS (BIN_TO_UUID({self.quote(name)})) STORED NOT NULL UNIQUE"
            )
        return "map another column"

    def _kind(self, name: str, kind: Any) -> kinds.AnyKind | None:
        if isinstance(kind, postgresql.DOMAIN):
            kind = kind.data_type
        if self.is_mysql and isinstance(kind, types.String) and not isinstance(kind, types.Enum):
            self._judge_charset(name, kind)
        if self.dialect.name == "mariadb" and self._is_json(name):
            return kinds.Json(depth=JSON_DEPTH["mariadb"])
        match kind:
            case types.Enum():
                return kinds.Enumeration(labels=tuple(kind.enums))
            case types.JSON():
                return kinds.Json(
                    JSON_DEPTH.get(self.dialect.name), JSON_DOUBLES.get(self.dialect.name, "none")
                )
            case types.Uuid():
                return kinds.Uuid()
            case types.Boolean():
                return kinds.Boolean()
            case types.Integer():
                return self._integer(kind)
            case types.Float():
                return kinds.Float()
            case types.Numeric():
                return kinds.Numeric(
                    kind.precision, kind.scale, binary=self.dialect.name == "sqlite"
                )
            case types.DateTime():
                return self._time(kind)
            case types.Date():
                return kinds.Date()
            case types._Binary() | types.Interval() | types.Time():
                return None
            case types.String():
                size = TEXT_BYTES.get(type(kind).__name__) if self.is_mysql else None
                charset = getattr(kind, "charset", None) if self.is_mysql else None
                narrow = None if charset in kinds.UNICODE else charset
                padded = isinstance(kind, types.CHAR) and self.dialect.name != "sqlite"
                return kinds.Text(
                    characters=None if size else kind.length,
                    size=size,
                    charset=narrow,
                    padded=padded,
                )
        return kinds.Text() if isinstance(kind, postgresql.CITEXT) else None

    def _is_json(self, name: str) -> bool:
        """MariaDB keeps JSON as text with a constraint."""
        statement = "SELECT check_clause FROM information_schema.check_constraints"
        where = " WHERE constraint_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
        rows = self.connection.execute(
            sa.text(statement + where), {"schema": self.table.schema, "table": self.table.name}
        )
        return f"json_valid({self.quote(name)})" in {row[0] for row in rows}

    def _judge_charset(self, name: str, kind: Any) -> None:
        rows = self._column_facts(name)
        kind.charset, kind.collation = rows["character_set_name"], rows["collation_name"]
        if kind.charset not in (None, *kinds.UNICODE, *kinds.UNICODE_BMP, *kinds.CODECS):
            raise self._unfit(
                name,
                f"keeps text as {kind.charset}, a character set that instep does not know",
                f"ALTER TABLE {self.quoted} MODIFY {self.quote(name)} {rows['column_type']} CHARACTER SET utf8mb4",
            )

    def _integer(self, kind: Any) -> kinds.Integer:
        if self.dialect.name == "sqlite":
            return kinds.Integer()
        bits = INTEGER_BITS.get(type(kind).__name__, 64)
        if getattr(kind, "unsigned", False):
            return kinds.Integer(low=0, high=2**bits - 1)
        flag = isinstance(kind, mysql.TINYINT) and kind.display_width == 1
        return kinds.Integer(low=-(2 ** (bits - 1)), high=2 ** (bits - 1) - 1, truth=flag)

    def _time(self, kind: Any) -> kinds.Timestamp:
        if self.is_mysql:
            precision = kind.fsp or 0
            if isinstance(kind, mysql.TIMESTAMP):
                return kinds.Timestamp(
                    low=datetime(1970, 1, 2, tzinfo=UTC),
                    high=datetime(2038, 1, 18, tzinfo=UTC),
                    precision=precision,
                )
            return kinds.Timestamp(low=datetime(1000, 1, 1, tzinfo=UTC), precision=precision)
        precision = getattr(kind, "precision", None)
        return kinds.Timestamp(precision=6 if precision is None else precision)

    def _declared(self, name: str) -> str:
        """The column's type in the database's own words, complete enough to declare another such column."""
        if self.dialect.name == "postgresql":
            return self._postgres_types()[name]
        if not self.is_mysql:
            return str(self.columns[name]["type"])
        facts = self._column_facts(name)
        charset = (
            f" CHARACTER SET {facts['character_set_name']} COLLATE {facts['collation_name']}"
            if facts["collation_name"]
            else ""
        )
        return f"{facts['column_type']}{charset}"

    def _postgres_types(self) -> dict[str, str]:
        rows = self.connection.execute(
            sa.text(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
                " WHERE attrelid = CAST(:t AS regclass) AND attnum > 0"
            ),
            {"t": self.quoted},
        )
        return {row[0]: row[1] for row in rows}

    def _column_facts(self, name: str) -> dict[str, Any]:
        statement = (
            "SELECT column_type AS column_type, character_set_name AS character_set_name, collation_name AS collation_name"
            " FROM information_schema.columns"
        )
        where = " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table AND column_name = :column"
        parameters = {"schema": self.table.schema, "table": self.table.name, "column": name}
        return dict(
            self.connection.execute(sa.text(statement + where), parameters).mappings().one()
        )

    def _schema_value(self, statement: str) -> str | None:
        where = " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
        value: str | None = self.connection.execute(
            sa.text(statement + where), {"schema": self.table.schema, "table": self.table.name}
        ).scalar()
        return value

    # --- words -----------------------------------------------------------------------------------------

    def _unfit(self, column: str, problem: str, remedy: str = "") -> errors.TargetUnfit:
        return errors.TargetUnfit(f"table {self.table}: column {column!r} {problem}", remedy)

    def _set_not_null(self, name: str, column: mapping.TargetColumn) -> str:
        match self.dialect.name:
            case "postgresql":
                return f"ALTER TABLE {self.quoted} ALTER COLUMN {self.quote(name)} SET NOT NULL"
            case "sqlite":
                return f"make the table anew with {self.quote(name)} {column.declared} NOT NULL PRIMARY KEY"
            case _:
                return f"ALTER TABLE {self.quoted} MODIFY {self.quote(name)} {column.declared} NOT NULL"


def _columns(names: tuple[str, ...]) -> str:
    """Columns as the subject of a sentence."""
    return (
        f"column {names[0]!r} is"
        if len(names) == 1
        else f"columns {', '.join(map(repr, names))} are"
    )
