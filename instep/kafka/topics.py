"""Topics: what a topic is, by name and by id; made, grown and deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from instep import errors
from instep.kafka import connection, faults, layout

AS_BROKER_SAYS = -1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now. The id tells it from one of the same name that was made again."""

    name: str
    id: str
    cluster_id: str
    partitions: tuple[int, ...]


def describe(cluster: connection.Cluster, topic: str) -> Topic:
    """The topic, or TopicMissing with the names that come near."""
    try:
        description = cluster.retry(lambda: _description(cluster, topic))
    except errors.TopicMissing as failure:
        raise missing(cluster, topic) from failure.__cause__
    cluster_id = cluster.retry(lambda: _cluster_id(cluster, topic))
    return Topic(
        topic,
        str(description.topic_id),
        cluster_id,
        tuple(sorted(part.id for part in description.partitions)),
    )


def ask_id(cluster: connection.Cluster, topic: str) -> Callable[[], str]:
    """Ask for the topic's id now, and wait for the answer later: calling what is returned gives it, or raises TopicMissing."""
    answer = cluster.admin.describe_topics(
        TopicCollection([topic]), request_timeout=cluster.timeout_s
    )[topic]
    operation = cluster.operation(
        f"ask for the id of topic {topic!r}", topic=topic, right="DESCRIBE"
    )
    return lambda: str(cluster.wait(answer, operation).topic_id)


def ids(cluster: connection.Cluster, names: Collection[str]) -> dict[str, str]:
    """The id of each topic, by one request, in Kafka's spelling."""

    def ask() -> dict[str, str]:
        answers = cluster.admin.describe_topics(
            TopicCollection(list(names)), request_timeout=cluster.timeout_s
        )
        operations = {
            name: cluster.operation(f"describe topic {name!r}", topic=name, right="DESCRIBE")
            for name in names
        }
        found = {
            name: str(cluster.wait(answer, operations[name]).topic_id)
            for name, answer in answers.items()
        }
        return {name: spelled(id_) for name, id_ in found.items()}

    return cluster.retry(ask)


def spelled(id_: str) -> str:
    """A topic's id in Kafka's spelling: the client's, which the ledger keeps, has + and / in place of - and _."""
    return id_.replace("+", "-").replace("/", "_")


def is_compacted(cluster: connection.Cluster, topic: str) -> bool:
    """Whether the log keeps only the last record of each key, sooner or later."""
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def ask() -> bool:
        answer = cluster.admin.describe_configs([asked], request_timeout=cluster.timeout_s)[asked]
        found = cluster.wait(
            answer,
            cluster.operation(
                f"read the settings of topic {topic!r}", topic=topic, right="DESCRIBE_CONFIGS"
            ),
        )
        return "compact" in (found["cleanup.policy"].value or "")

    return cluster.retry(ask)


def create(
    cluster: connection.Cluster,
    name: str,
    partitions: int | None,
    replicas: int | None = None,
    config: Mapping[str, str] | None = None,
    *,
    on: Sequence[int] | None = None,
    validate_only: bool = False,
) -> None:
    """Make the topic and wait until every partition has a leader. What is None is the cluster's default.

    `on` names the brokers that hold every partition; the first leads.
    """
    parts, copies = (AS_BROKER_SAYS if count is None else count for count in (partitions, replicas))
    place: dict[str, Any] = (
        {"replica_assignment": [list(on)] * max(parts, 1)} if on else {"replication_factor": copies}
    )
    new = NewTopic(name, max(parts, 1) if on else parts, config=dict(config or {}), **place)
    answer = cluster.admin.create_topics(
        [new], validate_only=validate_only, request_timeout=cluster.timeout_s
    )[name]
    cluster.wait(answer, cluster.operation(f"create topic {name!r}", topic=name, right="CREATE"))
    if not validate_only:
        _await(
            cluster,
            name,
            lambda found: (
                found is not None
                and _led_partitions(found) == (partitions or len(found.partitions))
            ),
        )


