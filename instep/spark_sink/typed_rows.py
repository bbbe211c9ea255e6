"""Rows of a table as typed columns: checked and reduced at once, without an object for each value.

A `TypedReader` takes Arrow batches whose every row is plain: each value fits its column whatever
the other values are, and nothing but the guard decides. It makes the same rows of them as the
decoder (`document/decoding.py`), which takes all other batches row by row, as JSON. So a
batch is either written in columns, or all that the decoder does happens: quarantine, deletes,
conversions.

Arrow loads pandas when it first makes an array or a scalar of a Python object. A commit of the
format door has a process of its own, in which that would take longer than a small batch, so usual
batches are read without.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from instep.document import kinds
from instep.document.event import ID_CHARACTERS_MAX
from instep.document.guard import DocumentId
from instep.document.identity import Identity
from instep.document.mapping import Field, Mapping, TargetColumn
from instep.sinks.target import Target
from instep.sinks.target_table import StagedRow
from instep.spark_sink.definition import SinkTable

CSV_ROWS = 20_000  # in a piece
JSON_ESCAPE = 6  # characters of JSON for one of a text, at most
NUMBER_CHARACTERS = 40  # the longest number or time in JSON

DAYS = tuple((day - date(1970, 1, 1)).days for day in (date.min, date.max))


class TypedReader:
    """Reads the rows of one table in columns, if they are plain."""

    def __init__(self, table: SinkTable, target: Target, record_bytes_max: int | None) -> None:
        self._table, self._target = table, target
        self._bytes_max = record_bytes_max
        self._mapping = target.mapping
        self._is_plain = is_plain_mapping(target.mapping)

    def read(self, batches: Sequence[pa.RecordBatch]) -> TypedRows | None:
        """Return the newest row of each document; None if a row is not plain."""
        if not self._is_plain or not batches:
            return None
        try:
            rows = pa.Table.from_batches(batches)
        except pa.ArrowInvalid:  # a schema of its own for each task
            return None
        delete_when = self._table.delete_when
        if delete_when is not None and pc.any(rows.column(delete_when)).as_py():
            return None
        mapping = self._mapping
        columns = []
        for column in (*mapping.keys, *mapping.columns):
            is_key = column in mapping.keys
            values = _fitting(column, rows.column(column.name), required=is_key)
            if values is None:
                return None
            columns.append(values)
        found = pa.Table.from_arrays(
            columns, [f"c{number}" for number in range(len(columns))]
        ).combine_chunks()
        keys = found.column_names[: len(mapping.keys)]
        if not (self._are_ids(found, keys) and self._fit_into_quarantine(found)):
            return None
        order = None
        if mapping.order is not None:
            index = [column.name for column in mapping.columns].index(mapping.order[0])
            order = found.column_names[len(keys) + index]
            if found.column(order).null_count:
                return None
        reduced = _newest(found, keys, order, is_time=mapping.order_is_time)
        return TypedRows(mapping, reduced, order, rows.num_rows)

    def _are_ids(self, found: pa.Table, keys: Sequence[str]) -> bool:
        """Return whether all keys are ids of documents."""
        whole = len(keys) - 1  # the separators
        for name in keys:
            values = found.column(name)
            if not pa.types.is_string(values.type):
                whole += NUMBER_CHARACTERS
                continue
            lengths = pc.min_max(pc.utf8_length(values)).as_py()
            if lengths["min"] == 0:
                return False
            whole += lengths["max"] or 0
            separator = self._mapping.separator
            if len(keys) > 1 and pc.any(pc.match_substring(values, separator)).as_py():
                return False
        return whole <= ID_CHARACTERS_MAX

    def _fit_into_quarantine(self, found: pa.Table) -> bool:
        """Return whether every row, as JSON, is surely small enough to be kept."""
        if self._bytes_max is None:
            return True
        size = 2
        for column, name in zip(found.columns, found.column_names, strict=True):
            size += JSON_ESCAPE * len(name) + NUMBER_CHARACTERS
            if pa.types.is_string(column.type):
                size += JSON_ESCAPE * _largest(pc.binary_length(column))
        names = (*self._mapping.keys, *self._mapping.columns)
        size += sum(JSON_ESCAPE * len(column.name.encode()) for column in names)
        return size <= self._bytes_max


class TypedRows:
    """The newest row of each document, in the order of their keys."""

    def __init__(self, mapping: Mapping, rows: pa.Table, order: str | None, taken: int) -> None:
        """Take key columns and mapped columns, as the stage has them. `order` is the guard's."""
        self._mapping, self._rows, self._order = mapping, rows, order
        self.taken = taken  # how many rows they were reduced from

    def __len__(self) -> int:
        """Return the number of documents."""
        count: int = self._rows.num_rows
        return count

    def documents(self) -> list[DocumentId]:
        """Return the ids."""
        parts = [_values(column) for column in self._rows.columns[: len(self._mapping.keys)]]
        identity = Identity(self._mapping)
        if not identity.is_text_form:
            return list(parts[0])
        joined = identity.joined
        return [joined(values) for values in zip(*parts, strict=True)]

    def rows(self) -> list[StagedRow]:
        """Return the rows as the stage takes them."""
        columns = [_values(column) for column in self._rows.columns[len(self._mapping.keys) :]]
        orders: Sequence[Any] = [None] * len(self)
        if self._order is not None:
            index = self._rows.column_names.index(self._order) - len(self._mapping.keys)
            orders = columns[index]
        values = zip(*columns, strict=True)
        return list(zip(self.documents(), values, orders, strict=True))

    def csv(self, *, with_order: bool) -> Iterator[bytes]:
        """Yield the rows as CSV: key columns, columns, and once more the guard's, if wanted.

        Text is in quotes, null is empty, and times are in UTC, without a zone.
        """
        found = pa.Table.from_arrays(
            [_without_zone(column) for column in self._rows.columns], self._rows.column_names
        )
        if with_order:
            first = pa.nulls(len(self), pa.int64())
            if self._order is not None:
                first = found.column(self._order)
            found = found.append_column("first", first)
        options = csv.WriteOptions(include_header=False, batch_size=CSV_ROWS)
        for start in range(0, len(self), CSV_ROWS):
            written = io.BytesIO()
            csv.write_csv(found.slice(start, CSV_ROWS), written, options)
            yield written.getvalue()

    @property
    def is_csv(self) -> bool:
        r"""Return whether all text can travel as CSV: a line `\.` would end it."""
        return not any(
            pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\\.")).as_py()
            for column in self._rows.columns
        )


