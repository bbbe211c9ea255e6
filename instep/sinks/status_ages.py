"""Read which documents have a status, and since when.

The time comes from the history: of the first event since the status changed. If the history does
not know the document, because it is off, was pruned, or is younger than the row, the time comes
from the column that stores the event's time: that of the last event, whatever it changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from instep.document import due, kinds
from instep.document.due import StatusAge
from instep.document.mapping import Field
from instep.document.reasons import Unfit
from instep.sinks import runs
from instep.sinks.sink import Sink
from instep.sinks.stored_values import utc_time

PAGE_ROWS = 10_000


def clock(sink: Sink) -> datetime:
    """Return the database's time."""
    [(now,)] = sink.connection.select(f"SELECT {runs.CLOCKS[sink.connection.dialect.name]}")
    at = utc_time(now)
    assert at is not None
    return at


def pages(sink: Sink, statuses: Collection[str]) -> Iterator[list[StatusAge]]:
    """Read all documents with one of these statuses. Each page is a separate snapshot."""
    last: tuple[Any, ...] = ()
    table, names = sink.table, list(statuses)
    while True:
        condition, values = table.after_key(last) if last else (f"{table.keys[0]} IS NOT NULL", ())
        query = (
            f"{_select(sink)} WHERE {_status(sink)} IN ({sink.connection.placeholders(len(names))})"
            f" AND {condition} ORDER BY {table.key} LIMIT {PAGE_ROWS}"
        )
        with sink.snapshot():
            page = sink.connection.select(query, (*names, *values))
            found = _ages(sink, page, statuses)
        if page:
            last = page[-1][: len(table.keys)]
            yield found
        if len(page) < PAGE_ROWS:
            return


def among(sink: Sink, statuses: Collection[str], documents: Sequence[str]) -> list[StatusAge]:
    """Read those of these documents that have one of the statuses."""
    ids = [sink.table.identity.of_kept(document) for document in documents]
    with sink.snapshot():
        query = f"{_select(sink)} WHERE {{key_list}}"
        return _ages(sink, list(sink.table.select_documents(query, (), ids)), statuses)


def _select(sink: Sink) -> str:
    table, field = sink.table, _time_field(sink)
    at = table.column_expression(field.column) if field else "NULL"
    return f"SELECT {table.key_expressions()}, {_status(sink)}, {at} FROM {table.name}"


def _status(sink: Sink) -> str:
    column = sink.target.mapping.status_column
    assert column is not None  # the settings are checked
    return sink.table.column_expression(column)


def _time_field(sink: Sink) -> Field | None:
    """Return the field that stores an event's time, or an order value that is a time."""
    mapping = sink.target.mapping
    for field in mapping.fields:
        if field.path == mapping.at and field.holds_time:
            return field
    return mapping.guard_field if mapping.order_is_time else None


def _ages(
    sink: Sink, rows: Sequence[tuple[Any, ...]], statuses: Collection[str]
) -> list[StatusAge]:
    """Return the documents whose status is exactly one of these: a collation may ignore case."""
    column, time_field = sink.target.mapping.status_column, _time_field(sink)
    assert column is not None
    is_padded = isinstance(column.kind, kinds.Text) and column.kind.padded
    found = []
    for document, (stored, at) in map(sink.table.split_key, rows):
        status = str(stored).rstrip(" ") if is_padded else str(stored)
        if status in statuses:
            found.append((document, status, at))
    applied = {}
    if sink.target.history:
        applied = sink.journal.applied_statuses([document for document, _, _ in found])
    ages = []
    for document, status, at in found:
        since = due.status_since(applied.get(document, ()), status)
        if since is None and time_field is not None:
            since = _stored_time(at, time_field)
        ages.append(StatusAge(str(document), status, since))
    return ages


def _stored_time(value: Any, field: Field) -> datetime | None:
    """Return a stored time; None for null and for what is no time, such as infinity."""
    if value is None:
        return None
    try:
        if isinstance(field.column.kind, kinds.Integer):
            return kinds.from_micros(int(value) * kinds.UNIT_US[field.unit])
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return kinds.instant(str(value))
    except (Unfit, ValueError, OverflowError):
        return None
