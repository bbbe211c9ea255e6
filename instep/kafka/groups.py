"""Read and commit the offsets of consumer groups without being a member.

A pipeline mirrors its positions to a group of its own, for monitoring tools. Its commits have a
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
from instep.kafka.offsets import Spot

AT_ONCE = 100
MIRROR_PREFIX = "instep-"
MARK = "mirror of an instep pipeline"  # in the metadata of each commit


def mirror_name(pipeline: str) -> str:
    """Return the group to which a pipeline mirrors its positions."""
    return f"{MIRROR_PREFIX}{pipeline}"


def mirror(
    cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]
) -> None:
    """Commit the next offsets to the group; the first commit on a new cluster takes longer."""
    spots = {(topic, part): offset for part, offset in positions.items()}
    for failure in commit(cluster, group, spots, MARK).values():
        raise failure


def foreign_offsets(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> list[int]:
    """Return the partitions of a topic for which another program has committed to a group.

    Uses a consumer: the admin client's request for offsets can crash the process when a
    coordinator moves.
    """
    operation = cluster.operation(
        f"read the offsets of group {group!r}", topic=topic, group=group, right="DESCRIBE"
    )
    asked = [TopicPartition(topic, partition) for partition in partitions]

    def ask() -> list[int]:
        since = time.monotonic()
        try:
            found = cluster.committer(group)[0].committed(asked, timeout=cluster.timeout_s)
        except KafkaException as failure:
            raise cluster.translate(failure.args[0], operation, since) from failure
        return sorted(one.partition for one in found if one.offset >= 0 and one.metadata != MARK)

    return cluster.retry(ask)


def refuse_foreign(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> None:
    """Raise if another program has offsets in a group: a mirror would overwrite them."""
    if found := foreign_offsets(cluster, group, topic, partitions):
        raise errors.SettingsError(
            f"group {group!r} has offsets of another program in {topic}"
            f" ({', '.join(map(str, found))}), so it is not a mirror",
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


def all_positions(cluster: connection.Cluster, group: str) -> dict[Spot, int]:
    """Return the group's next offsets in every topic, without partitions that have none."""
    return positions_of_each(cluster, [group])[group]


def positions_of_each(
    cluster: connection.Cluster, names: Sequence[str]
) -> dict[str, dict[Spot, int]]:
    """Return the next offsets of several groups; requests are sent in batches."""
    found: dict[str, dict[Spot, int]] = {}
    for start in range(0, len(names), AT_ONCE):
        found |= _positions(cluster, names[start : start + AT_ONCE])
    return found


def _positions(cluster: connection.Cluster, names: Sequence[str]) -> dict[str, dict[Spot, int]]:
    def ask() -> dict[str, dict[Spot, int]]:
        answers: dict[str, concurrent.futures.Future[ConsumerGroupTopicPartitions]] = {}
        for name in names:
            asked = [ConsumerGroupTopicPartitions(name)]
            answers |= cluster.admin.list_consumer_group_offsets(
                asked, request_timeout=cluster.timeout_s
            )
        return {name: offsets_of(name, answer) for name, answer in answers.items()}

    def offsets_of(
        name: str, answer: concurrent.futures.Future[ConsumerGroupTopicPartitions]
    ) -> dict[Spot, int]:
        operation = cluster.operation(
            f"read the offsets of group {name!r}", group=name, right="DESCRIBE"
        )
        places = cluster.wait(answer, operation).topic_partitions
        return {
            (place.topic, place.partition): place.offset
            for place in places or ()
            if place.offset >= 0
        }

    return cluster.retry(ask)


def commit(
    cluster: connection.Cluster, group: str, positions: Mapping[Spot, int], metadata: str = ""
) -> dict[Spot, errors.InstepError]:
    """Commit next offsets to a group without members; return the refused partitions."""
    return cluster.retry(lambda: _commit(cluster, group, positions, metadata)) if positions else {}


def _commit(
    cluster: connection.Cluster, group: str, positions: Mapping[Spot, int], metadata: str
) -> dict[Spot, errors.InstepError]:
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
    places = [
        TopicPartition(topic, part, offset, metadata=metadata)
        for (topic, part), offset in positions.items()
    ]
    try:
        committer.commit(offsets=places, asynchronous=True)
        while not answers:
            message = committer.poll(connection.SLICE_S)
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
    whole, each = answers[-1]
    refused = {(place.topic, place.partition): place.error for place in each if place.error}
    if whole is not None and (
        not refused or faults.MEANING.get(whole.code()) is errors.BrokerUnreachable
    ):
        raise cluster.translate(whole, operation, since) from KafkaException(whole)
    return {spot: _refusal(cluster, group, spot, error, since) for spot, error in refused.items()}


def _refusal(
    cluster: connection.Cluster, group: str, spot: Spot, error: KafkaError, since: float
) -> errors.InstepError:
    operation = cluster.operation(
        f"commit offsets to group {group!r} in {spot[0]} {spot[1]}",
        topic=spot[0],
        group=group,
        right="READ",
    )
    failure = cluster.translate(error, operation, since)
    failure.__cause__ = KafkaException(error)
    return failure
