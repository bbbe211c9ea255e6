"""Kafka as a queue: a topic with one partition, read by one group.

Durable means acks=all and a commit, not durable means acks=0 and no commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TypeVar

import confluent_kafka
from confluent_kafka import admin
from confluent_kafka.cimpl import NewTopic

from instep import errors
from instep.kafka import faults
from instep.local import artifacts
from instep.waiting import retrying
from instep_lab.queues import system

ANSWER_S = 30.0
LARGEST_BYTES = 4 << 20

Answer = TypeVar("Answer")


class KafkaQueue:
    def __init__(self, bootstrap: str, name: str, *, durable: bool) -> None:
        self._durable = durable
        self._place = confluent_kafka.TopicPartition(name, 0)
        common: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
        }
        self._make_topic(common, name)
        self._producer = confluent_kafka.Producer(
            {
                **common,
                "acks": "all" if durable else "0",
                "enable.idempotence": False,
                "message.max.bytes": LARGEST_BYTES,
                "queue.buffering.max.kbytes": 1 << 18,
            }
        )
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "max.partition.fetch.bytes": LARGEST_BYTES,
            }
        )
        # Connect now, so that the first message is not measured with it.
        self._producer.list_topics(name, timeout=ANSWER_S)
        _retry(lambda: self._consumer.get_watermark_offsets(self._place, timeout=ANSWER_S))
        committed = _retry(lambda: self._consumer.committed([self._place], timeout=ANSWER_S))
        self._place.offset = max(committed[0].offset, 0)

    def enqueue(self, messages: Sequence[bytes]) -> None:
        failures: list[str] = []
        topic = self._place.topic

        def note(error: confluent_kafka.KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error.str())

        for message in messages:
            self._producer.produce(topic, message, partition=0, on_delivery=note)
            self._producer.poll(0)
        left = self._producer.flush(ANSWER_S)
        if left or failures:
            reason = next(iter(failures), "no response")
            raise errors.BrokerUnreachable(
                f"Kafka did not accept {left + len(failures)} of {len(messages)} messages: {reason}"
            )

    def dequeue(self, count: int) -> list[bytes]:
        self._consumer.assign([self._place])
        found: list[bytes] = []
        deadline = time.monotonic() + system.PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            for message in self._consumer.consume(
                min(count - len(found), system.BATCH_MESSAGES), timeout=0.1
            ):
                value, offset = message.value(), message.offset()
                if message.error() is None and value is not None and offset is not None:
                    found.append(value)
                    self._place.offset = offset + 1
                    deadline = time.monotonic() + system.PATIENCE_S
        if self._durable and found:
            self._consumer.commit(offsets=[self._place], asynchronous=False)
        return found

    def release(self) -> str:
        client = metadata.version("confluent-kafka")
        library = confluent_kafka.libversion()[0]
        return f"Kafka {artifacts.KAFKA_VERSION}, confluent-kafka {client} (librdkafka {library})"

    def close(self) -> None:
        self._producer.purge()
        self._consumer.close()

    def _make_topic(self, common: dict[str, str | int | float | bool], name: str) -> None:
        client = admin.AdminClient(common)
        settings = {"max.message.bytes": str(LARGEST_BYTES)}
        try:
            client.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(ANSWER_S)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise errors.BrokerUnreachable(
                    f"cannot create the topic of queue {name}: {error.args[0].str()}"
                ) from error


def _retry(request: Callable[[], Answer]) -> Answer:
    """Repeat a request until a new topic has a leader or a new group a coordinator."""

    def is_passing(error: Exception) -> bool:
        return isinstance(error, confluent_kafka.KafkaException) and faults.MEANING.get(
            error.args[0].code()
        ) in (errors.BrokerUnreachable, errors.TopicMissing)

    try:
        return retrying(request, is_passing, timeout_s=ANSWER_S, longest_pause_s=0.05)
    except confluent_kafka.KafkaException as error:
        raise errors.BrokerUnreachable(f"Kafka does not respond: {error.args[0].str()}") from error
