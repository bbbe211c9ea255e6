"""The tables of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from instep import durations
from instep.settings.values import (
    IN_URL,
    KEY_TYPES,
    LINE_SEPARATOR,
    TYPES,
    Convert,
    Deletes,
    EngineName,
    FurtherDeletes,
    Guarantee,
    Missing,
    ParkingReason,
    SettingsTable,
    Unit,
)


class EventMapping(SettingsTable, frozen=True, kw_only=True):
    """The fields of a record that have a meaning for instep."""

    document: Annotated[
        str | list[str],
        Meta(
            description="field of the document's id; dots descend into objects,"
            ' "@key" is the record\'s key; for a composite key one field, or one for each of its'
            ' columns: ["tenant", "number"]'
        ),
    ] = "@key"
    status: Annotated[
        str | None, Meta(description="field of the status; default: the events have no status")
    ] = None
    order: Annotated[
        str | None,
        Meta(description="field that the guard compares, an integer or a time; default: log order"),
    ] = None
    at: Annotated[
        str | None,
        Meta(
            description="field of the event's time: epoch milliseconds or ISO 8601;"
            ' default: "@timestamp"'
        ),
    ] = None

    @property
    def documents(self) -> tuple[str, ...]:
        """Return the field of the id, or a field for each column of a composite key."""
        return tuple(listed(self.document))


class ColumnMapping(SettingsTable, frozen=True, kw_only=True):
    """A column in the long form. The short form `column = "field"` only sets the field."""

    field: Annotated[str | None, Meta(description="event field of the column")] = None
    value: Annotated[
        str | int | float | bool | None, Meta(description="constant, instead of a field")
    ] = None
    type: Annotated[
        str | None,
        Meta(
            description="type of the column, which `instep init` creates and checks:"
            f" {', '.join(TYPES)}"
        ),
    ] = None
    unit: Annotated[
        Unit | None,
        Meta(description="for a time in an integer column: the unit since 1970; default: ms"),
    ] = None
    convert: Annotated[
        Convert | None,
        Meta(
            description='number: accept "20.50" as 20.50; boolean: accept 0, 1, "true" and "false",'
            " and write 0 and 1 to a number column; text: write numbers, booleans and objects to a"
            " text column"
        ),
    ] = None
    round: Annotated[
        bool,
        Meta(description="round a number half up to the column's scale instead of refusing it"),
    ] = False
    trim: Annotated[bool, Meta(description="remove white space from both ends of a string")] = False


class Redrive(SettingsTable, frozen=True, kw_only=True):
    """Which parked documents a running pipeline releases again by itself, and how often."""

    reason: Annotated[
        list[ParkingReason], Meta(description='reasons of the documents: ["REFUSED_BY_TARGET"]')
    ]
    every: Annotated[
        str, Meta(description="time between two attempts for a document: s, m, h or d")
    ] = "5m"
    attempts: Annotated[
        int, Meta(description="attempts until it is left to an operator", ge=1, le=1_000)
    ] = 3
    rate: Annotated[
        int, Meta(description="maximum number of documents per second", ge=1, le=10_000)
    ] = 100

    @property
    def interval(self) -> timedelta:
        """Return the time between two attempts."""
        return durations.parse(self.every) or timedelta.max


class FurtherTable(SettingsTable, frozen=True, kw_only=True):
    """A table that a pipeline writes besides its main one, in the same transaction."""

    table: Annotated[str, Meta(description="further table, or schema.table")]
    key: Annotated[
        str | list[str],
        Meta(
            description="columns with the document's id, in the order of the pipeline's `key`;"
            " default: the same names"
        ),
    ] = []
    line_key: Annotated[
        str | list[str],
        Meta(
            description="columns of `columns` that belong to the key too: each event with other"
            " values adds a row (a line); default: one row for each document"
        ),
    ] = []
    order: Annotated[
        str | None,
        Meta(
            description="field that a guard of this table's own compares; default: the table takes"
            " the events that the pipeline's guard lets through"
        ),
    ] = None
    deletes: Annotated[
        FurtherDeletes | None,
        Meta(
            description="what a delete does to the document's rows: row deletes them, ignore keeps"
            " them; default: row if it deletes the main row, else ignore"
        ),
    ] = None
    columns: Annotated[
        dict[str, str | ColumnMapping],
        Meta(description="table column = event field, or a table with `field` and more"),
    ]

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the key's columns behind the document's id."""
        return tuple(listed(self.line_key))

    @property
    def mapped(self) -> dict[str, ColumnMapping]:
        """Return the columns, each in the long form."""
        return _long_form(self.columns)


