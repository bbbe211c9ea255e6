"""Move consumer groups to another place in the log: with a plan, and only without members.

New offsets stay within the log. The end is that of the log, as in Kafka's own tool: records of
open transactions are skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from instep import errors
from instep.kafka import connection, faults, groups, offsets, places, topics
from instep.kafka.admin import consumer_groups
from instep.kafka.offsets import TopicPartitionPair

COLUMNS = "topic,partition,offset or group,topic,partition,offset"
NEW_GROUP = "; or create it, with --new-group"


@dataclass(frozen=True, slots=True)
class ToPlace:
    """To a place."""

    place: places.Place


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """By a number of offsets forward or back."""

    by: int


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """To the current position, or to the end if there is none; for a plan to export."""


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """To an offset of each partition, from a file."""

    offsets: Mapping[TopicPartitionPair, int]


Destination = ToPlace | ShiftBy | ToCurrent | ToOffsets


@dataclass(frozen=True, slots=True)
class GroupMove:
    """The move of one partition. `clamped_from` is a requested offset outside of the log."""

    topic: str
    partition: int
    current: int | None
    new: int
    clamped_from: int | None = None

    @property
    def delta(self) -> int | None:
        """Return by how many offsets the group moves."""
        return None if self.current is None else self.new - self.current


@dataclass(frozen=True, slots=True)
class GroupMoveResult:
    """The outcome of a move: the group's position now, and the error if it was refused."""

    move: GroupMove
    now: int | None
    error: errors.InstepError | None = None


def plan(
    cluster: connection.Cluster,
    group: str,
    pairs: Collection[TopicPartitionPair],
    destination: Destination,
    *,
    new_group: bool = False,
) -> list[GroupMove]:
    """Return the moves of the partitions; with `new_group` the group may not exist yet."""
    if not new_group and not consumer_groups.exists(cluster, group):
        raise consumer_groups.missing(cluster, group, NEW_GROUP)
    committed = groups.all_positions(cluster, group)
    layouts = topics.read_layouts(cluster, {topic for topic, _ in pairs}).topics
    for topic, partition in pairs:
        layouts[topic].check_partitions([partition])
        if partition not in layouts[topic].with_leader:
            raise errors.BrokerUnreachable(
                f"topic {topic!r} has no leader for partition {partition}",
                "start the broker that has it, or omit the partition: --topic T:0,1",
            )
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(set(pairs)):
        by_topic.setdefault(topic, []).append(partition)
    return [
        move
        for topic, partitions in by_topic.items()
        for move in _moves(cluster, topic, partitions, destination, committed)
    ]


def execute(
    cluster: connection.Cluster, group: str, moves: Collection[GroupMove]
) -> list[GroupMoveResult]:
    """Commit the new offsets and read them back; refused while the group has members."""
    if members := consumer_groups.members(cluster, group):
        raise consumer_groups.occupied(group, members)
    if not moves:
        return []
    refused = groups.commit(
        cluster, group, {(move.topic, move.partition): move.new for move in moves}
    )
    if any(faults.code(failure) == KafkaError.UNKNOWN_MEMBER_ID for failure in refused.values()):
        raise consumer_groups.occupied(group, consumer_groups.members(cluster, group))
    now = groups.all_positions(cluster, group)
    results = []
    for move in moves:
        pair = (move.topic, move.partition)
        position, error = now.get(pair), refused.get(pair)
        # If one partition is refused, the client reports all as refused. The positions that were
        # read back show which one it was.
        results.append(GroupMoveResult(move, position, error if position != move.new else None))
    return results


