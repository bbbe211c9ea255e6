"""Rows on their way from a task to the driver: each as JSON, in chunks, with a digest of all.

JSON is what pipelines read, so that the driver decodes rows as it decodes records, and quarantine
keeps them in a form that people can read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from instep.spark_sink.definition import SinkTable

CHUNK_BYTES = 256 * 1024
DIGEST_BYTES = 16
FLOAT_DIGITS = 9

_encode = msgspec.json.Encoder(decimal_format="number").encode
_pack = msgspec.msgpack.Encoder().encode

Convert = Callable[[Any], Any]


class RowChunk(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one table, by number, and which of them delete their key."""

    table: int
    rows: list[bytes]
    deletes: list[int]


def unpack(data: bytes) -> RowChunk:
    """Return a chunk that a task packed."""
    return msgspec.msgpack.decode(data, type=RowChunk)


class RowDigest:
    """A digest of rows that does not depend on their order, nor on how tasks share them.

    Sums of floating-point numbers differ in their last digits if they are added in another order,
    so only the first digits count.
    """

    def __init__(self) -> None:
        self._sum, self._count = 0, 0

    def add(self, table: int, row: bytes) -> None:
        """Add one row."""
        hashed = hashlib.blake2b(b"%d " % table + row, digest_size=DIGEST_BYTES).digest()
        self._sum += int.from_bytes(hashed, "big")
        self._count += 1

    @property
    def text(self) -> str:
        """Return the digest: the number of rows, and the sum of their hashes."""
        return f"{self._count}:{self._sum % 2 ** (8 * DIGEST_BYTES):032x}"


def combined(digests: Iterable[str]) -> str:
    """Return the digest of all rows from those of the tasks."""
    count, total = 0, 0
    for digest in digests:
        rows, _, hashed = digest.partition(":")
        count += int(rows)
        total += int(hashed, 16)
    return f"{count}:{total % 2 ** (8 * DIGEST_BYTES):032x}"


def encode(
    batches: Iterable[pa.RecordBatch], tables: Sequence[SinkTable], digest: RowDigest
) -> Iterator[bytes]:
    """Return the rows of Arrow batches in packed chunks, and add them to the digest."""
    open_chunks = [_OpenChunk(number) for number in range(len(tables))]
    for batch in batches:
        for number, table in enumerate(tables):
            chunk = open_chunks[number]
            for row, hashed, is_delete in _rows(batch, table):
                digest.add(number, hashed)
                chunk.add(row, is_delete)
                if chunk.size >= CHUNK_BYTES:
                    yield chunk.packed()
    for chunk in open_chunks:
        if chunk.rows:
            yield chunk.packed()


class _OpenChunk:
    def __init__(self, table: int) -> None:
        self._table = table
        self._clear()

    def _clear(self) -> None:
        self.rows: list[bytes] = []
        self._deletes: list[int] = []
        self.size = 0

    def add(self, row: bytes, is_delete: bool) -> None:
        if is_delete:
            self._deletes.append(len(self.rows))
        self.rows.append(row)
        self.size += len(row)

    def packed(self) -> bytes:
        packed = _pack(RowChunk(self._table, self.rows, self._deletes))
        self._clear()
        return packed


def _rows(batch: pa.RecordBatch, table: SinkTable) -> Iterator[tuple[bytes, bytes, bool]]:
    """Return each row of a table as JSON, what is hashed of it, and whether it deletes its key."""
    if table.column is None:
        arrow_type, found = pa.struct(list(batch.schema)), batch.to_pylist()
    else:
        column = batch.column(batch.schema.get_field_index(table.column))
        arrow_type, found = column.type, column.to_pylist()
        if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
            arrow_type = arrow_type.value_type
            found = [row for rows in found if rows is not None for row in rows]
    convert, hashed = _converter(arrow_type, _exact_float), _converter(arrow_type, _rough_float)
    has_floats = _has_float(arrow_type)
    for row in found:
        if row is None:
            continue
        encoded = _encode(convert(row) if convert else row)
        rough = _encode(hashed(row)) if has_floats and hashed else encoded
        is_delete = table.delete_when is not None and row.get(table.delete_when) is True
        yield encoded, rough, is_delete


def _exact_float(value: float) -> Any:
    """Return a float as JSON has it. The others are text, which a column of numbers refuses."""
    return value if math.isfinite(value) else str(value)


def _rough_float(value: float) -> str:
    return f"{value:.{FLOAT_DIGITS}g}"


def _has_float(kind: pa.DataType) -> bool:
    if pa.types.is_floating(kind):
        return True
    return any(_has_float(kind.field(number).type) for number in range(kind.num_fields))


def _converter(kind: pa.DataType, of_float: Convert) -> Convert | None:
    """Return the function from a value to what is encoded of it; None if it is the value."""
    if pa.types.is_floating(kind):
        return lambda value: None if value is None else of_float(value)
    if pa.types.is_timestamp(kind):
        return _utc_text
    if pa.types.is_struct(kind):
        parts = [(field.name, _converter(field.type, of_float)) for field in kind]
        changed = [(name, convert) for name, convert in parts if convert is not None]
        return _struct_converter(changed) if changed else None
    if pa.types.is_map(kind):
        return _map_converter(_converter(kind.item_type, of_float))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        convert = _converter(kind.value_type, of_float)
        return None if convert is None else _list_converter(convert)
    return None


def _utc_text(value: Any) -> Any:
    """Return a time; one without a zone is in UTC."""
    if value is None or value.tzinfo is not None:
        return value
    return value.isoformat(timespec="microseconds") + "Z"


def _struct_converter(parts: Sequence[tuple[str, Convert]]) -> Convert:
    def convert(row: dict[str, Any] | None) -> Any:
        if row is None:
            return None
        changed = dict(row)
        for name, of_part in parts:
            changed[name] = of_part(row[name])
        return changed

    return convert


def _list_converter(of_item: Convert) -> Convert:
    return lambda values: None if values is None else [of_item(value) for value in values]


def _map_converter(of_value: Convert | None) -> Convert:
    def convert(pairs: Any) -> Any:
        if pairs is None:
            return None
        return {str(key): of_value(value) if of_value else value for key, value in pairs}

    return convert
