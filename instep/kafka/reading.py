"""Read a range of a log, or follow it: in order per partition, without joining a group."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from instep import errors
from instep.document.plain import Headers
from instep.kafka import connection, faults, offsets
from instep.kafka.client_pool import Loan
from instep.kafka.offsets import LogRecord

RECORDS_PER_POLL = 1_000
SILENCE_S = 30.0
CHUNK_RECORDS = 10_000  # of `columns`
CHUNK_BYTES = 8 * 1024 * 1024


class RecordColumns(msgspec.Struct, frozen=True):
    """Records in columns, those of a partition in the order of the log."""

    partitions: list[int]
    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None = None  # None if they were not wanted
    is_cut: bool = False  # reading stopped here, because it reached a number of bytes


def columns(
    cluster: connection.Cluster,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    headers: bool,
    bytes_max: int = 0,
) -> Iterator[RecordColumns]:
    """Yield the committed records of whole ranges in chunks.

    Stop, and say so, when keys and values add up to `bytes_max` bytes, if that is not 0.
    """
    chunk: list[Message] = []
    size = total = 0
    for _, message in messages(cluster, topic, ranges, whole=True):
        chunk.append(message)
        size += len(message) + len(message.key() or b"")
        is_cut = 0 < bytes_max <= total + size
        if is_cut or len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield _columns(chunk, headers=headers, is_cut=is_cut)
            total += size
            chunk, size = [], 0
        if is_cut:
            return
    if chunk:
        yield _columns(chunk, headers=headers)


def _columns(chunk: Sequence[Message], *, headers: bool, is_cut: bool = False) -> RecordColumns:
    found: list[Any] = [message.headers() or () for message in chunk] if headers else []
    # Messages without an error have a partition and an offset, whatever the client's types say.
    partitions: list[Any] = [message.partition() for message in chunk]
    offsets_found: list[Any] = [message.offset() for message in chunk]
    return RecordColumns(
        partitions,
        offsets_found,
        [message.timestamp()[1] for message in chunk],
        [message.key() for message in chunk],
        [message.value() for message in chunk],
        [tuple(pairs) for pairs in found] if headers else None,
        is_cut,
    )


def read(
    cluster: connection.Cluster,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    whole: bool = False,
) -> Generator[LogRecord, None, None]:
    """Return the committed records of half-open ranges of offsets; partitions are mixed.

    A range whose start the log no longer has begins at the log's first offset. Where a gap would
    do harm, ask for `whole` ranges. Raises OffsetsExpired if the log loses records meanwhile.
    """
    for partition, message in messages(cluster, topic, ranges, whole=whole):
        yield offsets.record(message, partition)


def messages(
    cluster: connection.Cluster,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    *,
    committed: bool = True,
    finished: Collection[int] = (),
    whole: bool = False,
) -> Iterator[tuple[int, Message]]:
    """Return messages of ranges; the caller adds a partition to `finished` to stop reading it.

    With `whole`, raise OffsetsExpired if the log no longer has the start of a range.
    """
    ends = offsets.latest(cluster, topic, ranges, committed)
    ends_left = {
        part: min(end, ends[part])
        for part, (start, end) in ranges.items()
        if start < min(end, ends[part])
    }
    if not ends_left:
        return
    # A range may begin below the first offset of the log, which would be an error for the client.
    first = offsets.earliest(cluster, topic, ends_left)
    for part in ends_left:
        if whole and first[part] > ranges[part][0]:
            raise _expired(topic, part)
    topic_partitions = [
        TopicPartition(topic, part, max(ranges[part][0], first[part])) for part in ends_left
    ]
    operation = dataclasses.replace(
        cluster.operation(f"read topic {topic!r}", topic=topic, right="READ"), tried_s=SILENCE_S
    )
    with _assigned(cluster, topic_partitions, committed) as loan:
        received_at = time.monotonic()
        batch = _first_batch(loan, topic_partitions)
        while ends_left:
            for message in batch:
                error, partition, offset = message.error(), message.partition(), message.offset()
                if partition not in ends_left:
                    continue
                if error is None:
                    assert offset is not None
                    if offset < ends_left[partition]:
                        yield partition, message
                    if offset >= ends_left[partition] - 1 or partition in finished:
                        _finish(loan.client, topic, partition, ends_left)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # A range may end in transaction markers or aborted records, which are not
                    # delivered. Then only the end of the partition shows that it is finished. A
                    # broker that is no longer the leader may have seen an earlier end.
                    if offset is not None and offset >= ends_left[partition]:
                        _finish(loan.client, topic, partition, ends_left)
                else:
                    now = time.monotonic()
                    raise_if_permanent(cluster, topic, partition, error, operation, now)
            if batch:  # not before: what the caller does with them takes its own time
                received_at = time.monotonic()
            if (
                cluster.error_log.refused_by_all(received_at)
                or time.monotonic() - received_at > SILENCE_S
            ):
                raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, received_at)
            batch = _batch(loan.client) if ends_left else []


@contextmanager
def _assigned(
    cluster: connection.Cluster, topic_partitions: list[TopicPartition], committed: bool
) -> Iterator[Loan[Consumer]]:
    """Borrow a reader with these partitions; without them, it can be borrowed again."""
    with cluster.borrow_scanner(committed) as loan:
        loan.client.assign(topic_partitions)
        try:
            yield loan
        finally:
            loan.client.unassign()


def _first_batch(loan: Loan[Consumer], topic_partitions: list[TopicPartition]) -> list[Message]:
    """Return the first messages of a reader that was kept; none of a new one.

    A topic or a broker may have been replaced since it was used. So if its first answer is an
    error or does not come, a new reader takes its place.
    """
    deadline = time.monotonic() + connection.SILENCE_S
    while not loan.is_new:
        batch = _batch(loan.client)
        problems = [message.error() for message in batch]
        has_failed = any(one and one.code() != KafkaError._PARTITION_EOF for one in problems)
        if batch and not has_failed:
            return batch
        if has_failed or time.monotonic() > deadline:
            loan.replace()
            loan.client.assign(topic_partitions)
    return []


def _batch(scanner: Consumer) -> list[Message]:
    """Wait for a message, and return it with those that have arrived already.

    A request for many would wait until all of them have arrived, or the whole time.
    """
    first = scanner.poll(connection.POLL_S)
    return [] if first is None else [first, *scanner.consume(RECORDS_PER_POLL, 0)]


def follow(
    cluster: connection.Cluster,
    topic: str,
    starts: Mapping[int, int],
    *,
    committed: bool = True,
    wait_s: float = connection.POLL_S,
) -> Iterator[list[tuple[int, Message]]]:
    """Return records as they arrive, until the caller stops. Waits for an unreachable cluster.

    Records that arrive within `wait_s` come together.
    """
    operation = cluster.operation(f"read topic {topic!r}", topic=topic, right="READ")
    scanner = cluster.scanner(committed)
    try:
        scanner.assign([TopicPartition(topic, part, offset) for part, offset in starts.items()])
        while True:
            since = time.monotonic()
            received: list[tuple[int, Message]] = []
            for message in scanner.consume(RECORDS_PER_POLL, wait_s):
                error, partition = message.error(), message.partition()
                if error is None and partition is not None:
                    received.append((partition, message))
                elif error is not None:
                    raise_if_permanent(cluster, topic, partition, error, operation, since)
            yield received
            if cluster.error_log.refused_by_all(since):
                raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, since)
    finally:
        scanner.close()


def raise_if_permanent(
    cluster: connection.Cluster,
    topic: str,
    partition: int | None,
    error: KafkaError,
    operation: faults.Operation,
    since: float,
) -> None:
    """Raise permanent errors."""
    if error.code() in offsets.OFFSET_DELETED_CODES:
        raise _expired(topic, partition)
    if faults.ends_reading(error):
        raise cluster.translate(error, operation, since)


def _expired(topic: str, partition: int | None) -> errors.OffsetsExpired:
    return errors.OffsetsExpired(
        f"records of topic {topic!r}, partition {partition}, were deleted while they were read",
        "run the command again",
    )


def _finish(scanner: Consumer, topic: str, partition: int, ends_left: dict[int, int]) -> None:
    del ends_left[partition]
    scanner.incremental_unassign([TopicPartition(topic, partition)])
