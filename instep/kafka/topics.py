"""Describe, create, grow, trim and delete topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from instep import errors
from instep.kafka import connection, faults, layout
from instep.waiting import wait_until

BROKER_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Its id distinguishes it from an earlier topic with the same name."""

    name: str
    id: str
    cluster_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedLayouts:
    """The layouts of some topics, and those of their brokers that are up."""

    topics: Mapping[str, layout.Layout]
    brokers: frozenset[int]


def describe(cluster: connection.Cluster, topic: str) -> Topic:
    """Return the topic; raise TopicMissing with similar names."""
    try:
        description = cluster.retry(lambda: _description(cluster, topic))
    except errors.TopicMissing as failure:
        raise missing(cluster, topic) from failure.__cause__
    # The topic's id alone would not show that the settings now point to another cluster.
    cluster_id = cluster.retry(lambda: _cluster_id(cluster, topic))
    return Topic(
        topic,
        str(description.topic_id),
        cluster_id,
        tuple(sorted(part.id for part in description.partitions)),
    )


def request_id(cluster: connection.Cluster, topic: str) -> str:
    """Return the topic's id, as the client writes it; raise TopicMissing if there is no topic."""
    answer = cluster.admin.describe_topics(
        TopicCollection([topic]), request_timeout=cluster.timeout_s
    )[topic]
    operation = cluster.operation(
        f"ask for the id of topic {topic!r}", topic=topic, right="DESCRIBE"
    )
    return str(cluster.wait(answer, operation).topic_id)


def ids(cluster: connection.Cluster, names: Collection[str]) -> dict[str, str]:
    """Return the id of each topic, in one request, in Kafka's spelling."""
    found = {}
    for name, description in _descriptions(cluster, names).items():
        if isinstance(description, errors.InstepError):
            raise description
        found[name] = kafka_spelling(str(description.topic_id))
    return found


def kafka_spelling(id_: str) -> str:
    """Return an id in Kafka's spelling; the client and the ledger have + and / for - and _."""
    return id_.replace("+", "-").replace("/", "_")


def is_compacted(cluster: connection.Cluster, topic: str) -> bool:
    """Return whether the topic is compacted."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def request() -> bool:
        answer = cluster.admin.describe_configs([resource], request_timeout=cluster.timeout_s)[
            resource
        ]
        config = cluster.wait(
            answer,
            cluster.operation(
                f"read the settings of topic {topic!r}", topic=topic, right="DESCRIBE_CONFIGS"
            ),
        )
        return "compact" in (config["cleanup.policy"].value or "")

    return cluster.retry(request)


def create(
    cluster: connection.Cluster,
    name: str,
    partitions: int | None,
    replicas: int | None = None,
    config: Mapping[str, str] | None = None,
    *,
    brokers: Sequence[int] | None = None,
    validate_only: bool = False,
) -> None:
    """Create the topic and wait until every partition has a leader. None: the cluster's default.

    `brokers` are the replicas of every partition; the first one leads.
    """
    count = BROKER_DEFAULT if partitions is None else partitions
    replication: dict[str, Any] = {
        "replication_factor": BROKER_DEFAULT if replicas is None else replicas
    }
    if brokers:
        # An explicit assignment lists every partition, so the broker's default cannot be used.
        count = max(count, 1)
        replication = {"replica_assignment": [list(brokers)] * count}
    new = NewTopic(name, count, config=dict(config or {}), **replication)
    answer = cluster.admin.create_topics(
        [new], validate_only=validate_only, request_timeout=cluster.timeout_s
    )[name]
    cluster.wait(answer, cluster.operation(f"create topic {name!r}", topic=name, right="CREATE"))
    if not validate_only:
        _wait_until(
            cluster,
            name,
            lambda topic: (
                topic is not None
                and _led_partitions(topic) == (partitions or len(topic.partitions))
            ),
        )


def grow(cluster: connection.Cluster, name: str, partitions: int) -> None:
    """Increase the number of partitions. Keys move to other partitions."""
    answer = cluster.admin.create_partitions(
        [NewPartitions(name, partitions)], request_timeout=cluster.timeout_s
    )[name]
    cluster.wait(
        answer,
        cluster.operation(
            f"increase topic {name!r} to {partitions} partitions", topic=name, right="ALTER"
        ),
    )
    _wait_until(cluster, name, lambda topic: _led_partitions(topic) == partitions)


def delete(cluster: connection.Cluster, name: str) -> None:
    """Delete the topic and wait until the cluster's metadata does not have it any more."""
    answer = cluster.admin.delete_topics([name], request_timeout=cluster.timeout_s)[name]
    cluster.wait(answer, cluster.operation(f"delete topic {name!r}", topic=name, right="DELETE"))
    _wait_until(cluster, name, lambda topic: topic is None)