class Transform(SettingsTable, frozen=True, kw_only=True):
    """The transformation of a pipeline: what becomes of a record before it is an event."""

    sql: Annotated[
        str | None,
        Meta(description="one SELECT statement of Spark SQL: `SELECT … FROM records`"),
    ] = None
    python: Annotated[
        str | None,
        Meta(description="a function from DataFrame to DataFrame: package.module:function"),
    ] = None
    delete_when: Annotated[
        str | None,
        Meta(description="boolean column of the result; if it is true, the event is a delete"),
    ] = None


class Pipeline(SettingsTable, frozen=True, kw_only=True):
    """One flow from a topic to a target table."""

    topic: Annotated[str, Meta(description="topic to read")]
    guarantee: Annotated[
        Guarantee, Meta(description="exactly-once, at-least-once or at-most-once")
    ] = "exactly-once"
    start: Annotated[
        str,
        Meta(description="where a new pipeline starts: earliest, latest or an ISO 8601 time"),
    ] = "earliest"
    target: Annotated[
        str, Meta(description="target database as a SQLAlchemy URL", extra={"secret": IN_URL})
    ]
    table: Annotated[str, Meta(description="target table, or schema.table")]
    key: Annotated[
        str | list[str],
        Meta(
            description="key column of the table, which has the document's id;"
            ' a list for a composite key: ["tenant", "no"]'
        ),
    ]
    key_type: Annotated[
        str | list[str] | None,
        Meta(
            description=f"type of the key column, like a column's `type`: {', '.join(KEY_TYPES)};"
            " for a composite key a list, which may also contain date and timestamp"
        ),
    ] = None
    key_separator: Annotated[
        str,
        Meta(
            description="one character that separates the parts of a composite key"
            " in a document's id and a record's key"
        ),
    ] = "/"
    missing: Annotated[
        Missing, Meta(description="if the table does not have the document: insert, park or ignore")
    ] = "insert"
    deletes: Annotated[
        Deletes | None,
        Meta(
            description="what a record without a value does: row deletes the row, clear clears the"
            " mapped columns, park, ignore; default: row, or park or ignore if `missing` says so"
        ),
    ] = None
    cleared_status: Annotated[
        str | None, Meta(description='status that deletes = "clear" writes; default: null')
    ] = None
    retry_parked_s: Annotated[
        int,
        Meta(
            description="how many seconds a running pipeline retries a parked document whose row or"
            " parent row does not exist yet; 0: never",
            ge=0,
            le=31_536_000,
        ),
    ] = 900
    history: Annotated[bool, Meta(description="keep every event in instep_history")] = True
    engine: Annotated[
        EngineName | None,
        Meta(
            description="resident: tasks that keep running read the topic, for the least delay;"
            " micro-batch: Spark plans batches; default: resident, or micro-batch if the pipeline"
            " has a transformation, which needs it"
        ),
    ] = None
    linger_ms: Annotated[
        int,
        Meta(
            description="resident: how long a transaction waits for more records, at most;"
            " 0: not at all",
            ge=0,
            le=10_000,
        ),
    ] = 5
    batch_rows_max: Annotated[
        int, Meta(description="maximum number of records that are read at once", ge=1)
    ] = 400_000
    transform: Annotated[
        Transform | None,
        Meta(description="transformation of the records; the event's fields are its columns"),
    ] = None
    event: Annotated[EventMapping, Meta(description="fields of the record")] = EventMapping()
    columns: Annotated[
        dict[str, str | ColumnMapping],
        Meta(description="table column = event field, or a table with `field` and more"),
    ]
    transitions: Annotated[
        dict[str, list[str]],
        Meta(
            description="which status may follow which; an event that violates this parks its"
            " document"
        ),
    ] = {}
    due: Annotated[
        dict[str, str],
        Meta(
            description='how long a document may keep a status before it is overdue: QUEUED = "2h";'
            " s, m, h or d"
        ),
    ] = {}
    tables: Annotated[
        list[FurtherTable],
        Meta(description="further tables that the same transaction writes, parents first"),
    ] = []

    redrive: Annotated[
        Redrive | None,
        Meta(description="release parked documents again by themselves; default: not"),
    ] = None

    @property
    def due_after(self) -> dict[str, timedelta]:
        """Return, by status, how long a document may keep it."""
        return {status: durations.parse(text) or timedelta.max for status, text in self.due.items()}

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns of the key: one, or those of a composite key."""
        return tuple(listed(self.key))

    @property
    def key_types(self) -> dict[str, str | None]:
        """Return the declared type of each key column; None if none is declared."""
        types = listed(self.key_type) if self.key_type is not None else [None] * len(self.keys)
        return dict(zip(self.keys, types, strict=True))

    @property
    def mapped(self) -> dict[str, ColumnMapping]:
        """Return the columns, each in the long form."""
        return _long_form(self.columns)

    @property
    def line_columns(self) -> dict[str, ColumnMapping]:
        """Return the key's columns behind the document's id; only a further table has some."""
        return {}

    @property
    def order_fields(self) -> tuple[str | None, ...]:
        """Return the fields that a guard compares."""
        return (self.event.order,)

    @property
    def chosen_engine(self) -> EngineName:
        """Return the engine that runs the pipeline."""
        return self.engine or ("resident" if self.transform is None else "micro-batch")

    @property
    def on_delete(self) -> Deletes:
        """Return what a record without a value does.

        By default, rows that the pipeline does not insert are not deleted either.
        """
        defaults: dict[Missing, Deletes] = {"insert": "row", "park": "park", "ignore": "ignore"}
        return self.deletes or defaults[self.missing]


class FurtherView(Pipeline, frozen=True, kw_only=True):
    """A pipeline as one of its further tables sees it. Not a table of the settings file."""

    id_types: tuple[str | None, ...]
    lines: dict[str, ColumnMapping]
    main_order: str | None

    @property
    def line_columns(self) -> dict[str, ColumnMapping]:
        """Return the key's columns behind the document's id."""
        return self.lines

    @property
    def order_fields(self) -> tuple[str | None, ...]:
        """Return the fields that a guard compares."""
        return (self.event.order, self.main_order)

    @property
    def key_types(self) -> dict[str, str | None]:
        """Return the declared type of each key column; None if none is declared."""
        types = [*self.id_types, *(one.type for one in self.lines.values())]
        return dict(zip(self.keys, types, strict=True))


def further_views(pipeline: Pipeline) -> list[FurtherView]:
    """Return the pipeline as each of its further tables sees it."""
    return [further_view(pipeline, one) for one in pipeline.tables]


def further_view(pipeline: Pipeline, one: FurtherTable) -> FurtherView:
    return FurtherView(
        topic=pipeline.topic,
        guarantee=pipeline.guarantee,
        target=pipeline.target,
        table=one.table,
        key=[*(listed(one.key) or pipeline.keys), *one.lines],
        id_types=tuple(pipeline.key_types.values()),
        key_separator=LINE_SEPARATOR,
        deletes=one.deletes or ("row" if pipeline.on_delete == "row" else "ignore"),
        history=False,
        event=msgspec.structs.replace(pipeline.event, order=one.order),
        columns={name: column for name, column in one.mapped.items() if name not in one.lines},
        lines={name: one.mapped[name] for name in one.lines},
        main_order=pipeline.event.order,
    )


def _long_form(columns: Mapping[str, str | ColumnMapping]) -> dict[str, ColumnMapping]:
    return {
        name: one if isinstance(one, ColumnMapping) else ColumnMapping(field=one)
        for name, one in columns.items()
    }


def listed(one_or_several: str | list[str]) -> list[str]:
    return [one_or_several] if isinstance(one_or_several, str) else one_or_several
