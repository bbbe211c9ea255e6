"""Columns as the settings declare them: their types, and whether an existing table agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from instep import errors, settings
from instep.document import conversion, decoding, kinds, mapping
from instep.document.mapping import OFFSET, PARTITION, TIMESTAMP
from instep.document.reasons import Unfit
from instep.sinks import tables

UUID_CHARACTERS = 36
NUMBER = "decimal(38,6)"  # for a field that is known to be a number, and no more
# the column kinds that fit a declared type; a database without such a type uses another one
KINDS: dict[str, tuple[type[kinds.ColumnKind], ...]] = {
    "text": (kinds.Text,),
    "varchar": (kinds.Text,),
    "integer": (kinds.Integer,),
    "bigint": (kinds.Integer,),
    "decimal": (kinds.Numeric,),
    "double": (kinds.Float,),
    "boolean": (kinds.Boolean, kinds.Integer),
    "timestamp": (kinds.Timestamp,),
    "date": (kinds.Date,),
    "uuid": (kinds.Uuid, kinds.Text),
    "json": (kinds.Json,),
}


def type_of(pipeline: settings.Pipeline, column: settings.ColumnMapping) -> TypeEngine[Any]:
    """Return the type of a column that instep creates.

    The declared one, else the type that the field's role in the event suggests, else text.
    """
    unknown = NUMBER if column.convert == "number" or column.round else "text"
    return _sql_type(column.type or usual_type(pipeline, column) or unknown)


def usual_type(pipeline: settings.Pipeline, column: settings.ColumnMapping) -> str | None:
    """Return the type that the settings of a field suggest; None if they suggest none."""
    event = pipeline.event
    if column.value is not None:
        return {bool: "boolean", int: "bigint", float: "double"}.get(type(column.value), "text")
    if column.convert is not None:
        if column.field in pipeline.order_fields:
            return "bigint"
        return {"number": None, "boolean": "boolean", "text": "text"}[column.convert]
    if column.unit is not None or column.field == OFFSET:
        return "bigint"
    if column.field == PARTITION:
        return "integer"
    if column.field in (event.at, TIMESTAMP):
        return "timestamp"
    if column.field in pipeline.order_fields:
        return "bigint"
    if column.field == event.status:
        return "varchar(255)"
    if column.field and column.field.startswith("@"):
        return "text"
    return None


def key_columns(pipeline: settings.Pipeline) -> list[sa.Column[Any]]:
    """Return the key columns of a table that instep creates.

    Text columns are as long as an id may be; the columns of a composite key share that length.
    """
    lines = pipeline.line_columns
    characters = 255 // (len(pipeline.keys) - len(lines))
    columns: list[sa.Column[Any]] = []
    for column, declared in pipeline.key_types.items():
        if declared is None and column in lines:
            declared = usual_type(pipeline, lines[column])
        name, sizes = settings.column_type(declared or "text", "key_type", settings.PART_TYPES)
        kind: TypeEngine[Any] = {
            "integer": sa.Integer(),
            "bigint": sa.BigInteger(),
            "uuid": _sql_type("uuid"),
            "date": _sql_type("date"),
            "timestamp": _sql_type("timestamp"),
        }.get(name) or tables.name_type(sizes[0] if sizes else characters)
        columns.append(sa.Column(column, kind, primary_key=True, autoincrement=False))
    return columns


def faults(
    table: str, pipeline: settings.Pipeline, columns: Mapping[str, mapping.TargetColumn]
) -> Iterator[errors.TargetUnfit]:
    """Return where the table's columns contradict the settings."""
    declared = {**pipeline.key_types, **{name: one.type for name, one in pipeline.mapped.items()}}
    for name, kind in declared.items():
        column = columns.get(name)
        if kind is not None and column is not None and not _agrees(kind, column.kind):
            yield errors.TargetUnfit(
                f"table {table}: column {name!r} is {column.declared},"
                f" but the settings declare it as {kind}",
                "correct the type in the settings, or change the type of the column",
            )
    for name, one in (*pipeline.line_columns.items(), *pipeline.mapped.items()):
        if name in columns:
            yield from _conversion_faults(table, columns[name], one)


def _conversion_faults(
    table: str, column: mapping.TargetColumn, declared: settings.ColumnMapping
) -> Iterator[errors.TargetUnfit]:
    subject = f"table {table}: column {column.name!r} is {column.declared}"
    unsupported = conversion.problem(
        conversion.Conversion(declared.convert, declared.round, declared.trim), column.kind
    )
    if unsupported is not None:
        yield errors.TargetUnfit(
            f"{subject}, which does not allow {unsupported}",
            "remove it from the settings, or change the column's type",
        )
    if declared.unit is not None and not isinstance(column.kind, kinds.Integer):
        yield errors.TargetUnfit(
            f'{subject}, but unit = "{declared.unit}" requires an integer column',
            "remove `unit` from the settings",
        )
    if declared.value is not None:
        try:
            decoding.converter(mapping.Field(column, (), constant=declared.value))(declared.value)
        except Unfit as unfit:
            yield errors.TargetUnfit(
                f"{subject}, which cannot hold the value {declared.value!r}: {unfit.detail}",
                "correct the value",
            )


def _agrees(declared: str, kind: kinds.ColumnKind) -> bool:
    name, sizes = settings.column_type(declared, "type")
    if not isinstance(kind, KINDS[name]):
        return False
    match kind:
        case kinds.Text():
            least = UUID_CHARACTERS if name == "uuid" else 0
            if sizes:
                least = sizes[0]
            return kind.characters is None or kind.characters >= least
        case kinds.Integer():
            bits = 63 if name == "bigint" else 31
            wide = kind.low <= -(2**bits) and kind.high >= 2**bits - 1
            return kind.is_boolean if name == "boolean" else wide
        case kinds.Numeric() if kind.digits is not None:
            scale = kind.scale or 0
            return scale >= sizes[1] and kind.digits - scale >= sizes[0] - sizes[1]
    return True


def _sql_type(declared: str) -> TypeEngine[Any]:
    name, sizes = settings.column_type(declared, "type")
    kind: TypeEngine[Any]
    match name:
        case "varchar":
            kind = sa.String(sizes[0]).with_variant(
                mysql.VARCHAR(sizes[0], charset="utf8mb4"), "mysql", "mariadb"
            )
        case "integer":
            kind = sa.Integer()
        case "bigint":
            kind = sa.BigInteger()
        case "decimal":
            kind = sa.Numeric(sizes[0], sizes[1])
        case "double":
            kind = sa.Double()
        case "boolean":
            kind = sa.Boolean()
        case "timestamp":
            kind = tables.time_type()
        case "date":
            kind = sa.Date()
        case "uuid":
            kind = tables.name_type(UUID_CHARACTERS).with_variant(postgresql.UUID(), "postgresql")
        case "json":
            kind = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
        case _:
            kind = tables.long_text()
    return kind
