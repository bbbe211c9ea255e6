"""Consumer groups as a mirror: where a pipeline stands, for the tools people have.

The ledger is the truth about progress. Nothing here is read back to decide anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from instep import errors
from instep.kafka import connection, faults


def mirror(cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]) -> None:
    """Commit the next offsets to the group. A new cluster's first commit waits for its offsets topic to be made."""
    if positions:
        cluster.insist(lambda: _commit(cluster, group, topic, positions))


def positions(cluster: connection.Cluster, group: str, topic: str) -> dict[int, int]:
    """The group's next offsets in the topic; a partition without one is left out."""
    return cluster.insist(lambda: _positions(cluster, group, topic))


def _commit(cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]) -> None:
    """Through a consumer: the admin client's request for this aborts the process when a broker comes back in its middle."""
    deed = cluster.deed(f"commit offsets to group {group!r}", topic=topic, group=group, right="READ")
    since = time.monotonic()
    committer, answers = cluster.committer(group)
    answers.clear()
    try:
        committer.commit(offsets=[TopicPartition(topic, part, offset) for part, offset in positions.items()], asynchronous=True)
        while not answers:
            heard = committer.poll(connection.SLICE_S)
            error = heard.error() if heard is not None else None
            if error is not None and faults.MEANING.get(error.code()) is errors.NotAuthorised:
                raise cluster.translate(error, deed, since)
            if cluster.ear.refused_by_all(since) or time.monotonic() > since + cluster.timeout_s:
                raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), deed, since)
    except KafkaException as failure:
        raise cluster.translate(failure.args[0], deed, since) from failure
    if answers[-1] is not None:
        raise cluster.translate(answers[-1], deed, since) from KafkaException(answers[-1])


def _positions(cluster: connection.Cluster, group: str, topic: str) -> dict[int, int]:
    answer = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=cluster.timeout_s)[
        group
    ]
    deed = cluster.deed(f"read the offsets of group {group!r}", topic=topic, group=group, right="DESCRIBE")
    places = cluster.wait(answer, deed).topic_partitions
    return {place.partition: place.offset for place in places if place.topic == topic and place.offset >= 0}
