"""Check what the types of a pipeline's settings cannot express."""

from __future__ import annotations

import msgspec

from instep import durations, errors
from instep.conversion_errors import nearest
from instep.settings.pipelines import (
    ColumnMapping,
    EventMapping,
    FurtherTable,
    Pipeline,
    further_view,
    listed,
)
from instep.settings.values import (
    DURATION_MAX,
    DURATION_MIN,
    KEY_TYPES,
    PART_TYPES,
    SINK_PREFIX,
    TRANSFORMED_TOPIC_MAX,
    TYPE,
    TYPES,
    start_time,
)


def check_pipeline(name: str, pipeline: Pipeline) -> None:
    place = f"pipelines.{name}"
    if not name or len(name) > 100:
        raise errors.SettingsError(
            f"{place}: a pipeline's name must have 1 to 100 characters",
            "choose another name",
        )
    if name.startswith(SINK_PREFIX):
        raise errors.SettingsError(
            f"{place}: a name with {SINK_PREFIX!r} at its beginning belongs to a Spark sink",
            "choose another name",
        )
    if not pipeline.columns:
        raise errors.SettingsError(
            f"{place}.columns is empty", "add at least one line: column = field"
        )
    _check_key(place, pipeline)
    fields = {column.field for column in pipeline.mapped.values()}
    if pipeline.event.order is not None and pipeline.event.order not in fields:
        raise errors.SettingsError(
            f"{place}.event.order is {pipeline.event.order!r}, but no column stores it,"
            " so the guard has nothing to compare",
            f'add a column to [{place}.columns]: print_version = "{pipeline.event.order}"',
        )
    _check_columns(place, pipeline)
    for number, further in enumerate(pipeline.tables):
        _check_further(f"{place}.tables[{number}]", pipeline, further)
    _check_transitions(place, pipeline)
    _check_transform(place, pipeline)
    _check_due(place, pipeline)
    _check_redrive(place, pipeline)
    if pipeline.cleared_status is not None and (
        pipeline.deletes != "clear" or pipeline.event.status not in fields
    ):
        raise errors.SettingsError(
            f'{place}.cleared_status needs deletes = "clear" and a column for the status',
            f'add deletes = "clear" to [{place}], or remove cleared_status',
        )
    check_start(place, pipeline.start)


def _check_further(place: str, pipeline: Pipeline, further: FurtherTable) -> None:
    view = further_view(pipeline, further) if set(further.lines) <= set(further.columns) else None
    if view is None or len(set(further.lines)) < len(further.lines):
        raise errors.SettingsError(
            f"{place}.line_key is {further.line_key!r}",
            f"name each column once, and say in {place}.columns which field it holds",
        )
    if len(view.keys) - len(view.lines) != len(pipeline.keys):
        raise errors.SettingsError(
            f"{place}.key is {further.key!r}, but a document's id has the columns"
            f" {', '.join(pipeline.keys)}",
            "name as many columns, in the same order; other columns of the key belong in line_key",
        )
    tables = [pipeline.table, *(one.table for one in pipeline.tables)]
    if tables.count(further.table) > 1:
        raise errors.SettingsError(
            f"{place}.table is {further.table!r}, which the pipeline writes already",
            "name each table once",
        )
    if not view.columns:
        raise errors.SettingsError(
            f"{place}.columns has no column beside the key", "add at least one line: column = field"
        )
    for name in view.keys:
        if name in view.columns:
            raise errors.SettingsError(
                f"{place}.columns.{name} is a key column, which has the document's id already",
                "remove the line",
            )
    for name, line in view.lines.items():
        _check_line(f"{place}.columns.{name}", line)
    fields = {column.field for column in further.mapped.values()}
    if further.order is not None and further.order not in fields:
        raise errors.SettingsError(
            f"{place}.order is {further.order!r}, but no column of the table stores it",
            f'add a column to {place}.columns: version = "{further.order}"',
        )
    _refuse_position(f"{place}.order", further.order)
    for name, column in further.mapped.items():
        _check_column(f"{place}.columns.{name}", column, view.event)


def _check_line(place: str, line: ColumnMapping) -> None:
    if line.field is None or line.convert == "boolean":
        raise errors.SettingsError(
            f"{place} is part of the key and {'a constant' if line.field is None else 'a boolean'}",
            "name a field with a text, a number, a time or a date; for a line for every event:"
            ' "@partition" and "@offset"',
        )
    if line.type is not None:
        column_type(line.type, f"{place}.type", PART_TYPES)


