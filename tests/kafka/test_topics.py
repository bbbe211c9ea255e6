"""Test topics on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from instep import errors
from instep.kafka import connection, groups, layout, offsets, topics
from instep.kafka.admin import consumer_groups, tail, topic_details


def test_a_created_topic_can_be_used_at_once(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic(5)
    topic = topics.describe(cluster, name)
    assert topic.name == name
    assert topic.partitions == (0, 1, 2, 3, 4)
    assert topic.id
    assert topic.cluster_id
    assert offsets.latest(cluster, name, topic.partitions) == dict.fromkeys(range(5), 0)
    assert name in topics.names(cluster)


def test_the_id_changes_when_a_topic_is_recreated(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic(2)
    before = topics.describe(cluster, name)
    topics.delete(cluster, name)
    with pytest.raises(errors.TopicMissing):
        topics.describe(cluster, name)
    topics.create(cluster, name, 2)
    after = topics.describe(cluster, name)
    assert (after.name, after.cluster_id, after.partitions) == (
        before.name,
        before.cluster_id,
        before.partitions,
    )
    assert after.id != before.id


def test_a_topic_grows(cluster: connection.Cluster, new_topic: Callable[..., str]) -> None:
    name = new_topic(2)
    topics.grow(cluster, name, 4)
    assert topics.describe(cluster, name).partitions == (0, 1, 2, 3)
    with pytest.raises(errors.SettingsError, match="INVALID_PARTITIONS"):
        topics.grow(cluster, name, 3)


def test_the_oldest_records_are_deleted(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic(2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(5):
        producer.produce(name, f"{number}", partition=0)
    producer.flush()
    assert topics.trim(cluster, name, {0: 3, 1: 0}) == {0: 3, 1: 0}
    assert offsets.earliest(cluster, name, (0, 1)) == {0: 3, 1: 0}
    with pytest.raises(errors.InstepError, match="OFFSET_OUT_OF_RANGE"):
        topics.trim(cluster, name, {0: 6})


def test_a_missing_topic_names_a_similar_one(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic()
    with pytest.raises(errors.TopicMissing, match=f"did you mean '{name}'") as caught:
        topics.describe(cluster, name[:-1])
    assert caught.value.remedy.startswith("correct the name of the topic")
    assert caught.value.remedy.endswith(
        f"instep topics create {name[:-1]} --partitions 6 --execute"
    )


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "config", "code"),
    [
        ("no/name", 1, None, {}, "TOPIC_EXCEPTION"),
        ("few", 0, None, {}, "INVALID_PARTITIONS"),
        ("many", 1, 9, {}, "INVALID_REPLICATION_FACTOR"),
        ("odd", 1, None, {"no.such": "1"}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_created_is_explained(
    cluster: connection.Cluster,
    name: str,
    partitions: int,
    replicas: int | None,
    config: dict[str, str],
    code: str,
) -> None:
    with pytest.raises(errors.SettingsError, match=code):
        topics.create(cluster, f"{name}-{uuid.uuid4().hex}", partitions, replicas, config)


def test_an_existing_topic_is_not_created_again(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    with pytest.raises(errors.SettingsError, match="TOPIC_ALREADY_EXISTS"):
        topics.create(cluster, new_topic(), 1)


def test_compacted_topics_are_recognised(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    kept, compacted = new_topic(1), f"compacted-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, compacted, 1, config={"cleanup.policy": "compact,delete"})
    assert (topics.is_compacted(cluster, kept), topics.is_compacted(cluster, compacted)) == (
        False,
        True,
    )


def test_an_id_in_kafkas_spelling() -> None:
    assert topics.kafka_spelling("7OlMDsnlTtq/Ylgy+kXCHA") == "7OlMDsnlTtq_Ylgy-kXCHA"


def test_a_question_about_one_topic_does_not_list_all(
    cluster: connection.Cluster,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Request only what is named: a cluster may have many thousands of topics."""
    name = new_topic(2)
    groups.commit(cluster, f"{name}-readers", {(name, 1): 0})

    def fail(_cluster: object) -> None:
        raise AssertionError("all topics were listed")

    monkeypatch.setattr(layout, "read", fail)
    [detail] = topic_details.describe(cluster, [name])
    assert [part.end for part in detail.partitions] == [0, 0]
    assert tail.newest(cluster, name, 5)[1] == []
    group = consumer_groups.describe(cluster, f"{name}-readers")
    assert [one.lag_records for one in group.positions] == [0, 0]
    consumer_groups.delete(cluster, f"{name}-readers")


def test_topics_that_do_not_exist_are_left_out(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    name = new_topic(1)
    assert set(topics.known_layouts(cluster, [name, f"{name}-other"])) == {name}
    assert f"{name}-other" not in topics.names(cluster)
    assert topics.known_layouts(cluster, []) == {}
