"""What runs inside the tasks: the beginning reads records, the end applies their results.

Between the two, Spark executes the user's transformation. Each is a Python process of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from instep import errors, settings
from instep.document.decoding import Record
from instep.kafka import reading
from instep.kafka.reading import RecordColumns
from instep.pipeline import failures
from instep.pipeline.applier import TaskPlan, is_full, log_has_records, task_cluster
from instep.pipeline.apply.batch import ProbeEvent, find_probe
from instep.pipeline.micro_batch import arrow_records, task
from instep.pipeline.transformed import batches, collector
from instep.pipeline.transformed.batches import ReadRange, TaskBatch, TaskRead
from instep.pipeline.transformed.collector import ResultCollector

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
    if batch.given is not None:
        if batch.records:
            yield _arrow(_given(batch.records, headers=batch.headers))
        return
    counts: Counter[int] = Counter()
    last: dict[int, Record] = {}
    is_cut = False
    for found in _columns(source, batch):
        yield _arrow(found)
        counts.update(found.partitions)
        last |= _last_records(found)
        is_cut = found.is_cut
    seen = {partition: ReadRange(count, last[partition]) for partition, count in counts.items()}
    batches.leave(TaskRead(seen, is_cut), batch)


def _columns(source: RecordSource, batch: TaskBatch) -> Iterator[RecordColumns]:
    ranges = {partition: (start, end) for partition, start, end in batch.ranges if start < end}
    if ranges:
        cluster = task_cluster(source.kafka, source.bootstrap)
        yield from reading.columns(
            cluster, source.topic, ranges, headers=batch.headers, bytes_max=batch.bytes_max
        )


def _last_records(found: RecordColumns) -> dict[int, Record]:
    """Return the last record of each partition."""
    rows = {partition: row for row, partition in enumerate(found.partitions)}
    return {
        partition: Record(
            found.offsets[row],
            found.timestamps_ms[row],
            found.keys[row],
            found.values[row],
            partition,
            found.headers[row] if found.headers else (),
        )
        for partition, row in rows.items()
    }


def _given(records: Sequence[Record], *, headers: bool) -> RecordColumns:
    return RecordColumns(
        [record.partition for record in records],
        [record.offset for record in records],
        [record.timestamp_ms for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records] if headers else None,
    )


def _arrow(found: RecordColumns) -> pa.RecordBatch:
    pairs = pa.nulls(len(found.offsets), arrow_records.HEADERS_TYPE)
    if found.headers is not None:
        named = [[{"key": key, "value": value} for key, value in one] for one in found.headers]
        pairs = pa.array(named, arrow_records.HEADERS_TYPE)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(found.partitions, pa.int32()),
            pa.array(found.offsets, pa.int64()),
            pa.array(found.timestamps_ms, pa.int64()),
            pa.array(found.keys, pa.binary()),
            pa.array(found.values, pa.binary()),
            pairs,
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
        for rows in found:
            collected.add(rows)
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
