"""The mapping: where each thing stands in a record, and which column keeps it.

Compiled from a pipeline's settings and the kinds of its table's columns. A plain value: it travels to every task.
"""

from __future__ import annotations

import msgspec

from instep import errors, settings
from instep.document import kinds

KEY = "@key"
TIMESTAMP = "@timestamp"

Path = tuple[str, ...]


class Column(msgspec.Struct, frozen=True):
    """A table's column as a sink found it."""

    name: str
    kind: kinds.AnyKind
    nullable: bool = True
    declared: str = ""  # the type in the database's own words
    collation: str | None = None  # of a text column, where the database names one


class Field(msgspec.Struct, frozen=True):
    """One column that the pipeline keeps, and the field it comes from."""

    column: Column
    path: Path
    holds_time: bool = False


class Mapping(msgspec.Struct, frozen=True):
    """Everything that decoding a record needs."""

    document: Path
    key: Column
    status: Path
    order: Path | None
    at: Path
    fields: tuple[Field, ...]
    guard: str | None = None
    order_is_time: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(field.column for field in self.fields)

    @property
    def status_column(self) -> Column | None:
        """The column that keeps the document's status, if one does."""
        return next((field.column for field in self.fields if field.path == self.status), None)


def compile_mapping(pipeline: settings.Pipeline, columns: dict[str, Column]) -> Mapping:
    """The mapping of a pipeline onto the columns of its table; the sink has checked that they are there."""
    event = pipeline.event
    at = event.at or TIMESTAMP
    fields = tuple(
        Field(column=columns[name], path=path(field), holds_time=field in (at, TIMESTAMP))
        for name, field in pipeline.columns.items()
    )
    guard = next((field.column for field in fields if event.order is not None and field.path == path(event.order)), None)
    return Mapping(
        document=path(event.document),
        key=columns[pipeline.key],
        status=path(event.status),
        order=path(event.order) if event.order is not None else None,
        at=path(at),
        fields=fields,
        guard=guard.name if guard else None,
        order_is_time=guard is not None and (isinstance(guard.kind, kinds.Time) or event.order in (at, TIMESTAMP)),
    )


def path(field: str) -> Path:
    """The steps to a field: dots descend; `@key` and `@timestamp` are the record's own."""
    if field.startswith("@"):
        if field not in (KEY, TIMESTAMP):
            raise errors.SettingsError(f"unknown field {field!r}", f"a record's own fields are {KEY} and {TIMESTAMP}")
        return (field,)
    steps = tuple(field.split("."))
    if not all(steps):
        raise errors.SettingsError(f"{field!r} is no field", "write a name, or names with dots between them")
    return steps