def is_plain_mapping(mapping: Mapping) -> bool:
    """Return whether rows under this mapping can be plain: every column is a field as it is."""
    names = [column.name for column in mapping.columns]
    ordered = mapping.order is None or (
        mapping.order[0] in names and mapping.guard == mapping.order[0]
    )
    return (
        ordered
        and not mapping.further
        and mapping.documents == tuple((column.name,) for column in mapping.keys)
        and all(map(_is_key, mapping.keys))
        and all(map(_is_plain_field, mapping.fields))
    )


def _is_key(column: TargetColumn) -> bool:
    kind = column.kind
    if isinstance(kind, kinds.Text):
        return _has_all_characters(kind) and not kind.padded
    if isinstance(kind, kinds.Integer):
        return not kind.is_boolean
    return isinstance(kind, (kinds.Date, kinds.Timestamp))


def _is_plain_field(field: Field) -> bool:
    return (
        field.path == (field.column.name,)
        and not field.holds_time
        and not field.conversion
        and field.constant is None
    )


def _fitting(column: TargetColumn, values: Any, *, required: bool) -> Any:
    """Return the values as the column takes them; None if one may not fit."""
    if values.null_count and (required or not column.nullable):
        return None
    kind, found = column.kind, values.type
    match kind:
        case kinds.Text():
            fits = pa.types.is_string(found) and _texts_fit(kind, values)
        case kinds.Enumeration():
            labels = {None, *kind.labels}
            fits = pa.types.is_string(found) and labels.issuperset(pc.unique(values).to_pylist())
        case kinds.Integer():
            fits = pa.types.is_signed_integer(found) and _between(values, kind.low, kind.high)
        case kinds.Boolean():
            fits = pa.types.is_boolean(found)
        case kinds.Float():
            fits = pa.types.is_floating(found) and _all(pc.is_finite(values), values)
            if fits:
                return values.cast(pa.float64())
        case kinds.Timestamp():
            fits = pa.types.is_timestamp(found) and found.unit == "us" and kind.precision == 6
            low, high = kinds.micros(kind.low), kinds.micros(kind.high)
            if fits and _between(values.cast(pa.int64()), low, high):
                return values.cast(pa.timestamp("us", tz="UTC"))
            return None
        case kinds.Date():
            fits = pa.types.is_date32(found) and _between(values.cast(pa.int32()), *DAYS)
        case kinds.Numeric():
            fits = pa.types.is_decimal128(found) and _digits_fit(kind, found)
        case _:
            fits = False
    return values if fits else None


