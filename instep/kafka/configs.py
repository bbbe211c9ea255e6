"""Read and change settings of topics and brokers; each value has its source."""

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

DEFAULT = "default"
OF_TOPIC = "topic"
SOURCES: Mapping[int, str] = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: OF_TOPIC,
    ConfigSource.DYNAMIC_BROKER_CONFIG.value: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "cluster",
    ConfigSource.STATIC_BROKER_CONFIG.value: "broker's file",
    ConfigSource.DEFAULT_CONFIG.value: DEFAULT,
}
TOPICS_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """The effective value of a setting, and its source. A secret has no value."""

    name: str
    value: str | None
    source: str


Settings = Mapping[str, ConfigValue]


def of_topics(cluster: connection.Cluster, names: Collection[str]) -> dict[str, Settings]:
    """Return the effective settings of each topic."""
    topics = list(names)
    found: dict[str, Settings] = {}
    for start in range(0, len(topics), TOPICS_PER_REQUEST):
        found |= _read_topics(cluster, topics[start : start + TOPICS_PER_REQUEST])
    return found


def of_brokers(cluster: connection.Cluster, nodes: Collection[int]) -> dict[int, Settings]:
    """Return the effective settings of each broker."""
    return {node: _read_broker(cluster, node) for node in nodes}


def changed_by_broker(
    cluster: connection.Cluster, node: int
) -> dict[str, tuple[str | None, str | None]]:
    """Return the settings of a broker that differ from Kafka's default: the value and the default.

    Secrets are left out.
    """
    found: dict[str, tuple[str | None, str | None]] = {}
    for entry in _broker_entries(cluster, node).values():
        default = _default(entry)
        if not entry.is_sensitive and entry.value != default:
            found[entry.name] = (entry.value, default)
    return found


def alter_topic(
    cluster: connection.Cluster,
    topic: str,
    new_values: Mapping[str, str],
    unset: Collection[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set and unset some settings of a topic; all others stay unchanged."""
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in new_values.items()
    ]
    changes += [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    answer = cluster.admin.incremental_alter_configs(
        [resource], validate_only=validate_only, request_timeout=cluster.timeout_s
    )[resource]
    cluster.wait(
        answer,
        cluster.operation(
            f"change the settings of topic {topic!r}", topic=topic, right="ALTER_CONFIGS"
        ),
    )


def _read_topics(cluster: connection.Cluster, names: Collection[str]) -> dict[str, Settings]:
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]

    def request() -> dict[str, Settings]:
        answers = cluster.admin.describe_configs(resources, request_timeout=cluster.timeout_s)
        operations = {
            name: cluster.operation(
                f"read the settings of topic {name!r}", topic=name, right="DESCRIBE_CONFIGS"
            )
            for name in names
        }
        return {
            resource.name: _settings(cluster.wait(answer, operations[resource.name]))
            for resource, answer in answers.items()
        }

    return cluster.retry(request)


def _read_broker(cluster: connection.Cluster, node: int) -> Settings:
    return _settings(_broker_entries(cluster, node))


def _broker_entries(cluster: connection.Cluster, node: int) -> Mapping[str, Any]:
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node))
    operation = cluster.operation(f"read the settings of broker {node}", right="DESCRIBE_CONFIGS")

    def request() -> Mapping[str, Any]:
        answers = cluster.admin.describe_configs([resource], request_timeout=cluster.timeout_s)
        found: Mapping[str, Any] = cluster.wait(answers[resource], operation)
        return found

    # only this broker can answer, so it is of no use to wait for one that is down
    return cluster.try_briefly(request)


def _settings(entries: Mapping[str, Any]) -> Settings:
    return {
        entry.name: ConfigValue(
            entry.name,
            None if entry.is_sensitive else entry.value,
            SOURCES.get(entry.source, "unknown"),
        )
        for entry in entries.values()
    }


def _default(entry: Any) -> str | None:
    """Return the default of a setting, which the broker lists among its other values."""
    for one in (entry, *(entry.synonyms or {}).values()):
        if SOURCES.get(one.source) == DEFAULT:
            return None if one.value is None else str(one.value)
    return None
