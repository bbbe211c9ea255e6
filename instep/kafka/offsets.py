"""Offsets of a log: its ends, offsets by time, and the first record at or after a position.

Control records (transaction markers) take offsets, and aborted records stay in the log. So the
requested offset and the offset of the first record there may differ without any loss.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]

from instep import errors
from instep.document import event
from instep.kafka import connection, faults, topics

NO_LATER_RECORD = -1  # Kafka's answer if no record has the timestamp or a later one
PARTITIONS_PER_S = 1_000  # a request for many partitions gets more time
TopicPartitionPair = tuple[str, int]  # a topic and a partition of it
OffsetFutures = dict[TopicPartitionPair, "concurrent.futures.Future[ListOffsetsResultInfo]"]
# Retention deleted the records at our position while we were reading.
OFFSET_DELETED_CODES = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of the log."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """The first offset of a partition, its end, its committed end, and its newest timestamp.

    The committed end is before the first record of an open transaction.
    """

    first: int
    end: int
    committed_end: int
    newest_ms: int | None

    @property
    def offsets(self) -> int:
        """Return the number of offsets, including markers and removed or aborted records."""
        return self.end - self.first


def earliest(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> dict[int, int]:
    """Return the first offset that each partition still has."""
    spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return _list_offsets(cluster, topic, partitions, spec, IsolationLevel.READ_UNCOMMITTED)


def latest(
    cluster: connection.Cluster, topic: str, partitions: Collection[int], committed: bool = True
) -> dict[int, int]:
    """Return the end of each partition; if `committed`, before the first open transaction."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return _list_offsets(cluster, topic, partitions, spec, level)


def at_time(
    cluster: connection.Cluster, topic: str, partitions: Collection[int], when: datetime
) -> dict[int, int]:
    """Return the first offset with a timestamp at or after `when`; the end if there is none.

    A time without a zone is UTC.
    """
    # The ends are read first: if no record is late enough, the end is the answer, and a record
    # that arrives meanwhile must not be skipped.
    ends = latest(cluster, topic, partitions, committed=False)
    spec = OffsetSpec.for_timestamp(max(0, int(event.utc(when).timestamp() * 1000)))
    offset_of = _list_offsets(cluster, topic, partitions, spec, IsolationLevel.READ_UNCOMMITTED)
    return {
        partition: ends[partition] if offset == NO_LATER_RECORD else offset
        for partition, offset in offset_of.items()
    }


def spans(
    cluster: connection.Cluster,
    pairs: Collection[TopicPartitionPair],
    *,
    newest: bool = False,
) -> dict[TopicPartitionPair, Span]:
    """Return the spans of partitions of any topics, in a few requests.

    Partitions that do not answer are omitted. Those whose leader died are tried a second time:
    they may have another leader by then.
    """
    found = _spans(cluster, pairs, newest)
    unanswered = [pair for pair in pairs if pair not in found]
    return found | _spans(cluster, unanswered, newest)


def _spans(
    cluster: connection.Cluster, pairs: Collection[TopicPartitionPair], newest: bool
) -> dict[TopicPartitionPair, Span]:
    if not pairs:
        return {}
    uncommitted, committed = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
    first, last = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    # All requests are sent before the first answer is awaited. The committed end is requested
    # before the end, so that it is never after it.
    requests = [
        _futures(cluster, pairs, first, uncommitted),
        _futures(cluster, pairs, last, committed),
        _futures(cluster, pairs, last, uncommitted),
    ]
    newest_requests: OffsetFutures = {}
    if newest:
        spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        newest_requests = _futures(cluster, pairs, spec, uncommitted)
    answers = [_results(cluster, futures) for futures in requests]
    # an offset below 0 means that the client got no answer
    firsts, committed_ends, ends = (
        {pair: info for pair, info in results.items() if info.offset >= 0} for results in answers
    )
    # Old brokers refuse this request: then only the newest timestamp is unknown.
    newest_records = _results(cluster, newest_requests, errors.SettingsError)
    newest_ms = {
        pair: info.timestamp for pair, info in newest_records.items() if info.timestamp >= 0
    }
    found = {}
    for pair in pairs:
        if pair in firsts and pair in committed_ends and pair in ends:
            committed_end = committed_ends[pair].offset
            end = max(ends[pair].offset, committed_end)
            found[pair] = Span(firsts[pair].offset, end, committed_end, newest_ms.get(pair))
    return found


def first_records(
    cluster: connection.Cluster,
    topic: str,
    positions: Mapping[int, int],
    timeout_s: float = connection.TIMEOUT_S,
) -> dict[int, LogRecord | None]:
    """Return the first committed record at or after each position; None if there is none."""
    deadline = time.monotonic() + timeout_s
    starts = earliest(cluster, topic, positions)
    ends = latest(cluster, topic, positions)
    records: dict[int, LogRecord | None] = dict.fromkeys(positions)
    waiting = {}
    for partition, position in positions.items():
        start = max(position, starts[partition])
        if start < ends[partition]:
            waiting[partition] = start
    if not waiting:
        return records
    with cluster.reader_lock:
        reader = cluster.reader
        reader.assign(
            [TopicPartition(topic, partition, position) for partition, position in waiting.items()]
        )
        try:
            while waiting:
                message = _poll(cluster, reader, topic, timeout_s, deadline)
                number = message.partition()
                assert number is not None
                if waiting.pop(number, None) is not None:
                    records[number] = None if message.error() else record(message, number)
                    # One record per partition is enough: do not fetch any more of it.
                    reader.incremental_unassign([TopicPartition(topic, number)])
        except errors.BrokerUnreachable:
            cluster.renew()
            raise
        finally:
            reader.unassign()
    return records


