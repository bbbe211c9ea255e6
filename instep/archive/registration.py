"""Which table an archive has begun to write: kept in Kafka, for as long as the cluster exists.

A table that is no longer there looks like one that never was. The consumer group to which an
archive mirrors its positions would tell them apart, but a group that nobody commits to expires.
The compacted topic `instep-archive.NAME` does not.
"""

from __future__ import annotations

import contextlib

import msgspec

from instep import errors
from instep.archive.table import ArchiveTable
from instep.kafka import position_topic, record_writer
from instep.kafka.connection import Cluster


class Registration(msgspec.Struct, frozen=True):
    """The table of an archive, and the topic that it belongs to."""

    table: str  # its id
    path: str
    topic: str
    topic_id: str


def read(cluster: Cluster, name: str) -> Registration | None:
    """Return what an archive has registered; None if it has never begun."""
    try:
        value = position_topic.read(cluster, position_topic.of_archive(name))
    except errors.TopicMissing:
        return None
    return None if value is None else msgspec.json.decode(value, type=Registration)


def register(cluster: Cluster, name: str, table: ArchiveTable) -> None:
    """Register a table, unless it is registered already. Nothing is archived before."""
    owner = table.identity()
    mine = Registration(table.id, table.location.full_path, owner.topic, owner.topic_id)
    if read(cluster, name) == mine:
        return
    place = position_topic.of_archive(name)
    position_topic.create(cluster, place.topic)
    writer = record_writer.RecordWriter(
        cluster,
        place,
        place.topic,
        guarantee="at-least-once",
        record_bytes_max=0,
        is_stopped=lambda: False,
    )
    with contextlib.closing(writer):
        writer.begin()
        writer.commit(msgspec.json.encode(mine))
