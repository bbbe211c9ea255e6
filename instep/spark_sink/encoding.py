"""Rows on their way from a task to the driver: Arrow batches, in chunks, with a digest of all.

The driver writes typed columns where it can (`typed_rows.py`). For all other rows `json_rows`
returns what pipelines read, so that the driver decodes rows as it decodes records, and quarantine
keeps them in a form that people can read.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from instep.spark_sink.definition import SinkTable

CHUNK_BYTES = 256 * 1024
DIGEST_BYTES = 16
FLOAT_DIGITS = 9
OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
# Between and in place of the parts of a row that is hashed.
PART, NULL = "\x1f", "\x1e"

_encode = msgspec.json.Encoder(decimal_format="number").encode
# Maps have no order: after a shuffle, an equal one may have its entries in another.
_encode_sorted = msgspec.json.Encoder(decimal_format="number", order="sorted").encode
_pack = msgspec.msgpack.Encoder().encode

Convert = Callable[[Any], Any]


class RowChunk(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one table, by number: a stream of Arrow batches."""

    table: int
    stream: bytes

    def batches(self) -> list[pa.RecordBatch]:
        """Return the rows."""
        found: list[pa.RecordBatch] = pa.ipc.open_stream(self.stream).read_all().to_batches()
        return found


def unpack(data: bytes) -> RowChunk:
    """Return a chunk that a task packed."""
    return msgspec.msgpack.decode(data, type=RowChunk)


class RowDigest:
    """A digest of rows that does not depend on their order, nor on how tasks share them.

    Sums of floating-point numbers differ in their last digits if they are added in another order,
    so only the first digits count.
    """

    def __init__(self, *, only_count: bool = False) -> None:
        """Take whether to count the rows only, if something else identifies them."""
        self._sum, self._count = 0, 0
        self._only_count = only_count

    def add(self, number: int, rows: pa.RecordBatch) -> None:
        """Add rows of a table."""
        self._count += rows.num_rows
        if self._only_count:
            return
        new_hash, size = hashlib.blake2b, DIGEST_BYTES
        self._sum += sum(
            int.from_bytes(new_hash(row, digest_size=size).digest(), "big")
            for row in _hashed_rows(number, rows)
        )

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
    for batch in batches:
        for number, table in enumerate(tables):
            rows = _rows_of(batch, table)
            if not rows.num_rows:
                continue
            rows.validate(full=True)  # also that text is UTF-8, which nothing after it checks
            digest.add(number, rows)
            pieces = -(-rows.nbytes // CHUNK_BYTES) or 1
            size = -(-rows.num_rows // pieces)
            for start in range(0, rows.num_rows, size):
                yield _packed(number, rows.slice(start, size))


def json_rows(rows: pa.RecordBatch, table: SinkTable) -> Iterator[tuple[bytes, bool]]:
    """Return each row of a table as JSON, and whether it deletes its key."""
    convert = _converter(pa.struct(list(rows.schema)), _exact_float)
    for row in rows.to_pylist():
        is_delete = table.delete_when is not None and row.get(table.delete_when) is True
        yield _encode(convert(row) if convert else row), is_delete


def split(rows: pa.RecordBatch, delete_when: str, *, deletes: bool) -> pa.RecordBatch | None:
    """Return the rows that delete their key, or all others; None if there are none.

    A null is no delete. No scalar is made, because that would load pandas.
    """
    is_delete = rows.column(delete_when)
    chosen = is_delete
    if not deletes:
        chosen = pc.or_kleene(pc.invert(is_delete), pc.is_null(is_delete))
    found: pa.RecordBatch = rows.filter(chosen)
    return found if found.num_rows else None


def _packed(number: int, rows: pa.RecordBatch) -> bytes:
    written = io.BytesIO()
    with pa.ipc.new_stream(written, rows.schema, options=OPTIONS) as stream:
        stream.write_batch(rows)
    return _pack(RowChunk(number, written.getvalue()))


def _rows_of(batch: pa.RecordBatch, table: SinkTable) -> pa.RecordBatch:
    """Return the rows of a table: all, or those of its struct column."""
    if table.column is None:
        return batch
    rows = batch.column(batch.schema.get_field_index(table.column))
    if pa.types.is_list(rows.type) or pa.types.is_large_list(rows.type):
        rows = rows.flatten()
    if rows.null_count:
        rows = rows.filter(rows.is_valid())
    return pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type)))


def _hashed_rows(number: int, rows: pa.RecordBatch) -> Iterable[bytes]:
    """Return what is hashed of each row of a table: its values, and the table's number."""
    if all(_is_simple(field.type) for field in rows.schema):
        parts = [part for column in rows.columns for part in _hashed_parts(column)]
        texts = pc.binary_join_element_wise(str(number), *parts, PART)
        found: list[bytes] = texts.cast(pa.binary()).to_pylist()
        return found
    convert = _converter(pa.struct(list(rows.schema)), _rough_float)
    prefix = b"%d " % number
    return [prefix + _encode_sorted(convert(row) if convert else row) for row in rows.to_pylist()]


def _is_simple(kind: pa.DataType) -> bool:
    is_one = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_decimal128,
        pa.types.is_date32,
        pa.types.is_timestamp,
    )
    return any(is_kind(kind) for is_kind in is_one)


def _hashed_parts(column: Any) -> Iterator[Any]:
    """Return a column as texts, without null; that of texts also their lengths."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.to_pylist()
        rough = [NULL if value is None else _rough_float(value) for value in values]
        yield pa.array(rough, pa.string())
        return
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        column = column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    if pa.types.is_string(kind):
        yield pc.fill_null(pc.binary_length(column).cast(pa.string()), NULL)
    yield pc.fill_null(column.cast(pa.string()), NULL)


def _exact_float(value: float) -> Any:
    """Return a float as JSON has it. The others are text, which a column of numbers refuses."""
    return value if math.isfinite(value) else str(value)


def _rough_float(value: float) -> str:
    return f"{value:.{FLOAT_DIGITS}g}"


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
