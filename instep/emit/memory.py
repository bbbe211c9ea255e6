"""A publisher without a broker, for tests of source systems: the same interface and checks."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from instep import errors, settings
from instep.document import event, partition
from instep.emit import deliveries, guarantees, outgoing
from instep.kafka import connection


class MemoryRecord(msgspec.Struct, frozen=True):
    """A record as it would be in the topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    headers: outgoing.Headers


class MemoryPublisher:
    """Has the interface of `Publisher`, and keeps the records in a list.

    Every record is delivered at once, to the partition that a broker would use.
    """

    def __init__(
        self,
        bootstrap: str = "memory",
        topic: str = "memory",
        *,
        source: str = "instep",
        security: settings.Security | None = None,
        guarantee: settings.Guarantee = "exactly-once",
        flush_timeout_s: float = 30.0,
        block_timeout_s: float = 60.0,
        start_timeout_s: float = connection.TIMEOUT_S,  # noqa: ARG002
        partitions: int = 6,
        **librdkafka: Any,
    ) -> None:
        kafka = settings.Kafka(bootstrap=bootstrap, security=security or settings.Security())
        self.config = {
            **connection.client_config(kafka, bootstrap),
            **guarantees.producer_config(guarantee, librdkafka),
        }
        self.topic = topic
        self.source = source
        self.flush_timeout_s = flush_timeout_s
        self.block_timeout_s = block_timeout_s
        self.records: list[MemoryRecord] = []
        self._ends = [0] * partitions
        self._counter = deliveries.DeliveryCounter()
        self._lock = threading.Lock()
        self._closed = False

    def send(
        self, status_event: event.StatusEvent, *, on_delivery: deliveries.OnDelivery | None = None
    ) -> deliveries.Receipt:
        """Record an event, as `Publisher.send` would send it."""
        return self._send(outgoing.from_event(status_event, self.source), on_delivery)

    def delete(
        self,
        document: str,
        *,
        at: datetime | None = None,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Record a delete, as `Publisher.delete` would send it."""
        return self._send(outgoing.from_deletion(document, self.source, at), on_delivery)

    def send_raw(
        self,
        key: bytes,
        value: bytes | None,
        headers: outgoing.Headers | None = None,
        *,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Record a key and a value, as `Publisher.send_raw` would send them."""
        return self._send(outgoing.from_bytes(key, value, headers, self.source), on_delivery)

    def flush(self, timeout_s: float | None = None) -> None:
        """Do nothing: every record is delivered already."""

    def close(self) -> None:
        """Close the publisher: sending raises Undelivered from now on."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send(
        self, record: outgoing.OutgoingRecord, on_delivery: deliveries.OnDelivery | None
    ) -> deliveries.Receipt:
        if self._closed:
            raise errors.Undelivered(
                f"the publisher to topic {self.topic!r} is closed", "send before the block is left"
            )
        with self._lock:
            place = partition.partition_of(record.key, len(self._ends))
            kept = MemoryRecord(
                place,
                self._ends[place],
                time.time_ns() // 1_000_000,
                record.key,
                record.value,
                record.headers,
            )
            self._ends[place] += 1
            self.records.append(kept)
        receipt = self._counter.begin(on_delivery)
        self._counter.settle(
            receipt,
            None,
            deliveries.Delivery(self.topic, kept.partition, kept.offset, kept.timestamp_ms),
        )
        return receipt
