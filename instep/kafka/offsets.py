"""Places in a log: its ends, its times, and the first record at or after a position.

Control records (transaction markers) occupy offsets and aborted records stay in the log, so the offset asked
for and the offset of the first record found there differ without anything being lost.
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

NONE_SO_LATE = -1
SPOTS_PER_S = 1_000
Spot = tuple[str, int]  # a topic and a partition of it
Answers = dict[Spot, "concurrent.futures.Future[ListOffsetsResultInfo]"]
LOG_WAS_CUT = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as it stands in the log."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """What a partition holds: from its first offset up to its end; up to where no open transaction holds readers back;
    and the newest timestamp in it. What is not known is None."""

    first: int
    end: int
    committed_end: int
    newest_ms: int | None

    @property
    def offsets(self) -> int:
        """At most so many records: markers, and what compaction or an abort took out, count as well."""
        return self.end - self.first


def earliest(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> dict[int, int]:
    """The first offset that each partition still holds."""
    return _ask(cluster, topic, partitions, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]


def latest(
    cluster: connection.Cluster, topic: str, partitions: Collection[int], committed: bool = True
) -> dict[int, int]:
    """The offset after the last record of each partition; if `committed`, before the first record of an open transaction."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    return _ask(cluster, topic, partitions, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]


def at_time(
    cluster: connection.Cluster, topic: str, partitions: Collection[int], when: datetime
) -> dict[int, int]:
    """The first offset with a timestamp at or after `when`; the end where there is none. A time without a zone is UTC."""
    # The ends come first: a record that arrives in between must not be skipped.
    ends = latest(cluster, topic, partitions, committed=False)
    spec = OffsetSpec.for_timestamp(max(0, int(event.utc(when).timestamp() * 1000)))
    found = _ask(cluster, topic, partitions, spec, IsolationLevel.READ_UNCOMMITTED)
    return {
        partition: ends[partition] if offset == NONE_SO_LATE else offset
        for partition, offset in found.items()
    }


def spans(
    cluster: connection.Cluster, spots: Collection[Spot], *, newest: bool = False
) -> dict[Spot, Span]:
    """What these partitions of any topics hold, by a few requests for all; one that cannot be asked now is left out.

    A partition whose leader died is asked for a second time: another may lead it by now.
    """
    found = _spans(cluster, spots, newest)
    lost = [spot for spot in spots if spot not in found]
    return {**found, **_spans(cluster, lost, newest)} if lost else found


def _spans(cluster: connection.Cluster, spots: Collection[Spot], newest: bool) -> dict[Spot, Span]:
    if not spots:
        return {}
    clear, committed = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
    # all are asked before the first answer is waited for; the committed end comes first, so that it never lies after the end
    asked = [
        _futures(cluster, spots, OffsetSpec.earliest(), clear),  # type: ignore[no-untyped-call]
        _futures(cluster, spots, OffsetSpec.latest(), committed),  # type: ignore[no-untyped-call]
        _futures(cluster, spots, OffsetSpec.latest(), clear),  # type: ignore[no-untyped-call]
    ]
    newest_asked = _futures(cluster, spots, OffsetSpec.max_timestamp(), clear) if newest else {}  # type: ignore[no-untyped-call]
    told = [_told(cluster, answers) for answers in asked]
    # an offset below 0 is the client's way to say that it got none
    firsts, committed_ends, ends = (
        {spot: one for spot, one in found.items() if one.offset >= 0} for found in told
    )
    times = _told(cluster, newest_asked, errors.SettingsError) if newest else {}
    return {
        spot: Span(
            firsts[spot].offset,
            max(ends[spot].offset, committed_ends[spot].offset),
            committed_ends[spot].offset,
            times[spot].timestamp if spot in times and times[spot].timestamp >= 0 else None,
        )
        for spot in spots
        if spot in firsts and spot in committed_ends and spot in ends
    }


def first_records(
    cluster: connection.Cluster,
    topic: str,
    positions: Mapping[int, int],
    timeout_s: float = connection.TIMEOUT_S,
) -> dict[int, LogRecord | None]:
    """The first committed record at or after each position, None where there is none up to the end."""
    deadline = time.monotonic() + timeout_s
    starts = earliest(cluster, topic, positions)
    ends = latest(cluster, topic, positions)
    found: dict[int, LogRecord | None] = dict.fromkeys(positions)
    asked = {
        partition: max(position, starts[partition]) for partition, position in positions.items()
    }
    asked = {
        partition: position for partition, position in asked.items() if position < ends[partition]
    }
    if not asked:
        return found
    with cluster.reader_lock:
        reader = cluster.reader
        reader.assign(
            [TopicPartition(topic, partition, position) for partition, position in asked.items()]
        )
        try:
            while asked:
                message = _next(cluster, reader, topic, timeout_s, deadline)
                partition = message.partition()
                assert partition is not None
                if asked.pop(partition, None) is not None:
                    found[partition] = None if message.error() else record(message, partition)
                    reader.incremental_unassign([TopicPartition(topic, partition)])
        except errors.BrokerUnreachable:
            cluster.renew()
            raise
        finally:
            reader.unassign()
    return found


