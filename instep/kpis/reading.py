"""What a Spark task does with records: decode them, and tell the driver what they say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from msgspec import UNSET

from instep.document.decoding import Decoder, Event, Record
from instep.kpis.counting import ReadChange, StatusChange
from instep.kpis.definition import KpiDefinition, is_countable
from instep.pipeline.apply.batch import ProbeEvent, find_probe
from instep.pipeline.apply.transaction import digest
from instep.pipeline.micro_batch import task

MESSAGE = "message"
SPARK_SCHEMA = f"{MESSAGE} binary"


class ReadRecords(msgspec.Struct, frozen=True):
    """Consecutive records of a partition: the events to count, and how many are none.

    `ignored` are deletes and events whose status or time no KPI row can have; `unreadable` are
    records that a pipeline keeps as dead letters.
    """

    partition: int
    first_offset: int
    last_offset: int
    digest: str  # of the last record
    records: int
    ignored: int
    unreadable: int
    changes: list[ReadChange]


def read(decoder: Decoder, partition: int, records: Sequence[Record]) -> ReadRecords:
    """Decode consecutive records."""
    events, dead = decoder.decode_all(records)
    times = {record.offset: record.timestamp_ms for record in records}
    changes = [one for event in events if (one := _change(event, times[event.offset]))]
    return ReadRecords(
        partition,
        records[0].offset,
        records[-1].offset,
        digest(records[-1]),
        len(records),
        len(events) - len(changes),
        len(dead),
        changes,
    )


def run(definition: KpiDefinition, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a message for each run of consecutive records."""
    find_probe()(ProbeEvent(definition.name, 0))
    decoder = Decoder(definition.event)
    for partition, records in task.runs(batches):
        packed = msgspec.msgpack.encode(read(decoder, partition, records))
        yield pa.RecordBatch.from_arrays([pa.array([packed], pa.binary())], names=[MESSAGE])


def unpacked(messages: Sequence[bytes]) -> list[ReadRecords]:
    """Return the messages of the tasks, each partition in the order of its log."""
    decode = msgspec.msgpack.Decoder(ReadRecords).decode
    return sorted(map(decode, messages), key=lambda one: (one.partition, one.first_offset))


def by_partition(reads: Sequence[ReadRecords]) -> dict[int, list[ReadRecords]]:
    """Return sorted messages by partition."""
    groups = itertools.groupby(reads, key=lambda one: one.partition)
    return {partition: list(group) for partition, group in groups}


def _change(event: Event, timestamp_ms: int) -> ReadChange | None:
    """Return what an event says; None if it cannot be counted."""
    if event.values is None or event.refusal is not None:
        return None
    if event.status is None or event.at_us is None:
        return None
    at_ms = event.at_us // 1_000
    if not is_countable(event.status, at_ms):
        return None
    version = event.values[0] if event.values else None
    change = StatusChange(at_ms, event.status, None if version is UNSET else version)
    return ReadChange(event.offset, timestamp_ms, str(event.document), change)
