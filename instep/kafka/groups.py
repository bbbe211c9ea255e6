"""Offsets of consumer groups: read, and committed without being a member.

A pipeline mirrors where it stands to a group of its own, for the tools people have. Its commits carry a mark, and a group with
offsets that lack it belongs to somebody else: it is not written. The ledger is the truth about progress; nothing that is read
here decides anything about a pipeline.
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
    """The group that a pipeline mirrors its position to."""
    return f"{MIRROR_PREFIX}{pipeline}"


def mirror(
    cluster: connection.Cluster, group: str, topic: str, positions: Mapping[int, int]
) -> None:
    """Commit the next offsets to the group. A new cluster's first commit waits for its offsets topic to be made."""
    spots = {(topic, part): offset for part, offset in positions.items()}
    for failure in commit(cluster, group, spots, MARK).values():
        raise failure


def foreign_offsets(
    cluster: connection.Cluster, group: str, topic: str, partitions: Iterable[int]
) -> list[int]:
    """Those of a topic's partitions that another program has committed for in a group.

    Asked through a consumer: the admin client's request for offsets can crash the process when a coordinator moves.
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
    """Raise when another program keeps its offsets in a group: a mirror would overwrite them."""
    if found := foreign_offsets(cluster, group, topic, partitions):
        raise errors.SettingsError(
            f"group {group!r} holds offsets of another program in {topic} ({', '.join(map(str, found))}), so it is no mirror",
            f"have that program use another group.id; or, if nobody needs the offsets: instep groups delete {group}",
        )


def positions(cluster: connection.Cluster, group: str, topic: str) -> dict[int, int]:
    """The group's next offsets in the topic; a partition without one is left out."""
    return {
        part: offset
        for (name, part), offset in all_positions(cluster, group).items()
        if name == topic
    }


def all_positions(cluster: connection.Cluster, group: str) -> dict[Spot, int]:
    """The group's next offsets in every topic; a partition without one is left out."""
    return positions_of_each(cluster, [group])[group]


def positions_of_each(
    cluster: connection.Cluster, names: Sequence[str]
) -> dict[str, dict[Spot, int]]:
    """The same of several groups; some are asked before the first answer is waited for."""
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
        return {name: told(name, answer) for name, answer in answers.items()}

    def told(
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
    """Commit next offsets to a group without members, and return the partitions that were refused, with why."""
    return cluster.retry(lambda: _commit(cluster, group, positions, metadata)) if positions else {}


def _commit(
    cluster: connection.Cluster, group: str, positions: Mapping[Spot, int], metadata: str
) -> dict[Spot, errors.InstepError]:
    """Through a consumer: the admin client's request for this aborts the process when a broker comes back in its middle."""
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
            heard = committer.poll(connection.SLICE_S)
            error = heard.error() if heard is not None else None
            if error is not None and faults.MEANING.get(error.code()) is errors.NotAuthorised:
                raise cluster.translate(error, operation, since)
            if cluster.ear.refused_by_all(since) or time.monotonic() > since + cluster.timeout_s:
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
