"""Check before a start, and while it runs, that archive, topic and position belong together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from instep import errors
from instep.archive import columns, registration
from instep.archive.files import Location
from instep.archive.reader import ArchiveReader
from instep.archive.table import ArchiveTable, Ranges
from instep.document.records import Record
from instep.kafka import groups, offsets, position_topic, topics
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline import continuity, pending
from instep.pipeline.apply import transaction


class Archived(msgspec.Struct, frozen=True):
    """How far a partition is archived."""

    next_offset: int
    last_digest: str | None
    cluster_id: str
    topic_id: str


ANOTHER_FOLDER = "to archive the new topic, set `path` to another folder; keep this one as it is"


def describe(cluster: Cluster, name: str, topic: str, table: ArchiveTable | None) -> Topic:
    """Return the topic. Raise TopicGone if the archive knows it and the cluster does not."""
    try:
        return topics.describe(cluster, topic)
    except errors.TopicMissing as error:
        if table is None:
            raise
        raise errors.TopicGone(
            f"topic {topic!r} of archive {name!r} no longer exists in the cluster",
            f"the archive stays readable; {ANOTHER_FOLDER}",
        ) from error


def refuse_gone(cluster: Cluster, name: str, topic: Topic, location: Location) -> None:
    """Raise if Kafka knows that the archive has begun, though there is no table."""
    forget: list[str] = []
    done = f"has begun to archive topic {topic.name!r}"
    begun = registration.read(cluster, name)
    # Another path for a topic that was created again is what TOPIC_REPLACED recommends.
    if begun and (begun.path == location.full_path or begun.topic_id == topic.id):
        forget.append(f"instep topics delete {position_topic.of_archive(name).topic} --execute")
    group = groups.mirror_name(name)
    if positions := groups.mirrored(cluster, group, topic.name, topic.partitions):
        done = f"has archived {sum(positions.values()):,} offsets of topic {topic.name!r}"
        forget.append(f"instep groups delete {group} --execute")
    if forget:
        raise errors.ArchiveGone(
            f"archive {name!r} {done}, but there is no table at {location.path}",
            "restore the folder, or mount its disk, or correct `path`;"
            f" to begin a new archive: {'; then: '.join(forget)}",
        )


def refuse_replaced(name: str, topic: Topic, table: ArchiveTable) -> None:
    """Raise if the table belongs to another topic, or the topic is another one of its name."""
    owner = table.identity()
    if owner.topic != topic.name:
        raise errors.ArchiveReplaced(
            f"archive {name!r}: the table at {table.location.path} is the archive of topic"
            f" {owner.topic!r}, not of {topic.name!r}",
            "set `path` to a folder of its own",
        )
    if not table.belongs_to(topic):
        raise errors.TopicReplaced(
            f"topic {topic.name!r} of archive {name!r} was deleted and created again,"
            " or this is another cluster",
            f"check kafka.bootstrap; {ANOTHER_FOLDER}",
        )


def positions(table: ArchiveTable, topic: Topic) -> dict[int, int]:
    """Return where each partition continues; nothing if the archive has not begun.

    A partition that the topic got later begins at offset 0, although the log may have lost
    records of it by now.
    """
    known = table.positions(topic.partitions)
    return dict.fromkeys(topic.partitions, 0) | known if known else {}


def begins(cluster: Cluster, topic: Topic, start: str, known: Mapping[int, int]) -> dict[int, int]:
    """Return where partitions begin that are not in the archive yet."""
    if known:
        return {part: 0 for part in topic.partitions if part not in known}
    return pending.begins(cluster, topic, start, known)


def expired(
    cluster: Cluster, topic: Topic, positions: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return the ranges of offsets that were not archived, and that the log no longer has."""
    first = offsets.earliest(cluster, topic.name, list(positions))
    return {p: (positions[p], first[p]) for p in sorted(positions) if positions[p] < first[p]}


def refuse_expired(cluster: Cluster, name: str, topic: Topic, positions: Mapping[int, int]) -> None:
    """Raise if the log no longer has what comes next."""
    if lost := expired(cluster, topic, positions):
        raise errors.OffsetsExpired(
            f"records of topic {topic.name!r} that archive {name!r} does not have are no longer"
            f" in the log ({shown(lost)})",
            f"to continue without them: instep archive skip {name}"
            " (shows the plan; --execute applies it)",
        )


def refuse_lost(name: str, topic: str, lost: Ranges, despite: str) -> None:
    """Raise if neither the archive nor its topic has some of the records that are to be read.

    `despite` is the option that accepts it.
    """
    if lost:
        raise errors.OffsetsExpired(
            f"neither archive {name!r} nor topic {topic!r} has all records of this range"
            f" ({shown_ranges(lost)}): a delete that is lost would bring its document back",
            "select a range without them, with --from, --to or --partition;"
            f" or accept that they are lost: {despite}",
        )


def shown(ranges: Mapping[int, tuple[int, int]]) -> str:
    """Return half-open ranges as text, with their last offsets."""
    return shown_ranges({part: [bounds] for part, bounds in ranges.items()})


def shown_ranges(ranges: Ranges) -> str:
    """Return half-open ranges as text, with their last offsets."""
    return ", ".join(
        f"partition {part}: {start} to {end - 1}"
        for part, several in ranges.items()
        for start, end in several
    )


def refuse_diverged(
    cluster: Cluster, name: str, topic: Topic, table: ArchiveTable, positions: Mapping[int, int]
) -> None:
    """Raise if the table lacks the record before a position, or the log has another one there."""
    archived = _last_archived(name, table, positions)
    known = {
        part: Archived(position, archived.get(part), topic.cluster_id, topic.id)
        for part, position in positions.items()
    }
    if partitions := continuity.diverged(cluster, topic, known):
        raise errors.LogDiverged(
            f"topic {topic.name!r} no longer holds what archive {name!r} has:"
            f" {'; '.join(partitions.values())}",
            f"find out when the cluster lost records; {ANOTHER_FOLDER}",
        )


def _last_archived(name: str, table: ArchiveTable, positions: Mapping[int, int]) -> dict[int, str]:
    """Return the digest of the record before each position; raise if the table lacks it."""
    reader = ArchiveReader(table)
    firsts, skipped = table.firsts(positions), table.skipped()
    found: dict[int, str] = {}
    lacks: list[int] = []
    for part, position in positions.items():
        ends_in_gap = any(end == position for _, end in skipped.get(part, ()))
        if position == firsts.get(part) or ends_in_gap:
            continue
        rows = reader.rows(part, position - 1, position)
        if rows.num_rows == 0:
            lacks.append(part)
        else:
            found[part] = _digest(rows)
    if lacks:
        raise errors.ArchiveRestored(
            f"archive {name!r} lacks rows below its position"
            f" ({', '.join(f'partition {p}: offset {positions[p] - 1}' for p in lacks)}):"
            " an older version was restored, or rows were deleted",
            "restore the version before that change:"
            f" DeltaTable({table.location.path!r}).history() lists the versions,"
            " .restore(VERSION) restores one",
        )
    return found


def _digest(rows: pa.Table) -> str:
    [last] = list(columns.records(rows.slice(0, 1)))
    return transaction.digest(Record(last.offset, last.timestamp_ms, last.key, last.value))
