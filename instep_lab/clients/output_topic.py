"""The output topic of a consumer that writes its results to Kafka, with or without transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from instep import errors

TIMEOUT_S = 30.0
TRANSACTION_TIMEOUT_MS = 60_000


class OutputTopic:
    """A producer of results, which are copies of the records that were read.

    With a transactional id, results become visible together with the offsets of their batch.
    """

    def __init__(self, topic: str, connection: Mapping[str, Any], transactional_id: str) -> None:
        self._topic = topic
        config: dict[str, Any] = {**connection, "log_level": 0, "linger.ms": 0}
        self._transactional, self._open = bool(transactional_id), False
        if self._transactional:
            config["transactional.id"] = transactional_id
            config["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
        self._failures: list[str] = []
        self._producer = Producer(config)
        if self._transactional:
            # This fences the previous producer with this id, and aborts its open transaction.
            self._producer.init_transactions(TIMEOUT_S)

    def write(self, message: Message) -> None:
        """Write a result and wait until the broker has it."""
        if self._transactional and not self._open:
            self._producer.begin_transaction()
            self._open = True
        self._producer.produce(
            self._topic,
            key=message.key(),
            value=message.value(),
            headers=message.headers(),
            on_delivery=self._delivered,
        )
        self._producer.flush(TIMEOUT_S)
        if self._failures:
            raise errors.InstepError(f"a result was not written: {self._failures[0]}")

    def commit(
        self,
        offsets: Sequence[TopicPartition],
        group: Any,
        *,
        before_commit: Callable[[], None],
    ) -> None:
        """Commit the open transaction with the offsets of the records that were read."""
        self._producer.send_offsets_to_transaction(list(offsets), group, TIMEOUT_S)
        before_commit()
        self._producer.commit_transaction(TIMEOUT_S)
        self._open = False

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error.name())
