"""Collect the rows of a transformation to results of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from instep.document import results
from instep.document.plain import Headers
from instep.document.results import SLOTS, Result
from instep.pipeline.micro_batch import arrow_records

COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value", "headers", "event", "deleted")

Row = tuple[int, int, int, bytes | None, bytes | None, Headers, bytes | None, bytes | None]


def rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Return the rows of an Arrow batch, whose columns are in the order of COLUMNS."""
    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
    position = COLUMNS.index("headers")
    columns[position] = [
        tuple((header["key"], header["value"]) for header in headers or ())
        for headers in columns[position]
    ]
    return zip(*columns, strict=True)


class ResultCollector:
    """The results of each partition that are not applied yet, in the order of the log."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self.count = 0
        self._pending: dict[int, list[Result]] = {}
        self._last: dict[int, tuple[int, int]] = {}  # offset, and number of its last result
        self._records: dict[int, int] = {}  # how many records have had a result

    def add(self, row: Row) -> None:
        """Add the next row of a partition."""
        partition, offset, timestamp_ms, key, value, headers, event, deleted = row
        last, index = self._last.get(partition, (-1, 0))
        index = index + 1 if offset == last else 0
        self._last[partition] = offset, index
        pending = self._pending.setdefault(partition, [])
        if index > SLOTS:
            return
        failure = None
        if index == SLOTS:
            failure, index = f"it yields more than {SLOTS:,} rows", 0
            self._drop_last_record(pending, offset)
        if index == 0 and failure is None:
            self._records[partition] = self._records.get(partition, 0) + 1
        pending.append(
            Result(
                results.number(offset, index),
                timestamp_ms,
                key if event is not None else deleted,
                event,
                partition,
                headers,
                source_key=key,
                source_value=value,
                failure=failure,
                records=int(index == 0),
            )
        )
        self.count += 1
        self.size += len(value or b"") + len(event or b"")

    def _drop_last_record(self, pending: list[Result], offset: int) -> None:
        while pending and pending[-1].offset // SLOTS == offset:
            pending.pop()

    def take_complete(self) -> Iterable[tuple[int, list[Result]]]:
        """Yield the results of each partition that nothing can be added to, and forget them.

        More rows of a partition's last record may follow.
        """
        for partition, pending in self._pending.items():
            first = len(pending)
            while first and pending[first - 1].offset // SLOTS == self._last[partition][0]:
                first -= 1
            if first:
                yield partition, pending[:first]
                del pending[:first]
        self.count = sum(map(len, self._pending.values()))
        self.size = sum(
            len(one.source_value or b"") + len(one.value or b"")
            for pending in self._pending.values()
            for one in pending
        )

    @property
    def partitions(self) -> list[int]:
        """Return the partitions of which results are kept."""
        return list(self._pending)

    def take_rest(self, partition: int) -> list[Result]:
        """Return the last results of a partition, and forget them."""
        return self._pending.pop(partition, [])

    def records(self, partition: int) -> int:
        """Return how many records of a partition have had a result."""
        return self._records.get(partition, 0)


def as_records(headers: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield results as Arrow batches of records, each with its number in place of the offset."""
    collected = ResultCollector()
    for batch in batches:
        for row in rows(batch):
            collected.add(row)
        for _, found in collected.take_complete():
            yield _as_records(found, headers=headers)
    for partition in collected.partitions:
        if found := collected.take_rest(partition):
            yield _as_records(found, headers=headers)


def _as_records(found: Sequence[Result], *, headers: bool) -> pa.RecordBatch:
    events = [one for one in found if one.failure is None]
    schema = arrow_records.schema(headers=headers)
    columns = [
        pa.array([getattr(one, field.name) for one in events], field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def closed(found: list[Result], last: Any, unseen: int) -> list[Result]:
    """Return the last results of a range with the record that ends it.

    The ledger advances over records without a result too. `unseen` are the records of the range
    that had none; the last of the results counts for them.
    """
    if found and found[-1].offset // SLOTS == last.offset:
        return [*found[:-1], msgspec.structs.replace(found[-1], records=found[-1].records + unseen)]
    end = Result(
        results.number(last.offset),
        last.timestamp_ms,
        last.key,
        None,
        last.partition,
        last.headers,
        source_key=last.key,
        source_value=last.value,
        is_empty=True,
        records=unseen,
    )
    return [*found, end]
