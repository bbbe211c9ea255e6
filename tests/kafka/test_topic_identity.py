"""A topic's id is confirmed only by an answer that has it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from instep import settings
from instep.kafka import topic_identity, topics
from instep.kafka.connection import Cluster
from instep.kafka.topic_identity import TopicIdentity
from instep.local.broker import LocalCluster
from instep.local.proxy import NetworkFault, Proxy
from tests.support.secured import SecuredBroker, login

OTHER_ID = "A" * 22


@pytest.fixture(params=["print-status", "t" * 200])
def topic(request: pytest.FixtureRequest, broker: LocalCluster) -> Iterator[topics.Topic]:
    """Create a topic whose name has one byte of length, or two."""
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        name = f"{request.param}-{uuid.uuid4().hex[:8]}"
        topics.create(cluster, name, 2)
        yield topics.describe(cluster, name)


def identity(bootstrap: str, topic: str, topic_id: str) -> TopicIdentity:
    return TopicIdentity(settings.Kafka(), bootstrap, topic, topic_id)


def is_confirmed(asked: TopicIdentity) -> bool:
    asked.ask()
    return asked.is_confirmed()


def test_an_equal_id_is_confirmed_again_and_again(
    broker: LocalCluster, topic: topics.Topic
) -> None:
    asked = identity(broker.bootstrap, topic.name, topic.id)
    assert [is_confirmed(asked) for _ in range(3)] == [True] * 3
    asked.close()
    assert is_confirmed(asked)
    asked.close()


def test_another_id_a_deleted_topic_and_a_new_one_of_the_name_are_not_confirmed(
    broker: LocalCluster, topic: topics.Topic
) -> None:
    other = identity(broker.bootstrap, topic.name, OTHER_ID)
    assert not is_confirmed(other)
    other.close()
    asked = identity(broker.bootstrap, topic.name, topic.id)
    assert is_confirmed(asked)
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.delete(cluster, topic.name)
        assert not is_confirmed(asked)
        topics.create(cluster, topic.name, 2)
        assert not is_confirmed(asked)
    asked.close()


def test_an_answer_that_nobody_read_confirms_nothing_later(
    broker: LocalCluster, topic: topics.Topic
) -> None:
    asked = identity(broker.bootstrap, topic.name, topic.id)
    asked.ask()
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.delete(cluster, topic.name)
    assert not is_confirmed(asked)
    asked.close()


def test_without_a_request_nothing_is_confirmed(broker: LocalCluster, topic: topics.Topic) -> None:
    assert not identity(broker.bootstrap, topic.name, topic.id).is_confirmed()


def test_after_a_silent_broker_the_next_address_is_asked(
    broker: LocalCluster, topic: topics.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_identity, "TIMEOUT_S", 0.2)
    host, _, port = broker.bootstrap.rpartition(":")
    with Proxy(int(port), server_host=host) as proxy:
        proxy.inject(NetworkFault(swallows_answers=True))
        asked = identity(f"{host}:{proxy.port},{broker.bootstrap}", topic.name, topic.id)
        assert not is_confirmed(asked)
        assert proxy.counts.swallowed_bytes > 0
        passed = proxy.counts.connections
        assert not is_confirmed(asked)  # it pauses after a failure
        monkeypatch.setattr(topic_identity, "PAUSE_S", 0.0)
        assert is_confirmed(asked)
        assert proxy.counts.connections == passed
        asked.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost", "no.such.host.invalid:9092"])
def test_a_broker_that_cannot_be_reached_confirms_nothing(address: str) -> None:
    assert not is_confirmed(identity(address, "t", OTHER_ID))


def test_a_listener_with_tls_confirms_and_one_with_users_is_left_to_the_admin_client(
    secured_broker: SecuredBroker,
) -> None:
    with Cluster(settings.Kafka(), secured_broker.bootstrap) as cluster:
        topics.create(cluster, "identity", 1)
        topic = topics.describe(cluster, "identity")
    security = settings.Security(
        protocol="SSL",
        ca=secured_broker.ca,
        certificate=str(secured_broker.ann.certificate),
        key=str(secured_broker.ann.key),
    )
    tls = TopicIdentity(
        settings.Kafka(security=security),
        secured_broker.bootstrap_of("mutual"),
        topic.name,
        topic.id,
    )
    assert is_confirmed(tls)
    tls.close()
    users = login("ann", "wrong")
    with_user = TopicIdentity(users, secured_broker.bootstrap_of("login"), topic.name, topic.id)
    assert not is_confirmed(with_user)