def grow(cluster: connection.Cluster, name: str, partitions: int) -> None:
    """Raise the number of partitions. Keys move: a document's later events may land elsewhere than its earlier ones."""
    answer = cluster.admin.create_partitions(
        [NewPartitions(name, partitions)], request_timeout=cluster.timeout_s
    )[name]
    cluster.wait(
        answer,
        cluster.operation(
            f"raise topic {name!r} to {partitions} partitions", topic=name, right="ALTER"
        ),
    )
    _await(cluster, name, lambda found: _led_partitions(found) == partitions)


def delete(cluster: connection.Cluster, name: str) -> None:
    """Delete the topic and wait until it is gone from the cluster's metadata."""
    answer = cluster.admin.delete_topics([name], request_timeout=cluster.timeout_s)[name]
    cluster.wait(answer, cluster.operation(f"delete topic {name!r}", topic=name, right="DELETE"))
    _await(cluster, name, lambda found: found is None)


def trim(cluster: connection.Cluster, name: str, before: Mapping[int, int]) -> dict[int, int]:
    """Delete the records below these offsets; the first offset that each partition then holds."""
    places = [TopicPartition(name, partition, offset) for partition, offset in before.items()]
    answers = cluster.admin.delete_records(places, request_timeout=cluster.timeout_s)
    operation = cluster.operation(f"delete records of topic {name!r}", topic=name, right="DELETE")
    return {
        place.partition: cluster.wait(answer, operation).low_watermark
        for place, answer in answers.items()
    }


def names(cluster: connection.Cluster) -> list[str]:
    """Every topic we may see."""
    return list(layout.read(cluster).topics)


def placed(cluster: connection.Cluster, names: Collection[str]) -> layout.Layouts:
    """How these topics lie, and the brokers; an error for the first that is not there, or that we may not see."""
    known = layout.read(cluster)
    for name in names:
        if name not in known.topics:
            # a list leaves out what we may not see; asked by its name, the cluster says which it is
            describe(cluster, name)
            raise missing(cluster, name)
    return known


def missing(cluster: connection.Cluster, topic: str) -> errors.TopicMissing:
    """The error for a topic that is not there, with the names that come near."""
    try:
        known = names(cluster)
    except errors.InstepError:
        known = []
    return faults.topic_missing(topic, cluster.bootstrap, known)


def _description(cluster: connection.Cluster, topic: str) -> Any:
    answer = cluster.admin.describe_topics(
        TopicCollection([topic]), request_timeout=cluster.timeout_s
    )[topic]
    return cluster.wait(
        answer, cluster.operation(f"describe topic {topic!r}", topic=topic, right="DESCRIBE")
    )


def _cluster_id(cluster: connection.Cluster, topic: str) -> str:
    """From the metadata of a topic that is there: librdkafka may abort the process over an answer that comes too late to
    `describe_cluster`."""
    return cluster.metadata(cluster.operation("ask for the cluster's id"), topic).cluster_id or ""


def _await(cluster: connection.Cluster, topic: str, reached: Callable[[Any], bool]) -> None:
    """Until the metadata shows it: the controller answers before the brokers know."""
    deadline = time.monotonic() + cluster.timeout_s
    while True:
        try:
            found = cluster.retry(lambda: _description(cluster, topic))
        except errors.TopicMissing:
            found = None
        if reached(found):
            return
        if time.monotonic() > deadline:
            raise faults.translate(
                KafkaError(
                    KafkaError.LEADER_NOT_AVAILABLE,
                    f"the change to topic {topic!r} has not arrived everywhere",
                ),
                cluster.operation(f"wait for topic {topic!r}", topic=topic),
            )
        time.sleep(connection.SLICE_S)


def _led_partitions(found: Any) -> int:
    return (
        0
        if found is None
        else sum(part.leader is not None and part.leader.id >= 0 for part in found.partitions)
    )
