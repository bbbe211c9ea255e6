"""Topics for one test, their contents, and Java's own classes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from instep import settings
from instep.kafka import connection, topics
from instep.local.broker import LocalCluster
from tests.support import kafka_jvm as jvm


@pytest.fixture
def new_topic(broker: LocalCluster) -> Callable[..., str]:
    def make(partitions: int = 6, **config: str) -> str:
        name = f"emit-{uuid.uuid4().hex}"
        with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
            topics.create(
                cluster,
                name,
                partitions,
                config={key.replace("_", "."): value for key, value in config.items()},
            )
        return name

    return make


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic()


@pytest.fixture
def read_all(broker: LocalCluster) -> Callable[..., list[Message]]:
    """Return a function that reads a whole topic, in order within each partition."""

    def read(topic: str, cluster: LocalCluster = broker) -> list[Message]:
        reader = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "tests",
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = list(reader.list_topics(topic, 60).topics[topic].partitions)
            reader.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            found: list[Message] = []
            while partitions:
                message = reader.poll(60)
                assert message is not None
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF
                    partitions.remove(message.partition())
            return found
        finally:
            reader.close()

    return read


@pytest.fixture(scope="session")
def kafka_classes() -> Iterator[Any]:
    with jvm.started() as classes:
        yield classes
