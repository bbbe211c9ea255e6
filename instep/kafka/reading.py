"""A stretch of a log, read from one offset to another: committed records only, in order per partition."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from instep import errors
from instep.kafka import connection, faults, offsets
from instep.kafka.offsets import Record

AT_ONCE = 1_000
SILENCE_S = 30.0


def read(cluster: connection.Cluster, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Record]:
    """The records of each partition from its first offset up to, without, its last; partitions are mixed.

    Raises OffsetsExpired when the log no longer holds where a range begins.
    """
    ends = offsets.latest(cluster, topic, ranges)
    left = {part: min(end, ends[part]) for part, (start, end) in ranges.items() if start < min(end, ends[part])}
    if not left:
        return
    first = offsets.earliest(cluster, topic, left)
    places = [TopicPartition(topic, part, max(ranges[part][0], first[part])) for part in left]
    deed = dataclasses.replace(cluster.deed(f"read topic {topic!r}", topic=topic, right="READ"), tried_s=SILENCE_S)
    scanner = cluster.scanner()
    try:
        scanner.assign(places)
        heard = time.monotonic()
        while left:
            for message in scanner.consume(AT_ONCE, connection.SLICE_S):
                heard = time.monotonic()
                error, partition = message.error(), message.partition()
                if partition not in left:
                    continue
                if error is None:
                    record = offsets.record(message, partition)
                    if record.offset < left[partition]:
                        yield record
                    if record.offset >= left[partition] - 1:
                        _done(scanner, topic, partition, left)
                elif error.code() == KafkaError._PARTITION_EOF:
                    _done(scanner, topic, partition, left)
                elif error.code() in offsets.LOG_WAS_CUT:
                    raise errors.OffsetsExpired(
                        f"records of topic {topic!r}, partition {partition}, were deleted while they were read", "run it again"
                    )
                elif faults.ends_reading(error):
                    raise cluster.translate(error, deed, heard)
            if cluster.ear.refused_by_all(heard) or time.monotonic() - heard > SILENCE_S:
                raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), deed, heard)
    finally:
        scanner.close()


def _done(scanner: Consumer, topic: str, partition: int, left: dict[int, int]) -> None:
    del left[partition]
    scanner.incremental_unassign([TopicPartition(topic, partition)])
