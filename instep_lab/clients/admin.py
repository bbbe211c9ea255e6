"""Requests to a cluster that experiments need and `instep.kafka` does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from instep.kafka import admin_extras
from instep.kafka.connection import Cluster

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

# what a client of the lab raises if it refuses its settings
REFUSALS = (KafkaException, ValueError)


def code(error: Exception) -> str | None:
    """Return the code with which the cluster rejected a request; None if it did not answer."""
    if not isinstance(error.__cause__, KafkaException):
        return None
    return str(error.__cause__.args[0].name())


def in_sync_by(connection: Mapping[str, str], topic: str) -> tuple[int, ...]:
    """Return the in-sync set, asked from the only broker that a new client knows."""
    found = AdminClient(dict(connection)).list_topics(topic, timeout=10)
    return tuple(found.topics[topic].partitions[0].isrs)


def limit_replication(cluster: Cluster, leader: int, bytes_per_s: int | None) -> None:
    """Limit the replication from a broker to followers that are not in sync, or end the limit."""
    operation, value = AlterConfigOpType.DELETE, None
    if bytes_per_s is not None:
        operation, value = AlterConfigOpType.SET, str(bytes_per_s)
    entry = ConfigEntry("leader.replication.throttled.rate", value, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.BROKER, str(leader), incremental_configs=[entry])
    answer = cluster.admin.incremental_alter_configs([resource])[resource]
    cluster.wait(answer, cluster.operation("limit the rate of replication"))


def set_session(cluster: Cluster, bootstrap: str, group: str, session_ms: int) -> None:
    """Set the session timeout of a group with the consumer protocol, for members that join later.

    librdkafka's admin client cannot change the settings of a group.
    """
    from kafka.admin import ConfigResource, ConfigResourceType

    with _kafka_python(cluster, bootstrap) as admin:
        settings_ = {"consumer.session.timeout.ms": str(session_ms)}
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.GROUP, group, settings_)], raise_on_unknown=False
        )


def remove_static(cluster: Cluster, bootstrap: str, group: str, instances: Sequence[str]) -> None:
    """Request that members with a group.instance.id leave; the brokers may refuse it."""
    from kafka import errors as client_errors
    from kafka.admin import MemberToRemove

    with (
        _kafka_python(cluster, bootstrap) as admin,
        contextlib.suppress(client_errors.KafkaError),
    ):
        admin.remove_group_members(
            group, [MemberToRemove(group_instance_id=instance) for instance in instances]
        )


@contextlib.contextmanager
def _kafka_python(cluster: Cluster, bootstrap: str) -> Iterator[KafkaAdminClient | Any]:
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(
        **admin_extras.client_config(cluster.kafka, bootstrap, cluster.timeout_s)
    )
    try:
        yield admin
    finally:
        admin.close()