def select_partitions(
    cluster: connection.Cluster, group: str, texts: Iterable[str], *, all_topics: bool = False
) -> list[TopicPartitionPair]:
    """Return the partitions of TOPIC and TOPIC:0,1 texts, or all with offsets of the group."""
    if all_topics:
        committed = sorted(groups.all_positions(cluster, group))
        if not committed and consumer_groups.exists(cluster, group):
            raise errors.SettingsError(
                f"group {group!r} has no offsets in any topic", "name topics with --topic"
            )
        if not committed:
            raise consumer_groups.missing(cluster, group)
        return committed
    parts = [(text, *text.partition(":")) for text in texts]
    layouts = topics.read_layouts(cluster, [topic for _, topic, _, _ in parts]).topics
    pairs: list[TopicPartitionPair] = []
    for text, topic, colon, numbers in parts:
        partitions = [part.partition for part in layouts[topic].partitions]
        if colon:
            partitions = _parse_numbers(text, numbers)
        pairs += [(topic, partition) for partition in partitions]
    return pairs


def parse_csv(text: str, group: str, name: str) -> dict[TopicPartitionPair, int]:
    """Parse a file of Kafka's own tool: one line per partition, no header, group optional."""
    offset_of: dict[TopicPartitionPair, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row or row == [""]:
            continue
        where = f"{name}, line {number}"
        if len(row) not in (3, 4):
            raise errors.SettingsError(
                f"{where} has {len(row)} fields: {','.join(row)!r}", f"a line is {COLUMNS}"
            )
        *of_group, topic, partition, offset = (field.strip() for field in row)
        if of_group and of_group[0] != group:
            raise errors.SettingsError(
                f"{where} names group {of_group[0]!r}, not {group!r}",
                "reset one group at a time",
            )
        if not (topic and _is_number(partition) and _is_number(offset)):
            raise errors.SettingsError(
                f"{where} has no valid topic, partition and offset: {','.join(row)!r}",
                f"a line is {COLUMNS}",
            )
        pair = (topic, int(partition))
        if pair in offset_of:
            raise errors.SettingsError(
                f"{where} repeats {topic} {partition}", "keep one line for each partition"
            )
        offset_of[pair] = int(offset)
    if not offset_of:
        raise errors.SettingsError(f"{name} has no offsets", f"a line is {COLUMNS}")
    return offset_of


def to_csv(moves: Iterable[GroupMove]) -> str:
    """Return the plan in the format of Kafka's own tool, which has no header."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        (move.topic, move.partition, move.new) for move in moves
    )
    return text.getvalue()


def _moves(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    destination: Destination,
    committed: Mapping[TopicPartitionPair, int],
) -> list[GroupMove]:
    current = {partition: committed.get((topic, partition)) for partition in partitions}
    if isinstance(destination, ToPlace):
        resolved = places.resolve(cluster, topic, partitions, destination.place, committed=False)
        return [
            GroupMove(topic, p, current[p], resolved[p], resolved.clamped.get(p))
            for p in partitions
        ]
    first = offsets.earliest(cluster, topic, partitions)
    end = offsets.latest(cluster, topic, partitions, committed=False)
    moves = []
    for partition in partitions:
        requested = _requested_offset(
            topic, partition, destination, current[partition], end[partition]
        )
        new = min(max(requested, first[partition]), end[partition])
        clamped_from = requested if requested != new else None
        moves.append(GroupMove(topic, partition, current[partition], new, clamped_from))
    return moves


def _requested_offset(
    topic: str,
    partition: int,
    destination: ShiftBy | ToCurrent | ToOffsets,
    current: int | None,
    end: int,
) -> int:
    match destination:
        case ToOffsets(by_partition):
            return by_partition[topic, partition]
        case ToCurrent():
            return end if current is None else current
        case ShiftBy(by):
            if current is None:
                raise errors.SettingsError(
                    f"the group has no offset in {topic} {partition} to count from",
                    "use --to-offset, or omit the partition: --topic T:0,1",
                )
            return current + by


def _parse_numbers(text: str, numbers: str) -> list[int]:
    parts = [part.strip() for part in numbers.split(",")]
    if not all(_is_number(part) for part in parts):
        raise errors.SettingsError(
            f"{text!r} does not name partitions", "write TOPIC or TOPIC:0,1,2"
        )
    return [int(part) for part in parts]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= places.OFFSET_MAX
