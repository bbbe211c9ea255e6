"""A cluster to query, topics for one test, and Java's own classes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from instep import settings
from instep.kafka import connection, topics
from instep.local.broker import LocalCluster
from tests.support import kafka_jvm as jvm


@pytest.fixture
def cluster(broker: LocalCluster) -> Iterator[connection.Cluster]:
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def new_topic(cluster: connection.Cluster) -> Callable[..., str]:
    def make(partitions: int = 3, **config: str) -> str:
        name = f"kafka-{uuid.uuid4().hex}"
        topics.create(
            cluster,
            name,
            partitions,
            config={key.replace("_", "."): value for key, value in config.items()},
        )
        return name

    return make


@pytest.fixture(scope="session")
def kafka_classes() -> Iterator[Any]:
    with jvm.started() as classes:
        yield classes
