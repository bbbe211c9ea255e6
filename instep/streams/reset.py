"""Give a stream a new position: a person decides which records are published."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping

import msgspec

from instep import errors, settings
from instep.kafka import places, position_topic, topics
from instep.kafka.connection import Cluster
from instep.kafka.places import Place
from instep.kafka.record_writer import RecordWriter
from instep.kafka.topics import Topic
from instep.streams import position, starts
from instep.streams.position import StreamPosition

CURRENT = "current"  # the place where the stream is; only the topics are accepted as they are


class MovedPartition(msgspec.Struct, frozen=True):
    """Where a partition continues after a reset. `now` is None if it has no position."""

    partition: int
    now: int | None
    then: int


class StreamResetPlan(msgspec.Struct, frozen=True):
    """What a reset changes."""

    stream: str
    source: str
    target: str
    partitions: list[MovedPartition]


def plan(
    cluster: Cluster, name: str, stream: settings.Stream, to: str, chosen: Collection[int]
) -> StreamResetPlan:
    """Return what a reset would do, in the chosen partitions or in all."""
    source = topics.describe(cluster, stream.source)
    known = _readable_positions(cluster, name)
    if unknown := set(chosen) - set(source.partitions):
        raise errors.SettingsError(
            f"topic {source.name!r} has no partition {min(unknown)}",
            f"it has 0 to {max(source.partitions)}",
        )
    partitions = sorted(chosen or source.partitions)
    then = _offsets(cluster, source, known, to, partitions)
    return StreamResetPlan(
        name,
        stream.source,
        stream.target,
        [
            MovedPartition(part, known[part].next_offset if part in known else None, then[part])
            for part in partitions
            if part in then
        ],
    )


def execute(cluster: Cluster, name: str, stream: settings.Stream, planned: StreamResetPlan) -> None:
    """Write the new positions. A run that is active meanwhile is fenced by this."""
    source = topics.describe(cluster, stream.source)
    target = topics.describe(cluster, stream.target)
    topic = position_topic.of_stream(name, 0).topic
    position_topic.create(cluster, topic, max(source.partitions) + 1)
    known = _readable_positions(cluster, name)
    epoch = max((one.epoch for one in known.values()), default=0) + 1
    for moved in planned.partitions:
        before = known.get(moved.partition)
        after = StreamPosition(
            source=source.name,
            cluster_id=source.cluster_id,
            topic_id=source.id,
            next_offset=moved.then,
            target=target.name,
            target_id=target.id,
            target_partitions=len(target.partitions),
            epoch=epoch,
            run=position.RESET,
            records=before.records if before else 0,
            published=before.published if before else 0,
            dead=before.dead if before else 0,
            at_ms=time.time_ns() // 1_000_000,
        )
        _write(cluster, name, stream, moved.partition, after)


def _write(
    cluster: Cluster, name: str, stream: settings.Stream, partition: int, after: StreamPosition
) -> None:
    writer = RecordWriter(
        cluster,
        position_topic.of_stream(name, partition),
        stream.target,
        guarantee=stream.guarantee,
        record_bytes_max=starts.record_bytes_max(cluster, stream.target),
        is_stopped=lambda: False,
    )
    with contextlib.closing(writer):
        writer.start()
        writer.begin()
        writer.commit(position.encode(after))


def _offsets(
    cluster: Cluster,
    source: Topic,
    known: Mapping[int, StreamPosition],
    to: str,
    partitions: Collection[int],
) -> dict[int, int]:
    if to != CURRENT:
        place: Place = places.parse_place(to)
        return dict(places.resolve(cluster, source.name, partitions, place))
    others = [one for one in known.values() if one.topic_id != source.id]
    if others or not known:
        raise errors.SettingsError(
            f"the stream has no position in topic {source.name!r} as it is now",
            "use --to start, --to end or another place",
        )
    return {part: known[part].next_offset for part in partitions if part in known}


def _readable_positions(cluster: Cluster, name: str) -> dict[int, StreamPosition]:
    """Return the positions; none if they cannot be read, because a reset replaces them."""
    try:
        return starts.read_positions(cluster, name)
    except errors.PositionMissing:
        return {}
