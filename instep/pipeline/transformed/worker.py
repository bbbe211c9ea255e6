"""What runs inside the tasks: the beginning reads records, the end applies their results.

Between the two, Spark executes the user's transformation. Each is a Python process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from instep import errors, settings
from instep.document.decoding import Record
from instep.kafka import reading
from instep.pipeline import failures
from instep.pipeline.applier import TaskPlan, is_full, log_has_records, task_cluster
from instep.pipeline.apply.batch import ProbeEvent, find_probe
from instep.pipeline.micro_batch import arrow_records, task
from instep.pipeline.transformed import batches, collector
from instep.pipeline.transformed.batches import ReadRange, TaskBatch, TaskRead
from instep.pipeline.transformed.collector import ResultCollector

CHUNK_RECORDS = 10_000
CHUNK_BYTES = 8 * 1024 * 1024
SCHEMA = arrow_records.schema(headers=True)


class RecordSource(msgspec.Struct, frozen=True):
    """Where the records come from."""

    kafka: settings.Kafka
    bootstrap: str
    topic: str


def read(source: RecordSource, starts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the records of this task's ranges, in the order of each partition."""
    for _ in starts:  # one row, which only makes the task
        pass
    batch = batches.current()
    try:
        yield from _chunks(source, batch)
    except errors.InstepError as error:
        raise failures.TaskFailed(error) from None


def _chunks(source: RecordSource, batch: TaskBatch) -> Iterator[pa.RecordBatch]:
    counts: dict[int, int] = {}
    last: dict[int, Record] = {}
    chunk: list[Record] = []
    size = total = 0
    is_cut = False
    for record in _records(source, batch):
        chunk.append(record)
        size += len(record.value or b"")
        counts[record.partition] = counts.get(record.partition, 0) + 1
        last[record.partition] = record
        if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield _arrow(chunk, headers=batch.headers)
            total += size
            chunk, size = [], 0
        if batch.bytes_max and total + size >= batch.bytes_max:
            is_cut = True
            break
    if chunk:
        yield _arrow(chunk, headers=batch.headers)
    if batch.given is None:
        seen = {partition: ReadRange(count, last[partition]) for partition, count in counts.items()}
        batches.leave(TaskRead(seen, is_cut), batch)


def _records(source: RecordSource, batch: TaskBatch) -> Iterator[Record]:
    yield from batch.records
    ranges = {partition: (start, end) for partition, start, end in batch.ranges if start < end}
    if not ranges:
        return
    cluster = task_cluster(source.kafka, source.bootstrap)
    for partition, message in reading.messages(cluster, source.topic, ranges):
        offset = message.offset()
        assert offset is not None
        pairs: Any = batch.headers and message.headers()  # whatever the client's types say
        headers = tuple((name, value) for name, value in pairs or ())
        yield Record(
            offset, message.timestamp()[1], message.key(), message.value(), partition, headers
        )


def _arrow(records: list[Record], *, headers: bool) -> pa.RecordBatch:
    pairs = [
        [{"key": name, "value": value} for name, value in record.headers] if headers else None
        for record in records
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.partition for record in records], pa.int32()),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.timestamp_ms for record in records], pa.int64()),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(pairs, arrow_records.HEADERS_TYPE),
        ],
        schema=SCHEMA,
    )


def apply(plan: TaskPlan, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply the results of this task's ranges; yield the counts of each transaction."""
    task.calm_collector()
    find_probe()(ProbeEvent(plan.target.pipeline, 0))
    batch = batches.current()
    begins = {partition: start for partition, start, _ in batch.ranges}

    def log_holds(partition: int, start: int, end: int) -> bool:
        """Return whether the log has records that this task has not read."""
        begin = begins[partition]
        return start < begin and log_has_records(plan, partition, start, min(begin, end))

    applier, collected = task.applier_for(plan), ResultCollector()
    try:
        for arrow in found:
            for row in collector.rows(arrow):
                collected.add(row)
                if is_full(range(collected.count), collected.size):
                    for partition, results in collected.take_complete():
                        outcome = applier.apply(partition, results, log_holds=log_holds)
                        yield task.count_row(outcome)
        for partition, seen in sorted(batches.take(batch).ranges.items()):
            unseen = seen.records - collected.records(partition)
            results = collector.closed(collected.take_rest(partition), seen.last, unseen)
            yield task.count_row(applier.apply(partition, results, log_holds=log_holds))
    except errors.InstepError as error:
        raise failures.TaskFailed(error) from None