def _refuse_position(place: str, field: str | None) -> None:
    if field in ("@offset", "@partition"):
        raise errors.SettingsError(
            f"{place} is {field!r}, which says nothing about the document",
            "use a field of the value, a header or @timestamp",
        )


def check_start(place: str, start: str) -> None:
    try:
        start_time(start)
    except msgspec.ValidationError:
        raise errors.SettingsError(
            f"{place}.start is {start!r}",
            'use "earliest", "latest" or a time such as "2026-11-01T08:00:00Z"',
        ) from None


def _check_key(place: str, pipeline: Pipeline) -> None:
    keys, documents = pipeline.keys, pipeline.event.documents
    if not keys or len(set(keys)) < len(keys):
        raise errors.SettingsError(
            f"{place}.key is {pipeline.key!r}",
            'name each key column once: key = "id", or key = ["tenant", "no"]',
        )
    for key in keys:
        if key in pipeline.columns:
            raise errors.SettingsError(
                f"{place}.columns.{key} is a key column, which has the document's id already",
                "remove the line",
            )
    for document in documents:
        if document.startswith("@") and document != "@key":
            raise errors.SettingsError(
                f"{place}.event.document is {document!r}", 'use "@key" or a field of the value'
            )
    is_whole = isinstance(pipeline.event.document, str)
    if not (is_whole or len(documents) == len(keys)) or len(set(documents)) < len(documents):
        raise errors.SettingsError(
            f"{place}.event.document is {pipeline.event.document!r},"
            f" but the key has the columns {', '.join(keys)}",
            "name one field with the whole id, or a field for each key column, in the order of"
            " `key`",
        )
    if pipeline.key_type is not None and len(listed(pipeline.key_type)) != len(keys):
        raise errors.SettingsError(
            f"{place}.key_type is {pipeline.key_type!r},"
            f" but the key has the columns {', '.join(keys)}",
            'set a type for each key column, in the order of `key`: key_type = ["text", "bigint"]',
        )
    for kind in pipeline.key_types.values():
        if kind is not None:
            column_type(kind, f"{place}.key_type", KEY_TYPES if len(keys) == 1 else PART_TYPES)
    separator = pipeline.key_separator
    if len(separator) != 1 or separator.isalnum() or not separator.isprintable():
        raise errors.SettingsError(
            f"{place}.key_separator is {separator!r}",
            "use one character that occurs in no part of a key and is neither a letter nor a"
            ' digit: "/", ":" or "|"',
        )


def _check_columns(place: str, pipeline: Pipeline) -> None:
    event = pipeline.event
    for part in ("status", "order", "at"):
        _refuse_position(f"{place}.event.{part}", getattr(event, part))
    for name, column in pipeline.mapped.items():
        _check_column(f"{place}.columns.{name}", column, event)


def _check_column(place: str, column: ColumnMapping, event: EventMapping) -> None:
    if (column.field is None) is (column.value is None):
        problem = "has neither a field nor a value"
        if column.field is not None:
            problem = "has a field and a value"
        raise errors.SettingsError(
            f"{place} {problem}", 'set one of them: field = "…" or value = …'
        )
    if column.type is not None:
        column_type(column.type, f"{place}.type", TYPES)
    used = [name for name in ("unit", "convert", "round", "trim") if getattr(column, name)]
    if column.value is not None and used:
        raise errors.SettingsError(
            f"{place} is a constant, which does not allow {used[0]}",
            f"write the value as it should be stored, without {used[0]}",
        )
    if column.unit is not None and used != ["unit"]:
        other = (set(used) - {"unit"}).pop()
        raise errors.SettingsError(
            f"{place} has a unit, so its field is a time, which does not allow {other}",
            "remove one of them",
        )
    if (
        column.field is not None
        and column.field == event.order
        and (column.round or column.convert in ("boolean", "text"))
    ):
        raise errors.SettingsError(
            f"{place} stores the order value, which the guard compares unchanged",
            'remove `round`; of `convert`, only use "number"',
        )


def column_type(
    text: str, place: str, known: tuple[str, ...] = TYPES
) -> tuple[str, tuple[int, ...]]:
    """Parse a declared type: `decimal(12,2)` is ("decimal", (12, 2))."""
    found = TYPE.fullmatch(text.strip().lower())
    name, *numbers = [part for part in found.groups() if part is not None] if found else [""]
    if not found or not any(one.partition("(")[0] == name for one in known):
        bare = [one.partition("(")[0] for one in known]
        raise errors.SettingsError(
            f"{place} is {text!r}, which is not a type"
            f"{nearest(text.partition('(')[0].lower(), bare)}",
            f"use one of: {', '.join(known)}",
        )
    sizes = tuple(map(int, numbers))
    if (name == "varchar" and sizes[0] == 0) or (
        name == "decimal" and not (1 <= sizes[0] <= 65 and sizes[1] <= min(sizes[0], 30))
    ):
        raise errors.SettingsError(
            f"{place} is {text!r}, which not every database supports",
            "varchar needs at least 1 character, decimal 1 to 65 digits and a scale of at most 30",
        )
    return name, sizes


