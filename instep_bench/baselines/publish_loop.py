"""Baseline of `instep bench publish`: a bare confluent-kafka loop with the publisher's settings.

It polls after every record and counts failures, as the client's own examples do. It has no
receipts, and reports no failure to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from instep import errors, settings
from instep.emit import guarantees
from instep.kafka import connection, faults

FLUSH_S = 120.0

Pair = tuple[bytes, bytes]
Headers = Sequence[tuple[str, bytes]]


class PublishLoop:
    """A producer, connected before the measurement."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._failed: list[KafkaError] = []
        config = guarantees.producer_config("exactly-once", {})
        self._producer = Producer(
            {**connection.client_config(settings.Kafka(), bootstrap), **config}, logger=faults.log
        )

    def publish(self, pairs: Iterable[Pair], headers: Headers | None) -> None:
        """Send all records and wait for every answer."""
        given: dict[str, Any] = {} if headers is None else {"headers": list(headers)}
        producer, topic, count = self._producer, self._topic, 0
        for key, value in pairs:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=self._answered, **given)
                    break
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0)
            count += 1
        left = producer.flush(FLUSH_S)
        if self._failed or left:
            reason = self._failed[0].str() if self._failed else "no answer within two minutes"
            raise errors.Undelivered(
                f"{len(self._failed) + left:,} of {count:,} records were not delivered to topic"
                f" {topic!r}: {reason}"
            )

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()

    def _answered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)
