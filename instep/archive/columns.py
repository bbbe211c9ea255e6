"""The columns of an archive, and records as rows of them. Bytes stay as they are in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from instep import extras
from instep.document.records import Record
from instep.kafka.offsets import LogRecord

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    raise extras.missing("pyarrow, which archives need,", "spark") from None

DAY = "day"
DAY_MS = 86_400_000
# A timestamp outside of these years has no day: -1, microseconds, the year 294,247.
DAYS_END_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000) + DAY_MS
TIMESTAMP_TYPES = (None, "create", "append")  # as the client numbers them

HEADER = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())])
IN_FILES = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(HEADER)),
    ]
)
OF_TABLE = IN_FILES.append(pa.field(DAY, pa.date32()))


def of_records(partition: int, read: Sequence[Record]) -> pa.Table:
    """Return records of a partition as rows, in their order."""
    columns = [
        pa.array([partition] * len(read), pa.int32()),
        pa.array([record.offset for record in read], pa.int64()),
        pa.array([record.timestamp_ms for record in read], pa.int64()),
        pa.array([TIMESTAMP_TYPES[record.timestamp_type] for record in read], pa.string()),
        pa.array([record.key for record in read], pa.binary()),
        pa.array([record.value for record in read], pa.binary()),
        pa.array([_headers(record.headers) for record in read], IN_FILES.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=IN_FILES)


def records(rows: pa.Table) -> Iterator[LogRecord]:
    """Yield rows as records."""
    for batch in rows.to_batches():
        columns = [batch.column(name).to_pylist() for name in IN_FILES.names]
        for partition, offset, timestamp_ms, _, key, value, headers in zip(*columns, strict=True):
            pairs = tuple((header["name"], header["value"]) for header in headers or ())
            yield LogRecord(partition, offset, timestamp_ms, key, value, pairs)


def days(rows: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the rows of each day (UTC) of their timestamps, in the same order; None: no day."""
    stamps = rows.column("timestamp_ms")
    has_day = pc.and_(pc.greater_equal(stamps, 0), pc.less(stamps, DAYS_END_MS))
    numbers = pc.if_else(has_day, pc.divide(stamps, DAY_MS), pa.scalar(None, pa.int64()))
    found = sorted(pc.unique(numbers).to_pylist(), key=lambda day: -1 if day is None else day)
    for number in found:
        if len(found) == 1:
            part = rows
        elif number is None:
            part = rows.filter(pc.is_null(numbers))
        else:
            part = rows.filter(pc.equal(numbers, number))
        yield _day(number), part


def _day(number: int | None) -> str | None:
    if number is None:
        return None
    return f"{datetime.fromtimestamp(number * DAY_MS / 1000, UTC):%Y-%m-%d}"


def _headers(pairs: Any) -> list[dict[str, Any]] | None:
    """Return headers as a list of name and value; None if the record has none."""
    return [{"name": name, "value": value} for name, value in pairs] if pairs else None