def _require_status(place: str, key: str, pipeline: Pipeline) -> None:
    """Refuse a setting that needs the document's status if the pipeline does not have it."""
    if pipeline.event.status is None:
        raise errors.SettingsError(
            f"{place}.{key} needs the event's status, but event.status is not set",
            f'add to [{place}.event]: status = "status"',
        )
    if pipeline.event.status not in {column.field for column in pipeline.mapped.values()}:
        raise errors.SettingsError(
            f"{place}.{key} needs the document's current status,"
            f" but no column stores {pipeline.event.status!r}",
            f'add a column to [{place}.columns]: print_status = "{pipeline.event.status}"',
        )


def _check_due(place: str, pipeline: Pipeline) -> None:
    if not pipeline.due:
        return
    _require_status(place, "due", pipeline)
    for status, text in pipeline.due.items():
        if not status:
            raise errors.SettingsError(f"{place}.due has an empty status", "name every status")
        after = durations.parse(text)
        if after is None or not DURATION_MIN <= after <= DURATION_MAX:
            raise errors.SettingsError(
                f"{place}.due.{status} is {text!r}, which is not a duration"
                f" from 1 s to {DURATION_MAX.days} days",
                'write e.g. "90s", "90m", "2h" or "3d"',
            )
    fields = {column.field for column in pipeline.mapped.values()}
    at = pipeline.event.at or "@timestamp"
    if not pipeline.history and at not in fields:
        raise errors.SettingsError(
            f"{place}.due needs the time of a document's last change, but history is off and no"
            " column stores the event's time",
            f"set history = true in [{place}], or add a column to [{place}.columns]:"
            f' changed_at = "{at}"',
        )


def _check_redrive(place: str, pipeline: Pipeline) -> None:
    if pipeline.redrive is None:
        return
    if not pipeline.redrive.reason:
        raise errors.SettingsError(
            f"{place}.redrive.reason is empty", 'name a reason: reason = ["REFUSED_BY_TARGET"]'
        )
    every = durations.parse(pipeline.redrive.every)
    if every is None or not DURATION_MIN <= every <= DURATION_MAX:
        raise errors.SettingsError(
            f"{place}.redrive.every is {pipeline.redrive.every!r}, which is not a duration"
            f" from 1 s to {DURATION_MAX.days} days",
            'write e.g. "90s", "5m", "2h" or "1d"',
        )


def _check_transitions(place: str, pipeline: Pipeline) -> None:
    if not pipeline.transitions:
        return
    _require_status(place, "transitions", pipeline)
    for status, following in pipeline.transitions.items():
        if "" in (status, *following):
            raise errors.SettingsError(
                f"{place}.transitions has an empty status", "name every status"
            )


def _check_transform(place: str, pipeline: Pipeline) -> None:
    transform = pipeline.transform
    if transform is None:
        return
    if (transform.sql is None) is (transform.python is None):
        has = "both sql and python" if transform.sql else "neither sql nor python"
        raise errors.SettingsError(
            f"{place}.transform has {has}",
            'set one of them: sql = "SELECT … FROM records" or python = "package.module:function"',
        )
    if pipeline.tables:
        raise errors.SettingsError(
            f"{place} has a transformation and further tables, which do not work together",
            "remove [[tables]], or declare a pipeline for each table; a Spark stream can write"
            " several in one transaction: docs/guides/write-a-spark-stream.md",
        )
    if pipeline.engine == "resident":
        raise errors.SettingsError(
            f"{place}.engine is 'resident', but a transformation needs Spark SQL,"
            " which resident tasks do not have",
            'remove `engine`, or set engine = "micro-batch"',
        )
    for name, column in pipeline.mapped.items():
        if column.field == "@offset":
            raise errors.SettingsError(
                f"{place}.columns.{name} is '@offset', which the events of a transformation lack",
                "select `offset` in the transformation, and map that column",
            )
    if len(pipeline.topic) > TRANSFORMED_TOPIC_MAX:
        raise errors.SettingsError(
            f"{place}.topic has {len(pipeline.topic)} characters, but with a transformation the"
            " number of a result is kept behind it",
            f"use a topic with at most {TRANSFORMED_TOPIC_MAX} characters",
        )
