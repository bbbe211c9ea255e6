"""Publishers without a broker, for tests of source systems: the same interface and checks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from instep import errors, settings
from instep.document import event, partition
from instep.emit import deliveries, guarantees, metrics, outgoing, publisher
from instep.emit.async_publisher import AsyncPublisher
from instep.kafka import connection

REFUSED = "the broker refused it"


class MemoryRecord(msgspec.Struct, frozen=True):
    """A record as it would be in the topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    headers: outgoing.Headers


class MemoryPublisher:
    """Has the interface of `Publisher`, and keeps the records in the list `records`.

    Every record is delivered at once, to the partition that a broker would use. To test how an
    application handles errors, let it send within `failing_deliveries()` or `full_queue()`.
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
        outcomes: deliveries.Outcomes | None = None,  # noqa: ARG002 - no pipeline reads the list
        partitions: int = 6,
        **librdkafka: Any,
    ) -> None:
        """Check the settings as the publisher does; no broker is needed."""
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
        self._is_full = False
        self._refusal: str | None = None
        self._closed = False

    def send(
        self, status_event: event.StatusEvent, *, on_delivery: deliveries.OnDelivery | None = None
    ) -> deliveries.Receipt:
        """Record an event, as `Publisher.send` would send it."""
        return self._try_send(outgoing.from_event(status_event, self.source), on_delivery)

    def delete(
        self,
        document: str,
        *,
        at: datetime | None = None,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Record a delete, as `Publisher.delete` would send it."""
        return self._try_send(outgoing.from_deletion(document, self.source, at), on_delivery)

    def send_raw(
        self,
        key: bytes,
        value: bytes | None,
        headers: outgoing.Headers | None = None,
        *,
        on_delivery: deliveries.OnDelivery | None = None,
    ) -> deliveries.Receipt:
        """Record a key and a value, as `Publisher.send_raw` would send them."""
        return self._try_send(outgoing.from_bytes(key, value, headers, self.source), on_delivery)

    def flush(self, timeout_s: float | None = None) -> None:  # noqa: ARG002 - nothing is open
        """Raise Undelivered for unreported failures, as `Publisher.flush` does."""
        deliveries.raise_undelivered(self._counter, self.topic)

    def _settle(self, timeout_s: float | None) -> None:
        """Wait for nothing: every record is settled at once."""

    def metrics(self) -> metrics.PublisherMetrics:
        """Return the counts of records so far. Acknowledgements take no time here."""
        return metrics.measured(self.topic, self.source, self._counter)

    def close(self) -> None:
        """Close the publisher: sending raises Undelivered from now on."""
        self._closed = True
        deliveries.raise_undelivered(self._counter, self.topic)

    @contextlib.contextmanager
    def failing_deliveries(self, reason: str = REFUSED) -> Iterator[None]:
        """Let no record of this block be delivered: receipts, callbacks and `flush` report it."""
        self._refusal = reason
        try:
            yield
        finally:
            self._refusal = None

    @contextlib.contextmanager
    def full_queue(self) -> Iterator[None]:
        """Let sending raise in this block, as with a queue that stays full; without any wait."""
        self._is_full = True
        try:
            yield
        finally:
            self._is_full = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except errors.Undelivered as failure:
            if value is None:
                raise
            publisher.add_to_exception(value, failure)

    def _try_send(
        self, record: outgoing.OutgoingRecord, on_delivery: deliveries.OnDelivery | None
    ) -> deliveries.Receipt:
        if self._closed:
            raise publisher.closed(self.topic)
        if self._is_full:
            raise self._queue_full(self.block_timeout_s)
        receipt = self._counter.begin(on_delivery)
        if self._refusal is not None:
            self._counter.settle(
                receipt,
                errors.Undelivered(
                    f"the record of document {record.key.decode()!r} was not accepted:"
                    f" {self._refusal}",
                    publisher.PUBLISH_AGAIN,
                ),
                None,
            )
            return receipt
        kept = self._keep(record)
        self._counter.settle(
            receipt,
            None,
            deliveries.Delivery(self.topic, kept.partition, kept.offset, kept.timestamp_ms),
        )
        return receipt

    def _keep(self, record: outgoing.OutgoingRecord) -> MemoryRecord:
        with self._lock:
            chosen = partition.partition_of(record.key, len(self._ends))
            kept = MemoryRecord(
                chosen,
                self._ends[chosen],
                time.time_ns() // 1_000_000,
                record.key,
                record.value,
                record.headers,
            )
            self._ends[chosen] += 1
            self.records.append(kept)
        return kept

    def _queue_full(self, waited_s: float | None = None) -> errors.Undelivered:
        return publisher.full_queue(self.topic, waited_s)


class AsyncMemoryPublisher(AsyncPublisher):
    """Has the interface of `AsyncPublisher`, and keeps the records in the list `records`."""

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
        start_timeout_s: float = connection.TIMEOUT_S,
        outcomes: deliveries.Outcomes | None = None,
        partitions: int = 6,
        **librdkafka: Any,
    ) -> None:
        """Check the settings as the publisher does; no broker is needed."""
        given: dict[str, Any] = {
            "source": source,
            "security": security,
            "guarantee": guarantee,
            "flush_timeout_s": flush_timeout_s,
            "block_timeout_s": block_timeout_s,
            "start_timeout_s": start_timeout_s,
            "outcomes": outcomes,
            **librdkafka,
        }
        super().__init__(bootstrap, topic, **given)
        memory = MemoryPublisher(bootstrap, topic, partitions=partitions, **given)
        self._memory = memory
        self._create = lambda: memory

    @property
    def records(self) -> list[MemoryRecord]:
        """Return the records that were sent."""
        return self._memory.records

    def failing_deliveries(self, reason: str = REFUSED) -> contextlib.AbstractContextManager[None]:
        """Let no record of this block be delivered: receipts and `flush` report it."""
        return self._memory.failing_deliveries(reason)

    def full_queue(self) -> contextlib.AbstractContextManager[None]:
        """Let sending raise in this block, as with a queue that stays full; without any wait."""
        return self._memory.full_queue()
