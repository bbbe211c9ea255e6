"""What waits for a pipeline, according to its ledger and the log. Spark is not needed."""

from __future__ import annotations

from collections.abc import Collection

from instep import settings
from instep.kafka import backlog, offsets, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.sinks import ledger_reader


def begins(cluster: Cluster, topic: Topic, start: str, known: Collection[int]) -> dict[int, int]:
    """Return where partitions begin that have no position yet.

    A new job begins at its `start`, a new partition of a known topic at its first record.
    """
    new = [partition for partition in topic.partitions if partition not in known]
    if not new:
        return {}
    start_time = settings.start_time(start)
    if known or start == "earliest":
        return offsets.earliest(cluster, topic.name, new)
    if start_time is None:
        return offsets.latest(cluster, topic.name, new)
    return offsets.at_time(cluster, topic.name, new, start_time)


def ahead(cluster: Cluster, name: str, pipeline: settings.Pipeline) -> dict[int, PartitionBacklog]:
    """Return what a run of this pipeline would find in each partition."""
    topic = topics.describe(cluster, pipeline.topic)
    ledger = ledger_reader.ledger(name, pipeline)
    known = {p: position for p, position in ledger.items() if p in topic.partitions}
    positions = {p: position.next_offset for p, position in known.items()}
    return backlog.read(
        cluster, topic.name, positions | begins(cluster, topic, pipeline.start, known)
    )
