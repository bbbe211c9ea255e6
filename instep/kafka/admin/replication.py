"""Change the number of replicas: a plan that spreads them over brokers and racks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from instep import errors
from instep.document.showing import counted
from instep.kafka import connection, layout, topics
from instep.kafka.admin import admin_extras

POLL_S = 0.5
SAID_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """One partition's replicas, before and after."""

    partition: int
    now: tuple[int, ...]
    new: tuple[int, ...]


def plan(cluster: connection.Cluster, topic: str, copies: int) -> list[ReplicaMove]:
    """Return the new replicas of each partition that changes."""
    known = topics.placed(cluster, [topic])
    if copies > len(known.brokers):
        raise layout.too_few_brokers(topic, copies, len(known.brokers))
    with admin_extras.opened(cluster) as asked:
        racks = (asked.racks() if asked else None) or {}
    return spread(known.topics[topic], {node: racks.get(node) for node in known.brokers}, copies)


def spread(
    topic: layout.Layout, brokers: Mapping[int, str | None], copies: int
) -> list[ReplicaMove]:
    """Return the moves to a number of replicas.

    Replicas on live brokers stay. New ones go to racks without a replica, then to the brokers with
    the fewest replicas of this topic. Of too many replicas, the leader and those in sync stay.
    """
    held = Counter(node for part in topic.partitions for node in part.replicas)
    moves = []
    for part in topic.partitions:
        living = [node for node in part.replicas if node in brokers]
        kept = sorted(living, key=lambda node: (node != part.leader, node not in part.in_sync))[
            :copies
        ]
        new = [node for node in part.replicas if node in kept]
        while len(new) < copies:
            used = {brokers.get(node) for node in new} - {None}
            free = [node for node in brokers if node not in new]
            best = min(
                free,
                key=lambda node: (
                    brokers[node] in used,
                    held[node],
                    (node - part.partition) % (max(brokers) + 1),
                ),
            )
            held[best] += 1
            new.append(best)
        if tuple(new) != part.replicas:
            moves.append(ReplicaMove(part.partition, part.replicas, tuple(new)))
    return moves


def execute(
    cluster: connection.Cluster, topic: str, moves: list[ReplicaMove], say: Callable[[str], None]
) -> None:
    """Start the reassignment and wait until every replica is in sync.

    The cluster continues it if we are interrupted.
    """
    operation = cluster.operation(
        f"change the replicas of topic {topic!r}", topic=topic, right="ALTER"
    )
    with admin_extras.opened(cluster) as asked:
        if asked is None:
            raise errors.BrokerUnreachable("the cluster takes no request for this now", "try again")
        codes = asked.reassign(topic, {move.partition: list(move.new) for move in moves})
    refused = {partition: code for partition, code in codes.items() if code}
    if refused:
        first = KafkaError(next(iter(refused.values())))
        failure = cluster.translate(first, operation, time.monotonic())
        accepted = len(codes) - len(refused)
        which = f"partition {', '.join(map(str, sorted(refused)))}; {accepted} were accepted"
        raise type(failure)(f"{failure.what}: {which}", failure.remedy) from KafkaException(first)
    _await(cluster, topic, {move.partition: set(move.new) for move in moves}, say)


def _await(
    cluster: connection.Cluster,
    topic: str,
    wanted: Mapping[int, set[int]],
    say: Callable[[str], None],
) -> None:
    """Wait until every replica is in sync, and report progress and what is missing."""
    said, said_at = -1, 0.0
    while True:
        parts = [
            part
            for part in topics.placed(cluster, [topic]).topics[topic].partitions
            if part.partition in wanted
        ]
        late = [
            part
            for part in parts
            if not set(part.replicas) == wanted[part.partition] <= set(part.in_sync)
        ]
        done = len(wanted) - len(late)
        if done != said or time.monotonic() - said_at > SAID_EVERY_S:
            behind = sorted(
                {node for part in late for node in wanted[part.partition] - set(part.in_sync)}
            )
            waiting = f"; broker {', '.join(map(str, behind))} still copies" if behind else ""
            say(f"{done} of {counted(len(wanted), 'partition')} done{waiting}")
            said, said_at = done, time.monotonic()
        if not late:
            return
        time.sleep(POLL_S)
