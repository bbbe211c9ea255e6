"""What waits for a pipeline, from its ledger and the log alone: no Spark is needed to know it."""

from __future__ import annotations

from collections.abc import Mapping

from instep import settings
from instep.kafka import backlog, offsets, topics
from instep.kafka.backlog import PartitionBacklog
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.sinks import ledger_reader
from instep.sinks.target import Position


def begins(
    cluster: Cluster, topic: Topic, pipeline: settings.Pipeline, known: Mapping[int, Position]
) -> dict[int, int]:
    """Where partitions begin that the ledger lacks: a new pipeline's by `start`, a new partition at its first record."""
    fresh = [partition for partition in topic.partitions if partition not in known]
    if not fresh:
        return {}
    moment = settings.start_time(pipeline.start)
    if known or pipeline.start == "earliest":
        return offsets.earliest(cluster, topic.name, fresh)
    if moment is None:
        return offsets.latest(cluster, topic.name, fresh)
    return offsets.at_time(cluster, topic.name, fresh, moment)


def ahead(cluster: Cluster, name: str, pipeline: settings.Pipeline) -> dict[int, PartitionBacklog]:
    """What a run of this pipeline would find in each partition."""
    topic = topics.describe(cluster, pipeline.topic)
    known = {
        partition: at
        for partition, at in ledger_reader.ledger(name, pipeline).items()
        if partition in topic.partitions
    }
    positions = {partition: at.next_offset for partition, at in known.items()}
    return backlog.read(cluster, topic.name, positions | begins(cluster, topic, pipeline, known))
