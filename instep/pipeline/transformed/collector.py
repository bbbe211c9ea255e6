"""Collect the rows of a transformation to results of records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from instep.document import results
from instep.document.plain import Headers
from instep.document.results import SLOTS, Result
from instep.pipeline.micro_batch import arrow_records

COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value", "headers", "event", "deleted")
HEADERS, DELETED = COLUMNS[5], COLUMNS[7]  # present only if something fills them


class ResultNumbers:
    """Numbers the results of each record from 0. Those of a partition come in order."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}  # offset, and number of its last result

    def of(self, partition: int, offsets: Iterable[int]) -> list[int]:
        """Return the numbers of the next results of a partition, from the offsets of records."""
        last, number = self._last.get(partition, (-1, 0))
        numbers = []
        for offset in offsets:
            number = number + 1 if offset == last else 0
            last = offset
            numbers.append(number)
        self._last[partition] = last, number
        return numbers

    def last_offset(self, partition: int) -> int:
        """Return the offset of the record that had the last result."""
        return self._last[partition][0]


def headers_of(column: pa.Array | pa.ChunkedArray) -> list[Headers]:
    """Return the headers of each row."""
    if not len(pc.list_flatten(column)):
        return [()] * len(column)
    return [tuple((one["key"], one["value"]) for one in row or ()) for row in column.to_pylist()]


class ResultCollector:
    """The results of each partition that are not applied yet, in the order of the log."""

    def __init__(self) -> None:
        self.size = 0  # bytes
        self.count = 0
        self._pending: dict[int, list[Result]] = {}
        self._numbers = ResultNumbers()
        self._records: dict[int, int] = {}  # how many records have had a result

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows, whose columns are named as in COLUMNS."""
        partitions = rows["partition"]
        for partition in pc.unique(partitions).to_pylist():
            self._add(partition, rows.filter(pc.equal(partitions, partition)))

    def _add(self, partition: int, rows: pa.RecordBatch) -> None:
        """Add the next rows of a partition."""
        offsets = rows["offset"].to_pylist()
        indexes = self._numbers.of(partition, offsets)
        value, event = rows["value"], rows["event"]
        keys, events = rows["key"].to_pylist(), event.to_pylist()
        documents = keys
        if DELETED in rows.schema.names:
            deleted = rows[DELETED].to_pylist()
            documents = [
                gone if one is None else key
                for one, key, gone in zip(events, keys, deleted, strict=True)
            ]
        found = map(
            Result,
            [at * SLOTS + index for at, index in zip(offsets, indexes, strict=True)],
            rows["timestamp_ms"].to_pylist(),
            documents,
            events,
            itertools.repeat(partition),
            headers_of(rows[HEADERS]) if HEADERS in rows.schema.names else itertools.repeat(()),
            itertools.repeat(0),
            keys,
            value.to_pylist(),
            itertools.repeat(False),
            itertools.repeat(None),
            [0 if index else 1 for index in indexes],
        )
        pending = self._pending.setdefault(partition, [])
        if max(indexes) < SLOTS:
            pending += found
        else:
            self._add_limited(pending, found, offsets, indexes)
        self._records[partition] = self._records.get(partition, 0) + indexes.count(0)
        self.count += len(rows)
        self.size += value.nbytes + event.nbytes

    def _add_limited(
        self,
        pending: list[Result],
        found: Iterable[Result],
        offsets: Iterable[int],
        indexes: Iterable[int],
    ) -> None:
        """Add results; of a record with too many, add only that it fails."""
        for result, offset, index in zip(found, offsets, indexes, strict=True):
            if index < SLOTS:
                pending.append(result)
            elif index == SLOTS:
                while pending and pending[-1].offset // SLOTS == offset:
                    pending.pop()
                failure = f"it yields more than {SLOTS:,} rows"
                number = results.number(offset)
                pending.append(
                    msgspec.structs.replace(result, offset=number, failure=failure, records=1)
                )

    def take_complete(self) -> Iterable[tuple[int, list[Result]]]:
        """Yield the results of each partition that nothing can be added to, and forget them.

        More rows of a partition's last record may follow.
        """
        for partition, pending in self._pending.items():
            first = len(pending)
            while first and pending[first - 1].offset // SLOTS == self._numbers.last_offset(
                partition
            ):
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
        collected.add(batch)
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
