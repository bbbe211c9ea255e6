"""Records in Arrow batches, as Spark passes them to a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from instep.document.plain import Headers

COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value")
HEADERS = "headers"  # present only if the mapping reads a header
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
HEADERS_SPARK = "array<struct<key string, value binary>>"

Row = tuple[int, int, int, bytes | None, bytes | None, Headers]


def schema(*, headers: bool) -> pa.Schema:
    """Return the Arrow schema of records."""
    types = (pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary())
    fields = list(zip(COLUMNS, types, strict=True))
    return pa.schema([*fields, (HEADERS, HEADERS_TYPE)] if headers else fields)


def rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Return partition, offset, timestamp, key, value and headers of each record."""
    columns: list[list[Any]] = [batch.column(name).to_pylist() for name in COLUMNS]
    headers: list[Headers] = [()] * batch.num_rows
    if HEADERS in batch.schema.names:
        headers = [
            tuple((header["key"], header["value"]) for header in record_headers or ())
            for record_headers in batch.column(HEADERS).to_pylist()
        ]
    return zip(*columns, headers, strict=True)
