"""Read and commit the offsets of consumer groups without being a member.

A pipeline mirrors its positions to a consumer group, for monitoring tools. Its commits have a
mark; a group with offsets without the mark belongs to another program and is not written. Only the
ledger decides about progress; what is read here never does.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from instep import errors
from instep.kafka import connection, faults
from instep.kafka.offsets import TopicPartitionPair

GROUPS_PER_ROUND = 100
MIRROR_PREFIX = "instep-"
MARK = "mirror of an instep pipeline"  # in the metadata of each commit


def mirror_name(pipeline: str) -> str:
    """Return the group to which a pipeline mirrors its positions."""
    return f"{MIRROR_PREFIX}{pipeline}"


def mirrored_pipeline(pipelines: Iterable[str], group: str) -> str | None:
    """Return the one of these pipelines whose positions a group mirrors."""
    return next((name for name in pipelines if mirror_name(name) == group), None)


def mirror(
    cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]
) -> None:
    """Commit the next offsets to the group; the first commit on a new cluster takes longer."""
    by_pair = {(topic, partition): offset for partition, offset in positions.items()}
    for failure in commit(cluster, group, by_pair, MARK).values():
        raise failure


def mirrored(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> dict[int, int]:
    """Return the next offsets that an instep job has mirrored to a group."""
    return {
        one.partition: one.offset
        for one in _committed(cluster, group, topic, partitions)
        if one.metadata == MARK
    }


def foreign_offsets(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> list[int]:
    """Return the partitions of a topic for which another program has committed to a group."""
    committed = _committed(cluster, group, topic, partitions)
    return sorted(one.partition for one in committed if one.metadata != MARK)


def _committed(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> list[TopicPartition]:
    """Return the offsets of a group, without partitions that have none.

    Uses a consumer: the admin client's request for offsets can crash the process when a
    coordinator moves.
    """
    operation = cluster.operation(
        f"read the offsets of group {group!r}", topic=topic, group=group, right="DESCRIBE"
    )
    topic_partitions = [TopicPartition(topic, partition) for partition in partitions]

    def request() -> list[TopicPartition]:
        since = time.monotonic()
        try:
            committed = cluster.committer(group)[0].committed(
                topic_partitions, timeout=cluster.timeout_s
            )
        except KafkaException as failure:
            raise cluster.translate(failure.args[0], operation, since) from failure
        return [one for one in committed if one.offset >= 0]

    return cluster.retry(request)


def refuse_foreign(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> None:
    """Raise if another program has offsets in a group: a mirror would overwrite them."""
    if foreign := foreign_offsets(cluster, group, topic, partitions):
        raise errors.SettingsError(
            f"group {group!r} has offsets of another program in {topic}"
            f" ({', '.join(map(str, foreign))}), so it is not a mirror",
            "use another group.id in that program;"
            f" or, if nobody needs the offsets: instep groups delete {group} --execute",
        )


def positions(cluster: connection.Cluster, group: str, topic: str) -> dict[int, int]:
    """Return the group's next offsets in the topic, without partitions that have none."""
    return {
        part: offset
        for (name, part), offset in all_positions(cluster, group).items()
        if name == topic
    }


def all_positions(cluster: connection.Cluster, group: str) -> dict[TopicPartitionPair, int]:
    """Return the group's next offsets in every topic, without partitions that have none."""
    return positions_of_each(cluster, [group])[group]


def positions_of_each(
    cluster: connection.Cluster, names: Sequence[str]
) -> dict[str, dict[TopicPartitionPair, int]]:
    """Return the next offsets of several groups; requests are sent in batches."""
    found: dict[str, dict[TopicPartitionPair, int]] = {}
    for start in range(0, len(names), GROUPS_PER_ROUND):
        found |= _positions(cluster, names[start : start + GROUPS_PER_ROUND])
    return found


