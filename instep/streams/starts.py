"""What must hold before a stream starts, and where its partitions begin.

Positions are read here without a fence, to find out early what is wrong. The tasks read them again
when nobody else can write them any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from instep import errors, settings
from instep.kafka import offsets, position_topic, reading, record_writer, topics
from instep.kafka.connection import Cluster
from instep.kafka.offsets import Span
from instep.kafka.output_topic import KnownTopic, TimestampBounds
from instep.kafka.topics import Topic
from instep.pipeline import continuity, pending
from instep.streams import output, position
from instep.streams.plan import reader_of, refuse_changed_target, target_gone
from instep.streams.position import StreamPosition

# Offsets of the output in which a stream looks for itself: at the end of each partition, or, if no
# run has left a position, everywhere.
TRACES = 500
TRACES_MAX = 1_000_000

Positions = Mapping[int, StreamPosition]


class StreamStart(msgspec.Struct, frozen=True):
    """The topics of a stream, its positions, and where partitions without one begin.

    Partitions in doubt were published, but their position is behind an open transaction.
    """

    source: Topic
    target: Topic
    positions: dict[int, StreamPosition]
    begins: dict[int, int]
    in_doubt: set[int]

    @property
    def next_offsets(self) -> dict[int, int]:
        """Return where each partition continues."""
        known = {part: one.next_offset for part, one in self.positions.items()}
        return self.begins | known


def read_positions(cluster: Cluster, name: str) -> dict[int, StreamPosition]:
    """Return the position of each partition that has one."""
    topic = position_topic.of_stream(name, 0).topic
    try:
        partitions = topics.describe(cluster, topic).partitions
    except errors.TopicMissing:
        return {}
    found = position_topic.read_all(cluster, topic, partitions)
    return {part: position.decode(value, name, part) for part, value in found.items()}


def inspect(
    cluster: Cluster, name: str, stream: settings.Stream, *, thorough: bool = False
) -> StreamStart:
    """Check topics and positions; raise what keeps the stream from starting.

    Only if this is `thorough`, a stream whose positions are all gone may start: it takes longer.
    """
    known = read_positions(cluster, name)
    reader = reader_of(name)
    source = continuity.describe(cluster, reader, stream.source, known)
    target = _target(cluster, name, stream, known)
    if stream.dead_letters is not None:
        topics.describe(cluster, stream.dead_letters)
    refuse_foreign(name, stream, known)
    continuity.refuse_replaced(reader, source, known)
    for one in known.values():
        last = KnownTopic(one.cluster_id, one.target_id, one.target_partitions)
        refuse_changed_target(name, last, target)
    continuity.refuse_expired(cluster, reader, source, known)
    continuity.refuse_diverged(cluster, reader, source, known)
    begins = pending.begins(cluster, source, stream.start, known)
    in_doubt: set[int] = set()
    if begins:
        has_begun = any(one.run != position.RESET for one in known.values())
        everywhere = thorough and not has_begun
        try:
            in_doubt = published_before(cluster, name, stream, begins, everywhere=everywhere)
        except errors.PositionMissing:
            if read_positions(cluster, name).keys() == known.keys():
                raise
            # One was committed just before, and became visible only after the first look.
            return inspect(cluster, name, stream, thorough=thorough)
    return StreamStart(source, target, known, begins, in_doubt)


def refuse_foreign(name: str, stream: settings.Stream, known: Positions) -> None:
    """Raise if the positions are those of a stream between other topics."""
    for partition, one in known.items():
        if (one.source, one.target) != (stream.source, stream.target):
            raise errors.PositionForeign(
                f"the position of stream {name!r} in partition {partition} is that of a stream"
                f" from {one.source!r} to {one.target!r}, and the settings say from"
                f" {stream.source!r} to {stream.target!r}",
                "give the stream another name, or decide where it continues:"
                f" instep stream reset {name} --to PLACE; then: instep run",
            )


def published_before(
    cluster: Cluster,
    name: str,
    stream: settings.Stream,
    partitions: Collection[int],
    *,
    everywhere: bool,
) -> set[int]:
    """Return the partitions without a position that were published before.

    Raise if the position of one is lost: from the start, its records would be published again.
    An open transaction may hold a position back. Then only the task finds out, which ends it.

    If no run has left a position (`everywhere`), the topic of the positions may have been deleted.
    Then the whole output must show that nothing was published, or it is not certain.
    """
    topic = position_topic.of_stream(name, 0).topic
    spans = _spans(cluster, topic, partitions)
    removed = _removed(cluster, topic, spans)
    published, unread = _traces(cluster, name, stream, everywhere=everywhere)
    traced = removed | (published & set(partitions))
    if everywhere and traced:
        traced = set(partitions)  # a run that publishes has claimed them all
    lost = [
        part
        for part in sorted(traced)
        if part not in spans or spans[part].committed_end >= spans[part].end
    ]
    if lost:
        raise position.missing(name, lost, f"topic {topic!r} has no position")
    if unread and not traced:
        raise position.doubtful(
            name,
            sorted(partitions),
            f"topic {unread!r}, where they would be, no longer has all its records or has too many",
        )
    return traced


def _removed(cluster: Cluster, topic: str, spans: Mapping[int, Span]) -> set[int]:
    """Return the partitions that had a position.

    Only a start that never committed its first claim leaves offsets without one: the first record
    is its mark. Compaction and deletion remove the first record before any other.
    """
    used = {part: (0, 1) for part, span in spans.items() if span.end > 0}
    firsts = {
        part
        for part, message in reading.messages(cluster, topic, used, committed=False)
        if message.key() in (position_topic.KEY, position_topic.MARK)
        and message.value() is not None
    }
    return used.keys() - firsts


def prepare(cluster: Cluster, name: str, start: StreamStart) -> None:
    """Create the topic of the positions, or the partitions that it lacks."""
    topic = position_topic.of_stream(name, 0).topic
    position_topic.create(cluster, topic, max(start.source.partitions) + 1)


def record_bytes_max(cluster: Cluster, topic: str | None) -> int:
    """Return the size of the largest record that a topic accepts; 0 without a topic."""
    if topic is None:
        return 0
    return record_writer.record_bytes_max(cluster, topic)


def timestamp_bounds(cluster: Cluster, stream: settings.Stream) -> TimestampBounds | None:
    """Return which timestamps the output topic accepts; None if they are not kept."""
    if stream.timestamp == "publish":
        return None
    return record_writer.timestamp_bounds(cluster, stream.target)


def _target(cluster: Cluster, name: str, stream: settings.Stream, known: Positions) -> Topic:
    try:
        return topics.describe(cluster, stream.target)
    except errors.TopicMissing as error:
        if not known:
            raise
        raise target_gone(name, stream.target) from error


def _spans(cluster: Cluster, topic: str, partitions: Collection[int]) -> dict[int, Span]:
    """Return the ends of those partitions of the position topic that exist."""
    try:
        existing = set(topics.describe(cluster, topic).partitions) & set(partitions)
    except errors.TopicMissing:
        return {}
    found = offsets.spans(cluster, [(topic, part) for part in sorted(existing)])
    return {part: span for (_, part), span in found.items()}


def _traces(
    cluster: Cluster, name: str, stream: settings.Stream, *, everywhere: bool
) -> tuple[set[int], str | None]:
    """Return the partitions of which the output has records, and a topic that cannot tell.

    Records of open and aborted transactions count too: a partition is claimed, which writes its
    position, before the first record is published. Dead letters are output.
    """
    found: set[int] = set()
    unread = None
    for topic in filter(None, (stream.target, stream.dead_letters)):
        parts = topics.describe(cluster, topic).partitions
        firsts = offsets.earliest(cluster, topic, parts)
        ends = offsets.latest(cluster, topic, parts, committed=False)
        look_back = TRACES
        if everywhere:
            look_back = max(TRACES, TRACES_MAX // len(parts))
            if any(firsts[part] > 0 or ends[part] > look_back for part in parts):
                unread = topic
        ranges = {part: (max(firsts[part], ends[part] - look_back), ends[part]) for part in parts}
        for part, message in reading.messages(cluster, topic, ranges, committed=False):
            origin = output.origin(offsets.record(message, part).headers, name)
            if origin is not None:
                found.add(origin)
    return found, unread
