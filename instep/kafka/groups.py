"""Consumer groups as a mirror: where a pipeline stands, for the tools people have.

The ledger is the truth about progress. Nothing here is read back to decide anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from instep.kafka import connection, faults


def mirror(cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]) -> None:
    """Commit the next offsets to the group. A new cluster's first commit waits for its offsets topic to be made."""
    if positions:
        cluster.insist(lambda: _commit(cluster, group, topic, positions))


def positions(cluster: connection.Cluster, group: str, topic: str) -> dict[int, int]:
    """The group's next offsets in the topic; a partition without one is left out."""
    return cluster.insist(lambda: _positions(cluster, group, topic))


def _commit(cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]) -> None:
    places = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
    answer = cluster.admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, places)], request_timeout=cluster.timeout_s
    )[group]
    deed = cluster.deed(f"commit offsets to group {group!r}", topic=topic, group=group)
    since = time.monotonic()
    for place in cluster.wait(answer, deed).topic_partitions:
        if place.error:
            raise faults.translate(place.error, deed, cluster.ear, since) from KafkaException(place.error)


def _positions(cluster: connection.Cluster, group: str, topic: str) -> dict[int, int]:
    answer = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=cluster.timeout_s)[
        group
    ]
    deed = cluster.deed(f"read the offsets of group {group!r}", topic=topic, group=group)
    places = cluster.wait(answer, deed).topic_partitions
    return {place.partition: place.offset for place in places if place.topic == topic and place.offset >= 0}
