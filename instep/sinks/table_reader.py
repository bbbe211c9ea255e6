"""Read the structure of a target table, and check that a pipeline's mapping fits it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy import types
from sqlalchemy.dialects import mysql, postgresql

from instep import errors, settings
from instep.document import identity, kinds, mapping
from instep.sinks import declared_columns, tables
from instep.sinks.target import TableName

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

# Databases that store numbers in JSON as doubles. The others keep every digit.
JSON_DOUBLES: dict[str, Literal["all", "whole"]] = {"mysql": "all", "sqlite": "whole"}

# How deep JSON may be nested. PostgreSQL accepts more than an event may have.
JSON_DEPTH = {"mysql": 100, "mariadb": 31}

DECIMAL_ID_DIGITS = 18  # of a decimal number that is a key: fits into 64 bits

UUID_BYTES = 16

TIME_DIGITS = 6  # of a second, in a key

JSON_CHECK = re.compile(r"json_valid\(.*\)")  # MariaDB's own, which our values always satisfy

# Pairs of ids that a collation may confuse: case, trailing space, one letter in two Unicode forms.
CONFUSABLE = {
    "a and A": ("a", "A"),
    "a and a with a space behind it": ("a", "a "),
    "é as one and as two characters": ("\u00e9", "e\u0301"),
    "e and é": ("e", "\u00e9"),
}


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
        """Return whether this is MySQL or MariaDB."""
        return self.dialect.name in ("mysql", "mariadb")

    def quote(self, name: str) -> str:
        """Return a quoted name."""
        return tables.undoubled(
            self.dialect.identifier_preparer.quote_identifier(name), self.dialect
        )

    def check(self, pipeline: settings.Pipeline) -> mapping.Mapping:
        """Return the compiled mapping; raise TargetUnfit for the first thing that does not fit."""
        self.check_table(pipeline)
        columns = {name: self._column(name) for name in pipeline.columns} | self._key_columns(
            pipeline
        )
        if pipeline.missing == "insert":
            self._check_unmapped(pipeline)
        compiled = mapping.compile_mapping(pipeline, columns)
        if compiled.guard:
            self._check_guard(columns[compiled.guard], compiled.order_is_time)
        for fault in declared_columns.faults(str(self.table), pipeline, columns):
            raise fault
        return compiled

    def faults(
        self, pipeline: settings.Pipeline, *, may_lack: bool = False
    ) -> list[errors.TargetUnfit]:
        """Return everything that does not fit; with `may_lack`, missing columns are accepted."""
        faults: list[errors.TargetUnfit] = []

        def attempt(check: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return check(*arguments)
            except errors.TargetUnfit as unfit:
                faults.append(unfit)

        attempt(self.check_table, pipeline)
        checked = [name for name in pipeline.columns if name in self.columns or not may_lack]
        columns = {
            name: column for name in checked if (column := attempt(self._column, name)) is not None
        }
        if pipeline.missing == "insert":
            for name in self.columns:
                attempt(self._check_unmapped, pipeline, name)
        if (
            self.columns.keys() >= set(pipeline.keys)
            and not faults
            and not (pipeline.columns.keys() - columns.keys())
        ):
            columns |= self._key_columns(pipeline)
            compiled = mapping.compile_mapping(pipeline, columns)
            if compiled.guard:
                attempt(self._check_guard, columns[compiled.guard], compiled.order_is_time)
        return [*faults, *declared_columns.faults(str(self.table), pipeline, columns)]

    def check_table(self, pipeline: settings.Pipeline) -> None:
        """Check engine and key, which must be right before the table is changed or written."""
        self._refuse_view()
        self._check_database()
        written = pipeline.missing == "insert"
        for name in pipeline.keys:
            if name not in self.columns:
                near = settings.nearest(name, self.columns)
                raise errors.TargetUnfit(
                    f"table {self.table} has no column {name!r}{near}",
                    "correct `key` in the settings",
                    "rename the column of the DataFrame, or correct `key`;"
                    f" the table has: {', '.join(self.columns)}",
                )
            self._check_key_column(name, self._key_column(name, written=written), pipeline)
            if written and (self.columns[name].get("identity") or {}).get("always"):
                raise self._unfit(
                    name,
                    "is GENERATED ALWAYS by the database,"
                    " so a document cannot be inserted with its own id",
                    f"ALTER TABLE {self.quoted}"
                    f" ALTER COLUMN {self.quote(name)} SET GENERATED BY DEFAULT",
                )
        self._check_key(pipeline.keys)

    def refuses(self, pipeline: settings.Pipeline) -> bool:
        """Return whether constraints on mapped columns, or triggers, may refuse values that fit."""
        where: dict[str, Any] = {"table_name": self.table.name, "schema": self.table.schema}
        written = set(pipeline.columns)
        checks = [check["sqltext"] for check in self.view.get_check_constraints(**where)]
        foreign = [set(key["constrained_columns"]) for key in self.view.get_foreign_keys(**where)]
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
            or any(written & columns for columns in (*foreign, *unique))
            or any(isinstance(self.columns[name]["type"], postgresql.DOMAIN) for name in written)
            or bool(self.triggers())
        )

    def upserts(self, compiled: mapping.Mapping) -> bool:
        """Return whether an upsert has no side effects, and the guard can be expressed in SQL.

        When a row exists, the attempt to insert it must leave no trace. Without a column beside the
        key, there is nothing to update.
        """
        key = {column.name for column in compiled.keys}
        others = [column for name, column in self.columns.items() if name not in key]
        has_sequence = any(
            column.get("autoincrement") is True
            or column.get("identity")
            or "nextval" in str(column.get("default"))
            for column in others
        )
        hides_rows = (
            self.dialect.name == "postgresql"
            and self.connection.execute(
                sa.text("SELECT relrowsecurity FROM pg_class WHERE oid = CAST(:table AS regclass)"),
                {"table": self.quoted},
            ).scalar()
        )
        # SQLite stores times as text, in the form in which they were written, so it cannot
        # compare them.
        comparable = (
            self.dialect.name != "sqlite"
            or not compiled.guard
            or isinstance(self._column(compiled.guard).kind, kinds.Integer)
        )
        # Without the guard's column among the others, the fast path cannot compare it.
        in_key = compiled.guard is not None and compiled.guard in key
        # MariaDB and MySQL upsert by any unique key, so a second one could update another
        # document's row.
        by_key = not self.is_mysql or all(set(unique) == key for unique in self.unique_keys())
        has_columns = bool(compiled.columns)
        return not (has_sequence or hides_rows or in_key) and comparable and by_key and has_columns

    def triggers(self) -> list[str]:
        """Return the names of the table's triggers."""
        match self.dialect.name:
            case "sqlite":
                query = (
                    "SELECT name FROM sqlite_master"
                    " WHERE type = 'trigger' AND tbl_name = :table COLLATE NOCASE"
                )
                found = self.connection.execute(sa.text(query), {"table": self.table.name})
            case "postgresql":
                query = (
                    "SELECT tgname FROM pg_trigger"
                    " WHERE tgrelid = CAST(:table AS regclass) AND NOT tgisinternal"
                )
                found = self.connection.execute(sa.text(query), {"table": self.quoted})
            case _:
                query = (
                    "SELECT trigger_name FROM information_schema.triggers"
                    " WHERE event_object_table = :table"
                    " AND event_object_schema = COALESCE(:schema, DATABASE())"
                )
                found = self.connection.execute(
                    sa.text(query), {"table": self.table.name, "schema": self.table.schema}
                )
        return sorted(str(row[0]) for row in found)

    # --- the key -------------------------------------------------------------------------------

    def _refuse_view(self) -> None:
        """Refuse a view: it has no key of its own, and may not store what is written to it."""
        views = {*self.view.get_view_names(self.table.schema)}
        if self.dialect.name == "postgresql":
            views |= {*self.view.get_materialized_view_names(self.table.schema)}
        if self.table.name in views:
            raise errors.TargetUnfit(
                f"{self.table} is a view",
                "name the table behind it as `table` in the settings",
                "name the table behind it",
            )

    def _key_columns(self, pipeline: settings.Pipeline) -> dict[str, mapping.TargetColumn]:
        """Return the key's columns; if instep inserts no rows, the database may compute them."""
        return {
            name: self._key_column(name, written=pipeline.missing == "insert")
            for name in pipeline.keys
        }

    def _key_column(self, name: str, *, written: bool) -> mapping.TargetColumn:
        """Return a key column; a decimal without a fraction counts as an integer."""
        if self.columns[name].get("computed") and written:
            raise self._unfit(
                name,
                "is the key and computed by the database,"
                " so a document cannot be inserted with its own id",
                'set missing = "park" or "ignore", or choose another unique column as `key`',
                "choose another unique column as `key`",
            )
        column = self._column(name, written=written)
        match column.kind:
            case kinds.Numeric(digits=int(digits), scale=0 | None) if digits <= DECIMAL_ID_DIGITS:
                limit = 10**digits - 1
                return msgspec.structs.replace(column, kind=kinds.Integer(-limit, limit))
        return column

    def _check_key_column(
        self, name: str, column: mapping.TargetColumn, pipeline: settings.Pipeline
    ) -> None:
        is_inexact = isinstance(column.kind, kinds.Numeric) and column.kind.binary
        if is_inexact or not isinstance(column.kind, identity.KINDS):
            raise self._unfit(
                name,
                f"is {column.declared}, but a key column holds text, integers, decimal numbers,"
                " UUIDs, dates, times or booleans",
                "choose another unique column as `key`",
            )
        if len(pipeline.keys) > 1 and pipeline.key_separator in identity.RESERVED.get(
            type(column.kind), ""
        ):
            raise self._unfit(
                name,
                f"is {column.declared}, whose values contain"
                f" the key_separator {pipeline.key_separator!r}",
                'choose another key_separator: "/", for example',
            )
        if isinstance(column.kind, kinds.Timestamp) and (
            column.kind.precision < TIME_DIGITS or self.dialect.name == "sqlite"
        ):
            raise self._unfit(
                name,
                f"is {column.declared} and part of the key, but does not store microseconds"
                " in one form",
                "use a key without it, or a column that stores microseconds:"
                " timestamptz, DATETIME(6)",
            )
        if column.nullable and name not in self._primary_key():
            raise self._unfit(name, "is the key and may be null", self._set_not_null(name, column))

    def _check_key(self, names: tuple[str, ...]) -> None:
        """Check that the key's columns are unique together, by an immediate constraint."""
        if not any(set(unique) == set(names) for unique in self.unique_keys()):
            raise self._not_unique(names)
        if self.dialect.name == "postgresql":
            self._refuse_deferrable(names)

    def _not_unique(self, names: tuple[str, ...]) -> errors.TargetUnfit:
        """Return the error for a key that is not unique.

        The remedy depends on the table's own key, which may have more columns.
        """
        primary, columns = self._primary_key(), ", ".join(map(self.quote, names))
        add = f"ALTER TABLE {self.quoted} ADD UNIQUE ({columns})"
        wider = primary
        if not set(primary) > set(names):
            wider = next((key for key in self.unique_keys() if set(key) > set(names)), ())
        if wider:
            listed = ", ".join(f'"{name}"' for name in wider)
            return errors.TargetUnfit(
                f"table {self.table}: {_columns(names)} the key and not unique:"
                f" the table's key is ({', '.join(wider)})",
                f"set key = [{listed}], and `document` to a field for each of them"
                " or to one field that holds all of them",
                f"name all of them as `key`, or {add}",
            )
        return errors.TargetUnfit(
            f"table {self.table}: {_columns(names)} the key and not unique", add
        )

    def _refuse_deferrable(self, names: tuple[str, ...]) -> None:
        """Refuse a unique key that is only checked at the commit: an upsert cannot use it."""
        query = (
            "SELECT c.conname FROM pg_constraint AS c"
            " WHERE c.conrelid = CAST(:table AS regclass) AND c.contype IN ('p', 'u')"
            " AND c.condeferrable AND ARRAY(SELECT unnest(c.conkey) ORDER BY 1)"
            " = ARRAY(SELECT attnum FROM pg_attribute"
            " WHERE attrelid = c.conrelid AND attname = ANY(:names) ORDER BY 1)"
        )
        found = (
            self.connection.execute(sa.text(query), {"table": self.quoted, "names": list(names)})
            .scalars()
            .all()
        )
        if found:
            constraint = self.quote(str(found[0]))
            kind = "UNIQUE"
            if set(names) == set(self._primary_key()):
                kind = "PRIMARY KEY"
            raise errors.TargetUnfit(
                f"table {self.table}: {_columns(names)} the key, but its constraint {found[0]}"
                " is DEFERRABLE, which rules out upserts",
                f"ALTER TABLE {self.quoted} DROP CONSTRAINT {constraint},"
                f" ADD CONSTRAINT {constraint} {kind} ({', '.join(map(self.quote, names))})",
            )

    def confused_ids(self, name: str) -> str | None:
        """Describe ids that the key's collation treats as equal; None if there are none."""
        for description, (one, other) in CONFUSABLE.items():
            if self._confuses(name, one, other):
                return description
        return None

    def _confuses(self, name: str, one: str, other: str) -> bool:
        """Ask the database whether two ids are equal in this column."""
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
            left, right = (
                f"CONVERT(:{side} USING {charset}) COLLATE {collation}" for side in ("one", "other")
            )
            statement = f"SELECT {left} = {right}"
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
            is_unique = index[2]
            if not is_unique:
                continue
            statement = f"PRAGMA index_xinfo({self.quote(index[1])})"
            for row in self.connection.exec_driver_sql(statement):
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
        """Return the unique keys, without partial indexes and indexes on expressions."""
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

    # --- the other columns ---------------------------------------------------------------------

    def _check_unmapped(self, pipeline: settings.Pipeline, only: str | None = None) -> None:
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
                    "does not allow null, has no default and is not written,"
                    " so no row can be inserted",
                    'give it a default, map it, or set missing = "park" or "ignore"',
                    f"add the column {name!r} to the DataFrame, or give it a default:"
                    f" ALTER TABLE {self.quoted} ALTER COLUMN {self.quote(name)} SET DEFAULT ...",
                )

    def _check_guard(self, column: mapping.TargetColumn, is_time: bool) -> None:
        if isinstance(column.kind, kinds.Integer):
            return
        if not isinstance(column.kind, kinds.Timestamp):
            raise self._unfit(
                column.name,
                f"is {column.declared}, but the guard compares integers and times",
                f"change its type to {'a timestamp' if is_time else 'BIGINT'}",
                "order by a column of integers or times, or by none",
            )
        if column.kind.precision < 6:
            name = self.quote(column.name)
            change = f"ALTER COLUMN {name} TYPE timestamptz"
            if self.is_mysql:
                change = f"MODIFY {name} DATETIME(6)"
            raise self._unfit(
                column.name,
                f"stores {column.kind.precision} digits of a second,"
                " too few for the guard to distinguish events",
                f"ALTER TABLE {self.quoted} {change}",
            )

    def _check_database(self) -> None:
        if self.is_mysql:
            engine = self._schema_value("SELECT engine FROM information_schema.tables")
            if engine and engine.lower() != "innodb":
                raise errors.TargetUnfit(
                    f"table {self.table} uses the engine {engine}, which has no transactions",
                    f"ALTER TABLE {self.quoted} ENGINE = InnoDB",
                )
        elif self.dialect.name == "postgresql":
            encoding = self.connection.execute(sa.text("SHOW server_encoding")).scalar()
            if encoding != "UTF8":
                raise errors.TargetUnfit(
                    f"the database stores text as {encoding}, which cannot represent every id",
                    "use a UTF8 database",
                )

    def _column(self, name: str, *, written: bool = True) -> mapping.TargetColumn:
        column = self.columns.get(name)
        if column is None:
            raise errors.TargetUnfit(
                f"table {self.table} has no column {name!r}{settings.nearest(name, self.columns)}",
                "correct the name in the settings,"
                " or add the column with: instep init --add-columns --execute",
                f'rename the column of the DataFrame, leave it out: drop("{name}"),'
                f" or ALTER TABLE {self.quoted} ADD {self.quote(name)} ...",
            )
        if column.get("computed") and written:
            raise self._unfit(
                name,
                "is computed by the database and cannot be written",
                "map another column",
                f'leave it out: drop("{name}")',
            )
        kind = self._kind(name, column["type"])
        if kind is None:
            raise self._unfit(
                name,
                f"is {self._declared(name)}, a type that instep does not write",
                self._unsupported_remedy(name, column["type"]),
                f'leave it out: drop("{name}"), or change the type of the column',
            )
        collation = None
        if isinstance(kind, kinds.Text):
            collation = getattr(column["type"], "collation", None)
        return mapping.TargetColumn(
            name=name,
            kind=kind,
            nullable=bool(column["nullable"]),
            declared=self._declared(name),
            collation=collation,
        )

    def _unsupported_remedy(self, name: str, kind: Any) -> str:
        """Return the remedy for a column of an unsupported type."""
        if (
            self.dialect.name == "mysql"
            and isinstance(kind, types.BINARY)
            and kind.length == UUID_BYTES
        ):
            text = self.quote(f"{name}_text")
            return (
                "if it holds UUIDs, use a generated column as the key,"
                f' with missing = "park" or "ignore": ALTER TABLE {self.quoted} ADD {text} CHAR(36)'
                f" AS (BIN_TO_UUID({self.quote(name)})) STORED NOT NULL UNIQUE"
            )
        return "map another column"

    def _kind(self, name: str, kind: Any) -> kinds.AnyKind | None:
        if isinstance(kind, postgresql.DOMAIN):
            kind = kind.data_type
        if self.is_mysql and isinstance(kind, types.String) and not isinstance(kind, types.Enum):
            self._check_charset(name, kind)
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
        if isinstance(kind, postgresql.CITEXT):
            return kinds.Text()
        return None

    def _is_json(self, name: str) -> bool:
        """Return whether a column is JSON, which MariaDB stores as text with a constraint."""
        statement = "SELECT check_clause FROM information_schema.check_constraints"
        where = " WHERE constraint_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
        rows = self.connection.execute(
            sa.text(statement + where), {"schema": self.table.schema, "table": self.table.name}
        )
        return f"json_valid({self.quote(name)})" in {row[0] for row in rows}

    def _check_charset(self, name: str, kind: Any) -> None:
        rows = self._column_facts(name)
        kind.charset, kind.collation = rows["character_set_name"], rows["collation_name"]
        if kind.charset not in (None, *kinds.UNICODE, *kinds.UNICODE_BMP, *kinds.CODECS):
            raise self._unfit(
                name,
                f"stores text as {kind.charset}, a character set that instep does not know",
                f"ALTER TABLE {self.quoted} MODIFY {self.quote(name)} {rows['column_type']}"
                " CHARACTER SET utf8mb4",
            )

    def _integer(self, kind: Any) -> kinds.Integer:
        if self.dialect.name == "sqlite":
            return kinds.Integer()
        bits = INTEGER_BITS.get(type(kind).__name__, 64)
        if getattr(kind, "unsigned", False):
            return kinds.Integer(low=0, high=2**bits - 1)
        is_boolean = isinstance(kind, mysql.TINYINT) and kind.display_width == 1
        limit = 2 ** (bits - 1)
        return kinds.Integer(low=-limit, high=limit - 1, is_boolean=is_boolean)

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
        """Return the column's type as the database declares it, complete with its collation."""
        if self.dialect.name == "postgresql":
            return self._postgres_types()[name]
        if not self.is_mysql:
            return str(self.columns[name]["type"])
        facts = self._column_facts(name)
        declared = str(facts["column_type"])
        if facts["collation_name"]:
            declared += (
                f" CHARACTER SET {facts['character_set_name']} COLLATE {facts['collation_name']}"
            )
        return declared

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
            "SELECT column_type AS column_type, character_set_name AS character_set_name,"
            " collation_name AS collation_name FROM information_schema.columns"
        )
        where = (
            " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :table"
            " AND column_name = :column"
        )
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

    # --- words ---------------------------------------------------------------------------------

    def _unfit(
        self, column: str, problem: str, remedy: str = "", sink_remedy: str = ""
    ) -> errors.TargetUnfit:
        what = f"table {self.table}: column {column!r} {problem}"
        return errors.TargetUnfit(what, remedy, sink_remedy)

    def _set_not_null(self, name: str, column: mapping.TargetColumn) -> str:
        alter = f"ALTER TABLE {self.quoted}"
        match self.dialect.name:
            case "postgresql":
                return f"{alter} ALTER COLUMN {self.quote(name)} SET NOT NULL"
            case "sqlite":
                return (
                    "create the table again with"
                    f" {self.quote(name)} {column.declared} NOT NULL PRIMARY KEY"
                )
            case _:
                return f"{alter} MODIFY {self.quote(name)} {column.declared} NOT NULL"


def _columns(names: tuple[str, ...]) -> str:
    """Return columns as the subject of a sentence."""
    if len(names) == 1:
        return f"column {names[0]!r} is"
    return f"columns {', '.join(map(repr, names))} are"
