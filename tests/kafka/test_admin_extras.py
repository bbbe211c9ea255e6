"""Test the cluster's settings, and what only the Python client reads, on a real broker."""

from __future__ import annotations

from collections.abc import Callable

from instep.kafka import admin_extras, configs, connection
from instep.kafka.configs import ConfigValue
from tests.support.waiting import wait_until


def test_settings_name_their_origin(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1, retention_ms="60000", cleanup_policy="compact")
    configs.alter_topic(cluster, topic, {"retention.ms": "90000"}, ["cleanup.policy"])
    wait_until(
        lambda: configs.of_topics(cluster, [topic])[topic]["cleanup.policy"].source == "default"
    )
    found = configs.of_topics(cluster, [topic])[topic]
    assert found["retention.ms"] == ConfigValue("retention.ms", "90000", "topic")
    assert found["cleanup.policy"].value == "delete"
    ours = configs.of_brokers(cluster, [1])[1]["auto.create.topics.enable"]
    assert ours == ConfigValue("auto.create.topics.enable", "false", "broker's file")


def test_requests_that_only_kafka_python_has(
    cluster: connection.Cluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    with admin_extras.connect(cluster) as extras:
        assert extras is not None
        wait_until(
            lambda: any((topic, 1) in one.replicas for one in extras.log_dirs() or ()),
            "the new log",
        )
        quorum, features, folders = extras.quorum(), extras.features(), extras.log_dirs()
        reported = extras.setting([topic], "cleanup.policy")
    assert reported == {topic: "delete"}
    assert quorum is not None
    assert (quorum.leader, quorum.voters) == (1, (1,))
    assert features is not None
    assert features["transaction.version"] == 2
    assert folders is not None
    assert folders[0].replicas[topic, 1] == 0
    assert (folders[0].total_bytes or 0) > (folders[0].free_bytes or 0) > 0