def _futures(
    cluster: connection.Cluster, spots: Collection[Spot], spec: OffsetSpec, level: IsolationLevel
) -> Answers:
    wanted = {TopicPartition(*spot): spec for spot in spots}
    answers = cluster.admin.list_offsets(
        wanted,
        isolation_level=level,
        request_timeout=connection.SILENCE_S + len(spots) / SPOTS_PER_S,
    )
    return {(place.topic, place.partition): answer for place, answer in answers.items()}


def _told(
    cluster: connection.Cluster, answers: Answers, *untold: type[errors.InstepError]
) -> dict[Spot, ListOffsetsResultInfo]:
    """The answers that came; a partition whose leader is gone gives none, nor does a broker too old for the question."""
    found = {}
    for spot, answer in answers.items():
        try:
            found[spot] = cluster.wait(
                answer,
                cluster.operation(
                    f"ask for offsets of topic {spot[0]!r}", topic=spot[0], right="DESCRIBE"
                ),
            )
        except errors.InstepError as failure:
            lost = isinstance(failure, (errors.TopicMissing, errors.BrokerUnreachable, *untold))
            if not lost and faults.code(failure) != KafkaError._NOENT:
                raise
    return found


def _ask(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    spec: OffsetSpec,
    level: IsolationLevel,
) -> dict[int, int]:
    if not partitions:
        return {}
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    operation = cluster.operation(
        f"ask for offsets of topic {topic!r}", topic=topic, right="DESCRIBE"
    )

    def ask() -> dict[int, int]:
        answers = cluster.admin.list_offsets(
            wanted, isolation_level=level, request_timeout=cluster.timeout_s
        )
        found = {
            place.partition: cluster.wait(answer, operation).offset
            for place, answer in answers.items()
        }
        if OFFSET_INVALID in found.values():  # the client's way to say that it got none
            raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, time.monotonic())
        return found

    def ask_or_explain() -> dict[int, int]:
        """A connection that broke in the middle looks like a missing leader too, so one that seems missing is asked for again."""
        try:
            return ask()
        except errors.BrokerUnreachable:
            raise
        except errors.InstepError as failure:
            if (
                isinstance(failure, errors.TopicMissing)
                or faults.code(failure) == KafkaError._NOENT
            ):
                raise _unled(cluster, topic, partitions) from failure.__cause__
            raise

    try:
        return cluster.retry(ask_or_explain)
    except errors.BrokerUnreachable:
        cluster.renew()
        raise


def _unled(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> errors.InstepError:
    """Why the client found no leader to ask: it says the same of a missing topic, a missing partition and a missing right."""
    known = topics.describe(cluster, topic).partitions
    strange = sorted(set(partitions) - set(known))
    if strange:
        return errors.TopicMissing(
            f"topic {topic!r} has no partition {', '.join(map(str, strange))}",
            f"it has {', '.join(map(str, known))}",
        )
    return errors.BrokerUnreachable(
        f"a partition of topic {topic!r} has no leader", "start the broker that holds it"
    )


def _next(
    cluster: connection.Cluster, reader: Consumer, topic: str, timeout_s: float, deadline: float
) -> Message:
    """The next record or, as a message with an error, the end of a partition."""
    since = deadline - timeout_s
    operation = dataclasses.replace(
        cluster.operation(f"read topic {topic!r}", topic=topic, right="READ"), tried_s=timeout_s
    )
    while True:
        message = reader.poll(connection.SLICE_S)
        error = message.error() if message is not None else None
        if message and (not error or error.code() == KafkaError._PARTITION_EOF):
            return message
        if message and error and error.code() in LOG_WAS_CUT:
            partition = message.partition()
            assert partition is not None
            reader.seek(
                TopicPartition(topic, partition, earliest(cluster, topic, [partition])[partition])
            )
        elif error and faults.ends_reading(error):
            raise cluster.translate(error, operation, since) from KafkaException(error)
        if cluster.ear.refused_by_all(since) or time.monotonic() > deadline:
            raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, since)


def record(message: Message, partition: int) -> LogRecord:
    """A message of the client as a record."""
    offset = message.offset()
    assert offset is not None
    given: Any = message.headers()  # pairs, whatever the client's types say
    headers = tuple((name, value) for name, value in given or ())
    return LogRecord(
        partition, offset, message.timestamp()[1], message.key(), message.value(), headers
    )