def _futures(
    cluster: connection.Cluster,
    pairs: Collection[TopicPartitionPair],
    spec: OffsetSpec,
    level: IsolationLevel,
) -> OffsetFutures:
    specs = {TopicPartition(*pair): spec for pair in pairs}
    futures = cluster.admin.list_offsets(
        specs,
        isolation_level=level,
        request_timeout=connection.SILENCE_S + len(pairs) / PARTITIONS_PER_S,
    )
    return {
        (topic_partition.topic, topic_partition.partition): future
        for topic_partition, future in futures.items()
    }


def _results(
    cluster: connection.Cluster, futures: OffsetFutures, *ignored: type[errors.InstepError]
) -> dict[TopicPartitionPair, ListOffsetsResultInfo]:
    """Return the answers, without partitions that have no leader and `ignored` errors."""
    results = {}
    for (topic, partition), future in futures.items():
        try:
            results[topic, partition] = cluster.wait(
                future,
                cluster.operation(
                    f"list offsets of topic {topic!r}", topic=topic, right="DESCRIBE"
                ),
            )
        except errors.InstepError as failure:
            is_ignored = isinstance(
                failure, (errors.TopicMissing, errors.BrokerUnreachable, *ignored)
            )
            if not is_ignored and faults.code(failure) != KafkaError._NOENT:
                raise
    return results


def _list_offsets(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    spec: OffsetSpec,
    level: IsolationLevel,
) -> dict[int, int]:
    if not partitions:
        return {}
    specs = {TopicPartition(topic, partition): spec for partition in partitions}
    operation = cluster.operation(f"list offsets of topic {topic!r}", topic=topic, right="DESCRIBE")

    def request() -> dict[int, int]:
        answers = cluster.admin.list_offsets(
            specs, isolation_level=level, request_timeout=cluster.timeout_s
        )
        offset_of = {
            topic_partition.partition: cluster.wait(answer, operation).offset
            for topic_partition, answer in answers.items()
        }
        if OFFSET_INVALID in offset_of.values():  # the client got no answer
            raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, time.monotonic())
        return offset_of

    def request_or_explain() -> dict[int, int]:
        """Find out why there is no leader: a connection that broke looks like that too."""
        try:
            return request()
        except errors.BrokerUnreachable:
            raise
        except errors.InstepError as failure:
            if (
                isinstance(failure, errors.TopicMissing)
                or faults.code(failure) == KafkaError._NOENT
            ):
                raise _no_leader(cluster, topic, partitions) from failure.__cause__
            raise

    try:
        return cluster.retry(request_or_explain)
    except errors.BrokerUnreachable:
        cluster.renew()
        raise


def _no_leader(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> errors.InstepError:
    """Return why the client found no leader.

    It reports a missing topic, a missing partition and a missing right alike.
    """
    known = topics.describe(cluster, topic).partitions
    unknown = sorted(set(partitions) - set(known))
    if unknown:
        return errors.TopicMissing(
            f"topic {topic!r} has no partition {', '.join(map(str, unknown))}",
            f"it has {', '.join(map(str, known))}",
        )
    return errors.BrokerUnreachable(
        f"a partition of topic {topic!r} has no leader", "start the broker that has it"
    )


def _poll(
    cluster: connection.Cluster, reader: Consumer, topic: str, timeout_s: float, deadline: float
) -> Message:
    """Return the next record or, as a message with an error, the end of a partition."""
    since = deadline - timeout_s
    operation = dataclasses.replace(
        cluster.operation(f"read topic {topic!r}", topic=topic, right="READ"), tried_s=timeout_s
    )
    while True:
        message = reader.poll(connection.POLL_S)
        error = message.error() if message is not None else None
        if message and (not error or error.code() == KafkaError._PARTITION_EOF):
            return message
        if message and error and error.code() in OFFSET_DELETED_CODES:
            # Retention was faster than we: continue at the first record that is left.
            partition = message.partition()
            assert partition is not None
            reader.seek(
                TopicPartition(topic, partition, earliest(cluster, topic, [partition])[partition])
            )
        elif error and faults.ends_reading(error):
            raise cluster.translate(error, operation, since) from KafkaException(error)
        if cluster.error_log.refused_by_all(since) or time.monotonic() > deadline:
            raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, since)


def record(message: Message, partition: int) -> LogRecord:
    """Return a message of the client as a record."""
    offset = message.offset()
    assert offset is not None
    pairs: Any = message.headers()  # pairs, whatever the client's types say
    headers = tuple((name, value) for name, value in pairs or ())
    return LogRecord(
        partition, offset, message.timestamp()[1], message.key(), message.value(), headers
    )
