"""Settings that the cluster holds: of topics and of brokers, each value with where it comes from. Changed one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from instep.kafka import connection

SOURCES: Mapping[int, str] = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG.value: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "cluster",
    ConfigSource.STATIC_BROKER_CONFIG.value: "broker's file",
    ConfigSource.DEFAULT_CONFIG.value: "default",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it is in force. A secret has no value."""

    name: str
    value: str | None
    source: str


Settings = Mapping[str, Setting]


def of_topics(cluster: connection.Cluster, names: Collection[str]) -> dict[str, Settings]:
    """Every setting in force of each topic."""
    return {name: _read(cluster, ConfigResource.Type.TOPIC, name) for name in names}


def of_brokers(cluster: connection.Cluster, nodes: Collection[int]) -> dict[int, Settings]:
    """Every setting in force of each broker."""
    return {node: _read(cluster, ConfigResource.Type.BROKER, str(node)) for node in nodes}


def alter_topic(cluster: connection.Cluster, topic: str, given: Mapping[str, str], unset: Collection[str] = ()) -> None:
    """Set and unset some settings of a topic; all others stay as they are."""
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in given.items()]
    changes += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset]
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    answer = cluster.admin.incremental_alter_configs([asked], request_timeout=cluster.timeout_s)[asked]
    cluster.wait(answer, cluster.deed(f"change the settings of topic {topic!r}", topic=topic, right="ALTER_CONFIGS"))


def _read(cluster: connection.Cluster, kind: Any, name: str) -> Settings:
    asked = ConfigResource(kind, name)
    what, topic = (f"topic {name!r}", name) if kind is ConfigResource.Type.TOPIC else (f"broker {name}", None)
    deed = cluster.deed(f"read the settings of {what}", topic=topic, right="DESCRIBE_CONFIGS")

    def ask() -> Settings:
        answer = cluster.admin.describe_configs([asked], request_timeout=cluster.timeout_s)[asked]
        found = cluster.wait(answer, deed)
        return {
            entry.name: Setting(entry.name, None if entry.is_sensitive else entry.value, SOURCES.get(entry.source, "unknown"))
            for entry in found.values()
        }

    return cluster.insist(ask)
