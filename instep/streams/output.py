"""Make the records that a stream publishes, and those that it cannot publish. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from instep.document.decoding import Record
from instep.document.plain import Headers

ID = "instep_stream_id"  # NAME/TOPIC-ID/PARTITION/OFFSET/INDEX, the same however often published
REASON = "instep_dead_reason"
DETAIL = "instep_dead_detail"


class Unpublishable(StrEnum):
    """Why an output record cannot be published."""

    KEY_MISSING = "KEY_MISSING"
    TOO_LARGE = "TOO_LARGE"
    TRANSFORMATION_FAILED = "TRANSFORMATION_FAILED"


class OutputRecord(msgspec.Struct, frozen=True, gc=False):
    """A record to publish; `index` counts those of one source record.

    `timestamp_ms` is that of the source record. If the transformation fails on that, this is the
    source record and the reason.
    """

    offset: int
    index: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    failure: str | None = None
    timestamp_ms: int = -1  # Kafka's value for a record without one


def copies(records: Iterable[Record]) -> Iterable[OutputRecord]:
    """Return what a stream without a transformation publishes: the records as they are."""
    for record in records:
        yield OutputRecord(
            record.offset,
            0,
            record.key,
            record.value,
            record.headers,
            timestamp_ms=record.timestamp_ms,
        )


def id_prefix(stream: str, topic_id: str, partition: int) -> bytes:
    """Return the beginning of the ids of all records that come from a partition.

    `topic_id` is in Kafka's spelling, which has no slash.
    """
    return f"{stream}/{topic_id}/{partition}/".encode()


def headers(record: OutputRecord, prefix: bytes) -> list[tuple[str, str | bytes | None]]:
    """Return the record's own headers and its id, which replaces the id of an earlier stream."""
    published: list[tuple[str, str | bytes | None]] = [
        pair for pair in record.headers if pair[0] != ID
    ]
    published.append((ID, prefix + b"%d/%d" % (record.offset, record.index)))
    return published


def origin(found: Headers, stream: str) -> int | None:
    """Return from which partition this stream has published a record; None if it did not."""
    for name, value in found:
        if name == ID and value is not None:
            parts = value.decode(errors="replace").split("/")
            if len(parts) == 5 and parts[0] == stream and parts[2].isdecimal():
                return int(parts[2])
    return None