def _texts_fit(kind: kinds.Text, values: Any) -> bool:
    if not _has_all_characters(kind):
        return False
    if kind.characters is not None and _largest(pc.utf8_length(values)) > kind.characters:
        return False
    if kind.size is not None and _largest(pc.binary_length(values)) > kind.size:
        return False
    return not pc.any(pc.match_substring(values, "\0")).as_py()


def _has_all_characters(kind: kinds.Text) -> bool:
    return kind.charset is None or kind.charset in kinds.UNICODE


def _digits_fit(kind: kinds.Numeric, found: Any) -> bool:
    """Return whether every number of a type has few enough digits."""
    if kind.binary or found.scale < 0:
        return False
    if kind.digits is None:
        return True
    scale = kind.scale or 0
    return bool(found.scale <= scale and found.precision - found.scale <= kind.digits - scale)


def _between(values: Any, low: int, high: int) -> bool:
    if len(values) == values.null_count:
        return True
    bounds = pc.min_max(values).as_py()
    return bool(low <= bounds["min"] and bounds["max"] <= high)


def _all(found: Any, values: Any) -> bool:
    """Return whether a condition is true wherever there is a value."""
    return bool(pc.all(pc.or_kleene(found, pc.is_null(values))).as_py() is not False)


def _largest(lengths: Any) -> int:
    return pc.max(lengths).as_py() or 0


def _newest(rows: pa.Table, keys: Sequence[str], order: str | None, *, is_time: bool) -> pa.Table:
    """Return the newest row of each key, sorted by key, as the guard says.

    Of two rows with the same version the first counts, of two with the same time the last. Without
    an order, the last row counts.
    """
    by_key = [(name, "ascending") for name in keys]
    rows = rows.take(pc.sort_indices(rows, by_key))  # stable
    if rows.num_rows < 2 or not pc.any(_is_same_key(rows, keys)).as_py():
        return rows
    if order is not None:
        direction = "ascending" if is_time else "descending"
        rows = rows.take(pc.sort_indices(rows, [*by_key, (order, direction)]))
    is_edge = [pc.invert(_is_same_key(rows, keys)).combine_chunks()]
    end = pc.is_null(pa.nulls(1))  # [True]
    # Of equal versions the first row is wanted: the newest ones come first, and not last.
    comes_first = order is not None and not is_time
    return rows.filter(pa.concat_arrays([end, *is_edge] if comes_first else [*is_edge, end]))


def _is_same_key(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return for each row but the last whether the next one has the same key."""
    count = rows.num_rows
    same = None
    for name in keys:
        values = rows.column(name)
        equal = pc.equal(values.slice(0, count - 1), values.slice(1))
        same = equal if same is None else pc.and_(same, equal)
    return same


def _without_zone(column: Any) -> Any:
    # Arrow formats a time without a zone more than ten times as fast.
    return column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column


def _values(column: Any) -> list[Any]:
    """Return values as the decoder returns them."""
    found: list[Any] = column.to_pylist()
    if pa.types.is_timestamp(column.type):
        return [None if at is None else _in_utc(at) for at in found]
    return found


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=kinds.EPOCH.tzinfo)
