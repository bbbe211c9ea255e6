"""Apply records that Spark cannot read, without Spark.

Spark stores a record's timestamp in microseconds, which end in the year 294,247. Kafka's
milliseconds go further. One such record fails every batch that contains it. The driver therefore
applies its partition up to this record itself, with the same transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from instep.document.decoding import Record, record_of
from instep.kafka import reading
from instep.kafka.connection import Cluster
from instep.pipeline.applier import Applier, TaskPlan, is_full
from instep.pipeline.apply.batch import BatchOutcome
from instep.sinks.target import Position

# Spark converts old times between two calendars, which shifts them by less than this.
CALENDAR_SHIFT_MS_MAX = 1_000 * 24 * 3600 * 1000
TIMESTAMP_MS_MAX = (2**63 - 1) // 1_000 - CALENDAR_SHIFT_MS_MAX


def apply(plan: TaskPlan, cluster: Cluster) -> Iterator[tuple[int, int, BatchOutcome]]:
    """Apply each partition up to the last unreadable record of its next batch.

    Yield the partition, the next offset and the outcome of each transaction.
    """
    with contextlib.closing(Applier(plan)) as applier:
        for partition, position in applier.positions().items():
            end = _end(plan, cluster, position)
            records: list[Record] = []
            size = 0
            for record in _records(plan, cluster, partition, position.next_offset, end):
                records.append(record)
                size += len(record.value or b"")
                if is_full(records, size) or record.offset == end - 1:
                    yield partition, record.offset + 1, applier.apply(partition, records)
                    records, size = [], 0


def _end(plan: TaskPlan, cluster: Cluster, position: Position) -> int:
    """Return the offset after the last unreadable record, or the position if there is none."""
    start = end = position.next_offset
    limit = start + plan.pipeline.batch_rows_max
    for record in _records(plan, cluster, position.partition, start, limit):
        if abs(record.timestamp_ms) > TIMESTAMP_MS_MAX:
            end = record.offset + 1
    return end


def _records(
    plan: TaskPlan, cluster: Cluster, partition: int, start: int, end: int
) -> Iterator[Record]:
    for found in reading.read(cluster, plan.target.topic, {partition: (start, end)}):
        yield record_of(found)
