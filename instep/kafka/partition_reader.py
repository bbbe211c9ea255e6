"""Read partitions of a topic as their records arrive, for tasks that apply them at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from instep.document.records import Record
from instep.kafka import connection
from instep.kafka.reading import raise_if_permanent

# At rest the broker answers twice a second; a new record ends its wait at once.
FETCH_WAIT_MS = 500
# For a reader that stops at the end, which it learns from an answer without records.
FETCH_WAIT_ONCE_MS = 10
QUEUED_KB = 16 * 1024
CHUNK = 1_000  # as long as records arrive this fast, `read` takes more of them


class PartitionReader:
    """Reads the committed records of partitions that the caller adds and removes.

    It joins no group and commits nothing. It waits for a cluster that cannot be reached.
    """

    def __init__(
        self, cluster: connection.Cluster, topic: str, *, headers: bool, once: bool
    ) -> None:
        """Take the topic, whether headers are read, and whether reading stops at the end."""
        self._cluster, self._topic, self._headers = cluster, topic, headers
        self._operation = cluster.operation(f"read topic {topic!r}", topic=topic, right="READ")
        self._partitions: set[int] = set()
        self._consumer = cluster.scanner(
            fetch_wait_max_ms=FETCH_WAIT_ONCE_MS if once else FETCH_WAIT_MS,
            queued_max_messages_kbytes=QUEUED_KB,
        )
        # The partitions whose end the last `read` reached, and the end's offset, which may be
        # after markers or aborted records that are not delivered.
        self.ended: dict[int, int] = {}

    def add(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions too, from these offsets on."""
        self._consumer.incremental_assign(
            [TopicPartition(self._topic, part, offset) for part, offset in offsets.items()]
        )
        self._partitions |= offsets.keys()

    def remove(self, partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        known = self._partitions & set(partitions)
        self._partitions -= known
        if known:
            self._consumer.incremental_unassign(
                [TopicPartition(self._topic, part) for part in known]
            )

    def read(
        self, wait_s: float, linger_s: float, records_max: int, bytes_max: int
    ) -> dict[int, list[Record]]:
        """Wait for a record, then for more, and return them by partition in order.

        `wait_s` is the wait for the first record, `linger_s` that for a chunk of more. Records
        that arrive faster are a backlog: then it reads on, up to a number of records or bytes.
        """
        self.ended = {}
        since = time.monotonic()
        first = self._consumer.poll(wait_s)
        if first is None:
            if self._cluster.error_log.refused_by_all(since):
                raise self._cluster.translate(
                    KafkaError(KafkaError._TIMED_OUT), self._operation, since
                )
            return {}
        records: dict[int, list[Record]] = {}
        self._take([first], records, since)
        count, size = 1, len(first)
        is_backlog = first.error() is None
        while is_backlog and count < records_max and size < bytes_max:
            wanted = min(CHUNK, records_max - count)
            chunk = self._consumer.consume(wanted, linger_s)
            self._take(chunk, records, since)
            count += len(chunk)
            size += sum(map(len, chunk))
            is_backlog = len(chunk) == wanted
        return records

    def _take(
        self, messages: list[Message], records: dict[int, list[Record]], since: float
    ) -> None:
        for message in messages:
            partition, error = message.partition(), message.error()
            if error is not None:
                self._see(message, error, since)
            elif partition in self._partitions:
                pairs: Any = self._headers and message.headers()
                offset: Any = message.offset()
                timestamp_type, timestamp_ms = message.timestamp()
                record = Record(
                    offset,
                    timestamp_ms,
                    message.key(),
                    message.value(),
                    partition,
                    tuple(pairs or ()),
                    timestamp_type,
                )
                if partition in records:
                    records[partition].append(record)
                else:
                    records[partition] = [record]

    def _see(self, message: Message, error: KafkaError, since: float) -> None:
        partition, offset = message.partition(), message.offset()
        if error.code() == KafkaError._PARTITION_EOF:
            if partition in self._partitions and offset is not None:
                self.ended[partition] = offset
        else:
            raise_if_permanent(self._cluster, self._topic, partition, error, self._operation, since)

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()
