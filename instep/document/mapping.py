"""The mapping: which field of a record becomes which column.

Compiled from a pipeline's settings and the kinds of its table's columns. A plain value, which every
task receives.
"""

from __future__ import annotations

import msgspec

from instep import errors, settings
from instep.document import conversion, kinds

KEY = "@key"
TIMESTAMP = "@timestamp"
OFFSET = "@offset"
PARTITION = "@partition"
HEADER = "@header."
CONSTANT = "@value."  # followed by the column's name: the path of a constant

Path = tuple[str, ...]


class TargetColumn(msgspec.Struct, frozen=True):
    """A column of the table, as read from the database."""

    name: str
    kind: kinds.AnyKind
    nullable: bool = True
    declared: str = ""  # the type as the database declares it
    collation: str | None = None  # of a text column, if the database reports one


class Field(msgspec.Struct, frozen=True):
    """One mapped column, and the field it comes from."""

    column: TargetColumn
    path: Path
    holds_time: bool = False
    unit: settings.Unit = "ms"
    conversion: conversion.Conversion = conversion.Conversion()
    constant: str | int | float | bool | None = None


class Mapping(msgspec.Struct, frozen=True):
    """Everything that decoding a record needs."""

    documents: tuple[Path, ...]  # of the id: one field, or one for each key column
    keys: tuple[TargetColumn, ...]
    status: Path | None
    order: Path | None
    at: Path
    fields: tuple[Field, ...]
    guard: str | None = None
    order_is_time: bool = False
    separator: str = "/"  # between the parts of a composite key
    # of a further table: the fields of the key's columns behind the document's id
    lines: tuple[Field, ...] = ()
    further: tuple[Mapping, ...] = ()  # of the pipeline's further tables

    @property
    def is_keyed(self) -> bool:
        """Return whether the record's key is the document's id."""
        return self.documents == ((KEY,),)

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        """Return the mapped columns."""
        return tuple(field.column for field in self.fields)

    @property
    def guard_field(self) -> Field | None:
        """Return the field of the guard's column."""
        fields = (*self.lines, *self.fields)
        return next((field for field in fields if field.column.name == self.guard), None)

    @property
    def without_further(self) -> Mapping:
        """Return the mapping of the main table alone."""
        return msgspec.structs.replace(self, further=()) if self.further else self

    @property
    def with_further(self) -> Mapping:
        """Return the mapping with the fields of all further tables behind its own.

        So a record is parsed once; `FurtherRows` splits the values again.
        """
        fields = [
            msgspec.structs.replace(field, path=(f"{CONSTANT}{number}.{field.column.name}",))
            if field.constant is not None
            else field
            for number, table in enumerate(self.further)
            for field in (*table.lines, *table.fields)
        ]
        return msgspec.structs.replace(self, fields=(*self.fields, *fields), further=())

    @property
    def reads_headers(self) -> bool:
        """Return whether a header of the records is mapped."""
        fields = self.with_further.fields
        paths = (self.status, self.at, *(field.path for field in fields))
        return any(path is not None and path[0].startswith(HEADER) for path in paths)

    @property
    def status_column(self) -> TargetColumn | None:
        """Return the column of the document's status, if it is mapped."""
        return next((field.column for field in self.fields if field.path == self.status), None)


def compile_mapping(pipeline: settings.Pipeline, columns: dict[str, TargetColumn]) -> Mapping:
    """Return the mapping of a pipeline to the existing columns of its table."""
    event = pipeline.event
    at = event.at or TIMESTAMP
    fields = tuple(
        _field(columns[name], declared, at) for name, declared in pipeline.mapped.items()
    )
    lines = tuple(
        _field(columns[name], declared, at) for name, declared in pipeline.line_columns.items()
    )
    kept = None
    if event.order is not None:
        ordered = path(event.order)
        kept = next((field for field in (*lines, *fields) if field.path == ordered), None)
    guard = kept.column if kept else None
    is_time = kept is not None and (
        isinstance(kept.column.kind, kinds.Timestamp) or kept.holds_time
    )
    return Mapping(
        documents=tuple(map(path, event.documents)),
        keys=tuple(columns[name] for name in pipeline.keys),
        status=path(event.status) if event.status is not None else None,
        order=path(event.order) if event.order is not None else None,
        at=path(at),
        fields=fields,
        guard=guard.name if guard else None,
        order_is_time=is_time,
        separator=pipeline.key_separator,
        lines=lines,
    )


def _field(column: TargetColumn, declared: settings.ColumnMapping, at: str) -> Field:
    if declared.field is None:
        return Field(column=column, path=(CONSTANT + column.name,), constant=declared.value)
    return Field(
        column=column,
        path=path(declared.field),
        holds_time=declared.field in (at, TIMESTAMP) or declared.unit is not None,
        unit=declared.unit or "ms",
        conversion=conversion.Conversion(declared.convert, declared.round, declared.trim),
    )


def path(field: str) -> Path:
    """Return the path to a field: dots descend; names with @ are fields of the record itself."""
    if field.startswith("@"):
        is_header = field.startswith(HEADER) and field != HEADER
        if not is_header and field not in (KEY, TIMESTAMP, OFFSET, PARTITION):
            own = (KEY, TIMESTAMP, OFFSET, PARTITION, f"{HEADER}NAME")
            raise errors.SettingsError(
                f"unknown field {field!r}{settings.nearest(field, own)}",
                f"a record's own fields are {', '.join(own)}",
            )
        return (field,)
    steps = tuple(field.split("."))
    if not all(steps):
        raise errors.SettingsError(
            f"{field!r} is not a field", "write a name, or names with dots between them"
        )
    return steps