def _positions(
    cluster: connection.Cluster, names: Sequence[str]
) -> dict[str, dict[TopicPartitionPair, int]]:
    def request() -> dict[str, dict[TopicPartitionPair, int]]:
        answers: dict[str, concurrent.futures.Future[ConsumerGroupTopicPartitions]] = {}
        for name in names:
            wanted = [ConsumerGroupTopicPartitions(name)]
            answers |= cluster.admin.list_consumer_group_offsets(
                wanted, request_timeout=cluster.timeout_s
            )
        return {name: offsets_of(name, answer) for name, answer in answers.items()}

    def offsets_of(
        name: str, answer: concurrent.futures.Future[ConsumerGroupTopicPartitions]
    ) -> dict[TopicPartitionPair, int]:
        operation = cluster.operation(
            f"read the offsets of group {name!r}", group=name, right="DESCRIBE"
        )
        topic_partitions = cluster.wait(answer, operation).topic_partitions
        return {
            (topic_partition.topic, topic_partition.partition): topic_partition.offset
            for topic_partition in topic_partitions or ()
            if topic_partition.offset >= 0
        }

    return cluster.retry(request)


def commit(
    cluster: connection.Cluster,
    group: str,
    positions: Mapping[TopicPartitionPair, int],
    metadata: str = "",
) -> dict[TopicPartitionPair, errors.InstepError]:
    """Commit next offsets to a group without members; return the refused partitions."""
    if not positions:
        return {}
    return cluster.retry(lambda: _commit(cluster, group, positions, metadata))


def _commit(
    cluster: connection.Cluster,
    group: str,
    positions: Mapping[TopicPartitionPair, int],
    metadata: str,
) -> dict[TopicPartitionPair, errors.InstepError]:
    """Commit with a consumer.

    The admin client's request can abort the process when a broker comes back meanwhile.
    """
    operation = cluster.operation(
        f"commit offsets to group {group!r}",
        topic=next(iter(positions))[0],
        group=group,
        right="READ",
    )
    since = time.monotonic()
    committer, answers = cluster.committer(group)
    answers.clear()
    topic_partitions = [
        TopicPartition(topic, part, offset, metadata=metadata)
        for (topic, part), offset in positions.items()
    ]
    try:
        committer.commit(offsets=topic_partitions, asynchronous=True)
        while not answers:
            message = committer.poll(connection.POLL_S)
            error = message.error() if message is not None else None
            if error is not None and faults.MEANING.get(error.code()) is errors.NotAuthorised:
                raise cluster.translate(error, operation, since)
            if (
                cluster.error_log.refused_by_all(since)
                or time.monotonic() > since + cluster.timeout_s
            ):
                raise cluster.translate(KafkaError(KafkaError._TIMED_OUT), operation, since)
    except KafkaException as failure:
        raise cluster.translate(failure.args[0], operation, since) from failure
    # A temporary error of the whole request is raised, so that it is retried. If partitions were
    # refused one by one, the caller gets them.
    error_of_all, results = answers[-1]
    refused = {
        (topic_partition.topic, topic_partition.partition): topic_partition.error
        for topic_partition in results
        if topic_partition.error
    }
    if error_of_all is not None and (
        not refused or faults.MEANING.get(error_of_all.code()) is errors.BrokerUnreachable
    ):
        raise cluster.translate(error_of_all, operation, since) from KafkaException(error_of_all)
    return {pair: _refusal(cluster, group, pair, error, since) for pair, error in refused.items()}


def _refusal(
    cluster: connection.Cluster,
    group: str,
    pair: TopicPartitionPair,
    error: KafkaError,
    since: float,
) -> errors.InstepError:
    operation = cluster.operation(
        f"commit offsets to group {group!r} in {pair[0]} {pair[1]}",
        topic=pair[0],
        group=group,
        right="READ",
    )
    failure = cluster.translate(error, operation, since)
    failure.__cause__ = KafkaException(error)
    return failure
