"""Whether the log is still the one that the ledger knows. What does not fit is a named stop, before anything more is applied.

Three things are compared: the ids of cluster and topic (a topic that was made again has another), the offsets (the log must
hold what comes next), and the digest of the last applied record (a log that lost its newest records grows others).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping

from instep import errors
from instep.document.decoding import Record
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline.apply import transaction
from instep.sinks.target import Position

Ledger = Mapping[int, Position]
SHOWN = "(shows what that means; --execute does it)"


def describe(cluster: Cluster, pipeline: str, topic: str, ledger: Ledger) -> Topic:
    """The topic; one that the ledger knows and the cluster does not is gone."""
    try:
        return topics.describe(cluster, topic)
    except errors.TopicMissing as error:
        if not ledger:
            raise
        raise gone(pipeline, topic, ledger) from error


def gone(pipeline: str, topic: str, partitions: Collection[int]) -> errors.TopicGone:
    made = (
        f"instep topics create {shlex.quote(topic)} --partitions {len(partitions) or 'N'} --execute"
    )
    return errors.TopicGone(
        f"topic {topic!r} of pipeline {pipeline!r} is gone from the cluster, and the ledger knows it",
        f"have it published again ({made}), then: {_accepting(pipeline)}",
    )


def replaced(pipeline: str, topic: str) -> errors.TopicReplaced:
    return errors.TopicReplaced(
        f"topic {topic!r} of pipeline {pipeline!r} was deleted and made again, or this is another cluster",
        f"check kafka.bootstrap; to follow the new topic: {_accepting(pipeline)}",
    )


def refuse_replaced(pipeline: str, topic: Topic, ledger: Ledger) -> None:
    """The ledger's offsets mean nothing on another topic of the same name."""
    if set(ledger) - set(topic.partitions) or any(
        is_other(topic, position) for position in ledger.values()
    ):
        raise replaced(pipeline, topic.name)


def is_other(topic: Topic, position: Position) -> bool:
    """Whether a row of the ledger was written for another topic, or another cluster's."""
    return position.cluster_id != topic.cluster_id or position.topic_id != topic.id


def refuse_expired(cluster: Cluster, pipeline: str, topic: Topic, ledger: Ledger) -> None:
    """The log must still hold what comes next."""
    first = offsets.earliest(cluster, topic.name, list(ledger))
    expired = {
        p: (ledger[p].next_offset, first[p] - 1)
        for p in sorted(ledger)
        if ledger[p].next_offset < first[p]
    }
    if expired:
        ranges = ", ".join(
            f"partition {partition}: {start} to {stop}"
            for partition, (start, stop) in expired.items()
        )
        chosen = " ".join(f"--partition {partition}" for partition in expired)
        raise errors.OffsetsExpired(
            f"records of topic {topic.name!r} that pipeline {pipeline!r} has not applied are gone from the log ({ranges})",
            f"to go on without them: instep rewind {shlex.quote(pipeline)} --to start {chosen} --why TEXT {SHOWN}",
        )


def refuse_diverged(cluster: Cluster, pipeline: str, topic: Topic, ledger: Ledger) -> None:
    """The log must still be the one that was applied."""
    found = diverged(cluster, topic, ledger)
    if found:
        raise errors.LogDiverged(
            f"topic {topic.name!r} no longer holds what pipeline {pipeline!r} has applied: {'; '.join(found.values())}",
            "find out when the cluster lost records, then apply from before that:"
            f" instep rewind {shlex.quote(pipeline)} --to @TIME (or --to start) {SHOWN}",
        )


def diverged(cluster: Cluster, topic: Topic, ledger: Ledger) -> dict[int, str]:
    """The partitions whose log is not the one that was applied, and how that shows. A compacted-away record proves nothing."""
    first = offsets.earliest(cluster, topic.name, list(ledger))
    end = offsets.latest(cluster, topic.name, list(ledger), committed=False)
    found = {
        partition: f"partition {partition} ends at {end[partition]}, and {position.next_offset} is next"
        for partition, position in ledger.items()
        if position.next_offset > end[partition]
    }
    asked = {
        p: row.next_offset - 1
        for p, row in ledger.items()
        if row.last_digest and first[p] < row.next_offset <= end[p]
    }
    for partition, record in digests(cluster, topic, asked).items():
        if record is not None and record != ledger[partition].last_digest:
            found[partition] = (
                f"partition {partition} has another record at {asked[partition]} than the one applied last"
            )
    return dict(sorted(found.items()))


def digests(cluster: Cluster, topic: Topic, places: Mapping[int, int]) -> dict[int, str | None]:
    """The digest of the record at exactly this offset of each partition, None where the log has none there."""
    records = offsets.first_records(cluster, topic.name, places) if places else {}
    return {
        partition: transaction.digest(
            Record(record.offset, record.timestamp_ms, record.key, record.value)
        )
        if record is not None and record.offset == places[partition]
        else None
        for partition, record in records.items()
    }


def _accepting(pipeline: str) -> str:
    return f"instep rewind {shlex.quote(pipeline)} --to start --accept-new-topic {SHOWN}"