def trim(cluster: connection.Cluster, name: str, before: Mapping[int, int]) -> dict[int, int]:
    """Delete the records below these offsets; return the new first offset of each partition."""
    topic_partitions = [
        TopicPartition(name, partition, offset) for partition, offset in before.items()
    ]
    answers = cluster.admin.delete_records(topic_partitions, request_timeout=cluster.timeout_s)
    operation = cluster.operation(f"delete records of topic {name!r}", topic=name, right="DELETE")
    return {
        topic_partition.partition: cluster.wait(answer, operation).low_watermark
        for topic_partition, answer in answers.items()
    }


def names(cluster: connection.Cluster) -> list[str]:
    """Return every topic that we may see."""
    return list(layout.read(cluster).topics)


def read_layouts(cluster: connection.Cluster, names: Collection[str]) -> NamedLayouts:
    """Return the layouts of topics; raise for one that does not exist, or that we may not see.

    Only these topics are requested: a cluster may have many thousands of others.
    """
    described = _descriptions(cluster, names)
    for name, description in described.items():
        if isinstance(description, errors.TopicMissing):
            raise missing(cluster, name) from description.__cause__
        if isinstance(description, errors.InstepError):
            raise description
    return _layouts(described)


def known_layouts(
    cluster: connection.Cluster, names: Collection[str]
) -> Mapping[str, layout.Layout]:
    """Return the layouts of those of these topics that exist and that we may see."""
    return _layouts(_descriptions(cluster, names)).topics


def missing(cluster: connection.Cluster, topic: str) -> errors.TopicMissing:
    """Return the error for a topic that does not exist, with similar names."""
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


def _descriptions(cluster: connection.Cluster, names: Collection[str]) -> dict[str, Any]:
    """Return the description of each topic, or the error of one that we cannot see.

    Unlike a request for metadata, this one never creates a topic.
    """
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}

    def request() -> dict[str, Any]:
        answers = cluster.admin.describe_topics(
            TopicCollection(wanted), request_timeout=cluster.timeout_s
        )
        return {name: result(name, answers[name]) for name in wanted}

    def result(name: str, answer: Any) -> Any:
        operation = cluster.operation(f"describe topic {name!r}", topic=name, right="DESCRIBE")
        try:
            return cluster.wait(answer, operation)
        except (errors.TopicMissing, errors.NotAuthorised) as failure:
            return failure

    return cluster.retry(request)


def _layouts(described: Mapping[str, Any]) -> NamedLayouts:
    """Return the layouts of descriptions, without errors."""
    found: dict[str, layout.Layout] = {}
    live: set[int] = set()
    for name, description in described.items():
        if isinstance(description, errors.InstepError):
            continue
        parts = sorted(description.partitions, key=lambda part: part.id)
        nodes = [node for part in parts for node in (*part.replicas, *part.isr, part.leader)]
        # a broker that is down has no address
        live |= {node.id for node in nodes if node is not None and node.host}
        found[name] = layout.Layout(
            name,
            tuple(
                layout.Partition(
                    part.id,
                    part.leader.id if part.leader is not None and part.leader.id in live else None,
                    tuple(node.id for node in part.replicas),
                    tuple(node.id for node in part.isr),
                )
                for part in parts
            ),
        )
    return NamedLayouts(found, frozenset(live))


def _cluster_id(cluster: connection.Cluster, topic: str) -> str:
    """Return the cluster's id from the metadata of an existing topic.

    librdkafka may abort the process if an answer to `describe_cluster` comes too late.
    """
    return cluster.metadata(cluster.operation("ask for the cluster's id"), topic).cluster_id or ""


def _wait_until(cluster: connection.Cluster, topic: str, is_done: Callable[[Any], bool]) -> None:
    """Wait until the metadata shows a change: the controller answers before the brokers know."""

    def is_reached() -> bool:
        try:
            return is_done(cluster.retry(lambda: _description(cluster, topic)))
        except errors.TopicMissing:
            return is_done(None)

    if not wait_until(is_reached, cluster.timeout_s, interval_s=connection.POLL_S):
        raise faults.translate(
            KafkaError(
                KafkaError.LEADER_NOT_AVAILABLE,
                f"the change to topic {topic!r} has not arrived everywhere",
            ),
            cluster.operation(f"wait for topic {topic!r}", topic=topic),
        )


def _led_partitions(description: Any) -> int:
    if description is None:
        return 0
    return sum(part.leader is not None and part.leader.id >= 0 for part in description.partitions)
