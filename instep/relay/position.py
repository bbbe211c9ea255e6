"""The position of a relay: what its last transaction published, kept in Kafka."""

from __future__ import annotations

from typing import Any

import msgspec

from instep import errors
from instep.kafka.topics import Topic
from instep.sources.lease import LeaseRow


class RelayPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Written in the same transaction as the rows that it describes."""

    sequence: int  # of the transaction
    rows: int  # published so far
    source_id: str
    beat: int  # of the lease: a source that was restored to an earlier state has a lower one
    cluster_id: str
    topic_id: str
    partitions: int
    highest_id: int = 0  # of all rows that were published: a restored source has a lower one
    reader: dict[str, Any]  # which rows: see sources/id_reader.py and sources/snapshot_reader.py


def new(
    row: LeaseRow,
    topic: Topic,
    reader: dict[str, Any],
    *,
    sequence: int,
    beat: int,
    highest_id: int = 0,
) -> RelayPosition:
    """Return a position that does not follow from the one before it."""
    return RelayPosition(
        sequence=sequence,
        rows=row.published_rows,
        source_id=row.source_id,
        beat=beat,
        cluster_id=topic.cluster_id,
        topic_id=topic.id,
        partitions=len(topic.partitions),
        highest_id=highest_id,
        reader=reader,
    )


def encode(position: RelayPosition) -> bytes:
    """Return a position as the value of a record."""
    return msgspec.json.encode(position)


def decode(value: bytes, relay: str) -> RelayPosition:
    """Return the position of a record's value."""
    try:
        return msgspec.json.decode(value, type=RelayPosition)
    except msgspec.MsgspecError as failure:
        raise errors.PositionMissing(
            f"the position of relay {relay!r} cannot be read: {failure}"
        ) from failure
