"""Change the number of replicas: a plan that spreads them over brokers and racks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from instep import errors
from instep.document.showing import counted
from instep.kafka import admin_extras, connection, layout, topics

POLL_S = 0.5
REPORT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """One partition's replicas, before and after."""

    partition: int
    now: tuple[int, ...]
    new: tuple[int, ...]


def plan(cluster: connection.Cluster, topic: str, replicas: int) -> list[ReplicaMove]:
    """Return the new replicas of each partition that changes."""
    of_topic = topics.read_layouts(cluster, [topic]).topics[topic]
    layouts = layout.read(cluster)
    if replicas > len(layouts.brokers):
        raise layout.too_few_brokers(topic, replicas, len(layouts.brokers))
    racks: Mapping[int, str | None] | None = None
    with admin_extras.connect(cluster) as extras:
        if extras is not None:
            racks = extras.racks()
    rack_of = {node: (racks or {}).get(node) for node in layouts.brokers}
    return spread(of_topic, rack_of, replicas)


def spread(
    topic: layout.Layout, brokers: Mapping[int, str | None], replicas: int
) -> list[ReplicaMove]:
    """Return the moves to a number of replicas.

    Replicas on live brokers stay. New ones go to racks without a replica, then to the brokers with
    the fewest replicas of this topic. Of too many replicas, the leader and those in sync stay.
    """
    replica_count = Counter(node for part in topic.partitions for node in part.replicas)
    moves = []
    for part in topic.partitions:
        living = [node for node in part.replicas if node in brokers]
        kept = sorted(living, key=lambda node: (node != part.leader, node not in part.in_sync))[
            :replicas
        ]
        new = [node for node in part.replicas if node in kept]
        while len(new) < replicas:
            used_racks = {brokers.get(node) for node in new} - {None}
            free = [node for node in brokers if node not in new]
            # The last term only breaks ties: it starts at another broker for each partition.
            best = min(
                free,
                key=lambda node: (
                    brokers[node] in used_racks,
                    replica_count[node],
                    (node - part.partition) % (max(brokers) + 1),
                ),
            )
            replica_count[best] += 1
            new.append(best)
        if tuple(new) != part.replicas:
            moves.append(ReplicaMove(part.partition, part.replicas, tuple(new)))
    return moves


def execute(
    cluster: connection.Cluster, topic: str, moves: list[ReplicaMove], report: Callable[[str], None]
) -> None:
    """Start the reassignment and wait until every replica is in sync.

    The cluster continues it if we are interrupted.
    """
    operation = cluster.operation(
        f"change the replicas of topic {topic!r}", topic=topic, right="ALTER"
    )
    with admin_extras.connect(cluster) as extras:
        if extras is None:
            raise errors.BrokerUnreachable(
                "the cluster does not accept a connection for this request", "try again"
            )
        codes = extras.reassign(topic, {move.partition: list(move.new) for move in moves})
    refused = {partition: code for partition, code in codes.items() if code}
    if refused:
        first = KafkaError(next(iter(refused.values())))
        failure = cluster.translate(first, operation, time.monotonic())
        accepted = len(codes) - len(refused)
        which = f"partition {', '.join(map(str, sorted(refused)))}; {accepted} were accepted"
        raise type(failure)(f"{failure.what}: {which}", failure.remedy) from KafkaException(first)
    _wait_until_in_sync(cluster, topic, {move.partition: set(move.new) for move in moves}, report)


def _wait_until_in_sync(
    cluster: connection.Cluster,
    topic: str,
    wanted: Mapping[int, set[int]],
    report: Callable[[str], None],
) -> None:
    """Wait until every replica is in sync, and report progress and what is missing."""
    reported, reported_at = -1, 0.0
    while True:
        parts = [
            part
            for part in topics.read_layouts(cluster, [topic]).topics[topic].partitions
            if part.partition in wanted
        ]
        unfinished = [
            part
            for part in parts
            if not set(part.replicas) == wanted[part.partition] <= set(part.in_sync)
        ]
        done = len(wanted) - len(unfinished)
        if done != reported or time.monotonic() - reported_at > REPORT_EVERY_S:
            behind = sorted(
                {node for part in unfinished for node in wanted[part.partition] - set(part.in_sync)}
            )
            progress = f"{done} of {counted(len(wanted), 'partition')} done"
            if behind:
                progress += f"; not in sync yet: broker {', '.join(map(str, behind))}"
            report(progress)
            reported, reported_at = done, time.monotonic()
        if not unfinished:
            return
        time.sleep(POLL_S)
